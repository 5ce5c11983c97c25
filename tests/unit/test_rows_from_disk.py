"""Rows on disk as tables and in written savepoints: the same as rows in memory, and a query goes on from them."""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.unit.stored_checkpoint import RECEIVER, StoredJob, plan_of
from tests.unit.test_checkpoint_tables import INPUT, Code, process, rows_of, stateful
from tests.unit.test_groups_on_disk import spec_of
from tests.unit.test_written_savepoints import write
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import rewritten_savepoint
from tidegate.model.errors import Damaged, IncompatibleCheckpoint, OptionError
from tidegate.model.ids import KeyGroupRange, SlotIndex, TaskId, range_of
from tidegate.operators import aggregate, compaction, deduplicate, log_book, rows_from_disk, rows_on_disk
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import ForgetAfterDelay, ForgetByKey, OutputMode
from tidegate.plan.physical import AggregateSpec, DeduplicateSpec, OperatorSpec
from tidegate.state.contract import RestoredSection, Section
from tidegate.storage.manifests import Manifest, encode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.storage.stored_plan import StoredGroups
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.restoring import restore_slot
from tidegate.worker.state_backends import HeapBackends, RocksBackends, StateBackends, local_folder

SECOND_US = 1_000_000
KEYS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us")), ("v", pa.int64())])
SPECS: dict[str, OperatorSpec] = {
    "groups": spec_of(mode=OutputMode.UPDATE),
    "windows": spec_of(mode=OutputMode.APPEND, with_window=True),
    "groups that stay in memory": spec_of(mode=OutputMode.COMPLETE),
    "groups with lists": spec_of(mode=OutputMode.UPDATE, lists=True),
    "keys for ever": DeduplicateSpec(1, None, None, KEYS),
    "keys by time": DeduplicateSpec(2, 1, ForgetByKey(1), KEYS),
    "keys for ten seconds": DeduplicateSpec(1, 1, ForgetAfterDelay(10_000), KEYS),
}
# RocksDB syncs what it writes.
_IN_MEMORY = "/dev/shm"
# Those of which some rows leave memory.
WRITTEN_AWAY = SPECS.keys() - {"groups that stay in memory"}


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (rows_on_disk, "_LEAST_WRITTEN", 3),
        (rows_on_disk, "_LOOKED_UP", 5),
        (rows_from_disk, "_PART_ROWS", 3),
        (log_book, "FILE_ROWS", 8),
        (log_book, "SMALL_FILE_ROWS", 3),
        (log_book, "_FEW_ROWS", 4),
        (compaction, "MOST_COPIED_KEYS", 5),
        (aggregate, "_FEW_GROUPS", 2),
        (deduplicate, "_FEW_KEYS", 2),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[RocksBackends]:
    """With room for few rows."""
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None) as folder:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folder)
        backends = RocksBackends(Path(folder), memory_bytes=8 << 20, rows_memory_bytes=4_000)
        yield backends
        backends.close()


@dataclass
class Job:
    """An operator in some subtasks, which are given the rows of their key groups."""

    spec: AggregateSpec | DeduplicateSpec
    backends: StateBackends
    parallelism: int = 2
    restored: Sequence[Sequence[RestoredSection]] = ()

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.out: list[pa.RecordBatch] = []
        self.subtasks = [(self.own(at), self.opened(at)) for at in range(self.parallelism)]

    def own(self, subtask: int) -> KeyGroupRange:
        return range_of(subtask, parallelism=self.parallelism, max_parallelism=128)

    def opened(self, subtask: int) -> Any:
        own, none = self.own(subtask), None
        operator = build_operator(self.spec)
        context = TaskContext(TaskId(RECEIVER, subtask), self.parallelism, 128, own, self.clock, none, none)  # type: ignore[arg-type]
        context = replace(context, open_rows=lambda: self.backends.open_rows(own))
        operator.open(context, self.restored[subtask] if self.restored else [])
        return operator

    def process(self, rows: pa.RecordBatch) -> None:
        groups = key_group_of(hash_rows(rows, self.spec.key_count), 128).tolist()
        for own, operator in self.subtasks:
            operator.process(rows.filter(pa.array([group in own for group in groups])), self.out.append)

    def on_watermark(self, at_ms: int) -> None:
        for _, operator in self.subtasks:
            operator.on_watermark(at_ms)
            while operator.fire(1, self.out.append):
                pass

    def results(self) -> list[str]:
        for _, operator in self.subtasks:
            operator.before_barrier(self.out.append)
        return sorted(repr(sorted(row.items())) for batch in self.out for row in batch.to_pylist())

    def snapshot(self) -> dict[int, list[Section]]:
        return {at: operator.snapshot() for at, (_, operator) in enumerate(self.subtasks)}


