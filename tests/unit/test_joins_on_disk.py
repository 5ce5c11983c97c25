"""Whatever comes, a join with a log of its rows gives, and stores, what one that is snapshotted whole does."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_groups_on_disk import stored_bytes
from tests.unit.test_stream_join import LESS, Harness, Pair, Row, join, side
from tests.unit.timed_rows import batch, rows_of
from tests.unit.tiny_steps import InTurn, opened_backends, take_ahead, take_tiny_steps
from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.model.ids import KeyGroupRange, range_of
from tidegate.operators import join_rows, log_book, numbered_format, numbered_log, stream_join
from tidegate.operators.contract import TaskContext
from tidegate.operators.row_numbers import Changes, RowNumbers
from tidegate.operators.stream_join import StreamJoinOperator
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import StreamJoinSpec
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection, Section
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import RocksBackends

ALL = KeyGroupRange(0, 128)
KINDS = [kind for kind in JoinType if kind is not JoinType.LEFT_ANTI]


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(numbered_log, "_PART_MARKS", 3)
    monkeypatch.setattr(numbered_format, "_MOST_GATHERED", 2)
    monkeypatch.setattr(join_rows, "MOST_RUN_ROWS", 16)
    monkeypatch.setattr(join_rows, "_SMALL_RUN_ROWS", 3)
    monkeypatch.setattr(stream_join, "MOST_PAIRS_AT_ONCE", 12)


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[RocksBackends]:
    opened = RocksBackends(tmp_path, memory_bytes=8 << 20)
    yield opened
    opened.close()


@dataclass
class LoggedHarness(Harness):
    backends: RocksBackends | InTurn | None = None

    def __post_init__(self) -> None:
        self.operator = StreamJoinOperator(self.spec)
        none: Any = None
        backends = self.backends
        assert backends is not None
        context = TaskContext(none, 1, 128, self.key_groups, none, none, none, floors=self.floors)
        self.context = replace(context, open_runs=lambda: backends.open_runs(self.key_groups))
        self.operator.open(self.context, self.restored)


def logged(
    backends: RocksBackends | InTurn,
    restored: list[RestoredSection] | None = None,
    *,
    spec: StreamJoinSpec | None = None,
    key_groups: KeyGroupRange = ALL,
) -> LoggedHarness:
    return LoggedHarness(spec or join(JoinType.FULL_OUTER), restored or [], key_groups, backends=backends)


def kept(harness: Harness, *, with_flags: bool = True) -> Counter[Any]:
    """All rows that it keeps."""
    found: Counter[Any] = Counter()
    for name, own in (("left", harness.operator._left), ("right", harness.operator._right)):
        for run in own.store.runs:
            rows = rows_of([run.batch()])
            live = np.flatnonzero(run.is_live)
            found.update((name, rows[at], with_flags and bool(run.has_partner[at])) for at in live)
    return found


def assert_keep_the_same(one: Harness, other: Harness) -> None:
    """While some are looked at, one by one, either may be at another: a restore leaves equal keys in any order."""
    with_flags = not other.operator.holds_rows()
    assert kept(one, with_flags=with_flags) == kept(other, with_flags=with_flags)


def kept_in(sections: list[RestoredSection], backends: RocksBackends) -> Counter[Any]:
    """What one that is restored from these keeps."""
    harness = logged(backends, sections)
    found = kept(harness)
    harness.operator.close()
    return found


def is_consistent(harness: Harness) -> bool:
    logged = harness.operator._logged
    return logged is None or logged.is_consistent()


def files_of(sections: Sequence[RestoredSection]) -> list[str]:
    return [name for section in sections if section.name == ROW_LOG_SECTION for name in section.files]


@dataclass
class Job:
    """The same join twice: snapshotted whole, and in a log."""

    spec: StreamJoinSpec
    backends: RocksBackends | InTurn
    watermark_s: int = 0
    pairs: list[tuple[Harness, LoggedHarness]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pairs = self.pairs or [(Harness(self.spec), logged(self.backends, spec=self.spec))]

    def rows(self, own: int, rows: list[Row]) -> None:
        groups = key_group_of(hash_rows(batch(rows), 1), 128).tolist()
        for whole, on_disk in self.pairs:
            mine = [row for row, group in zip(rows, groups, strict=True) if group in whole.key_groups]
            found, expected = (each.left(*mine) if own == 0 else each.right(*mine) for each in (on_disk, whole))
            assert Counter(found) == Counter(expected)

    def advance(self, seconds: int) -> None:
        self.watermark_s = max(self.watermark_s, seconds)
        for whole, on_disk in self.pairs:
            if not whole.operator.holds_rows():
                assert Counter(on_disk.advance(self.watermark_s)) == Counter(whole.advance(self.watermark_s))

    def give(self, most: int) -> None:
        for whole, on_disk in self.pairs:
            shown: list[list[pa.RecordBatch]] = [[], []]
            for each, out in zip((whole, on_disk), shown, strict=True):
                each.operator.give(most, out.append)
            assert Counter(rows_of(shown[0])) == Counter(rows_of(shown[1]))

    def give_all(self) -> None:
        shown: tuple[Counter[Pair], Counter[Pair]] = (Counter(), Counter())
        for pair in self.pairs:
            for each, found in zip(pair, shown, strict=True):
                out: list[pa.RecordBatch] = []
                while each.operator.give(100, out.append):
                    pass
                found.update(rows_of(out))
        assert shown[0] == shown[1]

    def snapshot(self) -> list[tuple[list[Section], list[Section]]]:
        taken = [(whole.operator.snapshot(), on_disk.operator.snapshot()) for whole, on_disk in self.pairs]
        for whole, on_disk in self.pairs:
            assert_keep_the_same(on_disk, whole)
            assert is_consistent(on_disk)
        return taken

    def restore(self, taken: list[tuple[list[Section], list[Section]]], parallelism: int, *, from_heap: bool) -> None:
        stored = [(restored_from(whole), restored_from(on_disk)) for whole, on_disk in taken]
        old = [whole.key_groups for whole, _ in self.pairs]
        self.pairs = []
        for at in range(parallelism):
            own = range_of(at, parallelism=parallelism, max_parallelism=128)
            meeting = [each for each, theirs in zip(stored, old, strict=True) if meet(own, theirs)]
            in_memory = [section for each in meeting for section in each[0]]
            on_disk = in_memory if from_heap else [section for each in meeting for section in each[1]]
            whole = Harness(self.spec, in_memory, own)
            self.pairs.append((whole, logged(self.backends, on_disk, spec=self.spec, key_groups=own)))
            assert_keep_the_same(self.pairs[-1][1], whole)
        self.advance(self.watermark_s)


def meet(one: KeyGroupRange, other: KeyGroupRange) -> bool:
    return max(one.first, other.first) < min(one.last, other.last)


some_rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", None, *"cdefghij"]), st.integers(1, 60), st.integers(0, 9)),
    min_size=1,
    max_size=12,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.tuples(st.integers(0, 1), some_rows)),
        st.tuples(st.just("rows"), st.tuples(st.integers(0, 1), some_rows)),
        st.tuples(st.just("advance"), st.integers(1, 70)),
        st.tuples(st.just("give"), st.integers(1, 9)),
        st.tuples(st.just("ahead"), st.integers(1, 2)),
        st.tuples(st.just("snapshot"), st.booleans()),
        st.tuples(st.just("snapshot"), st.booleans()),
        st.tuples(st.just("restore"), st.tuples(st.sampled_from([1, 1, 2, 3]), st.sampled_from([False, False, True]))),
    ),
    min_size=4,
    max_size=30,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(
    drawn=steps,
    aheads=st.tuples(st.integers(-9, 4), st.integers(-9, 4)),
    memory_bytes=st.sampled_from([1 << 30, None]),
)
def test_a_logged_join_gives_and_stores_what_one_in_memory_does(
    kind: JoinType, drawn: list[Any], aheads: tuple[int, int], memory_bytes: int | None
) -> None:
    spec = join(kind, left=side(ahead_s=aheads[0]), right=side(ahead_s=aheads[1]), condition=LESS)
    with opened_backends(rows_memory_bytes=memory_bytes) as backends:
        job, taken = Job(spec, backends), None
        for what, how in drawn:
            match what:
                case "rows":
                    job.rows(*how)
                case "advance":
                    job.advance(how)
                case "give":
                    job.give(how)
                case "ahead":
                    for _, on_disk in job.pairs:
                        take_ahead(on_disk.operator, how)
                case "snapshot":
                    taken = job.snapshot()
                    if how:
                        # Otherwise nobody stores it: what is in it is for the next one to write.
                        for _, on_disk in taken:
                            restored_from(on_disk)
                case "restore":
                    taken = job.snapshot()
                    job.restore(taken, how[0], from_heap=how[1])
        job.give_all()
        job.advance(1000)
        del job, taken


@pytest.mark.parametrize("way", [(1, 2, 3), (3, 2, 1), (2, 2, 2)])
def test_rows_go_to_whoever_owns_their_key_group(
    way: Sequence[int], backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_join, "MOST_PAIRS_AT_ONCE", 1 << 15)
    job = Job(join(JoinType.FULL_OUTER), backends)
    for number, parallelism in enumerate(way):
        for own in (0, 1):
            job.rows(own, [(f"k{at}", 10 + number, at) for at in range(own, 40, 2 + own)])
        job.snapshot()
        job.rows(0, [(f"k{at}", 10, at) for at in range(number, 30, 4)])
        job.restore(job.snapshot(), parallelism, from_heap=False)
    assert sum(sum(kept(on_disk).values()) for _, on_disk in job.pairs) == 3 * 33 + 23
    job.advance(13)
    job.advance(1000)


def keys(numbers: Sequence[int], at_s: int = 10) -> list[Row]:
    return [(f"k{number}", at_s, number) for number in numbers]


def test_a_snapshot_stores_what_changed_since_the_last_one(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    harness, known = logged(backends), set[str]()
    harness.left(*keys(range(20_000)))
    whole = stored_bytes(harness.sections(), known)
    harness.left(*keys(range(20_000, 20_100)))
    few = stored_bytes(harness.sections(), known)
    assert 0 < few < whole / 50
    assert stored_bytes(harness.sections(), known) == 0, "nothing changed"
    harness.right(*keys(range(100)))
    met = stored_bytes(harness.sections(), known)
    assert few < met < whole / 20, "new rows of the right, and a number for each on the left that met one"
    again = logged(backends, harness.sections())
    assert kept(again) == kept(harness)
    assert stored_bytes(again.sections(), known) == 0, "it goes on with the files that are stored"


def test_a_snapshot_looks_at_runs_with_new_rows_only(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(join_rows, "MOST_RUN_ROWS", 1000)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 1)
    harness = logged(backends)
    for start in range(0, 10_000, 1000):
        harness.left(*keys(range(start, start + 1000)))
    harness.sections()
    harness.left(*keys(range(10_000, 10_010)))
    looked_at: list[int] = []
    flatnonzero = np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", lambda flags: looked_at.append(len(flags)) or flatnonzero(flags))
    harness.operator.snapshot()
    assert looked_at == [10, 10], "to count them, and to write them"


def test_rows_that_are_gone_with_their_file_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a changelog it is asked for new rows ten times a second, and a run may have millions."""
    numbers, is_live = RowNumbers(np.arange(1, 11), Changes()), np.arange(10) >= 5
    numbers.forget_outside(6, 11)
    assert numbers.new(is_live).tolist() == []
    looked_at: list[int] = []
    flatnonzero = np.flatnonzero
    monkeypatch.setattr(np, "flatnonzero", lambda flags: looked_at.append(len(flags)) or flatnonzero(flags))
    assert numbers.new(is_live).tolist() == []
    assert looked_at == []
    numbers.forget_outside(8, 11)
    assert numbers.new(is_live).tolist() == [5, 6], "those that are there have to be written again"


