"""When a query warns that its state outgrows memory, and what it says to set."""

import logging
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.unit import test_groups_on_disk as groups
from tests.unit import test_keys_on_disk as keys
from tests.unit import test_windows_of_groups as sessions
from tests.unit.test_stream_join import join
from tidegate.coordinator.heap_watch import HeapWatch
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.views import TaskCheckpointView
from tidegate.model.ids import EdgeId, SlotIndex, VertexId
from tidegate.network.address import SlotAddress
from tidegate.network.messages import SlotIntroduction
from tidegate.plan.nodes import EventTimeKey, JoinType, OutputMode
from tidegate.plan.physical import Edge, HashPartitioning, JobPlan, OperatorSpec, TransformWithStateSpec, Vertex
from tidegate.testing.local_jobs import local_job
from tidegate.worker.machine_memory import machine_memory_bytes
from tidegate.worker.settings import SlotSettings

SCHEMA = pa.schema([("k", pa.int64())])
GIB = 1 << 30


def spec(backend: str = "heap", *, counting: OperatorSpec | None = None) -> JobSpec:
    by_user = counting or TransformWithStateSpec(1, b"count", SCHEMA, SCHEMA)
    vertices = (Vertex(VertexId(0), "join", None, (), None), Vertex(VertexId(1), "count", None, (by_user,), None))
    edges = (Edge(EdgeId(0), VertexId(0), VertexId(1), HashPartitioning(1), SCHEMA),)
    plan = JobPlan(vertices, edges, parallelism=3, max_parallelism=8)
    settings = SlotSettings(plan=plan, checkpoint_location="chk", window_bytes=1, state_backend=backend)
    return local_job("totals", settings, interval_ms=1.0, switch_after_ms=None)


def watch(backend: str = "heap", *, counting: OperatorSpec | None = None) -> HeapWatch:
    """Slots 0 and 1 share a machine of 4 GiB, slot 2 has one of 2 GiB for itself: 2 GiB for each."""
    watching = HeapWatch(spec(backend, counting=counting))
    for slot, host, memory_bytes in [(0, "a", 4 * GIB), (1, "a", 4 * GIB), (2, "b", 2 * GIB)]:
        address = SlotAddress(host_id=host, tcp_host="", tcp_port=0, unix_name=None)
        introduction = SlotIntroduction("job", 1, SlotIndex(slot), 1, address, {}, memory_bytes)
        watching.on_joined(SlotIndex(slot), introduction)
    return watching


def state(gib_by_task: dict[str, float]) -> list[TaskCheckpointView]:
    empty = TaskCheckpointView("", 0.0, 0.0, 0.0, 0.0, state_bytes=0, inflight_bytes=0)
    return [replace(empty, task=task, state_bytes=int(gib * GIB)) for task, gib in gib_by_task.items()]


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_slot_that_is_two_fifths_full_makes_it_warn_once(slot: int, caplog: pytest.LogCaptureFixture) -> None:
    watching = watch()
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        watching.on_completed(state({f"v1.{slot}": 0.79}))
        assert watching.warnings == () and watching.largest_share == pytest.approx(0.395)
        watching.on_completed(state({f"v1.{slot}": 0.5, f"v0.{slot}": 0.35}))
        watching.on_completed(state({f"v1.{slot}": 1.5}))
    assert watching.largest_share == pytest.approx(0.75)
    assert watching.warnings == (
        f"The state in slot {slot} takes 870.4 MiB as stored, and more in memory, of which the slot has 2.0 GiB: "
        "set .option('state.backend', 'rocksdb'), which keeps it on disk.",
    )
    assert caplog.messages == [f"Query 'totals': {watching.warnings[0]}"]


def test_what_rocksdb_cannot_hold_needs_memory() -> None:
    for backend in ("heap", "rocksdb"):
        watching = watch(backend)
        watching.on_completed(state({"v0.0": 1.0, "v1.0": 0.1}))
        assert "give the executors more memory" in watching.warnings[0]


MOVABLE_GROUPS = groups.SPECS["append"]
MOVABLE: dict[str, OperatorSpec] = {
    "groups": MOVABLE_GROUPS,
    "groups with lists": groups.SPECS["lists"],
    "keys": keys.SPECS["for ever"],
    "keys that are forgotten after a while": keys.SPECS["for ten seconds"],
    "sessions": sessions.spec_of(OutputMode.APPEND, EventTimeKey.SESSION),
    "join": join(JoinType.INNER),
}
STAYING: dict[str, OperatorSpec] = {
    "complete groups": groups.SPECS["complete"],
    "complete sessions": sessions.spec_of(OutputMode.COMPLETE, EventTimeKey.SESSION),
}


@pytest.mark.parametrize("name", MOVABLE)
def test_rows_that_rocksdb_can_hold_are_to_be_moved_there_and_count_no_more_then(name: str) -> None:
    watching = watch(counting=MOVABLE[name])
    watching.on_completed(state({"v1.0": 1.0}))
    assert "set .option('state.backend', 'rocksdb')" in watching.warnings[0]
    watching = watch("rocksdb", counting=MOVABLE[name])
    watching.on_completed(state({"v1.0": 1.0}))
    assert watching.warnings == ()


@pytest.mark.parametrize("name", STAYING)
def test_rows_that_stay_in_memory_need_it(name: str) -> None:
    for backend in ("heap", "rocksdb"):
        watching = watch(backend, counting=STAYING[name])
        watching.on_completed(state({"v1.0": 1.0}))
        assert "give the executors more memory" in watching.warnings[0]


def test_what_is_in_rocksdb_is_not_in_memory() -> None:
    watching = watch("rocksdb")
    watching.on_completed(state({"v1.0": 100.0, "v0.0": 0.1}))
    assert watching.warnings == () and watching.largest_share == pytest.approx(0.05)


def test_without_a_word_about_memory_it_says_nothing() -> None:
    watching = HeapWatch(spec())
    watching.on_completed(state({"v1.0": 100.0}))
    assert watching.warnings == () and watching.largest_share is None


def test_this_machine_has_memory() -> None:
    assert (machine_memory_bytes() or 0) > 1 << 20
