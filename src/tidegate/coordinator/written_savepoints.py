"""A savepoint that is written from rows, or from another one for other key groups or without some keys: what it takes
over, its manifest.

What cannot be written is refused here, before anything is. State itself is encoded and stored elsewhere, slot by slot;
without the manifest, which comes last, its files mean nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import msgspec
import pyarrow as pa

from tidegate.coordinator.checkpoint_tables import (
    FoundCheckpoint,
    choose_operator,
    choose_state,
    state_schema,
    stored_plan_of,
)
from tidegate.coordinator.named_checkpoint import locate
from tidegate.coordinator.staged_inputs import copy_staged_inputs
from tidegate.model.errors import IncompatibleCheckpoint, Missing, OptionError, StorageFailure
from tidegate.model.ids import ChannelId, CheckpointId, Generation, KeyGroupRange, SlotIndex, TaskId, VertexId, range_of
from tidegate.model.ids import Sequence as Number
from tidegate.operators import deduplicate
from tidegate.operators.described import describe_plan
from tidegate.operators.stored_group_values import not_told
from tidegate.plan.key_groups import MAX_PARALLELISM_LIMIT
from tidegate.plan.naming import names_in
from tidegate.plan.parts import Place, read_parts
from tidegate.plan.physical import JobPlan
from tidegate.protocol.rescale import EdgeKind, connections, key_group_floors, regrouped_floors
from tidegate.state.heap import is_keyed_section
from tidegate.storage import layout
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.storage.manifests import ChannelRange, Manifest, SlotFile, encode_manifest
from tidegate.storage.store import AlreadyThere, Store, open_store
from tidegate.storage.stored_plan import (
    NumberedForm,
    StoredGroups,
    StoredOperator,
    StoredPlan,
    StoredRows,
    StoredState,
    UserState,
    decode_schema,
    encode_schema,
)
from tidegate.worker.regrouped_rows import held_rows, key_count_of
from tidegate.worker.restoring import StoredFiles, plain_name
from tidegate.worker.stored_task import decode_task
from tidegate.worker.written_rows import Forgets, RowsOfTable
from tidegate.worker.written_state import (
    KEYED_KINDS,
    Regrouping,
    RowEncoder,
    SlotContent,
    StateEntry,
    StoredRowEncoder,
    regrouped_entries,
    stored_state_name,
    write_slot,
)

# What a state table has beside the state itself.
PLACE_COLUMNS = ("key_group", "subtask")
# How the shape of an operator ends that is given an initial state. A manifest says it nowhere else, and there is no
# plan to ask where one savepoint is based on another.
_WITH_INITIAL_STATE = " with initial state"
# How that of a deduplication ends, likewise.
_FORGETS: Mapping[str, Forgets] = {
    " forgets=never": "never",
    " forgets=ForgetByKey": "ForgetByKey",
    " forgets=ForgetAfterDelay": "ForgetAfterDelay",
}
_ONLY_KEYS = "only whole keys can be taken out of it, with tg.savepoints.drop_keys"
# As which keys are given that are to go: a state with nothing but its key.
_KEYS = UserState("keys", "value", encode_schema(pa.schema([])))


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """The state that holds the rows that are given. `number`: of its operator, among those of the plan."""

    number: int
    operator: StoredOperator
    state: StoredState

    @property
    def columns(self) -> pa.Schema:
        """Those that the rows must have, in order."""
        schema = state_schema(self.operator, self.state)
        return pa.schema([field for field in schema if field.name not in PLACE_COLUMNS])

    @property
    def place(self) -> tuple[int, str]:
        """As entries name it."""
        state = self.state
        return self.number, stored_state_name(state) if isinstance(state, UserState) else state.section


@dataclass(frozen=True, slots=True)
class DroppedKeys(WrittenRows):
    """The rows that are given are keys of the operator, of which nothing is to stay."""


@dataclass(frozen=True, slots=True)
class WrittenSavepoint:
    """A value that can be sent to whoever writes a part of it. `manifest` lacks its files.

    `rows`: None if all state is that of `base`. `regrouping`: None if it keeps its key groups.
    """

    path: str
    manifest: Manifest
    base: FoundCheckpoint | None
    rows: WrittenRows | None
    regrouping: Regrouping | None = None
    access: StoreAccess = FROM_ENVIRONMENT

    @property
    def slots(self) -> int:
        return self.manifest.parallelism

    @property
    def operators(self) -> int:
        return len(self._plan.operators)

    def encoder(self, rows: WrittenRows) -> RowEncoder | StoredRowEncoder:
        match rows.state:
            case UserState() as state:
                return RowEncoder(rows.operator, rows.number, state, self.manifest.max_parallelism)
            case StoredGroups() | StoredRows() as state:
                return StoredRowEncoder(rows.number, self._table(rows.number, rows.operator, state))
            case _:
                assert_never(rows.state)

    def subtasks_of(self, operator: int) -> int:
        return self.manifest.vertex_parallelism[self._plan.operators[operator].vertex]

    def taken_over(self, slot: int) -> Iterable[StateEntry]:
        """What has to go to other slots, because it has other key groups."""
        if self.base is None or self.regrouping is None:
            return ()
        return regrouped_entries(
            self.base.open_files(),
            self._plan,
            slot,
            max_parallelism=self.manifest.max_parallelism,
            without=None if self.rows is None else self.rows.place,
        )

    def write_slot(self, slot: int, entries: Iterable[StateEntry], *, token: str) -> SlotFile:
        content = SlotContent(
            plan=self._plan,
            vertex_parallelism=self.manifest.vertex_parallelism,
            max_parallelism=self.manifest.max_parallelism,
            base=None if self.base is None else self.base.open_files(),
            replaced=None,
            regrouping=self.regrouping,
        )
        encoder = None if self.rows is None else self.encoder(self.rows)
        match self.rows, encoder:
            case DroppedKeys(), RowEncoder() as keys:
                content = replace(content, dropped_keys=keys)
            case WrittenRows(), StoredRowEncoder() as rows:
                content = replace(content, rows=rows)
            case WrittenRows(operator=operator, place=place), _:
                # As a whole, for user code may set any state from an initial row. Operators of which nothing was ever
                # written are still given theirs when the query starts.
                content = replace(content, replaced=place, already_begun=self._with_initial_state(operator))
        return write_slot(content, SlotIndex(slot), entries, open_store(self.path, self.access), token=token)

    def finish(self, files: Sequence[SlotFile]) -> None:
        """Makes the savepoint exist; files of attempts that failed are removed."""
        by_slot = {file.slot: file for file in files}
        if sorted(by_slot) != list(range(self.slots)) or len(files) != self.slots:
            raise StorageFailure(f"Of the {self.slots} slots of the savepoint {sorted(by_slot)} were written.")
        store = open_store(self.path, self.access)
        manifest = msgspec.structs.replace(self.manifest, slots=[by_slot[SlotIndex(at)] for at in range(self.slots)])
        if self.base is not None:
            copy_staged_inputs(manifest, self.base.open_store(), store)
        created = store.create(layout.savepoint_manifest(), encode_manifest(manifest))
        if isinstance(created, AlreadyThere):
            raise _there_already(self.path)
        kept = {file.path for file in files}
        for path in store.list():
            if layout.is_written_state_file(path) and path not in kept:
                store.delete(path)

    def _table(self, number: int, operator: StoredOperator, state: StoredGroups | StoredRows) -> RowsOfTable:
        shape = _shape_of(self.manifest, operator) or ""
        forgets = next((found for ending, found in _FORGETS.items() if shape.endswith(ending)), None)
        return RowsOfTable(operator, state, forgets, self.subtasks_of(number), self.manifest.max_parallelism)

    def _with_initial_state(self, operator: StoredOperator) -> StoredOperator | None:
        """None if its query has none for it."""
        shape = _shape_of(self.manifest, operator)
        return operator if shape is not None and shape.endswith(_WITH_INITIAL_STATE) else None

    @property
    def _plan(self) -> StoredPlan:
        return stored_plan_of(self.manifest)


def _shape_of(manifest: Manifest, operator: StoredOperator) -> str | None:
    parts = read_parts(manifest.plan_fingerprint, manifest.operator_names)
    part = None if parts is None else parts.at(Place(VertexId(operator.vertex), operator.position))
    return None if part is None else part.shape


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
    rows = _chosen(manifest, operator, state)
    _check_is_free(path, access)
    return WrittenSavepoint(path, manifest, None, rows, access=access)


def rewritten_savepoint(
    path: str,
    base: FoundCheckpoint,
    *,
    operator: str | None,
    state: str | None,
    max_parallelism: int | None,
    now_ms: int,
) -> WrittenSavepoint:
    """A copy of another checkpoint but for the rows of one state, and with other key groups if asked for."""
    rows = _chosen(base.read_manifest(), operator, state)
    if not isinstance(rows.state, UserState):
        _check_is_known(base, rows.operator, "whose rows cannot be replaced")
    return _copied(path, base, rows, max_parallelism=max_parallelism, now_ms=now_ms)


def regrouped_savepoint(path: str, base: FoundCheckpoint, *, max_parallelism: int, now_ms: int) -> WrittenSavepoint:
    """A copy of another checkpoint with other key groups."""
    return _copied(path, base, None, max_parallelism=max_parallelism, now_ms=now_ms)


def savepoint_without_keys(path: str, base: FoundCheckpoint, *, operator: str | None, now_ms: int) -> WrittenSavepoint:
    """A copy of another checkpoint but for what belongs to some keys of an operator."""
    plan = stored_plan_of(base.read_manifest())
    chosen = _with_keys(plan, operator)
    _check_is_known(base, chosen, "of which no keys can be dropped")
    # Of sessions the window is no part of what their rows are sent by.
    counts = [key_count_of(chosen, state) for state in chosen.states if not isinstance(state, UserState)]
    sent_by = decode_schema(chosen.keys)
    sent_by = pa.schema([sent_by.field(at) for at in range(counts[0] if counts else len(sent_by))])
    by_those = msgspec.structs.replace(chosen, keys=encode_schema(sent_by))
    keys = DroppedKeys(plan.operators.index(chosen), by_those, _KEYS)
    return _copied(path, base, keys, max_parallelism=None, now_ms=now_ms)


def _copied(
    path: str, base: FoundCheckpoint, rows: WrittenRows | None, *, max_parallelism: int | None, now_ms: int
) -> WrittenSavepoint:
    """It is written with the settings that the other one is read with."""
    old = base.read_manifest()
    regrouping = None
    if max_parallelism is None:
        max_parallelism = old.max_parallelism
    elif max_parallelism != old.max_parallelism:
        regrouping = _regrouping(base.open_files(), stored_plan_of(old), max_parallelism)
    is_in_flight = any(stored.first < stored.n for stored in old.channels)
    sent_by = old.key_groups_in_flight
    manifest = msgspec.structs.replace(
        old,
        kind=old.kind if is_in_flight else "aligned",
        is_savepoint=True,
        triggered_at_ms=now_ms,
        duration_ms=0.0,
        max_parallelism=max_parallelism,
        # Rows in flight stay where they are: who restores them sends each to the subtask that has its key now.
        captured_max_parallelism=sent_by if is_in_flight and sent_by != max_parallelism else None,
        slots=[],
        # What the query had prepared is its own to commit.
        committables=[],
        tasks={},
        statistics=None,
        job=None,
    )
    _check_is_free(path, base.access)
    return WrittenSavepoint(path, manifest, base, rows, regrouping, base.access)


def _chosen(manifest: Manifest, operator: str | None, state: str | None) -> WrittenRows:
    plan = stored_plan_of(manifest)
    chosen = choose_operator(plan, operator)
    found = choose_state(chosen, state)
    reason = _why_not_from_rows(found)
    if reason is not None:
        raise OptionError(
            f"State {found.name!r} of operator {chosen.id} ({chosen.name}) cannot be written from rows, because "
            f"{reason}."
        )
    return WrittenRows(plan.operators.index(chosen), chosen, found)


def _why_not_from_rows(state: StoredState) -> str | None:
    """And what to do; None if it can be."""
    match state:
        case UserState(shape="broadcast"):
            return "broadcast state has no keys: send its rows down the broadcast stream again"
        case StoredGroups(in_log=NumberedForm()):
            return f"sessions end up in one another as rows come between them: {_ONLY_KEYS}"
        case StoredGroups():
            untold = not_told(state)
            return None if untold is None else f"{untold}: {_ONLY_KEYS}"
        case StoredRows() if state.section != deduplicate.SECTION_NAME:
            return f"what the rows of a join have met is held by both of its sides: {_ONLY_KEYS}"
        case _:
            return None


def _with_keys(plan: StoredPlan, wanted: str | None) -> StoredOperator:
    """By id or name; a function may have timers without any state. The only one if none is named."""
    operators = [operator for operator in plan.operators if len(decode_schema(operator.keys))]
    listed = ", ".join(f"{operator.id} ({operator.name})" for operator in operators)
    if not operators:
        raise OptionError("No operator of this checkpoint has keys that can be dropped.")
    found = [operator for operator in operators if wanted in (None, operator.id, operator.name)]
    if len(found) == 1:
        return found[0]
    if wanted is None:
        raise OptionError(f"operator is missing, and several have keys that can be dropped: use one of {listed}.")
    if found:
        raise OptionError(f"operator is {wanted!r}, which names several: use the id of one of {listed}.")
    is_known = any(wanted in (operator.id, operator.name) for operator in plan.operators)
    reason = "has no keys" if is_known else "is unknown"
    raise OptionError(f"operator is {wanted!r}, which {reason}: use one of {listed}.")


def _check_is_free(path: str, access: StoreAccess) -> None:
    if locate(path) != (path.rstrip("/"), layout.savepoint_manifest()):
        raise OptionError(
            f"{path!r} is named like a checkpoint of a query, or its manifest, whose files lie elsewhere: name another "
            f"folder for the savepoint."
        )
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


def _regrouping(files: StoredFiles, plan: StoredPlan, max_parallelism: int) -> Regrouping:
    """Raises if something of the checkpoint is bound to its key groups and cannot be given others."""
    if not isinstance(max_parallelism, int) or not 0 < max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise OptionError(
            f"max_parallelism is {max_parallelism!r}: it must be a number between 1 and {MAX_PARALLELISM_LIMIT}."
        )
    _check_all_is_known(files, plan)
    by_key = {edge.receiver for edge in plan.edges if edge.kind == EdgeKind.HASH.value}
    # Others have rows of any keys, and may differ in time for good.
    vertices = sorted({operator.vertex for operator in plan.operators} & by_key)
    return Regrouping({vertex: _event_times(files, plan, VertexId(vertex), max_parallelism) for vertex in vertices})


def _check_is_known(base: FoundCheckpoint, chosen: StoredOperator, otherwise: str) -> None:
    """All that it keeps by key; what others hold is copied, whatever it is."""
    for unknown in _unknown_sections(base.open_files(), [chosen]):
        if unknown.operator is chosen:
            raise IncompatibleCheckpoint(f"{unknown}, {otherwise}: base it on another checkpoint.")


@dataclass(frozen=True, slots=True)
class _UnknownSection:
    """`operator`: None if it is of no operator that was asked about."""

    operator: StoredOperator | None
    where: str

    def __str__(self) -> str:
        return self.where


def _check_all_is_known(files: StoredFiles, plan: StoredPlan) -> None:
    """What is kept by key groups must be something that is found again: all else would be left out."""
    for unknown in _unknown_sections(files, plan.operators):
        raise IncompatibleCheckpoint(
            f"{unknown}, which cannot be given another max_parallelism: leave max_parallelism out, or start that query "
            f"anew."
        )


def _unknown_sections(files: StoredFiles, asked: Sequence[StoredOperator]) -> Iterator[_UnknownSection]:
    operators = {(each.vertex, each.position): each for each in asked}
    rows = {place: {held.section for held in held_rows(each)} for place, each in operators.items()}
    for slot in files.manifest.slots:
        for key in files.section_keys(slot.slot):
            if key.kind not in KEYED_KINDS:
                continue
            place, name = (key.task.vertex, key.operator), plain_name(key)
            # Of user code there are entries, of others rows; files beside a section hold either.
            is_there = name in rows[place] if rows.get(place) else is_keyed_section(name)
            if place not in rows or not (key.kind == "files" or is_there):
                where = f"Checkpoint {files.manifest.checkpoint} holds {name!r} of operator v{place[0]}.op{place[1]}"
                yield _UnknownSection(operators.get(place), where)


def _event_times(
    files: StoredFiles, plan: StoredPlan, vertex: VertexId, max_parallelism: int
) -> list[tuple[KeyGroupRange, int]]:
    """By new key groups. Keys that had come less far than those they are to be with would be brought forward."""
    parallelism, before = files.parallelism_of(vertex), files.manifest.max_parallelism
    all_progress = []
    for subtask in range(parallelism):
        task = TaskId(vertex, subtask)
        (stored,) = files.sections(task, "task")
        all_progress.append(decode_task(stored.data, name=f"the checkpoint of {task}"))
    reached = [
        (range_of(subtask, parallelism=parallelism, max_parallelism=before), progress.input_watermark_ms)
        for subtask, progress in enumerate(all_progress)
    ]
    reached += [floor for progress in all_progress for floor in progress.floors]
    floors = regrouped_floors(reached, before=before, now=max_parallelism)
    if floors is None or any(
        floor_ms < progress.input_watermark_ms
        for subtask, progress in enumerate(all_progress)
        for _, floor_ms in key_group_floors(
            floors, range_of(subtask, parallelism=parallelism, max_parallelism=max_parallelism)
        )
    ):
        raise IncompatibleCheckpoint(
            f"Checkpoint {files.manifest.checkpoint} was taken when event time had come further for some keys of "
            f"{plan.vertices[vertex]} than for others, as it does where rows are in flight, for a moment after a "
            f"change of parallelism, or while sources are idle: base it on an aligned savepoint, as "
            f"query.savepoint() takes them, or on a later one."
        )
    return floors