def a_batch(spec: AggregateSpec | DeduplicateSpec, chosen: random.Random, *, first_second: int) -> pa.RecordBatch:
    """Of keys that come again, among them nulls and minus zero's kin."""
    schema = spec.input_schema if isinstance(spec, AggregateSpec) else spec.schema
    rows = [[a_value(field, chosen, first_second) for field in schema] for _ in range(chosen.randint(1, 30))]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def a_value(field: pa.Field, chosen: random.Random, first_second: int) -> Any:
    second = first_second + chosen.randint(0, 30)
    if pa.types.is_struct(field.type):
        start = second // 10 * 10 * SECOND_US
        return {"start": start, "end": start + 10 * SECOND_US}
    if pa.types.is_timestamp(field.type):
        return second * SECOND_US
    if pa.types.is_string(field.type):
        return chosen.choice([None, "", "ü" * 9, *(f"k{at}" for at in range(60))])
    if pa.types.is_floating(field.type):
        return chosen.choice([None, -0.0, 1.5, float("inf")])
    return chosen.choice([None, *range(12)])


def is_written_away(job: Job) -> bool:
    away = [operator._on_disk._evicted for _, operator in job.subtasks]
    return any(evicted is not None and evicted.has_any for evicted in away)


def store(job: Job, folder: Path) -> Manifest:
    folder.mkdir()
    plan = plan_of(job.spec, schema=INPUT, parallelism=job.parallelism)
    return StoredJob(plan, job.snapshot()).write(LocalFiles(folder))


def table_of(folder: Path, *left_out: str) -> list[str]:
    rows = rows_of(path=str(folder), table="state")
    columns = [name for name in rows[0] if name not in left_out] if rows else []
    return sorted(repr([_plain(row[name]) for name in columns]) for row in rows)


def _plain(value: Any) -> Any:
    return sorted(value, key=repr) if isinstance(value, list) else value


@pytest.mark.parametrize("name", SPECS)
def test_rows_on_disk_are_the_table_that_rows_in_memory_are(name: str, tmp_path: Path, on_disk: RocksBackends) -> None:
    spec, chosen = SPECS[name], random.Random(name)
    assert isinstance(spec, AggregateSpec | DeduplicateSpec)
    in_memory, away = Job(spec, HeapBackends(local_folder())), Job(spec, on_disk)
    for checkpoint in range(3):
        for _ in range(8):
            rows = a_batch(spec, chosen, first_second=10 * checkpoint)
            in_memory.process(rows)
            away.process(rows)
        if chosen.random() < 0.7:
            in_memory.on_watermark(10_000 * checkpoint)
            away.on_watermark(10_000 * checkpoint)
        store(in_memory, tmp_path / f"heap-{checkpoint}")
        store(away, tmp_path / f"rocksdb-{checkpoint}")
        expected = table_of(tmp_path / f"heap-{checkpoint}")
        assert expected
        assert table_of(tmp_path / f"rocksdb-{checkpoint}") == expected
    assert is_written_away(away) == (name in WRITTEN_AWAY)


# -- written savepoints


def stored_with_user_state(job: Job, folder: Path) -> None:
    """A checkpoint of the job's operator, and behind it of one with states of user code."""
    folder.mkdir()
    users: dict[int, list[Section]] = {}
    code: Any = Code()
    for subtask in range(job.parallelism):
        own = job.own(subtask)
        operator = build_operator(stateful())
        task = TaskId(RECEIVER, subtask)
        opened = TaskContext(task, job.parallelism, 128, own, job.clock, code, lambda own=own: job.backends.open(own))
        operator.open(opened, [])
        key = next(letter for letter in "abcdefgh" if int(key_groups_of(letter)[0]) in own)
        process(operator, pa.record_batch([pa.array([key]), pa.array([7], pa.int64())], schema=INPUT))
        users[subtask] = operator.snapshot()
    plan = plan_of(job.spec, stateful(), schema=INPUT, parallelism=job.parallelism)
    StoredJob(plan, job.snapshot(), users).write(LocalFiles(folder))


def key_groups_of(key: str) -> Any:
    return key_group_of(hash_rows(pa.record_batch([pa.array([key])], names=["k"]), 1), 128)