def test_an_aborted_snapshot_leaves_its_rows_to_the_next_one(backends: RocksBackends) -> None:
    harness = logged(backends)
    harness.left(*keys(range(10)))
    harness.operator.snapshot()
    harness.right(*keys(range(5)))
    harness.operator.snapshot()
    harness.left(*keys(range(20, 23)))
    assert kept_in(harness.sections(), backends) == kept(harness)


def test_rows_of_aborted_snapshots_are_not_in_memory_for_ever(backends: RocksBackends, tmp_path: Path) -> None:
    harness = logged(backends)
    for start in range(0, 100, 10):
        harness.left(*keys(range(start, start + 10)))
        harness.operator.snapshot()
    assert len(list(tmp_path.glob("*/*-rows/*.rows"))) > 3
    assert kept_in(harness.sections(), backends) == kept(harness)


def test_of_a_row_that_is_gone_nothing_else_is_noted() -> None:
    changes = Changes()
    changes.note_met(np.array([7, 0, 3, 7]))
    changes.note_gone(np.array([9, 0, 3]))
    marks = changes.take()
    assert (marks.gone.tolist(), marks.met.tolist()) == ([3, 9], [7])
    assert changes.take().count == 0


def test_a_snapshot_is_of_its_moment(backends: RocksBackends) -> None:
    harness = logged(backends)
    harness.left(*keys(range(30)))
    before = kept(harness)
    sections = harness.operator.snapshot()
    harness.right(*keys(range(10)))
    after = kept(harness)
    later = harness.operator.snapshot()
    harness.advance(1000)
    assert kept_in(restored_from(sections), backends) == before
    assert kept_in(restored_from(later), backends) == after
    assert harness.sections() == [], "nothing is said of rows that no file holds"


