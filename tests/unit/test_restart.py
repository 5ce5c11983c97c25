"""Whether and when a failed job starts again."""

from tidegate.protocol.restart import (
    STABLE_AFTER_MS,
    ExponentialDelay,
    FixedDelay,
    GiveUp,
    NoRestart,
    RestartAfter,
    Restarts,
)


def test_without_restarts_the_first_failure_is_the_last() -> None:
    assert Restarts(NoRestart()).on_failure(ran_for_ms=STABLE_AFTER_MS) == GiveUp(0)


def test_a_fixed_delay_is_the_same_each_time_until_the_attempts_are_used_up() -> None:
    restarts = Restarts(FixedDelay(attempts=2, delay_ms=300.0))
    after = [restarts.on_failure(ran_for_ms=1.0) for _ in range(3)]
    assert after == [RestartAfter(300.0), RestartAfter(300.0), GiveUp(2)]


def test_the_first_restart_comes_at_once_then_an_exponential_delay_doubles_up_to_a_minute() -> None:
    restarts = Restarts(ExponentialDelay(attempts=20, first_delay_ms=1000.0))
    delays = [restarts.on_failure(ran_for_ms=1.0) for _ in range(9)]
    expected = [0.0, 1000.0, 2000.0, 4000.0, 8000.0, 16_000.0, 32_000.0, 60_000.0, 60_000.0]
    assert delays == [RestartAfter(delay_ms) for delay_ms in expected]


def test_an_exponential_delay_gives_up_after_its_attempts() -> None:
    restarts = Restarts(ExponentialDelay(attempts=1, first_delay_ms=10.0))
    assert [restarts.on_failure(ran_for_ms=1.0) for _ in range(2)] == [RestartAfter(0.0), GiveUp(1)]


def test_a_job_that_ran_long_enough_counts_afresh() -> None:
    restarts = Restarts(ExponentialDelay(attempts=1, first_delay_ms=10.0))
    restarts.on_failure(ran_for_ms=1.0)
    assert restarts.on_failure(ran_for_ms=STABLE_AFTER_MS) == RestartAfter(0.0)
    assert restarts.on_failure(ran_for_ms=STABLE_AFTER_MS - 1) == GiveUp(1)


def test_however_many_failures_come_in_a_row_the_delay_stays_a_number() -> None:
    restarts = Restarts(ExponentialDelay(attempts=1_000_000, first_delay_ms=1000.0))
    assert {restarts.on_failure(ran_for_ms=1.0) for _ in range(5_000)} >= {RestartAfter(60_000.0)}
