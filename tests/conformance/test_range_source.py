"""A user's stream reader as a source: what every source promises, and how ranges come, go and are committed."""

import dataclasses
import itertools
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tidegate.connectors import range_source
from tidegate.connectors.contract import CommittedPositions, EndOfSource, NothingNow, Rows, Source, Withheld
from tidegate.connectors.range_source import (
    OffsetRange,
    RangeEnumerator,
    RangeProgress,
    RangeReader,
    RangeSource,
    ReaderState,
)
from tidegate.model.errors import UserCodeFailure
from tidegate.model.ids import CheckpointId
from tidegate.plan.nodes import Scan
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.source_suite import SourceRun, SourceSuite

SCHEMA = pa.schema([("v", pa.int64())])
ROWS_PER_PARTITION = 10


@dataclass
class Numbers:
    """0, 1, 2 ... up to `total`, `step` of them in a range at the most; calls of `commit` are kept for the test."""

    total: int
    step: int
    committed: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    stopped: int = 0
    has_empty_ranges: bool = False

    def __call__(self) -> "Numbers":
        return self

    def initial_offset(self) -> str:
        return "0"

    def latest_offset(self, start: str) -> str:
        return str(min(self.total, int(start) + self.step))

    def ends_with_one_range(self) -> bool:
        return False

    def limits_ranges(self) -> bool:
        return True

    def partitions(self, start: str, end: str) -> list[bytes]:
        if self.has_empty_ranges and int(start) // self.step % 2:
            return []
        bounds = [*range(int(start), int(end), ROWS_PER_PARTITION), int(end)]
        return [f"{first}-{last}".encode() for first, last in itertools.pairwise(bounds)]

    def batches(self, partition: bytes) -> Iterator[pa.RecordBatch]:
        first, last = map(int, partition.decode().split("-"))
        for at in range(first, last, 4):
            yield pa.RecordBatch.from_arrays([pa.array(range(at, min(at + 4, last)), pa.int64())], schema=SCHEMA)

    def has_ended(self) -> bool:
        return True

    def commit(self, end: str) -> None:
        self.committed.append(end)

    def release(self, end: str) -> None:
        self.released.append(end)

    def stop(self) -> None:
        self.stopped += 1


def source_of(stream: Any) -> RangeSource:
    return range_source.from_scan(Scan("python", {"format": "numbers"}, SCHEMA, pickle.dumps(stream)))


class TestRangeSource(SourceSuite):
    def make_source(self, folder: Path) -> Source:
        return source_of(Numbers(total=83, step=25))

    def expected_rows(self) -> list[tuple[Any, ...]]:
        return [(i,) for i in range(83)]


def run_of(stream: Numbers, parallelism: int = 2, **options: Any) -> tuple[SourceRun, Numbers]:
    """The run, and the enumerator's own copy of the stream."""
    run = SourceRun(source_of(stream), parallelism, **options)
    assert isinstance(run.enumerator, RangeEnumerator)
    opened = run.enumerator._opened()
    assert isinstance(opened, Numbers)
    return run, opened


def positions_of(run: SourceRun, checkpoint: int) -> CommittedPositions:
    readers = [reader for reader in run.readers if isinstance(reader, RangeReader)]
    positions = tuple(reader.position() for reader in readers)
    return CommittedPositions(CheckpointId(checkpoint), positions, CheckpointId(1))


def commit(run: SourceRun, checkpoint: int = 1) -> None:
    assert isinstance(run.enumerator, RangeEnumerator)
    run.enumerator.on_committed(positions_of(run, checkpoint))


def test_the_users_reader_hears_how_far_all_partitions_are_committed() -> None:
    run, stream = run_of(Numbers(total=100, step=20))
    run.discover()
    commit(run)
    assert stream.committed == []
    while len(run.rows) < 55:
        run.poll(0, 5)
        run.poll(1, 5)
    commit(run)
    assert stream.committed == ["40"], "the third range is not finished"
    run.drain()
    commit(run)
    commit(run)
    assert stream.committed == ["40", "100"]
    run.close()


