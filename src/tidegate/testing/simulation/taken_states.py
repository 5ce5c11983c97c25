"""What keyed state was when a snapshot of it was taken: what a restore must find, whatever became of the job since."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from tidegate.model.ids import CheckpointId, Generation, KeyGroupRange, SlotIndex, TaskId, range_of
from tidegate.operators.processor_handle import DERIVED_STATES
from tidegate.plan.physical import ConnectSpec, JobPlan, TransformWithStateSpec, Vertex
from tidegate.state.changelog import ChangelogBackend
from tidegate.state.contract import ROCKSDB_SECTION, StateBackend
from tidegate.storage.manifests import Manifest
from tidegate.storage.store import Store
from tidegate.testing.simulation.world import SimulationFailed
from tidegate.worker.restoring import restore_slot
from tidegate.worker.slot_tasks import SlotTasks
from tidegate.worker.state_backends import open_backends
from tidegate.worker.task_reports import TaskSnapshot

# Values by state, key group and key.
Entries: TypeAlias = dict[tuple[str, int, bytes], bytes]


class TakenStates:
    """Outlives every process, as the store does."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, Generation, TaskId], dict[CheckpointId, Entries]] = {}
        self.images = 0

    def watch(self, tasks: SlotTasks, plan: JobPlan, *, location: str, generation: Generation) -> None:
        """From now on what its tasks snapshot is noted."""
        entries: dict[TaskId, Entries] = {}
        for task_id, backend in _backends_of(tasks, plan):
            _before(backend, "snapshot", partial(_note, entries, task_id, backend, plan))
            if isinstance(backend, ChangelogBackend):
                _before(backend, "_take_over", self._count_image)
        snapshots, on_snapshot = tasks._snapshots, tasks._snapshots.on_snapshot

        def noted(snapshot: TaskSnapshot) -> None:
            if snapshot.task in entries:
                of_task = self._taken.setdefault((location, generation, snapshot.task), {})
                of_task[snapshot.checkpoint] = entries.pop(snapshot.task)
            on_snapshot(snapshot)

        snapshots.on_snapshot = noted  # type: ignore[method-assign]

    def check_restored(self, tasks: SlotTasks, manifest: Manifest, plan: JobPlan, *, location: str | None) -> None:
        """Before a task has done anything: it has the state of its key groups, and of no others.

        `location`: of the job that took the checkpoint, None if it was another one.
        """
        for task, backend in _backends_of(tasks, plan):
            groups = _groups_of(task, plan)
            taken = self._of_vertex(manifest, task, groups, location)
            found = entries_in(backend, plan)
            if found not in taken:
                raise SimulationFailed(f"{task} restored checkpoint {manifest.checkpoint}: {_differing(found, taken)}")

    def check_stored(self, store: Store, path: str, manifest: Manifest, plan: JobPlan, *, location: str) -> None:
        """Another start may restore it."""
        plan = replace(plan, parallelism=manifest.parallelism)
        for vertex in filter(_has_keyed_state, plan.vertices):
            for subtask in range(plan.parallelism_of(vertex.id)):
                task = TaskId(vertex.id, subtask)
                groups = _groups_of(task, plan)
                sections = restore_slot(store, path, plan, SlotIndex(subtask)).tasks[task].sections.get(0, [])
                keyed = [section for section in sections if section.key_groups is not None]
                is_rocksdb = any(section.name == ROCKSDB_SECTION for section in keyed)
                backends = open_backends("rocksdb" if is_rocksdb else "heap")
                try:
                    backend = backends.open(groups)
                    backend.restore(keyed)
                    found = entries_in(backend, plan)
                finally:
                    backends.close()
                taken = self._of_vertex(manifest, task, groups, location)
                if found not in taken:
                    raise SimulationFailed(
                        f"checkpoint {manifest.checkpoint} holds another state of {task}: {_differing(found, taken)}"
                    )

    def _count_image(self) -> None:
        self.images += 1

    def _of_vertex(
        self, manifest: Manifest, task: TaskId, groups: KeyGroupRange, location: str | None
    ) -> list[Entries]:
        """One for each job that may have taken it."""
        locations = sorted({at for at, _, _ in self._taken}) if location is None else [location]
        found: list[Entries] = []
        for at in locations:
            of_tasks = [
                self._of_task((at, manifest.generation, TaskId(task.vertex, old)), manifest.checkpoint)
                for old in range(manifest.vertex_parallelism[task.vertex])
            ]
            if None not in of_tasks:
                entries = (entry for of_task in of_tasks if of_task is not None for entry in of_task.items())
                found.append({key: value for key, value in entries if key[1] in groups})
        return found

    def _of_task(self, key: tuple[str, Generation, TaskId], checkpoint: CheckpointId) -> Entries | None:
        # One that had finished before it has its last snapshot in it.
        taken = self._taken.get(key, {})
        return taken.get(max((id for id in taken if id <= checkpoint), default=CheckpointId(0)))


def entries_in(backend: StateBackend, plan: JobPlan) -> Entries:
    """Of all key groups: those of others must not be there. Without what is only made to find others quickly."""
    names = sorted(name for name in backend.state_names() if name not in DERIVED_STATES)
    return {
        (name, group, key): bytes(value)
        for name in names
        for group in range(plan.max_parallelism)
        for key, value in backend.keyed(name).scan(group)
    }


def _note(entries: dict[TaskId, Entries], task: TaskId, backend: StateBackend, plan: JobPlan) -> None:
    entries[task] = entries_in(backend, plan)


def _before(backend: StateBackend, name: str, act: Callable[[], None]) -> None:
    # Not behind it: to look at what is in RocksDB waits until the files of a snapshot are made.
    method = getattr(backend, name)

    def acting(*given: Any) -> Any:
        act()
        return method(*given)

    setattr(backend, name, acting)


def _backends_of(tasks: SlotTasks, plan: JobPlan) -> Iterator[tuple[TaskId, StateBackend]]:
    keyed = {vertex.id for vertex in filter(_has_keyed_state, plan.vertices)}
    for task in tasks.tasks:
        if task.id.vertex in keyed:
            yield task.id, task.operators[0]._code._backend  # type: ignore[attr-defined]


def _has_keyed_state(vertex: Vertex) -> bool:
    return bool(vertex.operators) and isinstance(vertex.operators[0], TransformWithStateSpec | ConnectSpec)


def _groups_of(task: TaskId, plan: JobPlan) -> KeyGroupRange:
    parallelism = plan.parallelism_of(task.vertex)
    return range_of(task.subtask, parallelism=parallelism, max_parallelism=plan.max_parallelism)


def _differing(found: Entries, taken: list[Entries]) -> str:
    if not taken:
        return "nobody has taken a snapshot for it"
    missing = {key for key in taken[-1] if key not in found}
    surplus = {key for key in found if key not in taken[-1]}
    other = {key for key in found.keys() & taken[-1].keys() if found[key] != taken[-1][key]}
    return f"lacks {_some(missing)}, has beside {_some(surplus)}, has otherwise {_some(other)}"


def _some(keys: set[tuple[str, int, bytes]]) -> str:
    return f"{sorted(keys)[:3]}{'...' if len(keys) > 3 else ''} ({len(keys)})"
