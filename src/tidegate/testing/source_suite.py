"""What every source must do. Subclass `SourceSuite` in a test module, give it a source, and let pytest collect it."""

import pickle
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never, cast

import pyarrow as pa

from tidegate.connectors.contract import (
    EndOfData,
    EndOfSource,
    NothingNow,
    Polled,
    Rows,
    Source,
    SourceReader,
    SplitEnumerator,
    Withheld,
)
from tidegate.model.ids import CheckpointId
from tidegate.protocol.admission import ActiveBackpressure, SourceAdmission
from tidegate.worker.source_head import SourceHead

_PARALLELISMS = (1, 2, 3)
# From a number of readers to another: up, down, and to numbers that do not divide each other.
_CHANGES = ((1, 3), (2, 4), (3, 1), (4, 2), (2, 3), (3, 2))
# More than enough to see a state that grows with every change of parallelism.
_CHANGES_IN_A_ROW = 12
_MAX_ROWS = 7
# A source that gives neither rows nor an end in so many rounds will not end at all.
_IDLE_ROUNDS = 1000
# For rows that a reader's own thread fetches.
_PATIENCE_S = 30.0
# Of checkpoints that are late; longer than any reader asks to be left alone.
_INTERVAL_MS = 100_000.0


@dataclass
class SourceRun:
    """A source driven by hand: its enumerator, its readers, and the rows it gave, per reader."""

    source: Source
    parallelism: int
    available_now: bool = True
    states: Sequence[bytes] | None = None
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.enumerator: SplitEnumerator = self.source.enumerator(
            parallelism=self.parallelism, available_now=self.available_now
        )
        self.readers: list[SourceReader] = [
            self.source.reader(subtask=subtask, parallelism=self.parallelism) for subtask in range(self.parallelism)
        ]
        self.ended = [False] * self.parallelism
        if self.states is not None:
            self.enumerator.restore(self.states)
            for reader, state in zip(self.readers, self.states, strict=True):
                reader.restore(state)

    def discover(self) -> int:
        """Hands out what is found, and the word that it was all; gives the number of splits."""
        assignments = self.enumerator.discover()
        for assignment in assignments:
            self.readers[assignment.subtask].add_splits([assignment.split])
        if self.enumerator.is_complete():
            for reader in self.readers:
                reader.no_more_splits()
        return len(assignments)

    def poll(self, subtask: int, max_rows: int = _MAX_ROWS) -> bool:
        """One poll; True if it gave rows."""
        match self._polled(subtask, max_rows):
            case Rows(rows=rows):
                assert 1 <= rows.num_rows <= max_rows, f"{rows.num_rows} rows came where 1 to {max_rows} were asked for"
                self.rows += row_tuples(rows)
                return True
            case EndOfSource() | EndOfData():
                self.ended[subtask] = True
                return False
            case NothingNow(retry_after_ms):
                assert retry_after_ms > 0, "a reader without rows would be asked again at once, for ever"
                return False
            case other:
                assert_never(other)

    def _polled(self, subtask: int, max_rows: int) -> Polled:
        """Waits for a reader that is behind: its rows come from a thread of its own."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            polled = self.readers[subtask].poll(max_rows)
            if not isinstance(polled, NothingNow) or not polled.is_behind:
                return polled
            assert time.monotonic() < deadline, "the reader is behind and gives nothing"
            time.sleep(0.0005)

    def polls(self, count: int) -> int:
        """Up to `count` polls that give rows, discovering on the way; gives how many there were."""
        done = idle_rounds = 0
        while done < count and not all(self.ended) and idle_rounds < _IDLE_ROUNDS:
            moved = self.discover() > 0
            for subtask in range(self.parallelism):
                if done < count and self.poll(subtask):
                    done, moved = done + 1, True
            idle_rounds = 0 if moved else idle_rounds + 1
        return done

    def drain(self) -> list[tuple[Any, ...]]:
        self.polls(1 << 60)
        assert all(self.ended), "the source gave neither rows nor an end"
        return self.rows

    def snapshot(self) -> list[bytes]:
        return [reader.snapshot() for reader in self.readers]

    def at_parallelism(self, parallelism: int) -> "SourceRun":
        """A run that goes on from this one's positions with another number of readers; this one is closed."""
        states = self.source.redistribute(self.snapshot(), parallelism=parallelism)
        self.close()
        return SourceRun(self.source, parallelism, available_now=self.available_now, states=states)

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