def test_nothing_is_released_that_a_retained_checkpoint_would_read_again() -> None:
    run, stream = run_of(Numbers(total=0, step=20), available_now=False)
    assert isinstance(run.enumerator, RangeEnumerator)
    for checkpoint, total, retained in [(5, 20, 3), (6, 40, 4), (7, 60, 5), (8, 100, 7)]:
        stream.total = total
        run.discover()
        while run.poll(0) | run.poll(1):
            pass
        committed = positions_of(run, checkpoint)
        run.enumerator.on_committed(dataclasses.replace(committed, oldest_retained=CheckpointId(retained)))
    # Three and four are of an earlier run: nobody knows here what they need.
    assert stream.released == ["20", "60"]
    run.close()


def test_a_range_without_partitions_is_passed_and_remembered() -> None:
    run, stream = run_of(Numbers(total=60, step=20, has_empty_ranges=True))
    assert sorted(run.drain()) == [(i,) for i in [*range(20), *range(40, 60)]]
    states = run.snapshot()
    commit(run)
    assert stream.committed == ["60"]
    run.close()
    again, _ = run_of(Numbers(total=60, step=20, has_empty_ranges=True), states=states)
    assert again.drain() == []


@dataclass
class FromNowOn(Numbers):
    """Begins with what comes next, whenever it is asked."""

    def initial_offset(self) -> str:
        return str(self.total)

    def latest_offset(self, start: str) -> str:
        return str(self.total)


def test_a_stream_that_begins_with_what_comes_next_begins_once() -> None:
    run, opened = run_of(FromNowOn(total=10, step=20), available_now=False)
    assert not run.enumerator.discover()
    opened.total = 30
    run.discover()
    while run.poll(0) | run.poll(1):
        pass
    assert sorted(run.rows) == [(i,) for i in range(10, 30)]
    run.close()


def test_what_is_committed_is_forgotten_and_never_read_again() -> None:
    stream = Numbers(total=5_500, step=20)
    run, _ = run_of(stream, available_now=False)
    sizes = []
    for checkpoint in range(1, 30):
        run.discover()
        while run.poll(0) | run.poll(1):
            pass
        commit(run, checkpoint)
        sizes.append(sum(map(len, run.snapshot())))
    assert max(sizes[5:]) < 2 * max(sizes[:3]), "states do not grow with the life of the job"
    read, states = sorted(run.rows), run.snapshot()
    run.close()
    after, _ = run_of(stream, states=states)
    assert sorted(read + after.drain()) == [(i,) for i in range(5_500)]
    after.close()


def test_no_more_ranges_are_taken_on_than_may_wait_for_a_checkpoint() -> None:
    run, _ = run_of(Numbers(total=5_500, step=10), available_now=False)
    for _ in range(20):
        run.discover()
    assert isinstance(run.enumerator, RangeEnumerator)
    assert len(run.enumerator._open) == 64
    assert run.enumerator.withheld() is Withheld.UNTIL_COMMITTED
    while run.poll(0) | run.poll(1):
        pass
    commit(run)
    assert run.discover() > 0
    assert run.enumerator.withheld() is Withheld.UNTIL_LATER
    run.close()


def test_ranges_beyond_those_of_one_look_are_withheld_until_a_later_one() -> None:
    run, _ = run_of(Numbers(total=200, step=20), available_now=False)
    found = [(run.discover(), run.enumerator.withheld()) for _ in range(3)]
    assert found == [(8 * 2, Withheld.UNTIL_LATER), (2 * 2, Withheld.NOTHING), (0, Withheld.NOTHING)]
    run.close()


@dataclass
class Whole(Numbers):
    """Gives all that is there as one range."""

    def latest_offset(self, start: str) -> str:
        return str(self.total)

    def limits_ranges(self) -> bool:
        return False


def test_a_stream_without_limits_withholds_nothing() -> None:
    run, _ = run_of(Whole(total=20, step=20), available_now=False)
    assert (run.discover(), run.enumerator.withheld()) == (2, Withheld.NOTHING)
    run.close()


