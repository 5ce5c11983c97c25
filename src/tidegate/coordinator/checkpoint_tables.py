"""Checkpoints as tables: which one a path means, which columns a table has, and its rows, partition by partition.

A table is a value that can be sent to where it is read. It changes and deletes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.coordinator.named_checkpoint import locate
from tidegate.coordinator.stored_views import stored_task_views, stored_views
from tidegate.model.errors import IncompatibleCheckpoint, Missing, OptionError
from tidegate.operators.stored_group_values import group_fields
from tidegate.storage import layout
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.storage.hadoop_settings import understood
from tidegate.storage.job_log import JobLog, retained_checkpoints
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.store import Store, local_path, open_existing, open_place
from tidegate.storage.stored_plan import (
    StoredEdge,
    StoredGroups,
    StoredOperator,
    StoredPlan,
    StoredRows,
    StoredState,
    UserState,
    decode_schema,
)
from tidegate.worker.reading import key_columns, keys_as_json, read_in_flight, read_state, read_timers, rows_as_json
from tidegate.worker.restoring import StoredFiles

TABLES = ("state", "inflight", "timers", "tasks", "checkpoints")
# Which options each table takes beside `path` and `table`.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "state": ("checkpoint", "operator", "state"),
    "inflight": ("checkpoint", "edge"),
    "timers": ("checkpoint", "operator"),
    "tasks": ("checkpoint",),
    "checkpoints": (),
}
# So many, the newest, tell where to look; a query may have taken any number of savepoints.
_NAMED_AS_MISSING = 5
_PLACE = [pa.field("key_group", pa.int32()), pa.field("subtask", pa.int32())]
_CHANNEL = [
    pa.field("edge", pa.string()),
    pa.field("sender", pa.int32()),
    pa.field("receiver", pa.int32()),
    pa.field("side", pa.string()),
    pa.field("sequence", pa.int64()),
    pa.field("row", pa.int64()),
]
_TIMES = [pa.field("time", pa.timestamp("ms", "UTC")), pa.field("kind", pa.string())]
_TASKS = pa.schema(
    [
        ("task", pa.string()),
        ("name", pa.string()),
        ("start_delay_ms", pa.float64()),
        ("alignment_ms", pa.float64()),
        ("sync_ms", pa.float64()),
        ("async_ms", pa.float64()),
        ("state_bytes", pa.int64()),
        ("inflight_bytes", pa.int64()),
        ("new_inflight_bytes", pa.int64()),
        ("processed_bytes", pa.int64()),
    ]
)
_CHECKPOINTS = pa.schema(
    [
        ("id", pa.int64()),
        ("status", pa.string()),
        ("kind", pa.string()),
        ("is_savepoint", pa.bool_()),
        ("triggered_at", pa.timestamp("ms", "UTC")),
        ("duration_ms", pa.float64()),
        ("state_bytes", pa.int64()),
        ("new_state_bytes", pa.int64()),
        ("inflight_bytes", pa.int64()),
        ("new_inflight_bytes", pa.int64()),
        ("processed_bytes", pa.int64()),
        ("failure_reason", pa.string()),
        ("path", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """`manifest` is below `location`, and so are all other paths of the checkpoint."""

    location: str
    manifest: str
    access: StoreAccess = FROM_ENVIRONMENT

    @property
    def name(self) -> str:
        return f"{self.location}/{self.manifest}"

    def is_there(self) -> bool:
        """Whether its manifest is; not whether that is whole."""
        try:
            open_place(self.location, self.access).size(self.manifest)
        except Missing:
            return False
        return True

    def read_manifest(self) -> Manifest:
        return decode_manifest(self.open_store().read(self.manifest), name=self.name)

    def open_files(self) -> StoredFiles:
        return StoredFiles(self.open_store(), self.read_manifest())

    def open_store(self) -> Store:
        return open_existing(self.location, self.access)


@dataclass(frozen=True, slots=True)
class StateTable:
    checkpoint: FoundCheckpoint
    operator: StoredOperator
    state: StoredState
    schema: pa.Schema
    partitions: int

    def read(self, subtask: int) -> Iterator[pa.RecordBatch]:
        for columns in read_state(self.checkpoint.open_files(), self.operator, self.state, subtask):
            yield _batch(columns, self.schema)


@dataclass(frozen=True, slots=True)
class TimersTable:
    """With typed keys if `operators` is the one that was chosen, else with all keys as JSON."""

    checkpoint: FoundCheckpoint
    operators: tuple[StoredOperator, ...]
    is_typed: bool
    schema: pa.Schema
    partitions: int

    def read(self, slot: int) -> Iterator[pa.RecordBatch]:
        files = self.checkpoint.open_files()
        for operator in self.operators:
            if slot >= files.manifest.vertex_parallelism[operator.vertex]:
                continue
            for keys, columns in read_timers(files, operator, slot):
                names = pa.array([operator.id] * len(keys), pa.string())
                found = key_columns(keys, operator) if self.is_typed else [keys_as_json(keys, operator)]
                yield _batch([names, *found, *columns], self.schema)


@dataclass(frozen=True, slots=True)
class InFlightTable:
    """With typed columns if `edges` is the one that was chosen, else with all rows as JSON."""

    checkpoint: FoundCheckpoint
    edges: tuple[StoredEdge, ...]
    is_typed: bool
    schema: pa.Schema
    partitions: int

    def read(self, slot: int) -> Iterator[pa.RecordBatch]:
        for place, rows in read_in_flight(self.checkpoint.open_files(), self.edges, slot):
            yield _batch([*place, *(rows.columns if self.is_typed else [rows_as_json(rows)])], self.schema)


@dataclass(frozen=True, slots=True)
class TasksTable:
    checkpoint: FoundCheckpoint
    schema: pa.Schema = _TASKS
    partitions: int = 1

    def read(self, _: int) -> Iterator[pa.RecordBatch]:
        yield _from_views(stored_task_views(self.checkpoint.read_manifest()), self.schema)


@dataclass(frozen=True, slots=True)
class CheckpointsTable:
    location: str
    access: StoreAccess
    schema: pa.Schema = _CHECKPOINTS
    partitions: int = 1

    def read(self, _: int) -> Iterator[pa.RecordBatch]:
        yield _from_views(list(stored_views(self.location, self.access)), self.schema)


Table: TypeAlias = StateTable | TimersTable | InFlightTable | TasksTable | CheckpointsTable


def open_table(options: Mapping[str, str], access: StoreAccess = FROM_ENVIRONMENT) -> Table:
    """`options` as a reader of Spark's is given them, those for reaching a store count more than `access`.

    Raises `OptionError` with what there is to choose from.
    """
    settings = understood(options)
    access = StoreAccess({**access.settings, **settings})
    path, table = options.get("path"), options.get("table")
    if table not in TABLES:
        found = "is missing" if table is None else f"is {table!r}"
        raise OptionError(f"Option 'table' {found}: use one of {', '.join(TABLES)}.")
    if not path:
        raise OptionError("Option 'path' is missing: name a checkpointLocation, a checkpoint or a savepoint.")
    # Absolute from here on: where it is read, the folder of the process may be another one.
    path = str(local_path(path) or path)
    allowed = _OPTIONS[table]
    for name in options:
        if name not in settings and name.lower() not in ("path", "table", *allowed):
            known = ", ".join(["path", "table", *allowed])
            raise OptionError(f"Table {table!r} has no option {name!r}: use {known}.")
    if table == "checkpoints":
        return CheckpointsTable(_location_of(path, access), access)
    found_checkpoint = find_checkpoint(path, options.get("checkpoint"), access=access)
    if table == "tasks":
        return TasksTable(found_checkpoint)
    manifest = found_checkpoint.read_manifest()
    plan = stored_plan_of(manifest)
    if table == "state":
        return _state_table(found_checkpoint, manifest, plan, options.get("operator"), options.get("state"))
    if table == "timers":
        return _timers_table(found_checkpoint, manifest, plan, options.get("operator"))
    return _in_flight_table(found_checkpoint, manifest, plan, options.get("edge"))


def find_checkpoint(
    path: str, checkpoint: str | None = None, *, access: StoreAccess = FROM_ENVIRONMENT
) -> FoundCheckpoint:
    """`checkpoint`: the id of one at a checkpointLocation; None for its newest that is there."""
    root, manifest = locate(path)
    store = open_existing(root, access)
    if manifest == layout.savepoint_manifest() and store.list(layout.LOG):
        return _at_location(store, root, checkpoint, access)
    if checkpoint is not None:
        raise OptionError(
            f"Option 'checkpoint' is {checkpoint!r}, but {path!r} is one checkpoint: leave the option out, or give the "
            f"checkpointLocation as path."
        )
    try:
        store.size(manifest)
    except Missing:
        raise OptionError(
            f"{path!r} holds no checkpoint: name a checkpointLocation, a checkpoint or a savepoint."
        ) from None
    return FoundCheckpoint(root, manifest, access)


def stored_plan_of(manifest: Manifest) -> StoredPlan:
    if manifest.plan is None:
        raise IncompatibleCheckpoint(
            f"Checkpoint {manifest.checkpoint} was taken by a Tidegate that did not store names and types of its "
            f"state: resume its query, and read a checkpoint that was taken since."
        )
    return manifest.plan


def choose_operator(plan: StoredPlan, wanted: str | None) -> StoredOperator:
    """By id or name; the only one that keeps state if none is named."""
    operators = [operator for operator in plan.operators if operator.states]
    if not operators:
        raise OptionError("No operator of this checkpoint keeps state that could be read by key.")
    if wanted is None:
        if len(operators) == 1:
            return operators[0]
        raise OptionError(
            f"Option 'operator' is missing, and several operators keep state: use one of {_listed(operators)}."
        )
    return _choose_among(operators, wanted, otherwise="is unknown")


def choose_state(operator: StoredOperator, wanted: str | None) -> StoredState:
    found = [state for state in operator.states if wanted in (None, state.name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(state.name for state in operator.states)
    said = "missing" if wanted is None else f"{wanted!r}"
    raise OptionError(f"Option 'state' is {said}, but operator {operator.id} ({operator.name}) has {known}: use one.")


def state_schema(operator: StoredOperator, state: StoredState) -> pa.Schema:
    """Keys, then the place in a list or the key in a map, values, expiration; key group and subtask."""
    match state:
        case StoredRows(columns=columns):
            parts = [("column", decode_schema(columns))]
        case StoredGroups():
            parts = [("column", group_fields(state))]
        case UserState():
            keys = [] if state.shape == "broadcast" else decode_schema(operator.keys)
            parts = [("key", keys)]
            if state.subkeys is not None:
                parts.append(("map_key", decode_schema(state.subkeys)))
            if state.shape == "list":
                parts.append(("", [pa.field("index", pa.int64())]))
            parts.append(("value", decode_schema(state.values)))
            if state.has_ttl:
                parts.append(("", [pa.field("expiration", pa.timestamp("ms", "UTC"))]))
    return _with_unique_names([*parts, ("", _PLACE)])


# -- inside


def _choose_with_timers(plan: StoredPlan, wanted: str) -> StoredOperator:
    """By id or name; it may have timers without any state."""
    operators = [operator for operator in plan.operators if operator.has_timers]
    if not operators:
        raise OptionError("No operator of this checkpoint has timers.")
    return _choose_among(operators, wanted, otherwise="is no operator with timers")


def _choose_among(operators: Sequence[StoredOperator], wanted: str, *, otherwise: str) -> StoredOperator:
    """`otherwise`: what is said of one that is not among them."""
    found = [operator for operator in operators if wanted in (operator.id, operator.name)]
    if len(found) == 1:
        return found[0]
    reason = "names several operators" if found else otherwise
    raise OptionError(f"Option 'operator' is {wanted!r}, which {reason}: use the id of one of {_listed(operators)}.")


def _listed(operators: Sequence[StoredOperator]) -> str:
    return ", ".join(f"{operator.id} ({operator.name})" for operator in operators)


def _location_of(path: str, access: StoreAccess) -> str:
    if not open_existing(path, access).list(layout.LOG):
        raise OptionError(f"{path!r} holds no job log: name the checkpointLocation of a query.")
    return path.rstrip("/")


def _at_location(store: Store, location: str, wanted: str | None, access: StoreAccess) -> FoundCheckpoint:
    retained = retained_checkpoints(JobLog(store, driver="a reader").read())
    chosen = retained if wanted is None else [entry for entry in retained if str(entry.checkpoint) == wanted.strip()]
    if not chosen:
        if not retained:
            raise OptionError(f"{location!r} holds no completed checkpoint yet.")
        known = ", ".join(str(entry.checkpoint) for entry in retained)
        raise OptionError(f"Option 'checkpoint' is {wanted!r}, and {location!r} holds {known}: use one of them.")
    newest_first = [
        FoundCheckpoint(location if entry.location is None else entry.location, entry.manifest, access)
        for entry in reversed(chosen)
    ]
    # The log does not know what became of a savepoint, which is its owner's to move or delete.
    found = next((checkpoint for checkpoint in newest_first if checkpoint.is_there()), None)
    if found is not None:
        return found
    gone = [checkpoint.name for checkpoint in newest_first[:_NAMED_AS_MISSING]]
    more = ["..."] if len(newest_first) > _NAMED_AS_MISSING else []
    raise OptionError(
        f"{location!r} names checkpoints that are no longer there, for {', '.join([*gone, *more])} is missing: bring "
        f"it back, or give as path where it is now."
    )


def _state_table(
    checkpoint: FoundCheckpoint, manifest: Manifest, plan: StoredPlan, operator: str | None, state: str | None
) -> StateTable:
    chosen = choose_operator(plan, operator)
    chosen_state = choose_state(chosen, state)
    schema = state_schema(chosen, chosen_state)
    return StateTable(checkpoint, chosen, chosen_state, schema, manifest.vertex_parallelism[chosen.vertex])


def _timers_table(
    checkpoint: FoundCheckpoint, manifest: Manifest, plan: StoredPlan, operator: str | None
) -> TimersTable:
    parts: list[tuple[str, Iterable[pa.Field]]] = [("", [pa.field("operator", pa.string())])]
    if operator is None:
        with_timers = tuple(each for each in plan.operators if each.has_timers)
        parts.append(("", [pa.field("key", pa.string())]))
    else:
        chosen = _choose_with_timers(plan, operator)
        with_timers = (chosen,)
        parts.append(("key", decode_schema(chosen.keys)))
    schema = _with_unique_names([*parts, ("", _TIMES), ("", _PLACE)])
    return TimersTable(checkpoint, with_timers, operator is not None, schema, manifest.parallelism)


def _in_flight_table(
    checkpoint: FoundCheckpoint, manifest: Manifest, plan: StoredPlan, edge: str | None
) -> InFlightTable:
    edges = tuple(each for each in plan.edges if edge in (None, f"e{each.id}", str(each.id)))
    if not edges and edge is not None:
        known = ", ".join(
            f"e{each.id} ({plan.vertices[each.sender]} to {plan.vertices[each.receiver]})" for each in plan.edges
        )
        raise OptionError(f"Option 'edge' is {edge!r}: use one of {known or 'none, for there are no edges'}.")
    columns = [pa.field("columns", pa.string())] if edge is None else decode_schema(edges[0].schema)
    schema = _with_unique_names([("", _CHANNEL), ("" if edge is None else "column", columns)])
    return InFlightTable(checkpoint, edges, edge is not None, schema, manifest.parallelism)


def _with_unique_names(parts: Sequence[tuple[str, Iterable[pa.Field]]]) -> pa.Schema:
    """Columns without a role keep their names; another whose name is taken gets its role in front of it."""
    taken = {field.name.lower() for role, fields in parts if not role for field in fields}
    fields: list[pa.Field] = []
    for role, own in parts:
        for field in own:
            name = field.name if not role else _free_name(field.name, role, taken)
            taken.add(name.lower())
            kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _free_name(name: str, role: str, taken: set[str]) -> str:
    if name.lower() not in taken:
        return name
    candidate, number = f"{role}_{name}", 2
    while candidate.lower() in taken:
        candidate, number = f"{role}_{name}_{number}", number + 1
    return candidate


def _batch(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    fitted = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(fitted, schema=schema)


def _from_views(views: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([getattr(view, field.name) for view in views], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
