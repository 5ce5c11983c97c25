"""One task: a source or a gate at its head, a chain of operators, an output or a sink at its end.

A step processes one slice. A snapshot falls between two steps, never inside one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.connectors.contract import EndOfSource, NothingNow, Prepared, Rows, SinkWriter, SourceReader
from tidegate.model.clock import Clock
from tidegate.model.ids import CheckpointId, TaskId
from tidegate.operators.contract import Emit, Operator
from tidegate.protocol.barriers import TakeSnapshot
from tidegate.protocol.kinds import CheckpointKind
from tidegate.state.contract import Section
from tidegate.worker.gate import ClosedCapture, Gate
from tidegate.worker.output import HashOutput
from tidegate.worker.slices import SliceSizer

# How long a step may take: a barrier waits for one step at the most.
SLICE_TARGET_MS = 10.0


@dataclass(slots=True)
class TaskSnapshot:
    """The synchronous part of one task's snapshot; `sections` are encoded afterwards."""

    task: TaskId
    checkpoint: CheckpointId
    kind: CheckpointKind
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    sections: list[tuple[int, Section]]
    source_state: bytes | None
    prepared: Prepared | None
    state_bytes: int


@dataclass(slots=True)
class TaskCounters:
    rows_in: int = 0
    rows_out: int = 0
    busy_ms: float = 0.0
    backpressured_ms: float = 0.0


