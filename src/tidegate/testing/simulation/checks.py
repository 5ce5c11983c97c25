"""What must be true of a simulated job: while it runs, and when it has ended."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.coordinator.checkpoint_files import files_of
from tidegate.model.errors import Damaged
from tidegate.model.ids import CheckpointId, SlotIndex, TaskId, range_of
from tidegate.operators.async_map import SECTION as WAITING_ROWS
from tidegate.plan.physical import ConnectSpec, JobPlan, TransformWithStateSpec, Vertex
from tidegate.protocol.watermarks import MAX_WATERMARK_MS
from tidegate.state.codec import decode
from tidegate.state.contract import RestoredSection
from tidegate.storage import layout
from tidegate.storage.job_log import (
    CheckpointCompleted,
    CheckpointRetired,
    Committed,
    Entry,
    JobLog,
    newest_completed,
    retained_checkpoints,
)
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.state_file import check_sum
from tidegate.storage.store import Store
from tidegate.testing.simulation.incarnation import Incarnation
from tidegate.testing.simulation.restored import applied_rules, entries_of
from tidegate.testing.simulation.taken_states import TakenStates
from tidegate.testing.simulation.topologies import Shape, Topology
from tidegate.testing.simulation.world import SimStore, SimulationFailed, World
from tidegate.worker.captured import HELD, RECEIVED
from tidegate.worker.restoring import ChannelEnds, StoredFiles, restore_slot


def check_retained(store: SimStore, plan: JobPlan, taken: TakenStates | None = None) -> None:
    """Every checkpoint that the log retains can be read, with every file that it needs, and holds no row twice.

    With `taken`, its state is looked at, too, which takes its time.
    """
    for completed in retained_checkpoints(JobLog(store, driver="check").read()):
        place: Store = store if completed.location is None else SimStore(store._world, completed.location)
        try:
            manifest = decode_manifest(place.read(completed.manifest), name=completed.manifest)
            for path, file in files_of(manifest).items():
                check_sum(place.read(path), file, name=path)
            _check_captured(place, manifest, plan)
            if taken is not None:
                taken.check_stored(place, completed.manifest, manifest, plan, location=store.location)
        except Damaged as error:
            raise SimulationFailed(f"checkpoint {completed.checkpoint} is retained and not whole: {error}") from error


def _check_captured(store: Store, manifest: Manifest, plan: JobPlan) -> None:
    """Of each channel the receiver has stored what lies below the cut, the sender the rest: no more and no less."""
    files = StoredFiles(store, manifest)
    edges = {edge.id: edge for edge in plan.edges}
    for stored in manifest.channels:
        channel, edge = stored.channel, edges[stored.channel.edge]
        ends = ChannelEnds(sender=edge.sender, receiver=edge.receiver)
        parts = {part.side: part.elements for part in files.captured_parts(stored, ends)}
        for side, first, before in ((RECEIVED, stored.first, stored.h), (HELD, stored.h, stored.n)):
            found = [element.sequence for element in parts.get(side, [])]
            if found != list(range(first, before)):
                raise SimulationFailed(
                    f"checkpoint {manifest.checkpoint} holds {found} of {channel} as {side}, not [{first}, {before})"
                )


def check_end(world: World, store: SimStore, shape: Shape, last: Incarnation, *, rescales: int) -> None:
    """`rescales`: how often the job was started at another parallelism."""
    _check_rows(world, shape, rescales)
    if world.hidden:
        raise SimulationFailed(f"rows that nobody will commit are left: {sorted(world.hidden)}")
    entries = JobLog(store, driver="check").read()
    check_location(store, last.plan)
    newest = newest_completed(entries)
    assert newest is not None, "the last checkpoint was committed"
    place = store if newest.location is None else SimStore(world, newest.location)
    _check_state(place, newest.manifest, shape, last.plan)


def check_location(store: SimStore, plan: JobPlan) -> None:
    """What must be true of a location that no driver uses any more."""
    entries = JobLog(store, driver="check").read()
    completed = [entry.checkpoint for entry in entries if isinstance(entry, CheckpointCompleted)]
    committed = [entry.checkpoint for entry in entries if isinstance(entry, Committed)]
    if len(set(completed)) != len(completed):
        raise SimulationFailed(f"an id was completed twice: {completed}")
    if committed != completed:
        raise SimulationFailed(f"committed {committed} is not the log's order {completed}")
    _check_retirement(entries)
    check_retained(store, plan)
    _check_no_orphans(store)


def check_savepoints(world: World, folder: str) -> None:
    """Where no driver was lost: of those that failed nothing is left."""
    files = SimStore(world, folder).list()
    whole = {path.partition("/")[0] for path in files if path.endswith(f"/{layout.MANIFEST}")}
    for path in files:
        if path.partition("/")[0] not in whole:
            raise SimulationFailed(f"{path} belongs to a savepoint that failed and is still there")


def _check_retirement(entries: Sequence[Entry]) -> None:
    committed: set[CheckpointId] = set()
    for entry in entries:
        if isinstance(entry, Committed):
            committed.add(entry.checkpoint)
        elif isinstance(entry, CheckpointRetired) and entry.checkpoint not in committed:
            raise SimulationFailed(f"checkpoint {entry.checkpoint} was removed before it was committed")


def _check_rows(world: World, shape: Shape, rescales: int) -> None:
    published = Counter(row for rows in world.published.values() for row in rows)
    expected = shape.expected_rows()
    may_count_late_rows = shape.topology is Topology.LATE and rescales > 0
    if published != expected and not (may_count_late_rows and _is_late_by_restore(published, shape)):
        lost, surplus = expected - published, published - expected
        raise SimulationFailed(f"committed rows differ: lost {_some(lost)}, surplus {_some(surplus)}")


def _is_late_by_restore(published: "Counter[tuple[int, ...]]", shape: Shape) -> bool:
    """After a restore at another parallelism a row in flight may be counted that was late by a watermark in flight.

    Still no window may fire twice, and none may miss a row that was on time.
    """
    least, most = shape.windows(with_late=False), shape.windows(with_late=True)
    found = {(key, end): n for key, end, n in published}
    is_once = len(found) == sum(published.values())
    return is_once and all(least[window] <= found.get(window, 0) <= most[window] for window in most)


def _check_no_orphans(store: SimStore) -> None:
    retained = retained_checkpoints(JobLog(store, driver="check").read())
    folders = {layout.CheckpointFolder(c.checkpoint, c.generation) for c in retained}
    used: set[str] = set()
    for completed in retained:
        if completed.location is None:
            manifest = decode_manifest(store.read(completed.manifest), name=completed.manifest)
            used |= {file.path for slot in manifest.slots for file in slot.shared}
    for path in store.list(layout.CHECKPOINTS):
        if layout.parse_checkpoint(path) not in folders:
            raise SimulationFailed(f"{path} belongs to no retained checkpoint and is still there")
    for path in store.list(layout.SHARED):
        if path not in used:
            raise SimulationFailed(f"{path} is used by no retained checkpoint and is still there")


def _check_state(store: Store, manifest: str, shape: Shape, plan: JobPlan) -> None:
    for vertex in plan.vertices:
        _check_nothing_waits(store, manifest, plan, vertex)
        if not vertex.operators or not isinstance(vertex.operators[0], TransformWithStateSpec | ConnectSpec):
            continue
        found: dict[int, tuple[Any, ...]] = {}
        for subtask in range(plan.parallelism_of(vertex.id)):
            restored = restore_slot(store, manifest, plan, SlotIndex(subtask))
            if any(channel.elements for channel in restored.recovered.values()):
                raise SimulationFailed("the last checkpoint holds rows in flight")
            task = restored.tasks[TaskId(vertex.id, subtask)]
            if task.progress.input_watermark_ms != MAX_WATERMARK_MS:
                raise SimulationFailed(f"all data was read, but event time is {task.progress.input_watermark_ms}")
            sections = task.sections.get(0, [])
            _check_rules(sections, shape)
            found.update(_keyed_state(sections, vertex, plan, subtask))
        expected = _expected_state(shape, vertex)
        if not _begins_like(found, expected):
            raise SimulationFailed(f"final state of {vertex.id} is {found}, expected {expected}")


def _check_nothing_waits(store: Store, manifest: str, plan: JobPlan, vertex: Vertex) -> None:
    for subtask in range(plan.parallelism_of(vertex.id)):
        task = restore_slot(store, manifest, plan, SlotIndex(subtask)).tasks[TaskId(vertex.id, subtask)]
        sections = [section for each in task.sections.values() for section in each if section.name == WAITING_ROWS]
        if any(msgspec.msgpack.decode(section.data) for section in sections):
            raise SimulationFailed(f"the last checkpoint holds rows that wait in {vertex.id}")


def _keyed_state(
    sections: list[RestoredSection], vertex: Vertex, plan: JobPlan, subtask: int
) -> dict[int, tuple[Any, ...]]:
    parallelism = plan.parallelism_of(vertex.id)
    groups = range_of(subtask, parallelism=parallelism, max_parallelism=plan.max_parallelism)
    name = "counts" if _counts_windows(vertex) else "seen"
    return {decode(key)[0]: decode(value) for key, value in entries_of(name, sections, groups)}


def _counts_windows(vertex: Vertex) -> bool:
    operator = vertex.operators[0]
    return isinstance(operator, TransformWithStateSpec) and operator.processor == b"windows"


def _expected_state(shape: Shape, vertex: Vertex) -> dict[int, tuple[Any, ...]]:
    """By what the state of each key must begin with; the rest of it depends on the order of rows."""
    first, second = shape.first.all_rows(), shape.second.all_rows()
    by_key = Counter(row[0] for row in first)
    match shape.topology:
        case Topology.WINDOWS | Topology.LATE | Topology.WAITING_WINDOWS:
            return {key: (msgspec.msgpack.encode({}),) for key in by_key}
        case Topology.UNION:
            by_key += Counter(row[0] for row in second)
        case Topology.DIAMOND | Topology.TWIN_EDGES:
            by_key += by_key
        case Topology.TWO_SHUFFLES if vertex.sink is not None:
            by_key = Counter(n for count in by_key.values() for n in range(1, count + 1))
        case Topology.CONNECTED:
            right = Counter(row[0] for row in second)
            return {key: (by_key[key], right[key]) for key in {*by_key, *right}}
    return {key: (n,) for key, n in by_key.items()}


def _begins_like(found: dict[int, tuple[Any, ...]], expected: dict[int, tuple[Any, ...]]) -> bool:
    if found.keys() != expected.keys():
        return False
    return all(tuple(found[key])[: len(value)] == value for key, value in expected.items())


def _check_rules(sections: list[RestoredSection], shape: Shape) -> None:
    for applied in applied_rules(sections):
        if applied != shape.rule_count():
            raise SimulationFailed(f"a subtask has applied {applied} rules of {shape.rule_count()}")


def _some(rows: "Counter[tuple[int, ...]]") -> str:
    shown = sorted(rows.elements())
    return f"{shown[:5]}{'...' if len(shown) > 5 else ''} ({len(shown)})"
