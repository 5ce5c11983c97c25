"""The rate source at another parallelism: every value once, ascending per reader, at its own time, in a small state."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.connectors import rate
from tidegate.connectors.rate import RateSource
from tidegate.connectors.rate_strands import Strand, after, deal, lowest_values
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.plan.nodes import Scan
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.source_suite import SourceRun

SCHEMA = pa.schema([("value", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
ROWS_PER_S = 10

# Arrow imports pandas at its first list, which must not happen while an example is being generated.
pa.array([0])


def source_on(clock: ManualClock) -> RateSource:
    return rate.from_scan(Scan("rate", {"rowsPerSecond": str(ROWS_PER_S)}, SCHEMA), clock)


@dataclass
class Job:
    """A rate job whose parallelism changes; keeps all values it gave, and checks those of each reader on the way."""

    parallelism: int
    clock: ManualClock = field(default_factory=ManualClock)
    values: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_ms = self.clock.wall_ms()
        self._go_on(SourceRun(source_on(self.clock), self.parallelism, available_now=False))

    def poll(self, subtask: int, max_rows: int) -> int:
        self.run.rows.clear()
        self.run.poll(subtask, max_rows)
        given = [value for value, _ in self.run.rows]
        assert given == sorted(given)
        assert self.last[subtask] < (given[0] if given else float("inf")), "the values of a reader went back"
        for value, at in self.run.rows:
            assert at.timestamp() * 1000 == pytest.approx(self.start_ms + value * 1000 / ROWS_PER_S, abs=0.001)
        self.last[subtask] = given[-1] if given else self.last[subtask]
        self.values += given
        return len(given)

    def rescale(self, parallelism: int) -> None:
        self._go_on(self.run.at_parallelism(parallelism))

    def drain(self) -> None:
        for subtask in range(self.run.parallelism):
            while self.poll(subtask, 1000):
                pass

    def states(self) -> list[Any]:
        return [msgspec.msgpack.decode(state) for state in self.run.snapshot()]

    def strand_count(self) -> int:
        return sum(len(state["backlog"]) for state in self.states())

    def _go_on(self, run: SourceRun) -> None:
        self.run = run
        self.run.discover()
        self.last = [-1] * run.parallelism


STEPS = st.one_of(
    st.tuples(st.just("poll"), st.integers(0, 4), st.integers(1, 30)),
    st.tuples(st.just("advance"), st.integers(0, 3000)),
    st.tuples(st.just("rescale"), st.integers(1, 5)),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.lists(STEPS, max_size=25))
def test_whatever_is_read_between_changes_every_value_comes_once(parallelism: int, steps: list[Any]) -> None:
    job = Job(parallelism)
    for step in steps:
        match step:
            case ("poll", subtask, max_rows):
                job.poll(subtask % job.run.parallelism, max_rows)
            case ("advance", ms):
                job.clock.advance(ms)
            case ("rescale", new):
                job.rescale(new)
    job.drain()
    due = int(job.clock.monotonic_ms()) * ROWS_PER_S // 1000 + 1
    assert Counter(job.values) == Counter(range(due))


def test_after_the_backlog_the_values_go_on_with_the_new_distance() -> None:
    job = Job(2)
    job.clock.advance(1000)
    job.poll(0, 4)
    job.rescale(3)
    job.drain()
    assert sorted(job.values) == list(range(11))
    assert [(state["next_value"], state["parallelism"], state["backlog"]) for state in job.states()] == [
        (13, 3, []),
        (11, 3, []),
        (12, 3, []),
    ]


def test_what_was_left_out_is_dealt_to_all_new_readers() -> None:
    job = Job(2)
    job.clock.advance(2000)
    job.poll(1, 6)
    job.rescale(3)
    assert [state["backlog"] for state in job.states()] == [[[0, 2, 2]], [[4, 2, 2]], [[8, 2, 2]]]
    assert [state["next_value"] for state in job.states()] == [12, 13, 14]


def test_changes_without_reading_keep_the_state_as_it_is() -> None:
    job = Job(4)
    job.clock.advance(60_000)
    job.poll(2, 100)
    job.rescale(2)
    first = job.run.snapshot()
    for _ in range(50):
        job.rescale(5)
        job.rescale(3)
        job.rescale(2)
    assert job.run.snapshot() == first
    # Three of four readers had fallen behind, and one more reader needs one more cut.
    assert job.strand_count() <= 4


def test_the_backlog_does_not_pile_up_when_one_reader_always_lags() -> None:
    job = Job(2)
    most = 0
    for turn in range(200):
        job.clock.advance(10_000)
        for subtask in range(1, job.run.parallelism):
            while job.poll(subtask, 1000):
                pass
        job.rescale(3 if turn % 2 == 0 else 2)
        most = max(most, job.strand_count())
    assert most < 10
    job.drain()
    assert Counter(job.values) == Counter(range(len(job.values)))


def test_nothing_is_left_behind_once_the_new_readers_have_caught_up() -> None:
    job = Job(3)
    for parallelism in (5, 2, 4):
        job.clock.advance(5000)
        job.poll(0, 10)
        job.rescale(parallelism)
        job.drain()
        assert job.strand_count() == 0


def test_a_reader_looks_again_when_its_oldest_value_is_due() -> None:
    job = Job(2)
    job.clock.advance(1000)
    job.poll(0, 100)
    states = job.run.source.redistribute(job.run.snapshot(), parallelism=1)
    behind = ManualClock()
    run = SourceRun(source_on(behind), 1, available_now=False, states=states)
    run.discover()
    assert run.readers[0].poll(10).retry_after_ms == 100.0  # type: ignore[union-attr]
    behind.advance(100)
    assert run.poll(0)
    assert [value for value, _ in run.rows] == [1]


def test_a_resumed_available_now_ends_after_the_backlog() -> None:
    job = Job(2)
    job.clock.advance(1000)
    job.poll(0, 100)
    states = job.run.source.redistribute(job.run.snapshot(), parallelism=3)
    run = SourceRun(job.run.source, 3, available_now=True, states=states)
    job.clock.advance(50)
    assert sorted(value for value, _ in run.drain()) == [1, 3, 5, 7, 9]


def test_positions_of_only_some_readers_are_refused() -> None:
    job = Job(3)
    with pytest.raises(IncompatibleCheckpoint, match="2 of the rate source's 3 readers"):
        job.run.source.redistribute(job.run.snapshot()[:2], parallelism=4)


def test_a_state_that_was_stored_without_a_backlog_is_restored() -> None:
    clock = ManualClock()
    stored = msgspec.msgpack.encode({"start_ms": clock.wall_ms(), "next_value": 4, "parallelism": 1})
    clock.advance(500)
    run = SourceRun(source_on(clock), 1, available_now=False, states=[stored])
    run.discover()
    run.poll(0)
    assert [value for value, _ in run.rows] == [4, 5]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), max_size=6, unique_by=lambda pair: pair[0]),
    st.integers(1, 6),
)
def test_shares_hold_every_value_once_and_differ_by_at_most_one(strands: list[tuple[int, int]], shares: int) -> None:
    given_out = [Strand(first, count, 10) for first, count in strands]
    dealt = deal(given_out, shares=shares)
    sizes = [sum(strand.count for strand in share) for share in dealt]
    assert Counter(value for share in dealt for value in values_of(share)) == Counter(values_of(given_out))
    assert max(sizes) - min(sizes) <= 1
    assert sum(map(len, dealt)) <= len(strands) + shares - 1


def test_strands_that_continue_each_other_become_one_again() -> None:
    assert deal([Strand(6, 2, 3), Strand(0, 2, 3), Strand(1, 1, 3)], shares=1) == [[Strand(0, 4, 3), Strand(1, 1, 3)]]


def test_the_lowest_values_of_several_strands_come_first() -> None:
    strands = [Strand(0, 3, 10), Strand(5, 4, 4)]
    assert lowest_values(strands, end=100, max_count=4).tolist() == [0, 5, 9, 10]
    assert lowest_values(strands, end=6, max_count=4).tolist() == [0, 5]
    assert after(strands, 10) == [Strand(20, 1, 10), Strand(13, 2, 4)]
    assert after(strands, 20) == []


def values_of(strands: list[Strand]) -> list[int]:
    return [strand.first + index * strand.step for strand in strands for index in range(strand.count)]
