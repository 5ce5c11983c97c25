"""Checkpoints while tasks end, and when a task has finished."""

from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import CheckpointId, TaskId, VertexId
from tidegate.protocol.finished import Finish, TaskEnd, TaskGraph, to_trigger, to_wait_for


def task(vertex: int, subtask: int = 0) -> TaskId:
    return TaskId(VertexId(vertex), subtask)


def graph(senders: dict[TaskId, list[TaskId]]) -> TaskGraph:
    return TaskGraph({receiver: frozenset(tasks) for receiver, tasks in senders.items()})


LEFT, RIGHT, JOIN, SINK = task(0), task(1), task(2), task(3)
TWO_SOURCES = graph({LEFT: [], RIGHT: [], JOIN: [LEFT, RIGHT], SINK: [JOIN]})


def id(number: int) -> CheckpointId:
    return CheckpointId(number)


# -- the graph


def test_while_nothing_has_finished_the_sources_are_triggered_and_all_are_waited_for() -> None:
    assert to_trigger(TWO_SOURCES, frozenset()) == [LEFT, RIGHT]
    assert to_wait_for(TWO_SOURCES, frozenset()) == [LEFT, RIGHT, JOIN, SINK]


def test_a_task_with_a_sender_that_runs_gets_its_barrier_from_that_one() -> None:
    assert to_trigger(TWO_SOURCES, {LEFT}) == [RIGHT]
    assert to_wait_for(TWO_SOURCES, {LEFT}) == [RIGHT, JOIN, SINK]


def test_a_task_all_of_whose_senders_are_finished_is_triggered() -> None:
    assert to_trigger(TWO_SOURCES, {LEFT, RIGHT}) == [JOIN]
    assert to_trigger(TWO_SOURCES, {LEFT, RIGHT, JOIN}) == [SINK]


def test_when_all_have_finished_there_is_nobody_to_trigger_and_nobody_to_wait_for() -> None:
    everyone = {LEFT, RIGHT, JOIN, SINK}
    assert (to_trigger(TWO_SOURCES, everyone), to_wait_for(TWO_SOURCES, everyone)) == ([], [])


def test_a_sender_that_is_not_in_the_graph_is_named() -> None:
    with pytest.raises(ProtocolViolation, match=r"v2\.0 receives from v9\.1"):
        graph({JOIN: [task(9, 1)]})


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_barriers_from_the_triggered_reach_exactly_those_that_are_waited_for(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    tasks = [task(number) for number in range(size)]
    senders = {
        receiver: data.draw(st.lists(st.sampled_from(tasks[:at]), unique=True)) if at else []
        for at, receiver in enumerate(tasks)
    }
    finished: set[TaskId] = set()
    for one in tasks:  # a task finishes behind its senders
        if finished.issuperset(senders[one]) and data.draw(st.booleans()):
            finished.add(one)
    drawn = graph(senders)
    reached = set(to_trigger(drawn, finished))
    for receiver in tasks:
        if reached.intersection(senders[receiver]):
            reached.add(receiver)
    assert reached == set(to_wait_for(drawn, finished))


# -- one task


def test_a_task_is_finished_by_end_consumed_outputs_and_a_complete_checkpoint_after_the_end() -> None:
    end = TaskEnd()
    assert end.on_end() == []
    assert end.on_outputs_consumed() == []
    assert end.on_snapshot(id(4)) == []
    assert not end.is_finished
    assert end.on_completed(id(4)) == [Finish()]
    assert end.is_finished


def test_outputs_may_be_consumed_last() -> None:
    end = TaskEnd()
    end.on_end()
    end.on_snapshot(id(4))
    assert end.on_completed(id(4)) == []
    assert end.on_outputs_consumed() == [Finish()]


def test_a_snapshot_from_before_the_end_does_not_cover_it() -> None:
    end = TaskEnd()
    end.on_snapshot(id(4))
    end.on_end()
    end.on_outputs_consumed()
    assert end.on_completed(id(4)) == []
    end.on_snapshot(id(5))
    assert end.on_completed(id(5)) == [Finish()]


def test_a_completed_checkpoint_without_a_snapshot_of_the_task_does_not_cover_its_end() -> None:
    end = TaskEnd()
    end.on_end()
    end.on_outputs_consumed()
    assert end.on_completed(id(3)) == []
    end.on_snapshot(id(4))
    assert end.on_completed(id(3)) == []
    assert end.on_completed(id(5)) == []
    assert end.on_completed(id(4)) == [Finish()]


def test_after_checkpoints_that_failed_any_later_one_serves() -> None:
    end = TaskEnd()
    end.on_end()
    end.on_outputs_consumed()
    for number in range(4, 1000):
        assert end.on_snapshot(id(number)) == []
    assert end.on_completed(id(998)) == [Finish()]


def test_snapshots_after_the_end_may_come_out_of_order() -> None:
    end = TaskEnd()
    end.on_end()
    end.on_outputs_consumed()
    end.on_snapshot(id(7))
    end.on_snapshot(id(6))
    assert end.on_completed(id(6)) == [Finish()]


def test_one_that_was_overtaken_by_one_from_before_the_end_does_not_cover_it() -> None:
    end = TaskEnd()
    end.on_snapshot(id(7))
    end.on_end()
    end.on_outputs_consumed()
    end.on_snapshot(id(6))
    end.on_snapshot(id(8))
    assert end.on_completed(id(7)) == []
    assert end.on_completed(id(8)) == [Finish()]


@pytest.mark.parametrize("order", list(permutations(["end", "consumed", "snapshot", "completed"])))
def test_it_finishes_exactly_once_in_whatever_order_the_events_come(order: tuple[str, ...]) -> None:
    end = TaskEnd()
    events: dict[str, Callable[[], list[Finish]]] = {
        "end": end.on_end,
        "consumed": end.on_outputs_consumed,
        "snapshot": lambda: end.on_snapshot(id(1)),
        "completed": lambda: end.on_completed(id(1)),
    }
    actions = [action for name in order for action in events[name]()]
    covers = order.index("end") < order.index("snapshot") < order.index("completed")
    assert actions == ([Finish()] if covers else [])
    assert end.is_finished == covers
    end.on_snapshot(id(2))  # the next checkpoint finishes what the first did not
    assert actions + end.on_completed(id(2)) == [Finish()]
    assert [call() for call in events.values()] == [[]] * 4


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 6), st.integers(0, 20), st.lists(st.integers(1, 6)))
def test_it_finishes_with_the_first_completed_one_that_was_taken_after_the_end(
    taken_before: int, consumed_at: int, completions: list[int]
) -> None:
    end = TaskEnd()
    for number in range(1, taken_before + 1):
        end.on_snapshot(id(number))
    end.on_end()
    for number in range(taken_before + 1, 7):
        end.on_snapshot(id(number))
    for at, completed in enumerate(completions):
        if at == consumed_at:
            end.on_outputs_consumed()
        end.on_completed(id(completed))
        covered = any(earlier > taken_before for earlier in completions[: at + 1])
        assert end.is_finished == (covered and at >= consumed_at)
