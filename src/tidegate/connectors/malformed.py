"""What becomes of records that do not fit the schema: Spark's three modes, and the column that keeps them.

Both text formats parse a block into `Parsed`; what the reader gives out is decided here, once.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import Damaged, OptionError
from tidegate.plan.kernels.values import numpy_of
from tidegate.plan.parsing.parsed import Parsed


class Mode(Enum):
    PERMISSIVE = "permissive"
    DROPMALFORMED = "dropmalformed"
    FAILFAST = "failfast"


# Of a column that only says how many rows there are; no column of a query is called so.
_NOTHING = pa.field("\0", pa.null())


@runtime_checkable
class MayBeMalformed(Protocol):
    """A format of records that are judged by the columns that are read: where none is, Spark counts them as they are.

    Its rows without columns have one that nobody reads.
    """

    @property
    def mode(self) -> Mode: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` rows of a file. `rows` are those that are given out, and `places` says where each stands among them all.

    Which rows are dropped hangs on the columns that are read: so only a count of all rows means the same to any query.
    """

    rows: pa.RecordBatch
    places: npt.NDArray[np.int64]
    count: int

    def place(self, at: int) -> int:
        """Of the row at `at` in `rows`; behind the last one, the end of the piece."""
        return int(self.places[at]) if at < len(self.places) else self.count

    def first_from(self, place: int) -> int:
        """In `rows`, the first one that stands there or later."""
        return int(np.searchsorted(self.places, place))


def whole(rows: pa.RecordBatch) -> Piece:
    """None is dropped."""
    return Piece(rows, np.arange(rows.num_rows), rows.num_rows)


@dataclass(frozen=True, slots=True)
class Malformed:
    """`column` is the name of the corrupt-record column, if the query reads it."""

    mode: Mode
    column: str | None

    def settle(self, parsed: Parsed, schema: pa.Schema, *, path: str) -> Piece:
        """`schema`: the wanted columns, among them the corrupt-record column."""
        if parsed.bad is not None and self.mode is Mode.FAILFAST:
            first = parsed.records.filter(parsed.bad)[0].as_py()
            raise Damaged(
                f"The source file {path} has a malformed record ({_shortened(first)}) and 'mode' is FAILFAST: "
                f"correct the file, or choose PERMISSIVE or DROPMALFORMED."
            )
        arrays = iter(parsed.columns)
        columns = [self._corrupt(parsed) if field.name == self.column else next(arrays) for field in schema]
        if not columns:
            columns, schema = [pa.nulls(len(parsed.records))], pa.schema([_NOTHING])
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        if parsed.bad is None or self.mode is not Mode.DROPMALFORMED:
            return whole(rows)
        kept = pc.invert(parsed.bad)
        return Piece(rows.filter(kept), numpy_of(pc.indices_nonzero(kept)).astype(np.int64), rows.num_rows)

    def _corrupt(self, parsed: Parsed) -> pa.Array:
        if parsed.bad is None:
            return pa.nulls(len(parsed.records), pa.string())
        return pc.if_else(parsed.bad, parsed.records, pa.scalar(None, pa.string()))


def read_mode(text: str, *, owner: str) -> Mode:
    # Spark takes a mode that it does not know for PERMISSIVE; here it is more likely a slip.
    try:
        return Mode(text.strip().lower())
    except ValueError:
        raise OptionError(
            f"Option 'mode' of the {owner} is {text!r}: write PERMISSIVE, DROPMALFORMED or FAILFAST."
        ) from None


def _shortened(record: str) -> str:
    return repr(record if len(record) <= 100 else record[:100] + "...")
