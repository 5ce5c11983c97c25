"""What a checkpoint says of the plan that it was taken from, for readers who do not have that plan.

Owns how it is stored in the manifest. Of it a job that is restored reads only which states user code had declared, and
its time mode.
"""

from base64 import b64decode, b64encode
from typing import Literal, NewType, TypeAlias

import msgspec
import pyarrow as pa

# An Arrow schema, as Arrow serializes it, in base64.
EncodedSchema = NewType("EncodedSchema", str)

UserStateShape: TypeAlias = Literal["value", "list", "map", "broadcast"]
TimeModeName: TypeAlias = Literal["none", "processing_time", "event_time"]


class UserState(msgspec.Struct, frozen=True, tag="user"):
    """A state that user code opened; `subkeys`: of the keys of a map."""

    name: str
    shape: UserStateShape
    values: EncodedSchema
    subkeys: EncodedSchema | None = None
    has_ttl: bool = False


class FormOnDisk(msgspec.Struct, frozen=True):
    """How rows lie in a log and in RocksDB: all columns as they are stored, the first `key_count` of them the key.

    `end_key`: which of the keys says when a row ends, if one does; that time is in front of the key then.
    """

    columns: EncodedSchema
    key_count: int
    end_key: int | None = None


class NumberedForm(msgspec.Struct, frozen=True):
    """How rows lie in a log that knows them by numbers: the columns of all that are in it, the number as the last.

    `own`: the name of that column where the rows are those of this state. The first `key_count` columns are the key.
    """

    columns: list[EncodedSchema]
    own: str
    key_count: int


class StoredRows(msgspec.Struct, frozen=True, tag="rows"):
    """Rows that an operator keeps in sections of this name, with readable names for their columns.

    `on_disk`: None if it never keeps them there, or if the checkpoint was taken before that was said. `in_log`: of
    those that it has in memory and stores by number, likewise.
    """

    name: str
    section: str
    columns: EncodedSchema
    on_disk: FormOnDisk | None = None
    in_log: NumberedForm | None = None


class StoredCall(msgspec.Struct, frozen=True):
    """A call of an aggregation. The first of `types` is its running value, by a readable name, the others arguments."""

    function: str
    types: EncodedSchema


class StoredGroups(msgspec.Struct, frozen=True, tag="groups"):
    """Groups of an aggregation; `seen`: a list of the distinct values that each has seen, per DISTINCT.

    `on_disk`, `in_log`: as those of rows. Of sessions both: `on_disk` is how the sessions of a key lie in RocksDB, as a
    list behind the key, while they are not in the log.
    """

    name: str
    section: str
    keys: EncodedSchema
    calls: list[StoredCall]
    seen: EncodedSchema
    on_disk: FormOnDisk | None = None
    in_log: NumberedForm | None = None


StoredState: TypeAlias = UserState | StoredRows | StoredGroups


class StoredOperator(msgspec.Struct, frozen=True):
    """One that keeps state: `position` is its place in the chain of its vertex, `keys` what its state is keyed by.

    `has_zoned_keys`: instants among the keys are stored as such, not as times without a zone. `left_out`: states that
    the query does not declare any more and that are still stored. `time_mode`: of its timers; None of operators without
    user code, or if the checkpoint was taken before that was said.
    """

    vertex: int
    position: int
    name: str
    keys: EncodedSchema
    states: list[StoredState]
    has_timers: bool = False
    has_zoned_keys: bool = False
    left_out: list[UserState] = []
    time_mode: TimeModeName | None = None

    @property
    def id(self) -> str:
        return f"v{self.vertex}.op{self.position}"


class StoredEdge(msgspec.Struct, frozen=True):
    id: int
    sender: int
    receiver: int
    kind: str
    schema: EncodedSchema


class StoredPlan(msgspec.Struct, frozen=True):
    """`vertices`: their names, by their ids."""

    vertices: list[str]
    operators: list[StoredOperator]
    edges: list[StoredEdge]


def encode_schema(schema: pa.Schema) -> EncodedSchema:
    return EncodedSchema(b64encode(schema.serialize()).decode("ascii"))


def decode_schema(encoded: EncodedSchema) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(b64decode(encoded)))
