"""How many checkpoints there were, how they ended, how long and large the completed ones were."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.statistics import SUMMED_UP, CheckpointStatistics, LastFailure, Owner, StatisticsView, Summary


def complete(statistics: CheckpointStatistics, *durations_ms: float) -> None:
    for duration_ms in durations_ms:
        statistics.on_triggered(Owner.JOB)
        statistics.on_completed(Owner.JOB, duration_ms=duration_ms, state_bytes=10, inflight_bytes=0)


def test_at_first_there_is_nothing_to_sum_up() -> None:
    assert CheckpointStatistics().snapshot() == StatisticsView(
        triggered=0,
        completed=0,
        failed=0,
        in_progress=0,
        triggered_savepoints=0,
        completed_savepoints=0,
        by_reason={},
        duration_ms=None,
        state_bytes=None,
        inflight_bytes=None,
        last_failure=None,
    )


def test_every_one_is_counted_by_how_it_ended() -> None:
    statistics = CheckpointStatistics()
    for owner in (Owner.JOB, Owner.JOB, Owner.USER, Owner.USER, Owner.JOB):
        statistics.on_triggered(owner)
    statistics.on_completed(Owner.JOB, duration_ms=20.0, state_bytes=100, inflight_bytes=7)
    statistics.on_completed(Owner.USER, duration_ms=40.0, state_bytes=300, inflight_bytes=0)
    statistics.on_failed(FailureReason.EXPIRED, 600.0)
    statistics.on_failed(FailureReason.DECLINED, 5.0)
    view = statistics.snapshot()
    assert (view.triggered, view.completed, view.failed, view.in_progress) == (5, 2, 2, 1)
    assert (view.triggered_savepoints, view.completed_savepoints) == (2, 1)
    assert view.by_reason == {FailureReason.EXPIRED: 1, FailureReason.DECLINED: 1}
    assert view.last_failure == LastFailure(reason=FailureReason.DECLINED, duration_ms=5.0)
    assert view.state_bytes == Summary(min=100, mean=200, max=300, p50=100, p95=300, p99=300)
    assert view.inflight_bytes == Summary(min=0, mean=3.5, max=7, p50=0, p95=7, p99=7)


def test_what_was_refused_is_counted_by_reason_and_is_no_failed_one() -> None:
    statistics = CheckpointStatistics()
    statistics.on_refused(FailureReason.TOO_MANY_REQUESTS)
    view = statistics.snapshot()
    assert (view.triggered, view.failed, view.in_progress) == (0, 0, 0)
    assert view.by_reason == {FailureReason.TOO_MANY_REQUESTS: 1}
    assert view.last_failure is None


def test_percentiles_are_values_that_were_seen() -> None:
    statistics = CheckpointStatistics()
    complete(statistics, *(float(ms) for ms in range(100, 0, -1)))
    assert statistics.snapshot().duration_ms == Summary(min=1.0, mean=50.5, max=100.0, p50=50.0, p95=95.0, p99=99.0)


def test_one_alone_is_every_percentile() -> None:
    statistics = CheckpointStatistics()
    complete(statistics, 3.0)
    assert statistics.snapshot().duration_ms == Summary(min=3.0, mean=3.0, max=3.0, p50=3.0, p95=3.0, p99=3.0)


def test_only_the_newest_are_summed_up_but_all_are_counted() -> None:
    statistics = CheckpointStatistics()
    complete(statistics, 9999.0, 0.5, *([2.0] * SUMMED_UP))
    view = statistics.snapshot()
    assert view.completed == SUMMED_UP + 2
    assert view.duration_ms == Summary(min=2.0, mean=2.0, max=2.0, p50=2.0, p95=2.0, p99=2.0)


def test_a_view_does_not_change_afterwards() -> None:
    statistics = CheckpointStatistics()
    statistics.on_triggered(Owner.JOB)
    statistics.on_failed(FailureReason.EXPIRED, 1.0)
    before = statistics.snapshot()
    statistics.on_triggered(Owner.JOB)
    statistics.on_failed(FailureReason.EXPIRED, 2.0)
    assert (before.failed, before.by_reason) == (1, {FailureReason.EXPIRED: 1})
    assert statistics.snapshot().by_reason == {FailureReason.EXPIRED: 2}


def test_every_event_shows_in_the_next_view() -> None:
    statistics = CheckpointStatistics()
    views = [statistics.snapshot()]
    statistics.on_triggered(Owner.JOB)
    views.append(statistics.snapshot())
    statistics.on_completed(Owner.JOB, duration_ms=1.0, state_bytes=1, inflight_bytes=1)
    views.append(statistics.snapshot())
    statistics.on_triggered(Owner.JOB)
    views.append(statistics.snapshot())
    statistics.on_failed(FailureReason.EXPIRED, 1.0)
    views.append(statistics.snapshot())
    statistics.on_refused(FailureReason.NOT_RUNNING)
    views.append(statistics.snapshot())
    assert all(earlier != later for earlier, later in pairwise(views))
    assert statistics.snapshot() is views[-1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_the_numbers_of_a_summary_are_ordered_and_each_percentile_covers_its_share(durations_ms: list[float]) -> None:
    statistics = CheckpointStatistics()
    complete(statistics, *durations_ms)
    summary = statistics.snapshot().duration_ms
    assert summary is not None
    assert summary.min <= summary.p50 <= summary.p95 <= summary.p99 <= summary.max
    for percent, value in ((50, summary.p50), (95, summary.p95), (99, summary.p99)):
        assert value in durations_ms
        assert 100 * sum(duration <= value for duration in durations_ms) >= percent * len(durations_ms)
        assert 100 * sum(duration < value for duration in durations_ms) < percent * len(durations_ms)
