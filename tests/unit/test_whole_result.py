"""In complete mode a sink's writer is told of each result, also of one whose rows were all dropped on the way."""

from typing import Any

import pyarrow as pa
import pytest

from tests.unit.test_windows_of_groups import Running, batch_of, spec_of
from tidegate.connectors.contract import Prepared
from tidegate.model.ids import CheckpointId
from tidegate.operators.build import build_operator
from tidegate.plan.expressions import Call, Column, Literal
from tidegate.plan.nodes import EventTimeKey, OutputMode
from tidegate.plan.physical import FilterSpec
from tidegate.worker.whole_result import WholeResultWriter

WINDOW_OF_ALL = (0, 10)


class Written:
    """A sink's writer that notes how many rows the batches of an epoch have."""

    def __init__(self) -> None:
        self.schemas: set[pa.Schema] = set()
        self._epoch: list[int] = []
        self.epochs: list[list[int]] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self.schemas.add(rows.schema)
        self._epoch.append(rows.num_rows)

    def prepare(self, checkpoint: CheckpointId) -> Prepared:
        self.epochs.append(self._epoch)
        self._epoch = []
        return Prepared([], lambda: None)

    def close(self) -> None:
        return


class Chain:
    """An aggregation, `where n = 1`, the sink."""

    def __init__(self, mode: OutputMode, kind: EventTimeKey) -> None:
        spec = spec_of(mode, kind)
        self.spec = spec
        self.aggregation = Running(spec).operator
        condition = Call("EqualTo", (Column(2, "n", pa.int64()), Literal(1, pa.int64())), pa.bool_(), True)
        self.filter: Any = build_operator(FilterSpec(condition, spec.schema))
        self.written = Written()
        self.sink = WholeResultWriter(self.written, [self.aggregation, self.filter], spec.schema)

    def give(self, rows: pa.RecordBatch) -> None:
        self.filter.process(rows, self.sink.write)

    def process(self, key: str) -> None:
        self.aggregation.process(batch_of(self.spec, [(key, WINDOW_OF_ALL, 1)]), self.give)

    def barrier(self) -> list[int]:
        self.aggregation.before_barrier(self.give)
        self.sink.prepare(CheckpointId(len(self.written.epochs) + 1))
        return self.written.epochs[-1]

    def end(self) -> None:
        self.aggregation.end_of_input(self.give)


@pytest.mark.parametrize("kind", [EventTimeKey.WINDOW, EventTimeKey.SESSION])
def test_a_result_that_a_filter_empties_is_told_from_no_result(kind: EventTimeKey) -> None:
    chain = Chain(OutputMode.COMPLETE, kind)
    assert chain.barrier() == [], "before the first group there is nothing to replace"
    chain.process("a")
    assert sum(chain.barrier()) == 1
    chain.process("a")
    assert chain.barrier() == [0]
    assert chain.barrier() == [0], "all groups are shown in every epoch"
    assert chain.written.schemas == {chain.spec.schema}


@pytest.mark.parametrize("kind", [EventTimeKey.WINDOW, EventTimeKey.SESSION])
def test_the_last_result_of_an_ended_task_is_told_once_and_stays(kind: EventTimeKey) -> None:
    chain = Chain(OutputMode.COMPLETE, kind)
    chain.process("a")
    chain.barrier()
    chain.process("a")
    chain.end()
    assert chain.barrier() == [0]
    assert chain.barrier() == []


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.APPEND])
def test_in_other_modes_an_aggregation_shows_no_whole_result(mode: OutputMode) -> None:
    chain = Chain(mode, EventTimeKey.WINDOW)
    chain.process("a")
    chain.process("a")
    assert chain.barrier() == []
