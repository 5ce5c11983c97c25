"""Whatever comes, a join whose rows do not fit into memory gives what one that has them all in memory does."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_groups_on_disk import stored_bytes
from tests.unit.test_joins_on_disk import KINDS, LoggedHarness, is_consistent, kept, keys, logged, meet, some_rows
from tests.unit.test_stream_join import LESS, Harness, Pair, Row, join, side
from tests.unit.timed_rows import batch, rows_of
from tests.unit.tiny_steps import opened_backends, take_tiny_steps
from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import range_of
from tidegate.operators import join_rows, rows_in_file, runs_on_disk, stream_join
from tidegate.operators.join_rows import Run
from tidegate.operators.rows_in_file import RowsInFile
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import StreamJoinSpec
from tidegate.state.contract import Section
from tidegate.state.stepwise_file import StepwiseFile
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import RocksBackends

# Of 12 rows there are about 300 bytes.
NOTHING_STAYS, SOME_STAY, MOST_STAY = 1, 2_000, 20_000


@pytest.fixture
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(join_rows, "MOST_RUN_ROWS", 16)
    monkeypatch.setattr(join_rows, "_SMALL_RUN_ROWS", 3)
    monkeypatch.setattr(stream_join, "MOST_PAIRS_AT_ONCE", 12)
    monkeypatch.setattr(rows_in_file, "_PART_BYTES", 100)
    monkeypatch.setattr(rows_in_file, "_MOST_MAPPED", 2)
    monkeypatch.setattr(runs_on_disk, "_LEAST_WRITTEN_BYTES", 500)
    monkeypatch.setattr(runs_on_disk, "_WRITTEN_PER_ADDED", 0)


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[RocksBackends]:
    opened = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=NOTHING_STAYS)
    yield opened
    opened.close()


def runs_of(harness: Harness) -> list[Run]:
    return [run for own in (harness.operator._left, harness.operator._right) for run in own.store.runs]


def is_in_file(run: Run) -> bool:
    return isinstance(run.rows, RowsInFile)


def scratch_files(folder: Path) -> list[Path]:
    return list(folder.glob("*/*-scratch/*.scratch"))


@dataclass
class Job:
    """The same join twice, in memory and beyond it; which pair of rows comes first may differ."""

    spec: StreamJoinSpec
    backends: RocksBackends
    watermark_s: int = 0
    shown: tuple[Counter[Pair], Counter[Pair]] = field(default_factory=lambda: (Counter(), Counter()))
    tasks: list[tuple[Harness, LoggedHarness]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tasks = [(Harness(self.spec), logged(self.backends, spec=self.spec))]

    def rows(self, own: int, rows: list[Row]) -> None:
        groups = key_group_of(hash_rows(batch(rows), 1), 128).tolist()
        for task in self.tasks:
            mine = [row for row, group in zip(rows, groups, strict=True) if group in task[0].key_groups]
            for each, shown in zip(task, self.shown, strict=True):
                shown.update(each.left(*mine) if own == 0 else each.right(*mine))

    def give(self, most: int) -> None:
        for task in self.tasks:
            for each, shown in zip(task, self.shown, strict=True):
                out: list[pa.RecordBatch] = []
                each.operator.give(most, out.append)
                shown.update(rows_of(out))

    def give_all(self) -> None:
        while any(each.operator.holds_rows() for task in self.tasks for each in task):
            self.give(100)
        self.compare()

    def compare(self) -> None:
        """When nothing is held, or else what is still to come differs."""
        assert self.shown[1] == self.shown[0]
        for in_memory, beyond in self.tasks:
            assert kept(beyond) == kept(in_memory)

    def advance(self, seconds: int) -> None:
        self.watermark_s = max(self.watermark_s, seconds)
        for task in self.tasks:
            if not any(each.operator.holds_rows() for each in task):
                for each, shown in zip(task, self.shown, strict=True):
                    shown.update(each.advance(self.watermark_s))

    def snapshot(self) -> list[tuple[list[Section], list[Section]]]:
        taken = [(in_memory.operator.snapshot(), beyond.operator.snapshot()) for in_memory, beyond in self.tasks]
        assert all(is_consistent(beyond) for _, beyond in self.tasks)
        return taken

    def restore(self, taken: list[tuple[list[Section], list[Section]]], parallelism: int, *, from_heap: bool) -> None:
        stored = [(restored_from(in_memory), restored_from(beyond)) for in_memory, beyond in taken]
        old = [in_memory.key_groups for in_memory, _ in self.tasks]
        self.tasks = []
        for at in range(parallelism):
            own = range_of(at, parallelism=parallelism, max_parallelism=128)
            meeting = [each for each, theirs in zip(stored, old, strict=True) if meet(own, theirs)]
            in_memory, beyond = ([section for each in meeting for section in each[which]] for which in (0, 1))
            again = logged(self.backends, in_memory if from_heap else beyond, spec=self.spec, key_groups=own)
            self.tasks.append((Harness(self.spec, in_memory, own), again))
        self.advance(self.watermark_s)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.tuples(st.integers(0, 1), some_rows)),
        st.tuples(st.just("rows"), st.tuples(st.integers(0, 1), some_rows)),
        st.tuples(st.just("rows"), st.tuples(st.integers(0, 1), some_rows)),
        st.tuples(st.just("advance"), st.integers(1, 70)),
        st.tuples(st.just("give"), st.integers(1, 9)),
        st.tuples(st.just("give all"), st.none()),
        st.tuples(st.just("snapshot"), st.booleans()),
        st.tuples(st.just("restore"), st.tuples(st.sampled_from([1, 1, 2, 3]), st.sampled_from([False, False, True]))),
    ),
    min_size=4,
    max_size=30,
)


@pytest.mark.usefixtures("tiny_steps")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(
    drawn=steps,
    aheads=st.tuples(st.integers(-9, 4), st.integers(-9, 4)),
    memory_bytes=st.sampled_from([NOTHING_STAYS, SOME_STAY, MOST_STAY]),
)
def test_a_join_beyond_memory_gives_and_stores_what_one_in_memory_does(
    kind: JoinType, drawn: list[Any], aheads: tuple[int, int], memory_bytes: int
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
                case "give all":
                    job.give_all()
                case "snapshot":
                    taken = job.snapshot()
                    if how:
                        # Otherwise nobody stores it: what is in it is for the next one to write.
                        for _, beyond in taken:
                            restored_from(beyond)
                case "restore":
                    if how[1]:
                        # What is held of it would be given to both.
                        job.give_all()
                    taken = job.snapshot()
                    job.restore(taken, how[0], from_heap=how[1])
        job.give_all()
        job.advance(1000)
        job.compare()
        del job, taken


def in_memory_bytes(harness: Harness) -> int:
    return sum(run.rows_bytes for run in runs_of(harness) if not is_in_file(run))


def test_rows_in_memory_are_bounded_and_the_files_written_part_by_part(tmp_path: Path) -> None:
    memory_bytes = 8 << 20
    backends = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=memory_bytes)
    harness = logged(backends, spec=join(JoinType.INNER, left=side(), right=side()))
    slice_bytes = batch(keys(range(8_000))).nbytes
    for start in range(0, 800_000, 8_000):
        harness.left(*keys(range(start, start + 8_000)))
        assert in_memory_bytes(harness) <= memory_bytes // 2 + slice_bytes
    assert sum(run.rows_bytes for run in runs_of(harness)) > 2 * memory_bytes
    assert len(runs_of(harness)) < 40
    assert len(harness.right(*keys(range(0, 800_000, 1000)))) == 800
    backends.close()


def test_pages_of_few_files_are_mapped_at_a_time(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_in_file, "_MOST_MAPPED", 3)
    harness = logged(backends, spec=join(JoinType.INNER, left=side(), right=side()))
    for number in range(40):
        harness.left(*[(f"k{number}", 10, at) for at in range(10)])
    in_files = [run.rows for run in runs_of(harness) if isinstance(run.rows, RowsInFile)]
    assert len(in_files) > 10

    def mapped() -> list[RowsInFile]:
        return [rows for rows in in_files if rows._batch is not None]

    backends.rows_memory.total_bytes = 1 << 20
    assert len(harness.right(*keys(range(40)))) == 400
    assert len(mapped()) == 3
    backends.rows_memory.total_bytes = NOTHING_STAYS
    assert len(harness.right(*keys(range(40)))) == 400
    assert len(mapped()) == 1


def test_nothing_is_written_while_all_rows_fit(tmp_path: Path) -> None:
    backends = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=8 << 20)
    harness = logged(backends)
    for start in range(0, 20_000, 1000):
        harness.left(*keys(range(start, start + 1000)))
    assert not any(is_in_file(run) for run in runs_of(harness))
    assert not list(tmp_path.glob("*/*-scratch"))
    backends.close()


def test_operators_of_a_slot_share_the_memory(tmp_path: Path) -> None:
    backends = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=1 << 20)
    one, other = logged(backends), logged(backends)
    for harness in (one, other):
        for start in range(0, 20_000, 1000):
            harness.left(*keys(range(start, start + 1000)))
        assert in_memory_bytes(harness) <= (1 << 18) + batch(keys(range(1000))).nbytes
    backends.close()


def test_a_file_goes_with_its_last_row_and_all_with_the_join(backends: RocksBackends, tmp_path: Path) -> None:
    harness = logged(backends)
    for second in range(1, 30):
        harness.left(*keys(range(20), at_s=second))
    assert len(scratch_files(tmp_path)) > 10
    harness.advance(1000)
    assert runs_of(harness) == []
    assert scratch_files(tmp_path) == []
    harness.left(*keys(range(20), at_s=2000))
    assert len(scratch_files(tmp_path)) == 1
    harness.operator.close()
    assert scratch_files(tmp_path) == []


def test_what_few_rows_are_left_in_files_comes_together_again(backends: RocksBackends, tmp_path: Path) -> None:
    """Some rows stay for ever among many that go."""
    harness = logged(backends)
    backends.rows_memory.total_bytes = 40_000
    for second in range(1, 400):
        harness.left((f"long{second}", 1_000_000, 0), *keys(range(200), at_s=second))
        harness.advance(second)
    assert sum(is_in_file(run) for run in runs_of(harness)) > 0
    assert len(scratch_files(tmp_path)) < 20
    assert sum(len(run.is_live) for run in runs_of(harness)) < 3 * sum(kept(harness).values())
    assert {row[0] for _, row, _ in kept(harness)} >= {f"long{second}" for second in range(1, 400)}


@pytest.mark.usefixtures("tiny_steps")
def test_rows_that_meet_a_partner_or_go_while_they_are_written_are_marked(backends: RocksBackends) -> None:
    harness = logged(backends)
    harness.left(*keys(range(30)), ("early", 1, 0))
    (run,) = runs_of(harness)
    assert run.is_apart and not is_in_file(run), "it is being written"
    harness.right(("k3", 11, 3))
    harness.advance(7)
    while not is_in_file(run):
        harness.right(("other", 12, 0))
    assert [bool(flag) for flag in run.is_live].count(False) == 1
    alone = harness.advance(16)
    assert {row[0] for row in alone} == {f"k{number}" for number in range(30) if number != 3}


@pytest.mark.usefixtures("tiny_steps")
def test_a_run_that_is_gone_before_it_is_written_is_left(backends: RocksBackends, tmp_path: Path) -> None:
    harness = logged(backends)
    harness.left(*keys(range(100)))
    assert len(scratch_files(tmp_path)) == 1
    harness.advance(1000)
    assert scratch_files(tmp_path) == []


@pytest.mark.usefixtures("tiny_steps")
def test_what_is_left_of_a_run_that_is_being_written_is_written_instead(backends: RocksBackends) -> None:
    harness = logged(backends)
    harness.left(*keys(range(60)), *keys(range(40), at_s=30))
    (before,) = runs_of(harness)
    harness.advance(16)
    (after,) = runs_of(harness)
    assert (before.live_count, len(after.is_live)) == (40, 40)
    assert harness.operator._on_disk is not None and harness.operator._on_disk._leaving is not None
    assert harness.operator._on_disk._leaving.run is after


@pytest.mark.usefixtures("tiny_steps")
def test_a_run_that_is_being_written_is_not_merged(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOST_RUN_ROWS", "_SMALL_RUN_ROWS"):
        monkeypatch.setattr(join_rows, name, 1000)
    harness = logged(backends)
    harness.left(*keys(range(100)))
    (run,) = runs_of(harness)
    backends.rows_memory.total_bytes = 1 << 20
    for number in (200, 201, 202):
        harness.left(*keys([number]))
    assert [len(each.is_live) for each in runs_of(harness)] == [100, 3]
    assert runs_of(harness)[0] is run


def test_a_snapshot_is_of_its_moment_wherever_the_rows_lie_when_it_is_written(backends: RocksBackends) -> None:
    harness = logged(backends)
    harness.left(*keys(range(30)))
    assert all(is_in_file(run) for run in runs_of(harness))
    before, sections = kept(harness), harness.operator.snapshot()
    backends.rows_memory.total_bytes = 1 << 20
    harness.right(*keys(range(10), at_s=12))
    (_, new) = runs_of(harness)
    assert not is_in_file(new)
    after, later = kept(harness), harness.operator.snapshot()
    backends.rows_memory.total_bytes = NOTHING_STAYS
    harness.left(("other", 12, 0))
    assert is_in_file(new), "it has left since"
    harness.advance(1000)
    for expected, taken in ((before, sections), (after, later)):
        again = logged(backends, restored_from(taken))
        assert kept(again) == expected
        again.operator.close()


def test_rows_that_left_before_a_snapshot_are_stored_once(backends: RocksBackends) -> None:
    harness, known = logged(backends), set[str]()
    harness.left(*keys(range(5_000)))
    whole = stored_bytes(harness.sections(), known)
    harness.right(*keys(range(20_000, 20_100)))
    assert 0 < stored_bytes(harness.sections(), known) < whole / 10
    assert stored_bytes(harness.sections(), known) == 0


def test_a_restored_join_has_as_much_in_memory_as_one_that_ran_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_on_disk, "_LEAST_WRITTEN_BYTES", 10_000)
    monkeypatch.setattr(runs_on_disk, "_WRITTEN_PER_ADDED", 0)
    backends = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=1 << 20)
    heap = Harness(join(JoinType.FULL_OUTER))
    harness = logged(backends)
    for each in (heap, harness):
        for start in range(0, 80_000, 8_000):
            each.left(*keys(range(start, start + 8_000)))
    for sections in (harness.sections(), heap.sections()):
        again = logged(backends, sections)
        assert kept(again) == kept(harness)
        assert in_memory_bytes(again) <= 1 << 18
        again.operator.close()
    backends.close()


def test_rows_that_cannot_be_written_are_named(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: StepwiseFile, pieces: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StepwiseFile, "_write", full)
    with pytest.raises(DidNotHappen, match="do not fit into memory could not be written to .*No space left"):
        logged(backends).left(*keys(range(5)))


def test_columns_of_any_kind_come_back_from_a_file(backends: RocksBackends) -> None:
    kinds: list[tuple[pa.DataType, list[Any]]] = [
        (pa.bool_(), [True, None, False]),
        (pa.decimal128(38, 2), [None, 1, 2]),
        (pa.list_(pa.string()), [["a", None], None, []]),
        (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], None]),
        (pa.struct([("x", pa.binary()), ("y", pa.list_(pa.float64()))]), [{"x": b"1", "y": [0.5]}, None, {"x": None}]),
        (pa.null(), [None, None, None]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", None, "a"]),
    ]
    columns = [pa.array(values, kind) for kind, values in kinds]
    rows = pa.RecordBatch.from_arrays(columns, names=[str(at) for at in range(len(kinds))])
    store = backends.open_runs(range_of(0, parallelism=1, max_parallelism=128))
    assert store is not None
    file = rows_in_file.begin_file(rows, store.files)
    for _ in file.steps():
        pass
    found = RowsInFile(file, rows.nbytes, rows_in_file.Mappings(lambda: 0)).batch()
    found.validate(full=True)
    assert found.equals(rows)
