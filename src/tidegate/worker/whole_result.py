"""Complete mode: tells a sink's writer of every result that was shown, also of one whose rows were all dropped.

Operators between the aggregation and the sink give no empty batch on, so that without this word a result that has
become empty would look like that of a task whose input has ended, which stays.
"""

from collections.abc import Sequence

import pyarrow as pa

from tidegate.connectors.contract import Prepared, SinkWriter
from tidegate.model.ids import CheckpointId
from tidegate.operators.contract import Operator, ShowsAllGroups


class WholeResultWriter:
    """A `SinkWriter`. `operators`: those in front of it in its task, where the plan keeps the aggregation."""

    def __init__(self, writer: SinkWriter, operators: Sequence[Operator], schema: pa.Schema) -> None:
        self._writer = writer
        self._showing = [operator for operator in operators if isinstance(operator, ShowsAllGroups)]
        self._no_rows = pa.RecordBatch.from_pylist([], schema=schema)

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write(rows)

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        # Each is asked, because asking also forgets.
        shown = [showing.take_has_shown_all() for showing in self._showing]
        if any(shown):
            self._writer.write(self._no_rows)
        return self._writer.prepare(checkpoint)

    def close(self) -> None:
        self._writer.close()
