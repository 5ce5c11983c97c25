"""A savepoint for another number of key groups: every kind of state is there again, wherever it was, and goes on."""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.in_memory import folder_in_memory
from tests.unit.regrouped_jobs import (
    GOES_ON,
    SPECS,
    WATERMARK_MS,
    WRITTEN_BY,
    Job,
    Spec,
    a_plan,
    feed,
    go_on,
    plain,
    regroup,
    restored_job,
    sent_by,
    shown,
    table,
    written_away,
)
from tests.unit.stored_checkpoint import RECEIVER, StoredJob, plan_of
from tests.unit.test_checkpoint_tables import INPUT, rows_of, stateful, stored_states
from tests.unit.test_stream_join import SCHEMA
from tests.unit.test_written_savepoints import write
from tests.unit.tiny_steps import take_tiny_steps
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import savepoint_without_keys
from tidegate.model.errors import Damaged, IncompatibleCheckpoint, OptionError
from tidegate.model.ids import KeyGroupRange, SlotIndex, TaskId, range_of
from tidegate.operators import aggregate, changed_groups, deduplicate, session_aggregate, stream_join
from tidegate.plan.nodes import OutputMode
from tidegate.plan.physical import (
    AggregateSpec,
    DeduplicateSpec,
    OperatorSpec,
    StreamJoinSpec,
)
from tidegate.state.contract import Section
from tidegate.storage.manifests import encode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.storage.stored_plan import StoredGroups
from tidegate.worker import regrouped_rows
from tidegate.worker.regrouped_rows import regrouped_sections
from tidegate.worker.restoring import restore_slot
from tidegate.worker.state_backends import HeapBackends, RocksBackends, StateBackends
from tidegate.worker.stored_task import StoredTask


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(aggregate, "_FEW_GROUPS", 2)
    monkeypatch.setattr(deduplicate, "_FEW_KEYS", 2)
    monkeypatch.setattr(session_aggregate, "_FEW_SESSIONS", 2)
    monkeypatch.setattr(regrouped_rows, "SECTION_ROWS", 10)


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, StateBackends]]:
    """Those with RocksDB have room for few rows."""
    with folder_in_memory() as folder:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
        opened: dict[str, StateBackends] = {
            "heap": HeapBackends(folder),
            "heap with a log": HeapBackends(folder, rows_whole_up_to_bytes=0),
            "rocksdb": RocksBackends(folder, memory_bytes=8 << 20, rows_memory_bytes=4_000),
        }
        yield opened
        for each in opened.values():
            each.close()


