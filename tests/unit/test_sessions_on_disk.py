"""Whatever comes, session windows in a log and on disk give, and store, what those that are snapshotted whole do."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.stored_checkpoint import StoredJob, plan_of
from tests.unit.test_checkpoint_tables import rows_of
from tests.unit.test_groups_on_disk import stored_bytes
from tests.unit.test_joins_on_disk import meet
from tests.unit.test_windows_of_groups import ALL, Running, batch_of, spec_of
from tests.unit.tiny_steps import InTurn, opened_backends, take_ahead, take_tiny_steps
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.model.ids import KeyGroupRange, range_of
from tidegate.operators import aggregate, numbered_log, session_aggregate, session_compaction, sessions_on_disk
from tidegate.operators.build import build_operator
from tidegate.operators.session_aggregate import SessionAggregateOperator
from tidegate.operators.stored_groups import row_format
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import EventTimeKey, OutputMode
from tidegate.plan.physical import AggregateSpec
from tidegate.state.contract import RestoredSection, Section
from tidegate.storage.store import LocalFiles
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import RocksBackends

Row = tuple[str, tuple[int, int], int]
APPEND, COMPLETE = (spec_of(mode, EventTimeKey.SESSION) for mode in (OutputMode.APPEND, OutputMode.COMPLETE))


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(numbered_log, "_PART_MARKS", 3)
    monkeypatch.setattr(session_aggregate, "_FEW_SESSIONS", 2)
    monkeypatch.setattr(aggregate, "LEAST_FIRED_GROUPS", 2)
    monkeypatch.setattr(session_compaction, "MOST_LINKED_SESSIONS", 3)


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocksBackends]:
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    opened = RocksBackends(local, memory_bytes=8 << 20)
    yield opened
    opened.close()


class Logged(Running):
    def __init__(
        self,
        backends: RocksBackends | InTurn,
        spec: AggregateSpec = APPEND,
        restored: Sequence[RestoredSection] = (),
        key_groups: KeyGroupRange = ALL,
    ) -> None:
        super().__init__(spec, (), key_groups)
        self.operator = build_operator(spec)
        self.context = replace(self.context, open_rows=lambda: backends.open_rows(key_groups))
        self.operator.open(self.context, restored)

    def is_consistent(self) -> bool:
        assert isinstance(self.operator, SessionAggregateOperator)
        return self.operator._logged is None or self.operator._logged.is_consistent()


def sessions_in(sections: Sequence[Section]) -> Counter[Any]:
    """What is stored, as one that keeps them in memory has it."""
    running = Running(COMPLETE, restored_from(sections))
    return Counter(running.flushed())


def sessions_of(running: Running) -> Counter[Any]:
    """Wherever they are."""
    operator = running.operator
    assert isinstance(operator, SessionAggregateOperator)
    kept = operator._store, operator._logged
    operator._store = operator._logged = None
    try:
        in_memory = sessions_in(operator.snapshot())
    finally:
        operator._store, operator._logged = kept
    # Those that are about to leave are in memory still.
    return in_memory | Counter(Running(COMPLETE, away_of(operator)).flushed())


def away_of(operator: SessionAggregateOperator) -> list[RestoredSection]:
    disk, format = operator._on_disk, row_format(operator._stored_schema)
    if disk is None or disk._evicted is None:
        return []
    stored = map(disk._sessions_in, disk._evicted.all_rows(range(128), 100))
    encoded = [b"".join(format.encoded(each, hash_rows(each, 1), 128)) for each in stored]
    return [RestoredSection(format.name, ALL, memoryview(each)) for each in encoded]


def in_memory(running: Running) -> int:
    assert isinstance(running.operator, SessionAggregateOperator)
    return int(running.operator._sessions.count)


class Job:
    """The same aggregation twice: snapshotted whole, and in a log."""

    def __init__(self, spec: AggregateSpec, backends: RocksBackends | InTurn) -> None:
        self.spec, self.backends = spec, backends
        self.pairs = [(ALL, Running(spec), Logged(backends, spec))]
        self.watermark_ms = 0

    def process(self, rows: list[Row]) -> None:
        groups = key_group_of(hash_rows(batch_of(self.spec, rows), 1), 128).tolist()
        for own, whole, logged in self.pairs:
            mine = [row for row, group in zip(rows, groups, strict=True) if group in own]
            for each in (whole, logged):
                each.process(mine)

    def advance(self, watermark_ms: int, fires: int) -> None:
        self.watermark_ms = max(self.watermark_ms, watermark_ms)
        for _, whole, logged in self.pairs:
            for each in (whole, logged):
                each.operator.on_watermark(self.watermark_ms)
                for _ in range(fires):
                    each.operator.fire(1, each.out.append)

    def check(self) -> None:
        for _, whole, logged in self.pairs:
            for each in (whole, logged):
                while each.operator.fire(1, each.out.append):
                    pass
            assert logged.flushed() == whole.flushed()

    def snapshot(self) -> list[tuple[list[Section], list[Section]]]:
        taken = [(whole.operator.snapshot(), logged.operator.snapshot()) for _, whole, logged in self.pairs]
        assert all(logged.is_consistent() for _, _, logged in self.pairs)
        return taken

    def restore(self, taken: list[tuple[list[Section], list[Section]]], parallelism: int, *, from_heap: bool) -> None:
        stored = [(restored_from(whole), restored_from(logged)) for whole, logged in taken]
        old = [own for own, _, _ in self.pairs]
        # Event time is behind what it was until the next watermark comes.
        self.pairs = []
        for at in range(parallelism):
            own = range_of(at, parallelism=parallelism, max_parallelism=128)
            meeting = [each for each, theirs in zip(stored, old, strict=True) if meet(own, theirs)]
            in_memory = [section for each in meeting for section in each[0]]
            in_log = in_memory if from_heap else [section for each in meeting for section in each[1]]
            whole = Running(self.spec, in_memory, own)
            logged = Logged(self.backends, self.spec, in_log, own)
            assert sessions_of(logged) == sessions_of(whole)
            self.pairs.append((own, whole, logged))
        self.advance(self.watermark_ms, 0)


some_rows = st.lists(
    st.tuples(
        st.sampled_from("abcdefgh"),
        st.tuples(st.integers(0, 300), st.integers(1, 20)).map(lambda at: (at[0], at[0] + at[1])),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=15,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), some_rows),
        st.tuples(st.just("rows"), some_rows),
        st.tuples(st.just("advance"), st.tuples(st.integers(1, 320), st.integers(0, 4))),
        st.tuples(st.just("check"), st.none()),
        st.tuples(st.just("ahead"), st.integers(1, 6)),
        st.tuples(st.just("snapshot"), st.booleans()),
        st.tuples(st.just("snapshot"), st.booleans()),
        st.tuples(st.just("restore"), st.tuples(st.sampled_from([1, 1, 2, 3]), st.sampled_from([False, False, True]))),
    ),
    min_size=4,
    max_size=30,
)


@pytest.mark.parametrize("spec", [APPEND, COMPLETE], ids=["append", "complete"])
@settings(max_examples=100, deadline=None)
@given(drawn=steps, memory_bytes=st.sampled_from([1, 2000, 1 << 30, None]))
def test_logged_sessions_give_and_store_what_those_in_memory_do(
    spec: AggregateSpec, drawn: list[Any], memory_bytes: int | None
) -> None:
    with opened_backends(rows_memory_bytes=memory_bytes) as backends:
        job, taken = Job(spec, backends), None
        for what, how in drawn:
            match what:
                case "rows":
                    job.process(how)
                case "advance":
                    job.advance(*how)
                case "check":
                    job.check()
                case "ahead":
                    for _, _, logged in job.pairs:
                        take_ahead(logged.operator, how)
                case "snapshot":
                    taken = job.snapshot()
                    if how:
                        # Otherwise nobody stores it: what is in it is for the next one to write.
                        for _, logged in taken:
                            restored_from(logged)
                case "restore":
                    job.check()
                    taken = job.snapshot()
                    job.restore(taken, how[0], from_heap=how[1])
        job.check()
        job.advance(10_000, 0)
        job.check()
        del job, taken


def keys(numbers: Sequence[int], at_ms: int = 0) -> list[Row]:
    return [(f"k{number}", (at_ms, at_ms + 10), number) for number in numbers]


def test_a_snapshot_stores_the_sessions_that_changed_or_ended(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    running, known = Logged(backends), set[str]()
    running.process(keys(range(10_000)) + keys(range(10_000, 20_000), at_ms=1000))
    whole = stored_bytes(running.stored(), known)
    running.process(keys(range(100), at_ms=5))
    assert 0 < stored_bytes(running.stored(), known) < whole / 50
    assert stored_bytes(running.stored(), known) == 0, "nothing changed"
    running.advance(10)
    assert len(running.taken()) == 9_900
    sections = running.stored()
    assert 0 < stored_bytes(sections, known) < whole / 10, "the numbers of what is over"
    again = Logged(backends, restored=sections)
    assert sessions_of(again) == sessions_of(running)
    assert sum(sessions_of(again).values()) == 10_100
    assert stored_bytes(again.stored(), known) == 0, "it goes on with the files that are stored"


def test_sessions_that_stay_are_stored_still_when_many_others_have_ended(backends: RocksBackends) -> None:
    """Slots are left behind and files given up, again and again."""
    running, most_slots, files = Logged(backends), 0, set[str]()
    for now in range(0, 2000, 20):
        stays = [(f"long{now}", (now, 1_000_000), 1)] if now % 100 == 0 else []
        running.process([*stays, *((f"k{now}-{at}", (now, now + 30), at) for at in range(6))])
        running.advance(now)
        (section,) = running.stored()
        files |= set(section.files)
        assert running.is_consistent()
        again = Logged(backends, restored=[section])
        assert sessions_of(again) == sessions_of(running)
        again.operator.close()
        assert isinstance(running.operator, SessionAggregateOperator)
        most_slots = max(most_slots, running.operator._sessions.count)
    assert sum(sessions_of(running).values()) == 20 + 12
    assert most_slots < 150
    assert len(section.files) < len(files) / 4


def test_a_snapshot_while_sessions_are_left_behind_is_not_undone_by_it(backends: RocksBackends) -> None:
    counts = []
    for fires in range(1, 60, 2):
        running = Logged(backends)
        operator = running.operator
        assert isinstance(operator, SessionAggregateOperator)
        running.process([*keys(range(20)), *keys(range(20, 30), at_ms=1000)])
        operator.on_watermark(10)
        for _ in range(fires):
            operator.fire(1, running.out.append)
        counts.append(operator._sessions.count)
        running.stored()
        running.advance(10)
        assert operator._sessions.count == 10
        running.process(keys(range(20, 22), at_ms=1001))
        sections = running.stored()
        assert running.is_consistent()
        assert sessions_of(Logged(backends, restored=sections)) == sessions_of(running)
    assert (counts[0], counts[-1]) == (30, 10), "before, while and after they are left behind"


def test_keys_that_come_while_sessions_are_left_behind_stay() -> None:
    """At each step of it; in memory, where nothing hurries it."""
    counts = []
    for fires in range(1, 60):
        running = Running(APPEND)
        operator = running.operator
        assert isinstance(operator, SessionAggregateOperator)
        running.process([*keys(range(20)), *keys(range(20, 30), at_ms=1000)])
        operator.on_watermark(10)
        for _ in range(fires):
            operator.fire(1, running.out.append)
        counts.append(operator._sessions.count)
        running.process(keys(range(25, 45), at_ms=1005))
        running.advance(10)
        running.taken()
        running.advance(2000)
        joined = [(f"k{at}", (1000, 1015), 2, 2 * at, (at, at)) for at in range(25, 30)]
        alone = [(f"k{at}", (1000, 1010), 1, at, (at,)) for at in range(20, 25)]
        new = [(f"k{at}", (1005, 1015), 1, at, (at,)) for at in range(30, 45)]
        assert running.taken() == sorted([*joined, *alone, *new])
    assert (counts[0], counts[-1]) == (30, 10), "before, while and after they are left behind"


def test_sessions_that_rows_make_one_are_one_after_a_restore(backends: RocksBackends) -> None:
    running = Logged(backends)
    running.process([("a", (0, 10), 1), ("a", (15, 25), 2), ("b", (0, 10), 7)])
    running.stored()
    running.process([("a", (9, 19), 3)])
    again = Logged(backends, restored=running.stored())
    again.advance(25)
    assert again.taken() == [("a", (0, 25), 3, 6, (1, 2, 3)), ("b", (0, 10), 1, 7, (7,))]
    assert again.stored() == []


def test_sessions_that_do_not_fit_are_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with opened_backends(rows_memory_bytes=512 << 10) as backends:
        job = Job(APPEND, backends)
        for at in range(0, 20_000, 500):
            # A second one of each tenth key, far behind the first.
            job.process([*keys(range(at, at + 500)), *keys(range(at, at + 500, 10), at_ms=500)])
        ((_, whole, on_disk),) = job.pairs
        assert (in_memory(whole), in_memory(on_disk) < 7_000) == (22_000, True)
        job.restore(job.snapshot(), 1, from_heap=False)
        ((_, whole, on_disk),) = job.pairs
        assert in_memory(on_disk) < 7_000
        job.process(keys(range(0, 20_000, 7), at_ms=5))
        job.advance(10, 0)
        job.check()
        assert (in_memory(on_disk) < 7_000, sum(sessions_of(on_disk).values())) == (True, 2_858 + 2_000)
        job.advance(10_000, 0)
        job.check()
        assert (in_memory(on_disk) < 7_000, sessions_of(on_disk)) == (True, Counter())
        del job, whole, on_disk


@pytest.mark.parametrize("from_heap", [False, True])
def test_what_does_not_fit_when_it_is_restored_leaves_memory(monkeypatch: pytest.MonkeyPatch, from_heap: bool) -> None:
    """What two had in memory, or one that has room for all."""
    monkeypatch.undo()
    with opened_backends(rows_memory_bytes=512 << 10) as backends:
        job = Job(APPEND, backends)
        job.restore(job.snapshot(), 2, from_heap=False)
        for at in range(0, 9_000, 500):
            job.process(keys(range(at, at + 500)))
        job.restore(job.snapshot(), 1, from_heap=from_heap)
        ((_, whole, on_disk),) = job.pairs
        assert (in_memory(whole), in_memory(on_disk) < 500) == (9_000, True)
        job.advance(10_000, 0)
        job.check()
        del job, whole, on_disk


def test_sessions_that_come_with_one_that_has_ended_leave_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with opened_backends(rows_memory_bytes=512 << 10) as backends:
        job, most = Job(APPEND, backends), 0
        for at in range(0, 20_000, 500):
            job.process([row for at_ms in (0, 100, 200) for row in keys(range(at, at + 500), at_ms)])
        ((_, whole, on_disk),) = job.pairs
        for each in (whole, on_disk):
            each.operator.on_watermark(10)
        while on_disk.operator.fire(1, on_disk.out.append):
            most = max(most, in_memory(on_disk))
        assert (in_memory(whole), most < 20_000) == (60_000, True)
        job.check()
        del job, whole, on_disk


@pytest.mark.parametrize("takes_arrays", [False, True])
def test_a_step_writes_no_more_sessions_than_it_has_time_for(
    monkeypatch: pytest.MonkeyPatch, takes_arrays: bool
) -> None:
    """A few keys with very many sessions each, which a step by keys would write all at once."""
    monkeypatch.undo()
    monkeypatch.setattr(sessions_on_disk, "_PUT_BYTES", 1 << 16)
    counts: list[int] = []
    put_away = sessions_on_disk.SessionsOnDisk._put_away
    monkeypatch.setattr(
        sessions_on_disk.SessionsOnDisk,
        "_put_away",
        lambda disk, index, owners, columns: (counts.append(len(owners)), put_away(disk, index, owners, columns)),
    )
    spec = APPEND if takes_arrays else replace(APPEND, calls=APPEND.calls[:2], results=APPEND.results[:4])
    with opened_backends(rows_memory_bytes=1 << 20) as backends:
        running = Logged(backends, spec)
        for at in range(200):
            running.process(keys(range(100), at_ms=at * 100))
        assert sum(counts) > 5_000
        assert max(counts) < 1_500
        running.operator.close()
        del running


@pytest.mark.parametrize("ends", [False, True])
def test_a_key_that_is_about_to_leave_stays_when_something_happens_to_it(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """Written already, and in memory still, in the midst of those that leave and of leaving them behind."""
    monkeypatch.setattr(sessions_on_disk, "_WRITTEN_PER_ADDED", 0)
    with opened_backends(rows_memory_bytes=1) as backends:
        states = set()
        for others in range(0, 30, 3):
            job = Job(APPEND, backends)
            job.process([*keys(range(30)), *keys(range(30), at_ms=200)])
            ((_, _, on_disk),) = job.pairs
            operator = on_disk.operator
            assert isinstance(operator, SessionAggregateOperator) and operator._on_disk is not None
            for number in range(others):
                job.process([(f"other {number}", (500, 510), 1)])
            states.add((operator._on_disk.is_leaving(), operator._compaction is not None))
            if ends:
                job.advance(10, 200)
            else:
                job.process(keys(range(0, 30, 3), at_ms=5))
            job.check()
            job.restore(job.snapshot(), 1, from_heap=False)
            job.advance(10_000, 0)
            job.check()
            del job, on_disk, operator
        assert states >= {(True, False), (True, True)}


def test_a_snapshot_is_of_its_moment(backends: RocksBackends) -> None:
    running = Logged(backends)
    running.process(keys(range(30)))
    before = sessions_of(running)
    sections = running.operator.snapshot()
    running.process(keys(range(20), at_ms=3))
    running.advance(1000)
    assert sessions_of(Logged(backends, restored=restored_from(sections))) == before


def test_what_was_in_a_log_is_not_taken_for_state_in_memory(backends: RocksBackends) -> None:
    running = Logged(backends)
    running.process(keys(range(5)))
    with pytest.raises(IncompatibleCheckpoint, match="set state.backend to rocksdb"):
        Running(APPEND, running.stored())


@pytest.mark.parametrize("rows_memory_bytes", [1, 1 << 30])
def test_sessions_on_disk_are_the_table_that_sessions_in_memory_are(tmp_path: Path, rows_memory_bytes: int) -> None:
    with opened_backends(rows_memory_bytes=rows_memory_bytes) as backends:
        check_tables(tmp_path, backends)


def check_tables(tmp_path: Path, backends: RocksBackends | InTurn) -> None:
    job = Job(APPEND, backends)
    job.process(keys(range(30)))
    job.restore(job.snapshot(), 2, from_heap=False)
    job.process(keys(range(20), at_ms=3) + keys(range(15, 40), at_ms=30))
    job.advance(10, 100)
    taken = job.snapshot()
    tables = []
    for name, sections in (("heap", [each for each, _ in taken]), ("rocksdb", [each for _, each in taken])):
        (tmp_path / name).mkdir()
        plan = plan_of(APPEND, schema=pa.schema([("k", pa.string())]), parallelism=2)
        StoredJob(plan, dict(enumerate(sections))).write(LocalFiles(tmp_path / name))
        tables.append(Counter(map(repr, rows_of(path=str(tmp_path / name), table="state"))))
    assert tables[1] == tables[0]
    assert sum(tables[0].values()) == 20 + 25