class HeldUp:
    """A reader as a task asks it, with a checkpoint that is late behind every piece of rows."""

    def __init__(self, reader: SourceReader, mode: ActiveBackpressure) -> None:
        admission = SourceAdmission(mode, interval_ms=_INTERVAL_MS, max_concurrent=1, now_ms=0.0)
        self._head = SourceHead(reader, admission)
        self._mode = mode
        self._now_ms = 0.0
        self._checkpoint = CheckpointId(0)

    def poll(self, max_rows: int) -> Polled:
        self._now_ms += _INTERVAL_MS
        polled = self._head.poll(max_rows, self._now_ms)
        assert polled is not None, "it waits for no checkpoint"
        if isinstance(polled, Rows):
            self._fall_behind()
        return polled

    def _fall_behind(self) -> None:
        self._checkpoint = checkpoint = CheckpointId(self._checkpoint + 1)
        self._head.on_triggered(checkpoint, self._now_ms, suspends=False)
        self._now_ms += _INTERVAL_MS
        assert self._head.poll(_MAX_ROWS, self._now_ms) is None, "it reads on"
        self._head.admission.on_reached_all(checkpoint)
        is_still_late = self._mode is ActiveBackpressure.STRICT
        assert self._head.admission.may_pull(self._now_ms) is not is_still_late
        # An aborted one is over as well.
        (self._head.on_completed if checkpoint % 2 else self._head.on_abort)(checkpoint)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head.reader, name)


