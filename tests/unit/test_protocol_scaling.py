"""What the protocol does grows with the job and not with its square: counted in steps of the interpreter, not in time.

A count is the same on every machine and at any load. Four times the size may take up to six times the steps, so that
a logarithm fits in and a loop over everything inside a loop over everything, sixteen times the steps, does not.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from benchmarks.coordinator_at_size import CoordinatorAtSize, Shape, acknowledgements
from benchmarks.gate_at_size import (
    barrier_machine,
    channels_of,
    gate,
    pass_gate,
    pass_machine,
    pass_watermarks,
    pass_window,
    steps_of_one_busy_channel,
)
from tidegate.model.ids import Sequence
from tidegate.protocol.channel_ranges import ReceiverRange, SenderRange, find_gap
from tidegate.protocol.kinds import CheckpointKind

MOST_GROWTH = 6.0
VERTICES = 3
SLOTS = 20
CHANNELS = 30


def steps_of(run: Callable[[], object]) -> int:
    """How many bytecodes of Python `run` executes. A loop inside one call of C counts as one."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def growth(run: Callable[[int], Callable[[], object]], size: int) -> float:
    """Prepares the run of each size, then counts only the run."""
    small, large = run(size), run(4 * size)
    return steps_of(large) / steps_of(small)


def test_the_count_tells_linear_from_quadratic() -> None:
    def linear(size: int) -> Callable[[], object]:
        return lambda: [number + 1 for number in range(size)]

    def quadratic(size: int) -> Callable[[], object]:
        return lambda: [a + b for a in range(size) for b in range(size)]

    assert growth(linear, 100) < MOST_GROWTH < growth(quadratic, 100)


# -- the coordinator


class Job:
    """A checkpoint that was triggered, and what the slots will say of it."""

    def __init__(self, folder: Path, slots: int) -> None:
        shape = Shape(vertices=VERTICES, slots=slots)
        self.coordinator = CoordinatorAtSize(shape, folder / str(slots))
        self.said = acknowledgements(shape, generation=self.coordinator.generation)
        self.coordinator.trigger()

    def hear_all_but_the_last(self) -> None:
        for slot, message in enumerate(self.said[:-1]):
            self.coordinator.hear(slot, message)

    def hear_the_last(self) -> None:
        self.coordinator.hear(len(self.said) - 1, self.said[-1])

    def work_beside(self) -> None:
        while (taken := self.coordinator.beside.take()) is not None:
            work, then = taken
            work()
            then(None)


def test_acknowledgements_of_all_slots(tmp_path: Path) -> None:
    assert growth(lambda slots: Job(tmp_path, slots).hear_all_but_the_last, SLOTS) < MOST_GROWTH


def test_the_manifest_after_the_last_acknowledgement(tmp_path: Path) -> None:
    def run(slots: int) -> Callable[[], object]:
        job = Job(tmp_path, slots)
        job.hear_all_but_the_last()
        return job.hear_the_last

    assert growth(run, SLOTS) < MOST_GROWTH


def test_storing_telling_committing_and_retiring(tmp_path: Path) -> None:
    committed = []

    def run(slots: int) -> Callable[[], object]:
        job = Job(tmp_path, slots)
        job.hear_all_but_the_last()
        job.hear_the_last()
        committed.append(job.coordinator.outcome.committed)
        return job.work_beside

    assert growth(run, SLOTS) < MOST_GROWTH
    assert committed == [[1], [1]]


def test_finding_the_gap_between_the_two_sides_of_channels() -> None:
    def run(count: int) -> Callable[[], object]:
        three, four = Sequence(3), Sequence(4)
        received = [
            ReceiverRange(channel=channel, first=three, row=0, held_from=three, before=four)
            for channel in channels_of(count)
        ]
        held = [SenderRange(channel=channel, held_from=three, before=four) for channel in channels_of(count)]
        return partial(find_gap, received, held)

    assert run(CHANNELS)() is None
    assert growth(run, CHANNELS) < MOST_GROWTH


# -- the gate


@pytest.mark.parametrize("kind", CheckpointKind)
def test_a_barrier_through_the_machine(kind: CheckpointKind) -> None:
    def run(count: int) -> Callable[[], object]:
        return partial(pass_machine, barrier_machine(count), count, kind)

    assert run(CHANNELS)() == CHANNELS
    assert growth(run, CHANNELS) < MOST_GROWTH


@pytest.mark.parametrize("kind", CheckpointKind)
def test_a_barrier_through_a_gate_with_rows(kind: CheckpointKind) -> None:
    def run(count: int) -> Callable[[], object]:
        return partial(pass_gate, gate(count), count, kind)

    assert run(CHANNELS)() == (0 if kind is CheckpointKind.ALIGNED else 3 * CHANNELS)
    assert growth(run, CHANNELS) < MOST_GROWTH


def test_a_step_costs_the_same_however_many_channels_are_silent() -> None:
    def run(count: int) -> Callable[[], object]:
        return partial(steps_of_one_busy_channel, gate(count), count, steps=10)

    assert growth(run, CHANNELS) < 1.5


def test_watermarks_of_all_channels_in_turn() -> None:
    assert growth(lambda count: partial(pass_watermarks, count, rounds=3), CHANNELS) < MOST_GROWTH


def test_an_element_costs_the_same_however_many_are_in_flight() -> None:
    assert growth(lambda in_flight: partial(pass_window, 500, in_flight=in_flight), CHANNELS) < 1.5
