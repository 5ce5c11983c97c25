"""The lowered plan: one node per Catalyst node that Tidegate runs, children first, columns by position."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from tidegate.plan.expressions import Expression


@dataclass(frozen=True, slots=True)
class Scan:
    """A leaf. `schema` is the full schema of the source, in the order of the plan's attributes.

    `payload`: what only the spark layer can make and open, for connectors that need more than options.
    `name`: by which its position is found in a checkpoint, if the user gave it one.
    """

    format: str
    options: Mapping[str, str]
    schema: pa.Schema
    payload: bytes = b""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """The operator below it bears the user's name, by which its state is found in a checkpoint."""

    child: "Node"
    name: str
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Project:
    child: "Node"
    columns: tuple[Expression, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Filter:
    child: "Node"
    condition: Expression
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class MapInArrow:
    """`function` is PySpark's pickled command; only the spark layer can open it. `method`: by which it was given."""

    child: "Node"
    function: bytes
    function_name: str
    schema: pa.Schema
    method: str = "mapInArrow"


class UdfShape(Enum):
    """What a Python function is called with."""

    BATCH = "batch"  # one slice, whatever it makes of its rows
    ITERATOR = "iterator"  # the slices of an epoch, one call for all


@dataclass(frozen=True, slots=True)
class EvalPython:
    """The child's columns and `result_count` more, computed by Python functions from `arguments`."""

    child: "Node"
    functions: bytes
    function_name: str
    shape: UdfShape
    arguments: tuple[Expression, ...]
    result_count: int
    schema: pa.Schema


class AnswerOrder(Enum):
    """In which order rows leave a function that waits."""

    AS_TAKEN = "in order"  # as their rows came in
    AS_ANSWERED = "as they are answered"


@dataclass(frozen=True, slots=True)
class AsyncMap:
    """Rows through a function that waits for something outside. `function` is PySpark's pickled command.

    `capacity`: rows that one task holds at the most. `timeout_ms`: of one call; None waits for ever.
    """

    child: "Node"
    function: bytes
    function_name: str
    schema: pa.Schema
    capacity: int
    order: AnswerOrder = AnswerOrder.AS_TAKEN
    timeout_ms: float | None = None
    time_zone: str | None = None


class AggregateFunction(Enum):
    COUNT_ROWS = "count(*)"  # counts rows
    COUNT = "count"  # counts rows whose arguments are all not null
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    MIN_BY = "min_by"
    MAX_BY = "max_by"
    FIRST = "first"
    FIRST_NON_NULL = "first non-null"
    LAST = "last"
    LAST_NON_NULL = "last non-null"
    COLLECT_LIST = "collect_list"  # without nulls
    COLLECT_LIST_WITH_NULLS = "collect_list with nulls"
    COLLECT_SET = "collect_set"  # without nulls
    COLLECT_SET_WITH_NULLS = "collect_set with nulls"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    STDDEV_POP = "stddev_pop"
    STDDEV_SAMP = "stddev"
    VAR_POP = "var_pop"
    VAR_SAMP = "variance"
    SKEWNESS = "skewness"
    KURTOSIS = "kurtosis"
    COVAR_POP = "covar_pop"
    COVAR_SAMP = "covar_samp"
    CORR = "corr"
    APPROX_COUNT_DISTINCT = "approx_count_distinct"  # of hashes, which are its argument


@dataclass(frozen=True, slots=True)
class SketchTables:
    """What Spark's HyperLogLog++ of a precision corrects its estimates by, as Spark's own class has it."""

    precision: int
    raw_estimates: tuple[float, ...]
    biases: tuple[float, ...]
    threshold: float


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """`condition`: FILTER (WHERE ...): only rows for which it is true count.

    `distinct`: of DISTINCT, the values by which rows count once; `arguments` are then over a row of these values.
    """

    function: AggregateFunction
    arguments: tuple[Expression, ...]
    type: pa.DataType
    ansi: bool
    condition: Expression | None = None
    sketch: SketchTables | None = None
    distinct: tuple[Expression, ...] = ()


class OutputMode(Enum):
    APPEND = "append"  # a group once, when event time has passed it
    UPDATE = "update"  # groups that changed
    COMPLETE = "complete"  # every group, each time


class GroupRows(Enum):
    """In update mode, what a sink makes of a group that changes several times within an epoch."""

    NEWEST_LAST = "newest last"  # it takes rows in order, so each newer row may follow the one before
    ONCE_PER_EPOCH = "once per epoch"  # it gives an epoch on as a set of rows, which has no order


class EventTimeKey(Enum):
    """How event time is read from a key: the predicate by which Spark finds late rows and finished groups."""

    TIMESTAMP = "timestamp"  # the key itself
    WINDOW = "window"  # the end of a struct of start and end
    SESSION = "session"  # the same, of windows that grow together when they touch


@dataclass(frozen=True, slots=True)
class EventTime:
    """`position`: which key; that of a session is the last one."""

    position: int
    key: EventTimeKey


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Groups by `keys` (over the child's columns), computes `calls`; `results` are over the row [keys..., calls...].

    `event_time`: None if no key has a watermark or is a session.
    """

    child: "Node"
    keys: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    results: tuple[Expression, ...]
    schema: pa.Schema
    event_time: EventTime | None = None


class TimeMode(Enum):
    """Which timers a processor may register."""

    NONE = "none"
    PROCESSING_TIME = "processing_time"
    EVENT_TIME = "event_time"


class RowStyle(Enum):
    """What user code gets of its rows, and gives."""

    ROWS = "rows"  # tuples
    BATCHES = "batches"  # Arrow batches, of which the spark layer makes DataFrames


@dataclass(frozen=True, slots=True)
class InitialState:
    """What every key of a stateful operator starts with: rows [key columns..., value columns...] as Arrow's stream."""

    key_count: int
    schema: pa.Schema
    rows: bytes


class StateShape(Enum):
    """What a named state of user code holds."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    BROADCAST = "broadcast"  # a map that is the same in every subtask


@dataclass(frozen=True, slots=True)
class DeclaredState:
    """A state as user code opens it, by the types of its fields; `subkeys`: of the keys of a map.

    Nothing that runs needs it: it goes into checkpoints, so that they can be read as tables.
    """

    name: str
    shape: StateShape
    values: pa.Schema
    subkeys: pa.Schema | None = None
    has_ttl: bool = False


@dataclass(frozen=True, slots=True)
class TransformWithState:
    """The child's row is [key columns..., value columns...]; `processor` is PySpark's pickled command.

    `event_column`: whose rows at or before the watermark are dropped; `time_zone`: of the instants user code sees.
    `deleted`: the states that `init` removes.
    """

    child: "Node"
    key_count: int
    processor: bytes
    schema: pa.Schema
    time_mode: TimeMode = TimeMode.NONE
    event_column: int | None = None
    time_zone: str | None = None
    style: RowStyle = RowStyle.ROWS
    initial: InitialState | None = None
    states: tuple[DeclaredState, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventTimeColumn:
    """Says which column of a stateful operator's output is event time; no row may lie before the watermark."""

    child: "Node"
    column: int
    schema: pa.Schema


class RightSide(Enum):
    """How the second input of a connected operator reaches it."""

    KEYED = "keyed"  # by the same key as the first: both share the key's state
    BROADCAST = "broadcast"  # all of it to every subtask, where it may change broadcast state only


@dataclass(frozen=True, slots=True)
class Connect:
    """Rows are [key columns..., value columns...] on both sides; a broadcast right side has no keys."""

    left: "Node"
    right: "Node"
    processor: bytes
    right_side: RightSide
    left_key_count: int
    right_key_count: int
    schema: pa.Schema
    time_mode: TimeMode = TimeMode.NONE
    time_zone: str | None = None
    states: tuple[DeclaredState, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventTimeWatermark:
    """Event time follows the largest value of a column, `delay_ms` behind."""

    child: "Node"
    column: int
    delay_ms: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Union:
    """Columns by position; names are the first child's."""

    children: "tuple[Node, ...]"
    schema: pa.Schema


class Spread(Enum):
    """How rows reach the tasks behind a repartitioning."""

    EVENLY = "evenly"  # by turns
    BY_KEY = "by key"  # equal keys to the same task
    TO_NEIGHBOURS = "to neighbours"  # no more exchange than fewer tasks need


@dataclass(frozen=True, slots=True)
class Repartition:
    """`partitions`: None for as many as there are slots. `keys` are over the child's columns."""

    child: "Node"
    spread: Spread
    keys: tuple[Expression, ...]
    partitions: int | None
    schema: pa.Schema


class ExplodedAs(Enum):
    """What stands for an element of an array or a map; a map's element is a key and a value."""

    VALUE = "explode"
    POSITION_AND_VALUE = "posexplode"
    FIELDS = "inline"  # of an array of structs


class EmptyCollections(Enum):
    """What a row with an empty or null collection gives."""

    NO_ROW = "no row"
    ONE_ROW = "one row"  # with nulls for the element


@dataclass(frozen=True, slots=True)
class Generate:
    """Each row once for every element of `collection`: the columns at `kept`, then those of the element."""

    child: "Node"
    collection: Expression
    exploded_as: ExplodedAs
    of_empty: EmptyCollections
    kept: tuple[int, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Expand:
    """Each row once for every projection."""

    child: "Node"
    projections: tuple[tuple[Expression, ...], ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class ForgetByKey:
    """A key is forgotten when event time has passed one of its own columns, the `key`-th."""

    key: int


@dataclass(frozen=True, slots=True)
class ForgetAfterDelay:
    """A key is forgotten `delay_ms` after the event time of its first row."""

    delay_ms: int


Forget: TypeAlias = ForgetByKey | ForgetAfterDelay


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """The first row of each key. `event_time`: by which column rows are late; `forget`: None keeps keys for ever."""

    child: "Node"
    keys: tuple[int, ...]
    event_time: int | None
    forget: Forget | None
    schema: pa.Schema


class JoinType(Enum):
    INNER = "inner"
    LEFT_OUTER = "left outer"
    RIGHT_OUTER = "right outer"
    FULL_OUTER = "full outer"
    LEFT_SEMI = "left semi"
    LEFT_ANTI = "left anti"


@dataclass(frozen=True, slots=True)
class EndsByKey:
    """A row can find no partner any more when event time has passed its `key`-th key."""

    key: int


@dataclass(frozen=True, slots=True)
class EndsByEventTime:
    """A row can find no partner any more when its own event time lies `ahead_ms` (often negative) past event time."""

    ahead_ms: int


JoinEnd: TypeAlias = EndsByKey | EndsByEventTime


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One side of a join of streams. `only_if`: what its rows alone must meet to have a partner at all.

    `keys` and `only_if` are over the child's columns, `event_time` is one of them; `end`: None keeps rows for ever.
    """

    child: "Node"
    keys: tuple[Expression, ...]
    only_if: Expression | None
    event_time: int | None
    end: JoinEnd | None


class JoinEventTime(Enum):
    """Which sides of a join move its event time."""

    OF_BOTH_SIDES = "both sides"  # to where both have come
    OF_ONE_SIDE = "one side"  # the other has no watermark, or neither has


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """`condition` is over [left columns..., right columns...]. A null key equals a null key, as Spark has it here."""

    type: JoinType
    left: JoinInput
    right: JoinInput
    condition: Expression | None
    schema: pa.Schema
    event_time: JoinEventTime = JoinEventTime.OF_BOTH_SIDES


class StreamSide(Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True)
class StaticTable:
    """The fixed side of a join, as Spark gave it when the query was started: `rows` is an Arrow stream."""

    keys: tuple[Expression, ...]
    schema: pa.Schema
    rows: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StaticJoin:
    """A stream with a table. `condition` is over [left columns..., right columns...]; a null key has no partner."""

    child: "Node"
    stream_side: StreamSide
    type: JoinType
    keys: tuple[Expression, ...]
    table: StaticTable
    condition: Expression | None
    schema: pa.Schema


Node: TypeAlias = (
    Scan
    | Project
    | Filter
    | MapInArrow
    | AsyncMap
    | EvalPython
    | Aggregate
    | TransformWithState
    | EventTimeColumn
    | Connect
    | EventTimeWatermark
    | Union
    | Repartition
    | Generate
    | Expand
    | Deduplicate
    | StreamJoin
    | StaticJoin
    | Named
)


@dataclass(frozen=True, slots=True)
class SortKey:
    column: int
    is_ascending: bool
    are_nulls_first: bool


@dataclass(frozen=True, slots=True)
class RowOrder:
    """How a complete result is shown: sorted, and no more than its first rows if there is a limit."""

    keys: tuple[SortKey, ...]
    most_rows: int | None


@dataclass(frozen=True, slots=True)
class Sink:
    """`order`: in complete mode only, of all rows of all writers."""

    format: str
    options: Mapping[str, str]
    schema: pa.Schema
    mode: OutputMode = OutputMode.UPDATE
    group_rows: GroupRows = GroupRows.NEWEST_LAST
    order: RowOrder | None = None