def test_files_of_rows_that_are_gone_are_given_up(backends: RocksBackends, tmp_path: Path) -> None:
    harness = logged(backends, spec=join(JoinType.INNER))
    most = 0
    for second in range(1, 120):
        harness.left(*[(f"k{second}-{at}", second, at) for at in range(10)])
        harness.advance(second - 1)
        sections = harness.sections()
        most = max(most, len(files_of(sections)))
        assert kept_in(sections, backends) == kept(harness)
    assert sum(kept(harness).values()) < 100
    assert most < 40
    del sections
    assert len(list(tmp_path.glob("*/*-rows/*.rows"))) < 40, "no file is left behind"


def test_the_log_stays_in_proportion_to_the_rows(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows stay for ever, among many that go: they are written again, and the files that they were in go."""
    monkeypatch.undo()
    monkeypatch.setattr(log_book, "_FEW_ROWS", 100)
    harness, known, stored = logged(backends), set[str](), 0
    for second in range(1, 400):
        long = [(f"long{second}", 1_000_000, 0)] if second % 4 == 0 else []
        harness.left(*long, *[(f"k{second}-{at}", second, at) for at in range(20)])
        harness.advance(second)
        sections = harness.sections()
        stored += stored_bytes(sections, known)
    assert stored_bytes(sections, set()) < 3 * 60 * sum(kept(harness).values()) + 40_000
    assert len(files_of(sections)) < 40
    assert stored < 400 * 21 * 250, "a row is written a few times only"
    assert kept_in(sections, backends) == kept(harness)


def test_what_was_in_a_log_is_not_taken_for_state_in_memory(backends: RocksBackends) -> None:
    harness = logged(backends)
    harness.left(*keys(range(5)))
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        Harness(harness.spec, harness.sections())


def test_a_damaged_log_and_one_of_other_columns_are_named(backends: RocksBackends) -> None:
    harness = logged(backends)
    harness.left(*keys(range(5)))
    (section,) = harness.sections()
    (name,) = section.files

    def nonsense(path: Path) -> None:
        path.write_bytes(b"nonsense, and more of it")

    damaged = RestoredSection(section.name, ALL, section.data, {name: nonsense})
    with pytest.raises(Damaged, match="a join"):
        logged(backends, [damaged])
    spec = join(JoinType.FULL_OUTER)
    narrow = replace(spec.left, columns=(0, 1), schema=pa.schema(list(spec.left.schema)[:2]), event_time=None, end=None)
    with pytest.raises(IncompatibleCheckpoint, match="holds a join of .*column_2.*left_number"):
        logged(backends, [section], spec=replace(spec, left=narrow))
