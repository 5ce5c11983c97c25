"""Active backpressure: a source waits only for checkpoints that are under way, and never for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.ids import CheckpointId
from tidegate.protocol.admission import REMEMBERED_CHECKPOINTS, ActiveBackpressure, SourceAdmission

INTERVAL_MS = 1000.0


def admission(mode: ActiveBackpressure, max_concurrent: int = 1) -> SourceAdmission:
    return SourceAdmission(mode, interval_ms=INTERVAL_MS, max_concurrent=max_concurrent, now_ms=0.0)


def id_(number: int) -> CheckpointId:
    return CheckpointId(number)


both = pytest.mark.parametrize("mode", [ActiveBackpressure.ON, ActiveBackpressure.STRICT])


def test_the_modes_are_those_of_the_option() -> None:
    assert [ActiveBackpressure(value) for value in ("false", "true", "strict")] == list(ActiveBackpressure)


@both
def test_without_a_checkpoint_under_way_the_source_pulls(mode: ActiveBackpressure) -> None:
    assert admission(mode).may_pull(10 * INTERVAL_MS)


@both
def test_the_source_pulls_for_one_interval_after_its_barrier_and_then_waits(mode: ActiveBackpressure) -> None:
    source = admission(mode)
    source.on_triggered(id_(1), 500.0)
    assert source.may_pull(1499.0)
    assert not source.may_pull(1500.0)


@both
def test_it_waits_only_when_as_many_are_pending_as_may_be(mode: ActiveBackpressure) -> None:
    source = admission(mode, max_concurrent=2)
    source.on_triggered(id_(1), 0.0)
    assert source.may_pull(5000.0)
    source.on_triggered(id_(2), 5000.0)
    assert source.may_pull(5999.0)
    assert not source.may_pull(6000.0)
    source.on_settled(id_(1))
    assert source.may_pull(6000.0)


def test_off_never_waits() -> None:
    source = admission(ActiveBackpressure.OFF)
    source.on_triggered(id_(1), 0.0)
    assert source.may_pull(1e9)
    assert source.paused_ms(1e9) == 0.0


def test_on_goes_on_when_the_newest_pending_barrier_has_reached_every_task() -> None:
    source = admission(ActiveBackpressure.ON, max_concurrent=2)
    source.on_triggered(id_(1), 0.0)
    source.on_triggered(id_(2), 0.0)
    source.on_reached_all(id_(1))
    assert not source.may_pull(1000.0)
    source.on_reached_all(id_(2))
    assert source.may_pull(1000.0)


def test_strict_goes_on_only_when_one_has_settled() -> None:
    source = admission(ActiveBackpressure.STRICT)
    source.on_triggered(id_(1), 0.0)
    source.on_reached_all(id_(1))
    assert not source.may_pull(1000.0)
    source.on_settled(id_(1))
    assert source.may_pull(1000.0)


@both
def test_a_checkpoint_that_settled_before_its_barrier_is_never_waited_for(mode: ActiveBackpressure) -> None:
    source = admission(mode)
    source.on_settled(id_(1))
    source.on_triggered(id_(1), 0.0)
    assert source.may_pull(5000.0)


@both
def test_a_barrier_that_comes_again_after_its_checkpoint_settled_is_not_waited_for(mode: ActiveBackpressure) -> None:
    source = admission(mode)
    source.on_triggered(id_(1), 0.0)
    source.on_settled(id_(1))
    source.on_triggered(id_(1), 0.0)
    assert source.may_pull(5000.0)


def test_a_barrier_known_to_have_reached_every_task_before_it_was_sent_is_not_waited_for() -> None:
    source = admission(ActiveBackpressure.ON)
    source.on_reached_all(id_(1))
    source.on_triggered(id_(1), 0.0)
    assert source.may_pull(5000.0)


@both
def test_news_of_checkpoints_this_source_never_saw_does_not_end_a_pause(mode: ActiveBackpressure) -> None:
    source = admission(mode)
    source.on_triggered(id_(5), 0.0)
    for stranger in (3, 4, 6, 7):
        source.on_reached_all(id_(stranger))
        source.on_settled(id_(stranger))
    assert not source.may_pull(1000.0)


@both
def test_a_checkpoint_forgotten_among_too_many_is_not_waited_for(mode: ActiveBackpressure) -> None:
    source = admission(mode)
    for number in range(1, REMEMBERED_CHECKPOINTS + 3):
        source.on_settled(id_(number))
    for number in (1, 2, 3, REMEMBERED_CHECKPOINTS + 2):
        source.on_triggered(id_(number), 0.0)
        assert source.may_pull(5000.0)
    source.on_triggered(id_(REMEMBERED_CHECKPOINTS + 3), 0.0)
    assert not source.may_pull(5000.0)


def test_what_is_remembered_is_bounded() -> None:
    source = admission(ActiveBackpressure.ON)
    for number in range(1, 5 * REMEMBERED_CHECKPOINTS):
        source.on_triggered(id_(number), 0.0)
        source.on_reached_all(id_(number))
        source.on_settled(id_(number))
    remembered = (source._settled._ids, source._settled._lowest_first, source._reached_all._ids)
    assert [len(ids) for ids in remembered] == [REMEMBERED_CHECKPOINTS] * 3
    assert not source._pending


def test_paused_time_counts_from_the_first_refusal_to_the_next_pull() -> None:
    source = admission(ActiveBackpressure.STRICT)
    source.on_triggered(id_(1), 0.0)
    assert not source.may_pull(1200.0)
    assert not source.may_pull(1500.0)
    assert source.paused_ms(1700.0) == 500.0
    source.on_settled(id_(1))
    assert source.may_pull(2000.0)
    assert source.paused_ms(9000.0) == 800.0
    source.on_triggered(id_(2), 9000.0)
    assert not source.may_pull(10_000.0)
    assert source.paused_ms(10_100.0) == 900.0


EVENTS = st.lists(
    st.tuples(st.sampled_from(["triggered", "reached", "settled"]), st.integers(1, 6), st.integers(0, 800)),
    max_size=40,
)


@settings(max_examples=300)
@given(EVENTS, st.sampled_from(ActiveBackpressure), st.integers(1, 3))
def test_whatever_the_order_it_waits_by_the_rule_and_never_for_ever(
    events: list[tuple[str, int, int]], mode: ActiveBackpressure, max_concurrent: int
) -> None:
    source = admission(mode, max_concurrent)
    triggered: set[int] = set()
    reached: set[int] = set()
    settled: set[int] = set()
    now_ms = last_barrier_ms = 0.0
    for kind, number, later_ms in events:
        now_ms += later_ms
        if kind == "triggered":
            source.on_triggered(id_(number), now_ms)
            triggered.add(number)
            last_barrier_ms = now_ms
        elif kind == "reached":
            source.on_reached_all(id_(number))
            reached.add(number)
        else:
            source.on_settled(id_(number))
            settled.add(number)
        pending = triggered - settled
        must_wait = (
            mode is not ActiveBackpressure.OFF
            and len(pending) >= max_concurrent
            and now_ms - last_barrier_ms >= INTERVAL_MS
            and (mode is ActiveBackpressure.STRICT or max(pending) not in reached)
        )
        assert source.may_pull(now_ms) is not must_wait
    for number in triggered - settled:
        source.on_settled(id_(number))
    assert source.may_pull(now_ms + 10 * INTERVAL_MS)
