"""A savepoint for another number of key groups: state of functions, and what does not go by key."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import tidegate as tg
from tests.in_memory import folder_in_memory
from tests.unit.regrouped_jobs import Job, a_plan, regroup
from tests.unit.stored_checkpoint import RECEIVER, StoredJob, plan_of
from tests.unit.test_checkpoint_tables import INPUT, rows_of, stateful
from tests.unit.test_regrouped_savepoints import KEYS_BY_TYPE, PAIRS
from tests.unit.test_written_savepoints import in_flight_of, job_plan, write
from tests.unit.timers_by_backend import with_changelog
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import new_savepoint, rewritten_savepoint
from tidegate.model.errors import EnvironmentProblem
from tidegate.model.ids import KeyGroupRange, SlotIndex, TaskId
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.lower import fingerprint
from tidegate.plan.nodes import TimeMode
from tidegate.plan.physical import (
    DeduplicateSpec,
    PointwisePartitioning,
    RebalancePartitioning,
    TransformWithStateSpec,
)
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.state.sst_files import Folder
from tidegate.storage.store import LocalFiles
from tidegate.worker.restoring import restore_slot
from tidegate.worker.state_backends import HeapBackends, open_backends
from tidegate.worker.stored_task import StoredTask

ALL = KeyGroupRange(0, 128)
DECLARES_NOTHING = TransformWithStateSpec(1, b"", INPUT, INPUT, TimeMode.NONE)


@pytest.fixture(params=["heap", "incremental heap", "rocksdb", "heap, changelog", "rocksdb, changelog"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateBackend]:
    """Of the query that the savepoint was taken of."""
    kind, _, changelog = request.param.partition(", ")
    with folder_in_memory() as folder:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
        whole_up_to_bytes = 0 if kind == "incremental heap" else None
        opened = open_backends(kind.removeprefix("incremental "), whole_up_to_bytes=whole_up_to_bytes)
        made = opened.open(ALL)
        yield with_changelog(made, ALL, Folder(folder)) if changelog else made
        opened.close()


@pytest.mark.parametrize("now", [stateful(), DECLARES_NOTHING], ids=["declares others", "declares none"])
def test_state_of_functions_is_taken_over_although_the_query_declares_it_no_more(
    now: TransformWithStateSpec, tmp_path: Path, backend: StateBackend
) -> None:
    """As it was at the end, also if what came before lies in other files than what changed since."""
    put(backend, {"a": b"replaced", "b": b"kept", "c": b"deleted"}, 128)
    backend.snapshot()
    put(backend, {"a": b"new", "c": None}, 128)
    (tmp_path / "before").mkdir()
    plan = plan_of(now, schema=INPUT)
    StoredJob(plan, {0: backend.snapshot()}).write(LocalFiles(tmp_path / "before"))
    path = regroup(str(tmp_path / "before"), tmp_path / "after", 300)
    plan = replace(plan, max_parallelism=300)
    restored = restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(0)).tasks[TaskId(RECEIVER, 0)]
    found = HeapBackend(KeyGroupRange(0, 300))
    found.restore(restored.sections[0])
    state = found.keyed("of old")
    assert [state.get(*place_of(key, 300)) for key in "abc"] == [b"new", b"kept", None]


def put(backend: StateBackend, values: dict[str, bytes | None], max_parallelism: int) -> None:
    state = backend.keyed("of old")
    for key, value in values.items():
        if value is None:
            state.delete(*place_of(key, max_parallelism))
        else:
            state.put(*place_of(key, max_parallelism), value)


def place_of(key: str, max_parallelism: int) -> tuple[int, bytes]:
    (group,) = key_group_of(hash_rows(pa.record_batch([pa.array([key])], names=["k"]), 1), max_parallelism).tolist()
    return group, msgspec.msgpack.encode([key])


@pytest.mark.parametrize("kind", [kind for kind in KEYS_BY_TYPE if kind != PAIRS], ids=str)
@pytest.mark.parametrize("time_zone", [None, "Asia/Tokyo"])
def test_keys_of_functions_of_every_type_are_found_again(
    kind: pa.DataType, time_zone: str | None, tmp_path: Path
) -> None:
    keys = list({repr(key).replace("-0.0", "0.0"): key for key in KEYS_BY_TYPE[kind]}.values())
    given = pa.schema([("k", kind), ("v", pa.int64())])
    spec = replace(stateful(), input_schema=given, time_zone=time_zone)
    plan = plan_of(spec, schema=given, parallelism=2)
    target = new_savepoint(str(tmp_path / "before"), plan, fingerprint(plan), operator=None, state="count", now_ms=5)
    path = regroup(write(target, *[(key, 1, None) for key in keys]), tmp_path / "after", 300)
    before, after = (rows_of(path=each, table="state", state="count") for each in (target.path, path))
    assert sorted(repr(row["k"]) for row in after) == sorted(repr(row["k"]) for row in before)
    assert len(after) == len(keys)
    hashed = pa.record_batch([pa.array([row["k"] for row in after], kind)], names=["k"])
    assert [row["key_group"] for row in after] == key_group_of(hash_rows(hashed, 1), 300).tolist()


def test_rows_of_one_operator_get_other_key_groups_while_those_of_a_function_are_replaced(tmp_path: Path) -> None:
    keys = pa.record_batch([pa.array(list("abcdef"))], names=["k"])
    dedup = DeduplicateSpec(1, None, None, keys.schema)
    plan = plan_of(stateful(), dedup, schema=INPUT, parallelism=2)
    with folder_in_memory() as folder:
        job = Job(dedup, HeapBackends(folder))
        job.process(keys)
    (tmp_path / "before").mkdir()
    StoredJob(plan, second=job.snapshot()).write(LocalFiles(tmp_path / "before"))
    base = find_checkpoint(str(tmp_path / "before"))
    target = rewritten_savepoint(
        str(tmp_path / "after"), base, operator="v1.op0", state="count", max_parallelism=7, now_ms=5
    )
    path = write(target, *[(key, 1, None) for key in "abcdef"])
    groups = dict(zip("abcdef", key_group_of(hash_rows(keys, 1), 7).tolist(), strict=True))
    for choice in ({"operator": "v1.op0", "state": "count"}, {"operator": "v1.op1"}):
        rows = rows_of(path=path, table="state", **choice)
        assert {row["k"]: row["key_group"] for row in rows} == groups and len(rows) == 6


def test_event_time_may_differ_where_rows_do_not_go_by_key(tmp_path: Path) -> None:
    """A function that has broadcast state alone takes rows as they come, and tasks may be apart for good."""
    progress = [
        StoredTask(input_watermark_ms=9_000, floors=[(KeyGroupRange(0, 128), 9_500)]),
        StoredTask(input_watermark_ms=100),
    ]
    plan = a_plan(stateful(), 2, 128)
    plan = replace(plan, edges=(replace(plan.edges[0], partitioning=PointwisePartitioning()),))
    (tmp_path / "before").mkdir()
    stored = {TaskId(RECEIVER, at): each for at, each in enumerate(progress)}
    StoredJob(plan, progress=stored).write(LocalFiles(tmp_path / "before"))
    path = regroup(str(tmp_path / "before"), tmp_path / "after", 7)
    plan = replace(plan, max_parallelism=7)
    restored = [restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(at)).tasks for at in range(2)]
    assert [tasks[TaskId(RECEIVER, at)].progress for at, tasks in enumerate(restored)] == progress


def test_rows_in_flight_that_do_not_go_by_key_are_taken_over(tmp_path: Path) -> None:
    plan = job_plan()
    plan = replace(plan, edges=(replace(plan.edges[0], partitioning=RebalancePartitioning()),))
    some = in_flight_of(plan, tmp_path / "before")
    path = regroup(some, tmp_path / "after", 7)
    assert rows_of(path=path, table="inflight") == rows_of(path=some, table="inflight") != []
    (tmp_path / "before").rename(tmp_path / "gone")
    plan = replace(plan, max_parallelism=7)
    assert restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(1)).recovered_bytes > 0


def test_without_a_spark_session_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    with pytest.raises(EnvironmentProblem, match="there is no SparkSession: create one first"):
        tg.savepoints.from_dataframe(path=tmp_path / "after", based_on=tmp_path, max_parallelism=7)
    assert not (tmp_path / "after").exists()