class SourceSuite:
    """The source must be bounded with `available_now`, and give the same rows each time it is made for one folder."""

    def make_source(self, folder: Path) -> Source:
        """At least a few dozen rows, so that there are positions to restore; `folder` is fresh for each test."""
        raise NotImplementedError

    def expected_rows(self) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def test_every_row_is_given_once(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        for parallelism in _PARALLELISMS:
            run = SourceRun(source, parallelism)
            assert Counter(run.drain()) == Counter(self.expected_rows()), f"parallelism {parallelism}"
            run.close()

    def test_restored_at_every_poll_it_gives_just_the_rows_that_come_after(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        expected = Counter(self.expected_rows())
        for parallelism in _PARALLELISMS:
            whole = SourceRun(source, parallelism)
            poll_count = whole.polls(1 << 60)
            whole.close()
            for stop_after in range(poll_count + 1):
                before = SourceRun(source, parallelism)
                before.polls(stop_after)
                after = SourceRun(source, parallelism, states=before.snapshot())
                before.close()
                assert Counter(before.rows) + Counter(after.drain()) == expected, (
                    f"parallelism {parallelism}, restored after poll {stop_after} of {poll_count}"
                )
                after.close()

    def test_restored_again_and_again_it_still_gives_every_row_once(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        rows: list[tuple[Any, ...]] = []
        states = None
        for _ in range(10 * len(self.expected_rows()) + 10):
            run = SourceRun(source, 2, states=states)
            polled = run.polls(1)
            rows += run.rows
            states = run.snapshot()
            run.close()
            if polled == 0:
                break
        assert Counter(rows) == Counter(self.expected_rows())

    def test_a_snapshot_changes_nothing(self, tmp_path: Path) -> None:
        run = SourceRun(self.make_source(tmp_path), 1)
        while not run.ended[0]:
            run.discover()
            assert run.snapshot() == run.snapshot()
            run.poll(0)
        assert Counter(run.rows) == Counter(self.expected_rows())
        run.close()

    def test_a_snapshot_before_any_split_arrived_can_be_restored(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        states = SourceRun(source, 2).snapshot()
        run = SourceRun(source, 2, states=states)
        assert Counter(run.drain()) == Counter(self.expected_rows())
        run.close()

    def test_splits_found_but_not_delivered_are_found_again_after_a_restore(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        lost = SourceRun(source, 2)
        lost.enumerator.discover()
        run = SourceRun(source, 2, states=lost.snapshot())
        assert Counter(run.drain()) == Counter(self.expected_rows())
        run.close()

    def test_it_gives_nothing_while_a_checkpoint_is_late_and_every_row_once_in_the_end(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        for mode in (ActiveBackpressure.ON, ActiveBackpressure.STRICT):
            run = SourceRun(source, 2)
            run.readers = [cast(SourceReader, HeldUp(reader, mode)) for reader in run.readers]
            assert Counter(run.drain()) == Counter(self.expected_rows()), mode
            run.close()

    def test_no_rows_come_before_a_split_does(self, tmp_path: Path) -> None:
        run = SourceRun(self.make_source(tmp_path), 1)
        assert isinstance(run.readers[0].poll(_MAX_ROWS), NothingNow)
        run.close()

    def test_a_reader_without_splits_ends_when_told_that_none_come(self, tmp_path: Path) -> None:
        reader = self.make_source(tmp_path).reader(subtask=0, parallelism=1)
        reader.no_more_splits()
        assert isinstance(reader.poll(_MAX_ROWS), EndOfSource | EndOfData)
        reader.close()

    def test_the_end_stays_the_end(self, tmp_path: Path) -> None:
        run = SourceRun(self.make_source(tmp_path), 1)
        run.drain()
        assert run.enumerator.discover() == []
        assert isinstance(run.readers[0].poll(_MAX_ROWS), EndOfSource | EndOfData)
        run.close()

    def test_what_withholds_nothing_has_given_all_and_in_the_end_it_withholds_nothing(self, tmp_path: Path) -> None:
        run = SourceRun(self.make_source(tmp_path), 2)
        for _ in range(_IDLE_ROUNDS):
            run.discover()
            if run.enumerator.withheld() is Withheld.NOTHING:
                break
        assert run.enumerator.withheld() is Withheld.NOTHING
        assert run.enumerator.discover() == []
        run.drain()
        assert run.enumerator.withheld() is Withheld.NOTHING
        run.close()

    def test_redistributed_at_every_poll_the_new_readers_give_just_the_rest(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        expected = Counter(self.expected_rows())
        for old, new in _CHANGES:
            whole = SourceRun(source, old)
            poll_count = whole.polls(1 << 60)
            whole.close()
            for stop_after in range(poll_count + 1):
                before = SourceRun(source, old)
                before.polls(stop_after)
                after = before.at_parallelism(new)
                assert Counter(before.rows) + Counter(after.drain()) == expected, (
                    f"from {old} to {new} readers after poll {stop_after} of {poll_count}"
                )
                after.close()

    def test_redistributed_when_only_one_reader_has_read_the_others_share_is_not_lost(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        for old, new in _CHANGES:
            for ahead in range(old):
                before = SourceRun(source, old)
                before.discover()
                while before.poll(ahead, max_rows=1):
                    pass
                after = before.at_parallelism(new)
                assert Counter(before.rows) + Counter(after.drain()) == Counter(self.expected_rows()), (
                    f"from {old} to {new} readers, reader {ahead} alone had read"
                )
                after.close()

    def test_redistributed_twice_it_still_gives_every_row_once(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        for polls in range(6):
            first = SourceRun(source, 2)
            first.polls(polls)
            second = first.at_parallelism(4)
            second.polls(polls // 2)
            third = second.at_parallelism(3)
            rows = first.rows + second.rows + third.drain()
            assert Counter(rows) == Counter(self.expected_rows()), f"{polls} polls, then {polls // 2}"
            third.close()

    def test_redistributed_again_and_again_in_the_middle_of_a_split_it_gives_every_row_once(
        self, tmp_path: Path
    ) -> None:
        run = SourceRun(self.make_source(tmp_path), 2)
        rows: list[tuple[Any, ...]] = []
        for turn in range(10 * len(self.expected_rows()) + 10):
            run.discover()
            # One row of one reader only, so that almost every change comes in the middle of a split.
            run.poll(turn % run.parallelism, max_rows=1)
            rows += run.rows
            run = run.at_parallelism(turn % 4 + 1)
        rows += run.drain()
        assert Counter(rows) == Counter(self.expected_rows())
        run.close()

    def test_redistributed_before_anything_was_assigned_or_read_it_gives_every_row(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        for old, new in _CHANGES:
            unassigned = SourceRun(source, old).at_parallelism(new)
            assert Counter(unassigned.drain()) == Counter(self.expected_rows()), f"from {old} to {new} readers"
            unassigned.close()
            assigned = SourceRun(source, old)
            assigned.discover()
            unread = assigned.at_parallelism(new)
            assert Counter(unread.drain()) == Counter(self.expected_rows()), f"from {old} to {new} readers"
            unread.close()

    def test_redistributed_after_the_end_nothing_comes_again(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        for old, new in _CHANGES:
            before = SourceRun(source, old)
            before.drain()
            after = before.at_parallelism(new)
            assert after.drain() == [], f"from {old} to {new} readers"
            after.close()

    def test_redistributing_is_the_same_wherever_it_is_done(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        run = SourceRun(source, 3)
        run.polls(3)
        states = run.snapshot()
        run.close()
        elsewhere = pickle.loads(pickle.dumps(source))
        for parallelism in (1, 2, 3, 5):
            here = source.redistribute(states, parallelism=parallelism)
            assert len(here) == parallelism
            assert elsewhere.redistribute(states, parallelism=parallelism) == here
        assert states == run.snapshot(), "the states that were given have changed"

    def test_redistributing_without_reading_does_not_make_the_states_grow(self, tmp_path: Path) -> None:
        source = self.make_source(tmp_path)
        run = SourceRun(source, 2)
        run.discover()
        run.poll(1)
        states = run.snapshot()
        run.close()
        sizes = []
        for _ in range(_CHANGES_IN_A_ROW):
            for parallelism in (4, 3, 2):
                states = source.redistribute(states, parallelism=parallelism)
            sizes.append(sum(map(len, states)))
        assert len(set(sizes)) == 1, f"the sizes of the states after each round: {sizes}"

    def test_a_source_travels_to_the_tasks(self, tmp_path: Path) -> None:
        source = pickle.loads(pickle.dumps(self.make_source(tmp_path)))
        run = SourceRun(source, 1)
        assert Counter(run.drain()) == Counter(self.expected_rows())
        run.close()


def row_tuples(rows: pa.RecordBatch | pa.Table) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in rows.columns]
    return list(zip(*columns, strict=True))