@pytest.mark.parametrize("written_by", WRITTEN_BY)
@pytest.mark.parametrize("name", SPECS)
def test_all_rows_are_there_with_other_key_groups_and_go_on_as_if_nothing_had_been(
    name: str, written_by: str, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = SPECS[name]
    job = Job(spec, backends[written_by])
    feed(job, name, times=6, first_second=0)
    job.snapshot()
    feed(job, f"{name} again", times=4, first_second=4)
    job.advance(WATERMARK_MS)
    path = job.store(tmp_path / "before")
    before = table(path, spec)
    assert sum(before.values()) >= (1 if name == "one group" else 20)
    kinds = {file.suffix for file in (tmp_path / "before").glob("shared/*")}
    assert kinds == {"heap": set(), "heap with a log": {".rows"}, "rocksdb": {".rows"} | written_away(spec)}[written_by]
    regrouped = {number: regroup(path, tmp_path / f"for-{number}", number) for number in (7, 300)}
    job.out.clear()
    go_on(job)
    expected = table(job.store(tmp_path / "undisturbed"), spec)
    assert expected and expected != before and job.out
    for at, (max_parallelism, parallelism, goes_on_with) in enumerate(GOES_ON):
        path = regrouped[max_parallelism]
        assert table(path, spec) == before
        on = restored_job(path, spec, max_parallelism, parallelism, backends[goes_on_with])
        assert table(on.store(tmp_path / f"restored-{at}"), spec) == before
        go_on(on)
        assert table(on.store(tmp_path / f"after-{at}"), spec) == expected
        if not isinstance(spec, AggregateSpec) or spec.mode is not OutputMode.UPDATE:
            # Groups that change are shown more often the less room there is.
            assert shown(on) == shown(job)


def left_unshown(job: Job, left: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The groups of `job` that a barrier does not show, as if `left` had shown them."""
    monkeypatch.setattr(aggregate, "SHOWING_MS", 0.0)
    monkeypatch.setattr(changed_groups, "_FIRST_GROUPS", 1)
    monkeypatch.setattr(changed_groups, "_GROWTH", 1)
    feed(job, "some", times=12, first_second=0)
    for operator in job.operators:
        operator.before_barrier(job.out.append)
    left.out = [operator._rows_of(operator._changed._blocks.slots()) for operator in job.operators]
    assert all(batch.num_rows > 2 for batch in left.out)
    return left


@pytest.mark.parametrize("written_by", WRITTEN_BY)
def test_groups_that_the_barrier_has_left_unshown_are_shown_with_other_key_groups(
    written_by: str, tmp_path: Path, backends: dict[str, StateBackends], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SPECS["groups"]
    job = Job(spec, backends[written_by])
    left = left_unshown(job, Job(spec, backends["heap"]), monkeypatch)
    path = job.store(tmp_path / "before")
    for max_parallelism, parallelism, goes_on_with in GOES_ON:
        folder = tmp_path / f"for-{max_parallelism}-{parallelism}"
        on = restored_job(
            regroup(path, folder, max_parallelism), spec, max_parallelism, parallelism, backends[goes_on_with]
        )
        for operator in on.operators:
            while operator._changed.any:
                operator.before_barrier(on.out.append)
        assert shown(on) == shown(left)


NOT_A_NUMBER, OTHER_NOT_A_NUMBER = float("nan"), struct.unpack("d", struct.pack("Q", 0xFFF8_0000_0000_0001))[0]
NUMBERS = [None, 0.0, -0.0, NOT_A_NUMBER, OTHER_NOT_A_NUMBER, 1.5, -7.25]
PAIRS = pa.struct([("x", pa.float64()), ("name", pa.string())])
KEYS_BY_TYPE: dict[pa.DataType, Sequence[Any]] = {
    pa.float64(): NUMBERS,
    pa.float32(): NUMBERS,
    pa.decimal128(20, 2): [None, Decimal("-1.25"), Decimal("123456789012345678.90")],
    pa.date32(): [None, 0, -1, 20_000],
    pa.timestamp("us", "UTC"): [None, 0, -1, 1 << 50],
    pa.timestamp("us"): [None, 0, -1, 1 << 50],
    pa.bool_(): [None, True, False],
    pa.binary(): [None, b"", b"\x00", b"long" * 20],
    pa.int8(): [None, -128, 0, 127],
    PAIRS: [None, {"x": -0.0, "name": None}, {"x": 0.0, "name": None}, {"x": NOT_A_NUMBER, "name": "ü"}],
}


@pytest.mark.parametrize("kind", KEYS_BY_TYPE, ids=str)
@pytest.mark.parametrize("written_by", WRITTEN_BY)
def test_keys_of_every_type_are_found_again(
    written_by: str, kind: pa.DataType, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    """Also those that have several forms, such as minus zero and what is not a number."""
    rows = pa.record_batch([pa.array(KEYS_BY_TYPE[kind], kind)], names=["k"])
    spec = DeduplicateSpec(1, None, None, rows.schema)
    job = Job(spec, backends[written_by])
    job.process(rows)
    path = job.store(tmp_path / "before")
    on = restored_job(regroup(path, tmp_path / "after", 300), spec, 300, 3, backends["heap"])
    on.process(rows)
    assert not any(batch.num_rows for batch in on.out)
    assert table(on.store(tmp_path / "on"), spec) == table(path, spec)


@pytest.mark.parametrize("name", ["windows", "keys for ten seconds", "full outer join", "sessions"])
def test_there_may_be_fewer_key_groups_than_subtasks_and_more_again(
    name: str, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = SPECS[name]
    job = Job(spec, backends["rocksdb"], parallelism=5)
    feed(job, name, times=6, first_second=0)
    job.advance(WATERMARK_MS)
    path = job.store(tmp_path / "before")
    before = table(path, spec)
    job.out.clear()
    go_on(job)
    expected = table(job.store(tmp_path / "undisturbed"), spec)
    for max_parallelism in (3, 1, 1_000):
        path = regroup(path, tmp_path / f"for-{max_parallelism}", max_parallelism)
        assert table(path, spec) == before
        for parallelism in (2, 5):
            on = restored_job(path, spec, max_parallelism, parallelism, backends["heap"])
            go_on(on)
            assert table(on.store(tmp_path / f"after-{max_parallelism}-{parallelism}"), spec) == expected
            assert shown(on) == shown(job)


def test_a_query_that_keeps_nothing_yet_starts_with_nothing(tmp_path: Path, backends: dict[str, StateBackends]) -> None:
    for at, spec in enumerate(SPECS.values()):
        path = regroup(Job(spec, backends["rocksdb"]).store(tmp_path / f"before-{at}"), tmp_path / f"after-{at}", 7)
        on = restored_job(path, spec, 7, 3, backends["rocksdb"])
        job = Job(spec, backends["rocksdb"])
        for each in (on, job):
            feed(each, "some", times=4, first_second=0)
            each.advance(20_000)
        assert table(on.store(tmp_path / f"on-{at}"), spec) == table(job.store(tmp_path / f"new-{at}"), spec)


@pytest.mark.parametrize(("most_rows", "most_bytes"), [(30, 1 << 22), (1 << 16, 500), (1 << 16, 1 << 22)])
def test_rows_are_written_together_up_to_a_limit(
    most_rows: int,
    most_bytes: int,
    tmp_path: Path,
    backends: dict[str, StateBackends],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restore has one section in memory at a time, beside what it has made of them."""
    monkeypatch.setattr(regrouped_rows, "SECTION_ROWS", most_rows)
    monkeypatch.setattr(regrouped_rows, "_SECTION_BYTES", most_bytes)
    job = Job(SPECS["keys for ever"], backends["heap"], parallelism=16)
    feed(job, "some", times=10, first_second=0)
    files = find_checkpoint(job.store(tmp_path / "before")).open_files()
    plan = files.manifest.plan
    assert plan is not None
    everything = KeyGroupRange(0, 7)
    streams = [
        pa.ipc.open_stream(b"".join(pieces)).read_all()
        for _, pieces in regrouped_sections(files, plan.operators[0], everything, max_parallelism=7)
    ]
    sizes = [(stream.num_rows, stream.nbytes) for stream in streams]
    assert sum(rows for rows, _ in sizes) == sum(table(str(tmp_path / "before"), job.spec).values())
    assert all(rows <= most_rows and size <= most_bytes for rows, size in sizes)
    for (rows, size), (more_rows, more) in pairwise(sizes):
        assert rows + more_rows > most_rows or size + more > most_bytes - 100, "less than could be together"
    assert (len(sizes) > 1) == ((most_rows, most_bytes) != (1 << 16, 1 << 22))


def without_keys_in_output(spec: Spec) -> StreamJoinSpec:
    assert isinstance(spec, StreamJoinSpec)
    left, right = (replace(each, columns=(2,)) for each in (spec.left, spec.right))
    return replace(spec, left=left, right=right, schema=pa.schema([SCHEMA.field(2)] * 2))


@pytest.mark.parametrize(("kind", "section"), [("inner join", "join-pairs"), ("full outer join", "join-left-arrived")])
def test_what_a_join_holds_midway_goes_to_the_new_owners_of_its_keys(
    kind: str, section: str, tmp_path: Path, backends: dict[str, StateBackends], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_join, "MOST_PAIRS_AT_ONCE", 2)
    spec = without_keys_in_output(SPECS[kind])
    job = Job(spec, backends["heap"])
    keys = [letter for letter in "abcdefghijkl" for _ in range(3)]
    rows = pa.record_batch(
        [pa.array(keys), pa.array([9_000_000] * len(keys)).cast(SCHEMA.field(1).type), pa.array(range(len(keys)))],
        schema=SCHEMA,
    )
    job.process(rows, right=True)
    job.process(rows)
    assert {section} <= {each.name for sections in job.snapshot().values() for each in sections}
    path = job.store(tmp_path / "before")
    job.out.clear()
    go_on(job)
    for max_parallelism, parallelism in ((7, 3), (300, 2)):
        moved = regroup(path, tmp_path / f"for-{max_parallelism}", max_parallelism)
        on = restored_job(moved, spec, max_parallelism, parallelism, backends["heap"])
        go_on(on)
        assert shown(on) == shown(job)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_event_time_is_where_it_was_for_every_key(
    parallelism: int, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    """Also if some tasks had not come there themselves yet, after a change of parallelism."""
    spec = SPECS["windows"]
    job = Job(spec, backends["heap"], parallelism=2)
    feed(job, "some", times=4, first_second=0)
    own = [job.own(at) for at in range(2)]
    progress = [StoredTask(input_watermark_ms=9_000), StoredTask(input_watermark_ms=100, floors=[(own[1], 9_000)])]
    (tmp_path / "before").mkdir()
    stored = StoredJob(
        a_plan(spec, 2, 128), job.snapshot(), progress={TaskId(RECEIVER, at): each for at, each in enumerate(progress)}
    )
    stored.write(LocalFiles(tmp_path / "before"))
    path = regroup(str(tmp_path / "before"), tmp_path / "after", 7)
    plan = a_plan(spec, parallelism, 7)
    for at in range(parallelism):
        task = restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(at)).tasks[TaskId(RECEIVER, at)]
        mine = range(*range_of(at, parallelism=parallelism, max_parallelism=7))
        assert {task.floors.of(group, task.progress.input_watermark_ms) for group in mine} <= {9_000}


@pytest.mark.parametrize("parallelism", [1, 2, 3, 8])
def test_event_time_that_differs_between_subtasks_stays_so_if_each_keeps_its_keys(
    parallelism: int, tmp_path: Path
) -> None:
    spec = SPECS["windows"]
    (tmp_path / "before").mkdir()
    progress = {TaskId(RECEIVER, at): StoredTask(input_watermark_ms=9_000 + at) for at in range(2)}
    StoredJob(a_plan(spec, 2, 128), progress=progress).write(LocalFiles(tmp_path / "before"))
    path = regroup(str(tmp_path / "before"), tmp_path / "after", 512)
    plan = a_plan(spec, parallelism, 512)
    reached: list[int] = []
    for at in range(parallelism):
        task = restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(at)).tasks[TaskId(RECEIVER, at)]
        mine = range(*range_of(at, parallelism=parallelism, max_parallelism=512))
        reached += [task.floors.of(group, task.progress.input_watermark_ms) for group in mine]
    assert reached == [9_000] * 256 + [9_001] * 256


@pytest.mark.parametrize(
    ("before", "after", "times"),
    [
        # The one in the middle of 7 has keys of both.
        (128, 7, [9_000, 9_001]),
        # A slot that had no keys has some now, for which it has come too far.
        (1, 2, [9_000, 9_001]),
        # So has one that gets others than it had, though each key group has keys of one time.
        (3, 6, [9_000, 9_001]),
    ],
)
def test_event_time_that_differs_between_keys_is_refused(
    before: int, after: int, times: list[int], tmp_path: Path
) -> None:
    (tmp_path / "before").mkdir()
    progress = {TaskId(RECEIVER, at): StoredTask(input_watermark_ms=time_ms) for at, time_ms in enumerate(times)}
    plan = a_plan(SPECS["windows"], 2, before)
    StoredJob(plan, progress=progress).write(LocalFiles(tmp_path / "before"))
    with pytest.raises(
        IncompatibleCheckpoint,
        match="further for some keys of receiver than .* base it on an aligned savepoint, .* later",
    ):
        regroup(str(tmp_path / "before"), tmp_path / "after", after)
    assert not (tmp_path / "after").exists()


def test_the_same_number_of_key_groups_gives_a_copy(tmp_path: Path, backends: dict[str, StateBackends]) -> None:
    spec = SPECS["groups"]
    job = Job(spec, backends["rocksdb"])
    feed(job, "some", times=6, first_second=0)
    path = job.store(tmp_path / "before")
    assert table(regroup(path, tmp_path / "after", 128), spec) == table(path, spec) != Counter()
    names = [sorted(file.name for file in (tmp_path / each / "shared").iterdir()) for each in ("before", "after")]
    assert names[0] == names[1] != [], "files of rows stay as they are"


# -- what is refused


def test_a_checkpoint_that_does_not_say_what_the_keys_of_rows_are_is_refused(
    tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    job = Job(SPECS["groups"], backends["heap"])
    feed(job, "some", times=1, first_second=0)
    base = find_checkpoint(job.store(tmp_path / "before"))
    manifest = base.read_manifest()
    assert manifest.plan is not None
    (operator,) = manifest.plan.operators
    (groups,) = operator.states
    assert isinstance(groups, StoredGroups)
    unsaid = msgspec.structs.replace(operator, states=[msgspec.structs.replace(groups, on_disk=None)])
    plan = msgspec.structs.replace(manifest.plan, operators=[unsaid])
    LocalFiles(tmp_path / "before").put("manifest.json", encode_manifest(msgspec.structs.replace(manifest, plan=plan)))
    with pytest.raises(
        IncompatibleCheckpoint, match="does not say which columns are the key of Aggregate.*: resume its"
    ):
        regroup(str(tmp_path / "before"), tmp_path / "after", 7)


@pytest.mark.parametrize("kind", ["rows", "entries"])
def test_what_is_not_in_the_key_groups_of_its_keys_is_damaged(
    kind: str, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    if kind == "rows":
        job = Job(SPECS["groups"], backends["heap"], parallelism=1)
        feed(job, "some", times=1, first_second=0)
        path = job.store(tmp_path / "before")
    else:
        path = stored_states(tmp_path / "before", parallelism=1)
    # Those of each key but the first, which is the same with any number.
    wrong = msgspec.structs.replace(find_checkpoint(path).read_manifest(), max_parallelism=200)
    LocalFiles(tmp_path / "before").put("manifest.json", encode_manifest(wrong))
    with pytest.raises(Damaged, match="lies in other key groups than those of its keys: base the savepoint on"):
        regroup(str(tmp_path / "before"), tmp_path / "after", 7)


@pytest.mark.parametrize(("keeps", "name"), [(stateful(), "of later"), (SPECS["groups"], "keyed/count")])
def test_what_nobody_knows_how_to_find_again_is_refused_and_not_left_out(
    keeps: OperatorSpec, name: str, tmp_path: Path
) -> None:
    (tmp_path / "before").mkdir()
    unknown = Section(name, KeyGroupRange(0, 128), lambda: b"")
    StoredJob(plan_of(keeps, schema=INPUT), {0: [unknown]}).write(LocalFiles(tmp_path / "before"))
    with pytest.raises(
        IncompatibleCheckpoint, match=f"holds '{name}' of operator v1.op0, which cannot be given another"
    ):
        regroup(str(tmp_path / "before"), tmp_path / "after", 7)


def test_a_folder_with_a_savepoint_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    StoredJob(plan_of(stateful(), schema=INPUT)).write(LocalFiles(tmp_path / "before"))
    regroup(str(tmp_path / "before"), tmp_path / "after", 7)
    with pytest.raises(OptionError, match="There is a savepoint in .* already"):
        regroup(str(tmp_path / "before"), tmp_path / "after", 7)


# -- without some keys


def rows_by_key(path: str, spec: Spec, key_count: int) -> Counter[tuple[str, str]]:
    """All rows that it keeps, each with its key."""
    names = ["left", "right"] if isinstance(spec, StreamJoinSpec) else [None]
    found: Counter[tuple[str, str]] = Counter()
    for name in names:
        for row in rows_of(path=path, table="state", **({} if name is None else {"state": name})):
            values = [plain(value) for column, value in row.items() if column not in ("key_group", "subtask")]
            found[repr(list(row.values())[:key_count]), repr([name, *values])] += 1
    return found


@pytest.mark.parametrize("written_by", WRITTEN_BY)
@pytest.mark.parametrize("name", [name for name in SPECS if name != "one group"])
def test_of_dropped_keys_no_row_is_left_and_all_others_go_on(
    name: str, written_by: str, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec, key_count = SPECS[name], sent_by(SPECS[name])
    job = Job(spec, backends[written_by])
    feed(job, name, times=6, first_second=0)
    job.snapshot()
    feed(job, f"{name} again", times=4, first_second=4)
    job.advance(WATERMARK_MS)
    path = job.store(tmp_path / "before")
    before = rows_by_key(path, spec, key_count)
    table_rows = rows_of(path=path, table="state", **({"state": "left"} if isinstance(spec, StreamJoinSpec) else {}))
    keys = {repr(key): key for key in (list(row.values())[:key_count] for row in table_rows)}
    gone = sorted(keys)[::2]
    target = savepoint_without_keys(str(tmp_path / "without"), find_checkpoint(path), operator=None, now_ms=5)
    written = write(target, *[tuple(keys[key]) for key in gone])
    expected = Counter({found: count for found, count in before.items() if found[0] not in gone})
    assert 0 < sum(expected.values()) < sum(before.values())
    assert rows_by_key(written, spec, key_count) == expected
    on = restored_job(written, spec, 128, 3, backends["heap" if written_by == "rocksdb" else "rocksdb"])
    assert rows_by_key(on.store(tmp_path / "restored"), spec, key_count) == expected
    go_on(job)
    go_on(on)
    undisturbed, after = (
        rows_by_key(each.store(tmp_path / folder), spec, key_count) for each, folder in ((job, "one"), (on, "other"))
    )
    kept = {found: count for found, count in undisturbed.items() if found[0] not in gone}
    assert kept == {found: count for found, count in after.items() if found[0] not in gone}


@pytest.mark.parametrize("written_by", WRITTEN_BY)
def test_groups_of_dropped_keys_that_the_barrier_has_left_unshown_are_not_shown(
    written_by: str, tmp_path: Path, backends: dict[str, StateBackends], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SPECS["groups"]
    job, key_count = Job(spec, backends[written_by]), sent_by(spec)
    left = left_unshown(job, Job(spec, backends["heap"]), monkeypatch)
    path = job.store(tmp_path / "before")
    unshown = {repr(key): key for batch in left.out for key in key_values(batch, key_count)}
    gone = sorted(unshown)[::2]
    target = savepoint_without_keys(str(tmp_path / "without"), find_checkpoint(path), operator=None, now_ms=5)
    written = write(target, *[tuple(unshown[key]) for key in gone])
    on = restored_job(written, spec, 128, 3, backends["heap"])
    for operator in on.operators:
        while operator._changed.any:
            operator.before_barrier(on.out.append)
    left.out = [
        batch.filter(pa.array([repr(key) not in gone for key in key_values(batch, key_count)])) for batch in left.out
    ]
    assert shown(on) == shown(left) and sum(shown(on).values()) > 2


def key_values(batch: pa.RecordBatch, key_count: int) -> list[list[Any]]:
    return [list(row) for row in zip(*(column.to_pylist() for column in batch.columns[:key_count]), strict=True)]