def test_partitions_whose_split_was_on_its_way_at_the_checkpoint_are_read_after_the_restore() -> None:
    stream = Numbers(total=40, step=40)
    run, _ = run_of(stream)
    for assignment in run.enumerator.discover():
        if assignment.subtask == 0:
            run.readers[0].add_splits([assignment.split])
    while run.poll(0):
        pass
    assert len(run.rows) == 20
    after, _ = run_of(stream, states=run.snapshot())
    run.close()
    assert sorted(run.rows + after.drain()) == [(i,) for i in range(40)]
    after.close()


def test_what_one_reader_has_forgotten_is_not_read_again_because_another_remembers_its_part() -> None:
    stream = Numbers(total=40, step=20)
    bounds = [("0", "20"), ("20", "40")]
    ranges = [OffsetRange(at, *both, stream.partitions(*both)) for at, both in enumerate(bounds)]
    told = ReaderState(1, [RangeProgress(ranges[1], {0: None, 1: None})])
    idle = ReaderState(0, [RangeProgress(ranges[0], {1: None})])
    run, _ = run_of(stream, states=[msgspec.msgpack.encode(state) for state in (told, idle)])
    assert run.drain() == []


def test_a_read_that_blocks_does_not_block_the_loop() -> None:
    run, _ = run_of(Numbers(total=5, step=5), parallelism=1)
    assert isinstance(run.readers[0], RangeReader)
    leave = threading.Event()

    class Slow(Numbers):
        def batches(self, partition: bytes) -> Iterator[pa.RecordBatch]:
            assert leave.wait(30)
            yield from super().batches(partition)

    run.readers[0]._stream = Slow(total=5, step=5)
    run.discover()
    polled = run.readers[0].poll(10)
    assert polled == NothingNow(5.0, is_behind=True)
    leave.set()
    assert sorted(run.drain()) == [(i,) for i in range(5)]


def test_a_partition_that_gives_fewer_rows_when_read_again_is_an_error() -> None:
    run, _ = run_of(Numbers(total=10, step=10), parallelism=1)
    run.discover()
    while len(run.rows) < 8:
        run.poll(0, 8)
    after, _ = run_of(Numbers(total=10, step=10), parallelism=1, states=run.snapshot())
    run.close()

    class Forgetful(Numbers):
        def batches(self, partition: bytes) -> Iterator[pa.RecordBatch]:
            yield next(super().batches(partition))

    assert isinstance(after.readers[0], RangeReader)
    after.readers[0]._stream = Forgetful(total=10, step=10)
    with pytest.raises(UserCodeFailure, match="gave 4 rows fewer than before"):
        after.drain()


def test_an_error_in_read_is_raised_where_rows_are_asked_for() -> None:
    run, _ = run_of(Numbers(total=10, step=10), parallelism=1)

    class Broken(Numbers):
        def batches(self, partition: bytes) -> Iterator[pa.RecordBatch]:
            raise UserCodeFailure("read is broken")

    assert isinstance(run.readers[0], RangeReader)
    run.readers[0]._stream = Broken(total=10, step=10)
    with pytest.raises(UserCodeFailure, match="read is broken"):
        run.drain()


def amid_after_each_poll(reader: RangeReader) -> list[tuple[int, bool]]:
    """For each answer: how many rows, and whether event time is held behind them."""
    seen: list[tuple[int, bool]] = []
    while not isinstance(polled := reader.poll(1000), EndOfSource):
        if isinstance(polled, NothingNow) and polled.retry_after_ms:
            continue  # the partition's own thread is at work
        seen.append((polled.rows.num_rows if isinstance(polled, Rows) else 0, reader.is_amid_batch()))
    return seen


def test_event_time_moves_between_ranges_and_not_within_one() -> None:
    """Spark reads a micro-batch in any order: a row of it must not be late by others of it."""
    run, _ = run_of(Numbers(total=24, step=12), parallelism=1)
    run.discover()
    (reader,) = run.readers
    assert isinstance(reader, RangeReader)
    range_of_two_partitions = [(4, True), (4, True), (2, True), (2, True)]
    assert amid_after_each_poll(reader) == [*range_of_two_partitions, (0, False), *range_of_two_partitions]
    assert not reader.is_amid_batch(), "nor behind the last"


