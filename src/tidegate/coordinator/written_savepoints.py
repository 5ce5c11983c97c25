"""A savepoint that is written from rows: what it takes over, what is refused, its manifest.

The rows themselves are encoded and stored elsewhere, slot by slot; without the manifest, which comes last, their files
mean nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tidegate.coordinator.checkpoint_tables import (
    FoundCheckpoint,
    choose_operator,
    choose_state,
    state_schema,
    stored_plan_of,
)
from tidegate.model.errors import IncompatibleCheckpoint, Missing, OptionError, StorageFailure
from tidegate.model.ids import ChannelId, CheckpointId, Generation, SlotIndex, TaskId, VertexId
from tidegate.model.ids import Sequence as Number
from tidegate.operators.described import describe_plan
from tidegate.plan.key_groups import MAX_PARALLELISM_LIMIT
from tidegate.plan.naming import names_in
from tidegate.plan.parts import Place, read_parts
from tidegate.plan.physical import JobPlan
from tidegate.protocol.rescale import EdgeKind, connections
from tidegate.storage import layout
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.storage.manifests import ChannelRange, Manifest, SlotFile, encode_manifest
from tidegate.storage.store import AlreadyThere, Store, open_store
from tidegate.storage.stored_plan import StoredOperator, StoredPlan, UserState
from tidegate.worker.restoring import StoredFiles
from tidegate.worker.stored_task import decode_task
from tidegate.worker.written_state import (
    RowEncoder,
    SlotContent,
    StateEntry,
    regrouped_entries,
    stored_state_name,
    write_slot,
)

# What a state table has beside the state itself.
PLACE_COLUMNS = ("key_group", "subtask")
# How the shape of an operator ends that is given an initial state. A manifest says it nowhere else, and there is no
# plan to ask where one savepoint is based on another.
_WITH_INITIAL_STATE = " with initial state"


@dataclass(frozen=True, slots=True)
class WrittenSavepoint:
    """A value that can be sent to whoever writes a part of it. `manifest` lacks its files."""

    path: str
    manifest: Manifest
    base: FoundCheckpoint | None
    is_regrouped: bool
    number: int
    state: UserState
    access: StoreAccess = FROM_ENVIRONMENT

    @property
    def operator(self) -> StoredOperator:
        return self._plan.operators[self.number]

    @property
    def columns(self) -> pa.Schema:
        """Those that its rows must have, in order."""
        schema = state_schema(self.operator, self.state)
        return pa.schema([field for field in schema if field.name not in PLACE_COLUMNS])

    @property
    def slots(self) -> int:
        return self.manifest.parallelism

    @property
    def operators(self) -> int:
        return len(self._plan.operators)

    def encoder(self) -> RowEncoder:
        return RowEncoder(self.operator, self.number, self.state, self.manifest.max_parallelism)

    def subtasks_of(self, operator: int) -> int:
        return self.manifest.vertex_parallelism[self._plan.operators[operator].vertex]

    def taken_over(self, slot: int) -> Iterable[StateEntry]:
        """What has to go to other slots, because it has other key groups."""
        if self.base is None or not self.is_regrouped:
            return ()
        return regrouped_entries(
            self.base.open_files(),
            self._plan,
            slot,
            max_parallelism=self.manifest.max_parallelism,
            without=(self.number, stored_state_name(self.state)),
        )

    def write_slot(self, slot: int, entries: Iterable[StateEntry], *, token: str) -> SlotFile:
        own = (self.number, stored_state_name(self.state))
        content = SlotContent(
            plan=self._plan,
            vertex_parallelism=self.manifest.vertex_parallelism,
            max_parallelism=self.manifest.max_parallelism,
            base=None if self.base is None else self.base.open_files(),
            replaced=None if self.is_regrouped else frozenset([own]),
            # As a whole, for user code may set any state from an initial row. Operators of which nothing was ever
            # written are still given theirs when the query starts.
            already_begun=self.operator if self._has_initial_state() else None,
        )
        return write_slot(content, SlotIndex(slot), entries, open_store(self.path, self.access), token=token)

    def finish(self, files: Sequence[SlotFile]) -> None:
        """Makes the savepoint exist; files of attempts that failed are removed."""
        by_slot = {file.slot: file for file in files}
        if sorted(by_slot) != list(range(self.slots)) or len(files) != self.slots:
            raise StorageFailure(f"Of the {self.slots} slots of the savepoint {sorted(by_slot)} were written.")
        store = open_store(self.path, self.access)
        manifest = msgspec.structs.replace(self.manifest, slots=[by_slot[SlotIndex(at)] for at in range(self.slots)])
        created = store.create(layout.savepoint_manifest(), encode_manifest(manifest))
        if isinstance(created, AlreadyThere):
            raise _there_already(self.path)
        kept = {file.path for file in files}
        for path in store.list():
            if layout.is_written_state_file(path) and path not in kept:
                store.delete(path)

    def _has_initial_state(self) -> bool:
        parts = read_parts(self.manifest.plan_fingerprint, self.manifest.operator_names)
        place = Place(VertexId(self.operator.vertex), self.operator.position)
        part = None if parts is None else parts.at(place)
        return part is not None and part.shape.endswith(_WITH_INITIAL_STATE)

    @property
    def _plan(self) -> StoredPlan:
        return stored_plan_of(self.manifest)


def new_savepoint(
    path: str,
    plan: JobPlan,
    fingerprint: Sequence[str],
    *,
    operator: str | None,
    state: str | None,
    now_ms: int,
    access: StoreAccess = FROM_ENVIRONMENT,
) -> WrittenSavepoint:
    """For a query that has not run: everything but one state starts anew."""
    channels = [
        ChannelRange(ChannelId(edge.id, sender, receiver), Number(0), 0, Number(0), Number(0))
        for edge in plan.edges
        for sender, receiver in connections(plan.shape_of(edge))
    ]
    manifest = Manifest(
        checkpoint=CheckpointId(1),
        generation=Generation(1),
        kind="aligned",
        is_savepoint=True,
        triggered_at_ms=now_ms,
        duration_ms=0.0,
        plan_fingerprint=list(fingerprint),
        operator_names=names_in(plan),
        parallelism=plan.parallelism,
        max_parallelism=plan.max_parallelism,
        vertex_parallelism=[plan.parallelism_of(vertex.id) for vertex in plan.vertices],
        slots=[],
        channels=channels,
        plan=describe_plan(plan),
    )
    return _chosen(path, manifest, None, operator, state, access, is_regrouped=False)


def rewritten_savepoint(
    path: str,
    base: FoundCheckpoint,
    *,
    operator: str | None,
    state: str | None,
    max_parallelism: int | None,
    now_ms: int,
) -> WrittenSavepoint:
    """A copy of another checkpoint but for the rows of one state, and with other key groups if asked for.

    It is written with the settings that the other one is read with.
    """
    old = base.read_manifest()
    plan = stored_plan_of(old)
    is_regrouped = max_parallelism is not None and max_parallelism != old.max_parallelism
    if is_regrouped:
        assert max_parallelism is not None
        _check_regrouping(base.open_files(), plan, max_parallelism)
    is_in_flight = any(stored.first < stored.n for stored in old.channels)
    manifest = msgspec.structs.replace(
        old,
        kind=old.kind if is_in_flight else "aligned",
        is_savepoint=True,
        triggered_at_ms=now_ms,
        duration_ms=0.0,
        max_parallelism=old.max_parallelism if max_parallelism is None else max_parallelism,
        slots=[],
        # What the query had prepared is its own to commit.
        committables=[],
        tasks={},
        statistics=None,
    )
    return _chosen(path, manifest, base, operator, state, base.access, is_regrouped=is_regrouped)


def _chosen(
    path: str,
    manifest: Manifest,
    base: FoundCheckpoint | None,
    operator: str | None,
    state: str | None,
    access: StoreAccess,
    *,
    is_regrouped: bool,
) -> WrittenSavepoint:
    plan = stored_plan_of(manifest)
    chosen = choose_operator(plan, operator)
    found = choose_state(chosen, state)
    if not isinstance(found, UserState) or found.shape == "broadcast":
        raise OptionError(
            f"State {found.name!r} of operator {chosen.id} ({chosen.name}) cannot be written from rows: only value, "
            f"list and map states of transformWithState and tg.connect can."
        )
    _check_is_free(path, access)
    return WrittenSavepoint(path, manifest, base, is_regrouped, plan.operators.index(chosen), found, access)


def _check_is_free(path: str, access: StoreAccess) -> None:
    store: Store = open_store(path, access)
    if store.list(layout.LOG):
        raise OptionError(f"{path!r} is the checkpointLocation of a query: name a folder of its own for the savepoint.")
    try:
        store.size(layout.savepoint_manifest())
    except Missing:
        return
    raise _there_already(path)


def _there_already(path: str) -> OptionError:
    return OptionError(f"There is a savepoint in {path!r} already: name another path.")


def _check_regrouping(files: StoredFiles, plan: StoredPlan, max_parallelism: int) -> None:
    """Raises if something of the checkpoint is bound to its key groups and cannot be given others here."""
    if not 0 < max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise OptionError(f"max_parallelism is {max_parallelism}: it must be between 1 and {MAX_PARALLELISM_LIMIT}.")
    for operator in plan.operators:
        if any(not isinstance(state, UserState) for state in operator.states):
            raise IncompatibleCheckpoint(
                f"Operator {operator.id} ({operator.name}) keeps rows by key group, which cannot be given another "
                f"max_parallelism: leave max_parallelism out, or start that query anew."
            )
    hashed = {edge.id for edge in plan.edges if edge.kind == EdgeKind.HASH.value}
    manifest = files.manifest
    if any(stored.channel.edge in hashed and stored.first < stored.n for stored in manifest.channels):
        raise IncompatibleCheckpoint(
            f"Checkpoint {manifest.checkpoint} holds rows in flight, which cannot be given another max_parallelism: "
            f"base it on an aligned savepoint, as query.savepoint() takes them."
        )
    for vertex, parallelism in enumerate(manifest.vertex_parallelism):
        for subtask in range(parallelism):
            task = TaskId(VertexId(vertex), subtask)
            for stored in files.sections(task, "task"):
                if decode_task(stored.data, name=f"the checkpoint of {task}").floors:
                    raise IncompatibleCheckpoint(
                        f"Checkpoint {manifest.checkpoint} was taken while event time was catching up after a change "
                        f"of parallelism: base it on a later one."
                    )