def restored_from_savepoint(path: str, job: Job, parallelism: int) -> Job:
    plan = plan_of(job.spec, stateful(), schema=INPUT, parallelism=parallelism)
    restored = [restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(at)) for at in range(parallelism)]
    sections = [slot.tasks[TaskId(RECEIVER, at)].sections.get(0, []) for at, slot in enumerate(restored)]
    return Job(job.spec, job.backends, parallelism, sections)


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("name", ["groups", "groups with lists", "windows", "keys by time"])
def test_a_query_goes_on_from_an_edited_savepoint_with_the_rows_that_were_on_disk(
    name: str, parallelism: int, tmp_path: Path, on_disk: RocksBackends
) -> None:
    spec, chosen = SPECS[name], random.Random(7)
    assert isinstance(spec, AggregateSpec | DeduplicateSpec)
    in_memory, away = Job(spec, HeapBackends(local_folder())), Job(spec, on_disk)
    for _ in range(12):
        rows = a_batch(spec, chosen, first_second=0)
        in_memory.process(rows)
        away.process(rows)
    stored_with_user_state(away, tmp_path / "before")
    assert is_written_away(away)
    before = rows_of(path=str(tmp_path / "before"), table="state", operator="v1.op0")
    base = find_checkpoint(str(tmp_path / "before"))
    target = rewritten_savepoint(
        str(tmp_path / "edited"), base, operator="v1.op1", state="count", max_parallelism=None, now_ms=5
    )
    path = write(target, ("a", 99, None), ("z", 100, None))
    after = rows_of(path=path, table="state", operator="v1.op0")
    assert sorted(map(repr, after)) == sorted(map(repr, before)) != []
    edited = rows_of(path=path, table="state", operator="v1.op1", state="count")
    assert sorted((row["k"], row["n"]) for row in edited) == [("a", 99), ("z", 100)]
    # Files of the savepoint are its own.
    shutil.rmtree(tmp_path / "before")
    on = restored_from_savepoint(path, away, parallelism)
    in_memory.out.clear()
    for _ in range(4):
        rows = a_batch(spec, chosen, first_second=0)
        in_memory.process(rows)
        on.process(rows)
    in_memory.on_watermark(20_000)
    on.on_watermark(20_000)
    store(in_memory, tmp_path / "all-in-memory")
    store(on, tmp_path / "after")
    assert table_of(tmp_path / "after", "subtask") == table_of(tmp_path / "all-in-memory", "subtask") != []
    if not name.startswith("groups"):
        # Groups that change are shown more often the less room there is.
        assert on.results() == in_memory.results() != []


def test_a_damaged_file_of_rows_is_named_and_not_copied(tmp_path: Path, on_disk: RocksBackends) -> None:
    job = Job(spec_of(mode=OutputMode.UPDATE), on_disk)
    job.process(a_batch(job.spec, random.Random(1), first_second=0))
    stored_with_user_state(job, tmp_path / "before")
    for file in (tmp_path / "before" / "shared").glob("*.rows"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged, match=r"shared/1-g1-s\d.*\.rows"):
        rows_of(path=str(tmp_path / "before"), table="state", operator="v1.op0")
    base = find_checkpoint(str(tmp_path / "before"))
    target = rewritten_savepoint(
        str(tmp_path / "edited"), base, operator="v1.op1", state="count", max_parallelism=None, now_ms=5
    )
    with pytest.raises(Damaged, match=r"shared/1-g1-s\d.*\.rows"):
        write(target, ("a", 99, None))


def test_a_checkpoint_that_does_not_say_how_its_rows_lie_on_disk_is_refused(
    tmp_path: Path, on_disk: RocksBackends
) -> None:
    job = Job(spec_of(mode=OutputMode.UPDATE), on_disk)
    job.process(a_batch(job.spec, random.Random(1), first_second=0))
    manifest = store(job, tmp_path / "saved")
    assert manifest.plan is not None
    (operator,) = manifest.plan.operators
    (groups,) = operator.states
    assert isinstance(groups, StoredGroups)
    unsaid = msgspec.structs.replace(operator, states=[msgspec.structs.replace(groups, on_disk=None)])
    plan = msgspec.structs.replace(manifest.plan, operators=[unsaid])
    LocalFiles(tmp_path / "saved").put("manifest.json", encode_manifest(msgspec.structs.replace(manifest, plan=plan)))
    with pytest.raises(IncompatibleCheckpoint, match="does not say how the rows of Aggregate.* lie on disk"):
        rows_of(path=str(tmp_path / "saved"), table="state")


def test_an_operator_is_found_by_the_name_that_the_user_gave_it(tmp_path: Path) -> None:
    spec = spec_of(mode=OutputMode.UPDATE)
    job = Job(replace(spec, name="totals"), HeapBackends(local_folder()))
    job.process(a_batch(spec, random.Random(1), first_second=0))
    store(job, tmp_path / "saved")
    assert rows_of(path=str(tmp_path / "saved"), table="state", operator="totals")
    with pytest.raises(OptionError, match=r"unknown: use the id of one of v1.op0 \(totals\)"):
        rows_of(path=str(tmp_path / "saved"), table="state", operator="v1.op9")