def test_a_range_that_was_begun_before_a_restore_is_still_amid() -> None:
    """By whichever reader: the restored event time may have come from rows of it."""
    run, _ = run_of(Numbers(total=20, step=20), parallelism=1)
    run.discover()
    (reader,) = run.readers
    while not isinstance(reader.poll(3), Rows):
        pass
    states = source_of(Numbers(total=20, step=20)).redistribute([reader.snapshot()], parallelism=2)
    for state in states:
        restored = RangeReader(source_of(Numbers(total=20, step=20)))
        restored.restore(state)
        assert restored.is_amid_batch()
        restored.close()


def lags_of(run: SourceRun) -> list[float | None]:
    return [reader.lag_ms() for reader in run.readers if isinstance(reader, RangeReader)]


def test_the_lag_is_the_age_of_the_oldest_range_that_is_not_read_whole() -> None:
    clock = ManualClock()
    source = dataclasses.replace(source_of(Numbers(total=10, step=10)), clock=clock)
    run = SourceRun(source, 1, available_now=False)
    assert lags_of(run) == [0.0], "nothing is there"
    assert isinstance(run.enumerator, RangeEnumerator)
    opened = run.enumerator._opened()
    assert isinstance(opened, Numbers)
    run.discover()
    clock.advance(700)
    opened.total = 20
    run.discover()
    clock.advance(300)
    assert lags_of(run) == [1000.0]
    while len(run.rows) < 9:
        run.poll(0, 1)
    assert lags_of(run) == [1000.0], "a row of the first is left"
    while len(run.rows) < 11:
        run.poll(0, 1)
    assert lags_of(run) == [300.0]
    while run.poll(0):
        pass
    clock.advance(5000)
    assert lags_of(run) == [0.0]
    run.close()


def test_the_lag_goes_on_after_a_restore_at_another_parallelism() -> None:
    clock = ManualClock()
    source = dataclasses.replace(source_of(Numbers(total=20, step=20)), clock=clock)
    run = SourceRun(source, 1)
    run.discover()
    clock.advance(400)
    run.poll(0, 3)
    states = source.redistribute(run.snapshot(), parallelism=2)
    run.close()
    clock.advance(600)
    after = SourceRun(source, 2, states=states)
    assert lags_of(after) == [1000.0, 1000.0]
    after.drain()
    assert lags_of(after) == [0.0, 0.0]
    after.close()


def test_a_range_whose_split_was_on_its_way_at_the_checkpoint_keeps_its_age() -> None:
    clock = ManualClock()
    source = dataclasses.replace(source_of(Numbers(total=20, step=20)), clock=clock)
    run = SourceRun(source, 2)
    for assignment in run.enumerator.discover():
        if assignment.subtask == 0:
            run.readers[0].add_splits([assignment.split])
    clock.advance(250)
    after = SourceRun(source, 2, states=run.snapshot())
    run.close()
    after.discover()
    assert lags_of(after) == [250.0, 250.0]
    after.close()


def test_a_clock_that_is_behind_the_drivers_gives_no_negative_lag() -> None:
    ahead, behind = ManualClock(wall_start_ms=10_000), ManualClock(wall_start_ms=9_000)
    source = source_of(Numbers(total=10, step=10))
    enumerator = dataclasses.replace(source, clock=ahead).enumerator(parallelism=1, available_now=True)
    reader = dataclasses.replace(source, clock=behind).reader(subtask=0, parallelism=1)
    reader.add_splits([assignment.split for assignment in enumerator.discover()])
    assert reader.lag_ms() == 0.0
    behind.advance(1_500)
    assert reader.lag_ms() == 500.0


def test_a_range_stored_without_its_time_tells_no_lag() -> None:
    class BeforeTimes(msgspec.Struct):
        """As ranges were stored first."""

        number: int
        start: str
        end: str
        partitions: list[bytes]

    stream = Numbers(total=10, step=10)
    unread = {"range": BeforeTimes(0, "0", "10", stream.partitions("0", "10")), "next_rows": {0: 3}}
    run, _ = run_of(stream, 1, states=[msgspec.msgpack.encode({"floor": 0, "ranges": [unread]})])
    assert lags_of(run) == [None]
    assert sorted(run.drain()) == [(i,) for i in range(3, 10)]
    assert lags_of(run) == [0.0]
    run.close()
