"""One input of a join of two streams: what is kept of it, when that is done with, and how it is stored."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.columnar import fixed_array
from tidegate.operators.contract import TaskContext
from tidegate.operators.expiry import end_of
from tidegate.operators.join_rows import RowStore, Run, by_hash, taken
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.kernels import compile_expression
from tidegate.plan.key_groups import Hashes, fixed_values_of
from tidegate.plan.physical import JoinInputSpec
from tidegate.state.contract import RestoredSection, Section

_NEVER_US: Final = np.iinfo(np.int64).max
_US_PER_MS: Final = 1000
_HAS_PARTNER: Final = "has_partner"
_ARRIVED: Final = "-arrived"


class JoinSide:
    """`keeps_alone`: rows without a partner come out too. `arrived`: of rows whose partners are being looked for."""

    def __init__(self, spec: JoinInputSpec, section: str, *, keeps_alone: bool) -> None:
        self.spec = spec
        self.keeps_alone = keeps_alone
        self.store = RowStore()
        # Positions name the columns: the names of a Spark plan may repeat.
        row_schema = pa.schema([pa.field(f"column_{at}", kind) for at, kind in enumerate(spec.schema.types)])
        self.kept = RowFormat(section, "a join", row_schema.append(pa.field(_HAS_PARTNER, pa.bool_())))
        self.arrived = RowFormat(section + _ARRIVED, "a join", row_schema)
        self.only_if = None if spec.only_if is None else compile_expression(spec.only_if)

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
        width = len(self.spec.schema)
        for stored in self.kept.restored(section, context.key_groups):
            # The flag goes along, behind the columns of the row.
            stored, hashes = by_hash(stored, self.spec.key_count)
            rows = pa.RecordBatch.from_arrays(stored.columns[:width], schema=self.spec.schema)
            has_partner = fixed_values_of(stored.column(width)).view(np.bool_)
            self.store.add(rows, hashes, self.ends_us(rows), has_partner)

    def _run_sections(self, run: Run, context: TaskContext) -> list[Section]:
        # Rows of a run never change, so they are read when encoding; the flags are those of this moment.
        live, rows, hashes = np.flatnonzero(run.is_live), run.rows, run.hashes
        flags = run.has_partner[live]

        def read(part: slice) -> tuple[pa.RecordBatch, Hashes]:
            columns = [*taken(rows, live[part]).columns, fixed_array(pa.bool_(), flags[part], None)]
            return pa.RecordBatch.from_arrays(columns, schema=self.kept.schema), hashes[live[part]]

        return self.kept.sections(read, len(live), context)