@dataclass(slots=True)
class Task:
    """`on_snapshot` hears of a snapshot as soon as its synchronous part is done, `on_closed` of its input's capture."""

    id: TaskId
    source: SourceReader | None
    gate: Gate | None
    operators: Sequence[Operator]
    output: HashOutput | None
    sink: SinkWriter | None
    clock: Clock
    switch_after_ms: float | None
    on_snapshot: Callable[[TaskSnapshot], None]
    on_closed: Callable[[TaskId, ClosedCapture], None]
    counters: TaskCounters = field(default_factory=TaskCounters)
    has_ended: bool = False
    _sizer: SliceSizer = field(default_factory=lambda: SliceSizer(SLICE_TARGET_MS))
    _output_bytes_per_row: float = 0.0
    _emits: list[Emit] = field(default_factory=list)
    _source_retry_at_ms: float = 0.0
    _source_has_ended: bool = False
    _waiting_since_ms: float | None = None
    _first_barrier_ms: dict[CheckpointId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._emits = self._chain()

    # -- steps

    def step(self) -> bool:
        """Process one slice if there is one and the output has room; true if anything moved."""
        now_ms = self.clock.monotonic_ms()
        if self.has_ended or not self._has_room(now_ms):
            return False
        moved = self._step_source(now_ms) if self.source is not None else self._step_gate(now_ms)
        if not moved:
            for operator, emit in zip(self.operators, self._emits, strict=True):
                operator.on_idle(emit)
        return moved

    def is_waiting(self) -> bool:
        """No input just now: what the task was given is processed."""
        if self.source is not None:
            return self._source_has_ended or self._source_retry_at_ms > 0.0
        assert self.gate is not None
        return self.gate.is_empty()

    def next_deadline_ms(self) -> float | None:
        deadlines = list(self.output.deadlines_ms()) if self.output is not None else []
        if self.gate is not None and (switch_ms := self.gate.next_deadline_ms()) is not None:
            deadlines.append(switch_ms)
        if self.source is not None and not self._source_has_ended and self._source_retry_at_ms:
            deadlines.append(self._source_retry_at_ms)
        return min(deadlines, default=None)

    def on_time(self, now_ms: float) -> None:
        if self.gate is not None:
            self.perform(self.gate.on_time(now_ms))
        if self.output is not None:
            for channel in self.output.channels:
                channel.seal_if_due(now_ms)
                channel.on_time(now_ms)

    def add_splits(self, splits: Sequence[bytes], *, is_last: bool) -> None:
        assert self.source is not None
        self.source.add_splits(splits)
        if is_last:
            self.source.no_more_splits()
        self._source_retry_at_ms = 0.0

    # -- checkpoints

    def trigger(self, checkpoint: CheckpointId) -> None:
        """For a source: the checkpoint starts here."""
        self._take(TakeSnapshot(checkpoint, self._source_kind(), age_ms=0.0))
        self.on_closed(self.id, ClosedCapture(checkpoint, ()))

    def perform(self, results: "list[TakeSnapshot | ClosedCapture]") -> None:
        """What the gate asks for."""
        for result in results:
            match result:
                case TakeSnapshot():
                    self._take(result)
                case ClosedCapture():
                    self.on_closed(self.id, result)

    def note_barrier(self, checkpoint: CheckpointId, now_ms: float) -> None:
        self._first_barrier_ms.setdefault(checkpoint, now_ms)

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self._first_barrier_ms.pop(checkpoint, None)
        if self.gate is not None:
            self.gate.on_abort(checkpoint)
        if self.output is not None:
            for channel in self.output.channels:
                channel.on_abort(checkpoint)

    def close(self) -> None:
        for operator in self.operators:
            operator.close()
        if self.source is not None:
            self.source.close()
        if self.sink is not None:
            self.sink.close()

    # -- inside

    def _has_room(self, now_ms: float) -> bool:
        if self.output is None or self.output.has_room():
            if self._waiting_since_ms is not None:
                self.counters.backpressured_ms += now_ms - self._waiting_since_ms
                self._waiting_since_ms = None
            return True
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        return False

    def _step_source(self, now_ms: float) -> bool:
        assert self.source is not None
        if now_ms < self._source_retry_at_ms:
            return False
        match self.source.poll(self._slice_rows()):
            case Rows(rows):
                self._source_retry_at_ms = 0.0
                self._process(rows, now_ms)
                return True
            case NothingNow(retry_after_ms):
                self._source_retry_at_ms = now_ms + max(1.0, retry_after_ms)
                return False
            case EndOfSource():
                self._source_has_ended = True
                self._end()
                return True

    def _step_gate(self, now_ms: float) -> bool:
        assert self.gate is not None
        self.perform(self.gate.skip_markers(now_ms))
        piece = self.gate.next_slice(self._slice_rows())
        if piece is not None:
            self._process(piece.rows, now_ms)
            self.perform(self.gate.consumed(piece, self.clock.monotonic_ms()))
            return True
        if self.gate.has_ended() and self.gate.is_empty():
            self._end()
            return True
        return False

    def _slice_rows(self) -> int:
        """As many rows as take about the target time, but not more than fill the output's windows once."""
        if self.output is None or not self._output_bytes_per_row:
            return self._sizer.rows
        return max(1, min(self._sizer.rows, int(self.output.window_bytes() / self._output_bytes_per_row)))

    def _process(self, rows: pa.RecordBatch, started_ms: float) -> None:
        self.counters.rows_in += rows.num_rows
        before_bytes = 0 if self.output is None else self.output.in_flight_bytes()
        self._first(rows)
        if self.output is not None and rows.num_rows:
            measured = (self.output.in_flight_bytes() - before_bytes) / rows.num_rows
            self._output_bytes_per_row = max(measured, (self._output_bytes_per_row + measured) / 2)
        elapsed_ms = self.clock.monotonic_ms() - started_ms
        self.counters.busy_ms += elapsed_ms
        self._sizer.observe(rows=rows.num_rows, elapsed_ms=elapsed_ms)

    def _end(self) -> None:
        for operator, emit in zip(self.operators, self._emits, strict=True):
            operator.end_of_input(emit)
        if self.output is not None:
            for channel in self.output.channels:
                channel.end()
        self.has_ended = True

    def _take(self, take: TakeSnapshot) -> None:
        """Flush, forward the barrier ahead of all that follows, freeze the state: in this order, at once."""
        started_ms = self.clock.monotonic_ms()
        first_barrier_ms = self._first_barrier_ms.get(take.checkpoint, started_ms)
        # With it go those that were aborted, and those whose last barriers came after their snapshot.
        self._first_barrier_ms = {id: ms for id, ms in self._first_barrier_ms.items() if id > take.checkpoint}
        for operator, emit in zip(self.operators, self._emits, strict=True):
            operator.before_barrier(emit)
        if self.output is not None:
            switch_at_ms = None if self.switch_after_ms is None else started_ms - take.age_ms + self.switch_after_ms
            for channel in self.output.channels:
                channel.barrier(take.checkpoint, take.kind, age_ms=take.age_ms, switch_at_ms=switch_at_ms)
        sections = [(i, section) for i, operator in enumerate(self.operators) for section in operator.snapshot()]
        source_state = None if self.source is None else self.source.snapshot()
        prepared = None if self.sink is None else self.sink.prepare(take.checkpoint)
        self.on_snapshot(
            TaskSnapshot(
                task=self.id,
                checkpoint=take.checkpoint,
                kind=take.kind,
                start_delay_ms=max(0.0, take.age_ms - (started_ms - first_barrier_ms)),
                alignment_ms=started_ms - first_barrier_ms,
                sync_ms=self.clock.monotonic_ms() - started_ms,
                sections=sections,
                source_state=source_state,
                prepared=prepared,
                state_bytes=sum(operator.state_bytes() for operator in self.operators),
            )
        )

    def _source_kind(self) -> CheckpointKind:
        return CheckpointKind.UNALIGNED if self.switch_after_ms == 0 else CheckpointKind.ALIGNED

    def _chain(self) -> list[Emit]:
        """For each operator the emit that feeds the next one; the last feeds the output or the sink."""
        emits: list[Emit] = []
        emit: Emit = self._leave
        for operator in reversed(self.operators):
            emits.insert(0, emit)
            emit = _feeding(operator, emit)
        self._first = emit
        return emits

    _first: Emit = field(init=False, repr=False)

    def _leave(self, rows: pa.RecordBatch) -> None:
        self.counters.rows_out += rows.num_rows
        if self.output is not None:
            self.output.emit(rows, self.clock.monotonic_ms())
        else:
            assert self.sink is not None, "a task ends in an output or a sink"
            self.sink.write(rows)


def _feeding(operator: Operator, emit: Emit) -> Emit:
    def feed(rows: pa.RecordBatch) -> None:
        operator.process(rows, emit)

    return feed
