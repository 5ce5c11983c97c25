"""One input of a join of two streams: what is kept of it, when that is done with, and how it is stored."""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import Slots, fixed_array
from tidegate.operators.contract import TaskContext
from tidegate.operators.expiry import end_of
from tidegate.operators.join_rows import RowStore, Run, by_hash, taken
from tidegate.operators.row_numbers import Changes, Numbers
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.kernels import compile_expression
from tidegate.plan.key_groups import Hashes, fixed_values_of
from tidegate.plan.physical import JoinInputSpec
from tidegate.state.contract import RestoredSection, Section

_NEVER_US: Final = np.iinfo(np.int64).max
_US_PER_MS: Final = 1000
_HAS_PARTNER: Final = "has_partner"
_NUMBER: Final = "number"
_ARRIVED: Final = "-arrived"


class JoinSide:
    """`keeps_alone`: rows without a partner come out too. `arrived`: of rows whose partners are being looked for."""

    def __init__(self, spec: JoinInputSpec, section: str, *, keeps_alone: bool) -> None:
        self.spec = spec
        self.keeps_alone = keeps_alone
        self.store = RowStore()
        self.kept = RowFormat(section, "a join", kept_schema(spec))
        self.arrived = RowFormat(arrived_section(section), "a join", _row_schema(spec))
        self.only_if = None if spec.only_if is None else compile_expression(spec.only_if)

    def hold_in_log(self, changes: Changes | None) -> None:
        """From now on rows get numbers, and it is noted what becomes of those that have one; None: no more."""
        self.store.number_rows(changes)

    def output_fields(self) -> list[pa.Field]:
        return [self.spec.schema.field(at) for at in self.spec.columns]

    def output_columns(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(list(self.spec.columns))

    def ends_us(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        end = self.spec.end
        if end is None:
            return np.full(rows.num_rows, _NEVER_US)
        times = end_of(rows.column(end.column))
        return np.where(times == _NEVER_US, times, times - end.ahead_ms * _US_PER_MS)

    def snapshot(self, context: TaskContext) -> list[Section]:
        return [section for run in self.store.runs for section in self._run_sections(run, context)]

    def restore(self, section: RestoredSection, context: TaskContext) -> None:
        for stored in self.kept.restored(section, context.key_groups):
            self.add_stored(stored)

    def add_stored(self, stored: pa.RecordBatch, of_row: Numbers | None = None) -> None:
        """Rows with their flags behind. `of_row`: the numbers by which a log knows them."""
        width = len(self.spec.schema)
        if of_row is not None:
            stored = stored.append_column(_NUMBER, fixed_array(pa.int64(), of_row, None))
        # What is behind the columns of the row goes along.
        stored, hashes = by_hash(stored, self.spec.key_count)
        rows = pa.RecordBatch.from_arrays(stored.columns[:width], schema=self.spec.schema)
        has_partner = fixed_values_of(stored.column(width)).view(np.bool_)
        if of_row is not None:
            of_row = fixed_values_of(stored.column(width + 1)).copy()
        self.store.add(rows, hashes, self.ends_us(rows), has_partner, of_row)

    def _run_sections(self, run: Run, context: TaskContext) -> list[Section]:
        live = np.flatnonzero(run.is_live)
        frozen = frozen_rows(run, live)

        def read(part: slice) -> tuple[pa.RecordBatch, Hashes]:
            columns, hashes = frozen(part)
            return pa.RecordBatch.from_arrays(columns, schema=self.kept.schema), hashes

        return self.kept.sections(read, len(live), context)


def arrived_section(kept_section: str) -> str:
    """Where the rows of a side are whose partners are being looked for, by where those are that it keeps."""
    return kept_section + _ARRIVED


def kept_schema(spec: JoinInputSpec) -> pa.Schema:
    return _row_schema(spec).append(pa.field(_HAS_PARTNER, pa.bool_()))


def _row_schema(spec: JoinInputSpec) -> pa.Schema:
    # Positions name the columns: the names of a Spark plan may repeat.
    return pa.schema([pa.field(f"column_{at}", kind) for at, kind in enumerate(spec.schema.types)])


def frozen_rows(run: Run, places: Slots) -> Callable[[slice], tuple[list[pa.Array], Hashes]]:
    """Rows at these places with their flags as they are now, and their hashes, by place among them."""
    # Rows of a run never change, so they are read when encoding, wherever they lie then; the flags are of this moment.
    flags = run.has_partner[places]

    def read(part: slice) -> tuple[list[pa.Array], Hashes]:
        columns = taken(run.batch(), places[part]).columns
        return [*columns, fixed_array(pa.bool_(), flags[part], None)], run.hashes[places[part]]

    return read
