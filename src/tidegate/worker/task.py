"""One task: a source or a gate at its head, a chain of operators, an output or a sink at its end.

A step processes one slice. A snapshot falls between two steps, never inside one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pyarrow as pa

from tidegate.connectors.contract import EndOfData, EndOfSource, NothingNow, Rows, SinkWriter, WritesBeside
from tidegate.model.clock import Clock
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, TaskId
from tidegate.network.messages import TaskStanding
from tidegate.operators.contract import NO_FLOORS, Emit, GivesLater, LateRows, Operator, TwoInputOperator, in_call
from tidegate.plan.physical import SECOND_INPUT
from tidegate.protocol.barriers import TakeSnapshot
from tidegate.protocol.finished import TaskEnd
from tidegate.protocol.kinds import CheckpointKind
from tidegate.protocol.switching import StorageSpeed
from tidegate.protocol.watermarks import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    Advance,
    BecomeActive,
    BecomeIdle,
    KeyGroupFloors,
)
from tidegate.worker.barrier_watch import BarrierWatch, Marks
from tidegate.worker.event_time import ChainTime
from tidegate.worker.gate import ClosedCapture, Gate, GateResult
from tidegate.worker.hurry import Hurry
from tidegate.worker.output import TaskOutput
from tidegate.worker.slices import MOST_ROWS, SliceSizer
from tidegate.worker.source_head import SourceHead
from tidegate.worker.stored_task import StoredTask, stored_task
from tidegate.worker.task_reports import TaskCounters, TaskListener, TaskSnapshot
from tidegate.worker.waiting import Waiting, WaitsFor

# How long a step may take: a barrier waits for one step at the most.
SLICE_TARGET_MS = 10.0


@dataclass(slots=True)
class Task:
    """`inputs`: which input of the first operator each edge feeds.

    `sizer`: of the slices of its input, `giving_sizer`: of what its operators held. Without `state_has_room` it takes
    no input.
    """

    id: TaskId
    source: SourceHead | None
    gate: Gate | None
    inputs: Mapping[EdgeId, int]
    operators: Sequence[Operator]
    output: TaskOutput | None
    sink: SinkWriter | None
    clock: Clock
    listener: TaskListener
    restored: StoredTask = field(default_factory=StoredTask)
    floors: KeyGroupFloors = NO_FLOORS
    watermark_interval_ms: float = 0.0
    sizer: SliceSizer = field(default_factory=lambda: SliceSizer(SLICE_TARGET_MS))
    giving_sizer: SliceSizer = field(default_factory=lambda: SliceSizer(SLICE_TARGET_MS))
    hurry: Hurry = field(default_factory=lambda: Hurry(0.0))
    late_rows: LateRows = field(default_factory=LateRows)
    state_has_room: Callable[[], bool] = lambda: True
    counters: TaskCounters = field(default_factory=TaskCounters)
    has_ended: bool = False
    _end: TaskEnd = field(default_factory=TaskEnd)
    _timer_sizer: SliceSizer = field(default_factory=lambda: SliceSizer(SLICE_TARGET_MS))
    _output_bytes_per_row: float = 0.0
    _given_bytes_per_row: float = 0.0
    _emits: list[Emit] = field(default_factory=list)
    watch: BarrierWatch = field(default_factory=BarrierWatch)

    def __post_init__(self) -> None:
        self._waiting = Waiting(self.counters)
        self._beside = self.sink if isinstance(self.sink, WritesBeside) else None
        self._emits = self._chain()
        stages = zip(self.operators, self._emits, strict=True)
        self._giving = [(operator, emit) for operator, emit in stages if isinstance(operator, GivesLater)]
        self._time = ChainTime(
            self.operators,
            self._emits,
            input_ms=self.restored.input_watermark_ms,
            told_ms=self.restored.output_watermark_ms,
            interval_ms=self.watermark_interval_ms,
        )
        if self._time.told_ms > MIN_WATERMARK_MS or (self.source is not None and self.source.is_restored):
            # Channels that are new since the checkpoint know nothing yet; of the others, those that are idle count
            # again until they are so anew.
            self._tell_active()
        # What is told above makes them count again, and a gate that is idle already does not become so once more.
        self._is_idle_due = self.gate is not None and self.gate.is_idle()

    _waiting: Waiting = field(init=False, repr=False)
    _beside: WritesBeside | None = field(init=False, repr=False)
    _time: ChainTime = field(init=False, repr=False)
    _first: Emit = field(init=False, repr=False)
    _second: Emit = field(init=False, repr=False)
    _giving: list[tuple[GivesLater, Emit]] = field(init=False, repr=False)
    _has_just_given: bool = False
    _is_idle_due: bool = False
    _is_ending: bool = False
    _ended_operators: int = 0

    # -- steps

    def step(self) -> bool:
        """Process one slice if there is one and the output has room; true if anything moved."""
        now_ms, rows_before = self.clock.monotonic_ms(), self.counters.rows_in
        moved = self._step(now_ms)
        ended_ms = self.clock.monotonic_ms()
        rows = self.counters.rows_in - rows_before
        self.watch.on_step(self.id, ended_at_ms=ended_ms, duration_ms=ended_ms - now_ms, rows=rows)
        return moved

    def _step(self, now_ms: float) -> bool:
        if self.has_ended or not self._has_room(now_ms):
            return False
        # Input in turn with what operators held, so that more rows can wait meanwhile.
        if not self._has_just_given and self._give(now_ms):
            return True
        self._has_just_given = False
        return self._step_input(now_ms) or self._give(now_ms)

    def is_waiting(self) -> bool:
        """No input just now: what the task was given is processed."""
        if self._holds_rows():
            return False
        if self.source is not None:
            return self.source.is_waiting(self.clock.monotonic_ms())
        assert self.gate is not None
        return self.gate.is_empty()

    def next_deadline_ms(self) -> float | None:
        deadlines = list(self.output.deadlines_ms()) if self.output is not None else []
        if self.gate is not None and (switch_ms := self.gate.next_deadline_ms()) is not None:
            deadlines.append(switch_ms)
        deadlines += [due_ms for giving, _ in self._giving if (due_ms := giving.next_deadline_ms()) is not None]
        if not self.has_ended and not self._waiting.is_on():
            # Else only a message can set off a step, and that wakes the slot.
            # Nor is a source asked while an operator has no room: what makes room wakes the slot as well.
            if self.source is not None and self._room() and (retry_ms := self.source.next_deadline_ms()) is not None:
                deadlines.append(retry_ms)
            moves_at_ms = self._event_time_moves_at_ms()
            if (telling_ms := self._time.next_telling_ms()) is not None and moves_at_ms is not None:
                deadlines.append(max(telling_ms, moves_at_ms))
            if (timer_ms := self._time.next_timer_ms()) is not None:
                deadlines.append(self.clock.monotonic_ms() + timer_ms - self.clock.wall_ms())
        return min(deadlines, default=None)

    def on_time(self, now_ms: float, *, storage: StorageSpeed) -> None:
        for giving, _ in self._giving:
            giving.on_time(now_ms)
        if self.gate is not None:
            self.perform(self.gate.on_time(now_ms, storage=storage))
        if self.output is not None:
            for channel in self.output.channels:
                channel.seal_if_due(now_ms)
                channel.on_time(now_ms, storage=storage)
        if self.has_ended and (self.output is None or not self.output.in_flight_bytes()):
            self._finish_if(bool(self._end.on_outputs_consumed()))

    def add_splits(self, splits: Sequence[bytes], *, is_last: bool) -> None:
        assert self.source is not None
        self.source.add_splits(splits, is_last=is_last)

    # -- checkpoints

    @property
    def is_finished(self) -> bool:
        return self._end.is_finished

    def trigger(self, checkpoint: CheckpointId, *, switch_after_ms: float | None, suspends: bool) -> None:
        """The coordinator's word. For a source the checkpoint starts here, others hear of it by their barriers."""
        now_ms = self.clock.monotonic_ms()
        if self.is_finished:
            return
        if self.source is None:
            assert self.gate is not None
            self.perform(self.gate.on_triggered(checkpoint, age_ms=0.0, switch_after_ms=switch_after_ms, now_ms=now_ms))
            return
        self.source.on_triggered(checkpoint, now_ms, suspends=suspends)
        kind = CheckpointKind.UNALIGNED if switch_after_ms == 0 else CheckpointKind.ALIGNED
        self._take(TakeSnapshot(checkpoint, kind, age_ms=0.0, switch_after_ms=switch_after_ms))
        self.listener.on_closed(self.id, ClosedCapture(checkpoint, ()))

    def perform(self, results: list[GateResult]) -> None:
        """What the gate asks for."""
        for result in results:
            match result:
                case TakeSnapshot():
                    if not self.is_finished:
                        self._take(result)
                case ClosedCapture():
                    self.listener.on_closed(self.id, result)

    def note_barrier(self, checkpoint: CheckpointId, now_ms: float, channel: ChannelId | None = None) -> None:
        if self.is_finished or self.watch.has_heard_again(checkpoint, channel, now_ms):
            return
        # Looked up once per checkpoint, because a gate may have very many channels.
        queued_bytes = 0 if self.gate is None else self.gate.queued_bytes()
        self.watch.on_first_barrier(
            checkpoint, channel, now_ms=now_ms, marks=self._marks(now_ms), queued_bytes=queued_bytes
        )

    def standing(self, checkpoint: CheckpointId) -> TaskStanding:
        """How far it is with a checkpoint that is under way."""
        now = self._marks(self.clock.monotonic_ms())
        seen, began = self.watch.seen(checkpoint), self.watch.epoch_began(checkpoint)
        gate, until = self.gate, now if seen is None or seen.at_snapshot is None else seen.at_snapshot
        since = until if seen is None else seen.at_first
        return TaskStanding(
            task=self.id,
            first=None if seen is None else seen.first,
            last=None if seen is None else seen.last,
            missing=[] if gate is None else gate.missing_barriers(checkpoint),
            kind=None if seen is None or seen.kind is None else seen.kind.value,
            snapshot_at_ms=None if seen is None else seen.snapshot_at_ms,
            sync_ms=0.0 if seen is None else seen.sync_ms,
            state_bytes=0 if seen is None else seen.state_bytes,
            queued_bytes=0 if seen is None else seen.queued_bytes,
            left_bytes=0 if gate is None else gate.bytes_before(checkpoint),
            processed_bytes=until.bytes_in - since.bytes_in,
            drain_bytes_per_ms=None if gate is None else gate.drain_bytes_per_ms,
            busy_ms=until.busy_ms - since.busy_ms,
            backpressured_ms=until.backpressured_ms - since.backpressured_ms,
            epoch_rows=until.rows_in - began.rows_in,
            epoch_bytes=until.bytes_in - began.bytes_in,
            paused_ms=now.paused_ms - since.paused_ms,
            unstored_ms=until.unstored_ms - since.unstored_ms,
        )

    def on_barrier_everywhere(self, checkpoint: CheckpointId) -> None:
        if self.source is not None:
            self.source.admission.on_reached_all(checkpoint)

    def on_done(self, checkpoint: CheckpointId) -> None:
        if self.source is not None:
            self.source.on_completed(checkpoint)
        self.watch.on_done(checkpoint)
        self._finish_if(bool(self._end.on_completed(checkpoint)))

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self.watch.on_abort(checkpoint)
        if self.source is not None:
            self.source.on_abort(checkpoint)
        if self.gate is not None:
            self.gate.on_abort(checkpoint)
        if self.output is not None:
            for channel in self.output.channels:
                channel.on_abort(checkpoint)

    def paused_ms(self) -> float:
        return 0.0 if self.source is None else self.source.admission.paused_ms(self.clock.monotonic_ms())

    def backpressured_ms(self) -> float:
        """For how long its output had no room, with the wait that lasts."""
        self._waiting.count(self.clock.monotonic_ms())
        return self.counters.backpressured_ms

    def watermark_ms(self) -> int | None:
        """How far event time has come behind this task, once it has begun."""
        return self._time.told_ms if self._time.told_ms > MIN_WATERMARK_MS else None

    def close(self) -> None:
        with ExitStack() as stack:
            if self.sink is not None:
                stack.callback(self.sink.close)
            if self.source is not None:
                stack.callback(self.source.reader.close)
            for operator in self.operators:
                stack.callback(operator.close)

    # -- inside

    def _marks(self, now_ms: float) -> Marks:
        self._waiting.count(now_ms)
        return Marks.of(self.counters, paused_ms=self.paused_ms())

    def _step_input(self, now_ms: float) -> bool:
        if self._is_ending and self._end_operators():
            return True
        moves_at_ms = self._event_time_moves_at_ms()
        may_move = moves_at_ms is not None and now_ms >= moves_at_ms
        if may_move and self._time.is_due(wall_ms=self.clock.wall_ms(), now_ms=now_ms):
            self._advance_time(now_ms)
            return not self._time.is_held_up
        self._tell_idle_if_due()
        if self._is_ending:
            return self._end_further()
        moved = self._step_gate(now_ms) if self.source is None else self._step_source(self.source, now_ms)
        if not moved:
            for operator, emit in zip(self.operators, self._emits, strict=True):
                operator.on_idle(emit)
        return moved

    def _event_time_moves_at_ms(self) -> float | None:
        return 0.0 if self.source is None else self.source.event_time_moves_at_ms()

    def _has_room(self, now_ms: float) -> bool:
        waits_for = None
        if self._beside is not None and not self._beside.has_room():
            waits_for = WaitsFor.SINK
        elif not self.state_has_room():
            waits_for = WaitsFor.STORE
        elif self.output is not None and not self.output.has_room():
            waits_for = WaitsFor.OUTPUT
        self._waiting.look(waits_for, now_ms)
        return waits_for is None

    def _give(self, now_ms: float) -> bool:
        """One slice of what operators held."""
        if not self._holds_rows():
            return False
        before_bytes = 0 if self.output is None else self.output.in_flight_bytes()
        given, wanted = 0, self._fitting(self._affordable(self.giving_sizer), self._given_bytes_per_row)
        # Downstream first: what it wants bounds what those in front of it give.
        for giving, emit in reversed(self._giving):
            if wanted:
                given += giving.give(wanted, emit)
            wanted = min(wanted, giving.room())
        if given:
            self._has_just_given = True
            self._time.on_rows()
            if self.output is not None:
                measured = (self.output.in_flight_bytes() - before_bytes) / given
                self._given_bytes_per_row = max(measured, (self._given_bytes_per_row + measured) / 2)
            elapsed_ms = self.clock.monotonic_ms() - now_ms
            self.counters.busy_ms += elapsed_ms
            self.giving_sizer.observe(rows=given, elapsed_ms=elapsed_ms)
        return given > 0

    def _holds_rows(self) -> bool:
        return any(giving.holds_rows() for giving, _ in self._giving)

    def _room(self) -> int:
        """How many rows the operators want."""
        return min((giving.room() for giving, _ in self._giving), default=MOST_ROWS)

    def _step_source(self, source: SourceHead, now_ms: float) -> bool:
        if not self._room():
            return False
        was_idle = source.is_idle
        match source.poll(self._slice_rows(), now_ms):
            case Rows(rows, watermark_ms):
                if was_idle:
                    self._tell_active()
                self._process(self._first, rows, now_ms)
                if watermark_ms is not None:
                    self._time.on_input(watermark_ms)
                return True
            case NothingNow():
                self._is_idle_due |= source.becomes_idle(now_ms)
                self._tell_idle_if_due()
                return False
            case EndOfSource():
                self._end_input()
                return True
            case EndOfData():
                self._time.on_input(MAX_WATERMARK_MS)
                self._end_input()
                return True
            case None:
                return False

    def _step_gate(self, now_ms: float) -> bool:
        assert self.gate is not None
        results = self.gate.skip_markers(now_ms)
        # Before the snapshot that a mark may have set off, which holds how far event time has come.
        has_moved = self._take_watermarks(self.gate)
        self.perform(results)
        if has_moved or results:
            return True
        if not self._room():
            return False
        piece = self.gate.next_slice(self._slice_rows())
        if piece is not None:
            is_second = self.inputs.get(piece.channel.edge) == SECOND_INPUT
            self._process(self._second if is_second else self._first, piece.rows, now_ms)
            self._take_watermarks(self.gate)
            done_ms = self.clock.monotonic_ms()
            self.perform(self.gate.consumed(piece, done_ms, elapsed_ms=done_ms - now_ms))
            return True
        if self.gate.has_ended() and self.gate.is_empty():
            self._end_input()
            return True
        return False

    def _slice_rows(self) -> int:
        """As many rows as take about the target time, but not more than the output has room for."""
        return self._fitting(min(self._affordable(self.sizer), self._room()), self._output_bytes_per_row)

    def _affordable(self, sizer: SliceSizer) -> int:
        return sizer.hurried_rows if self.hurry.is_on(self.clock.monotonic_ms()) else sizer.rows

    def _fitting(self, wanted: int, bytes_per_row: float) -> int:
        if self.output is None or not bytes_per_row:
            return wanted
        # Rows that a filter drops make the divisor ever smaller, until the quotient is infinite, which is no integer.
        return max(1, int(min(wanted, self.output.room_bytes() / bytes_per_row)))

    def _process(self, feed: Emit, rows: pa.RecordBatch, started_ms: float) -> None:
        self._is_idle_due = False
        self.counters.rows_in += rows.num_rows
        self.counters.bytes_in += rows.nbytes
        before_bytes = 0 if self.output is None else self.output.in_flight_bytes()
        feed(rows)
        self._time.on_rows()
        if self.output is not None and rows.num_rows:
            measured = (self.output.in_flight_bytes() - before_bytes) / rows.num_rows
            self._output_bytes_per_row = max(measured, (self._output_bytes_per_row + measured) / 2)
        elapsed_ms = self.clock.monotonic_ms() - started_ms
        self.counters.busy_ms += elapsed_ms
        self.sizer.observe(rows=rows.num_rows, elapsed_ms=elapsed_ms)

    def _advance_time(self, now_ms: float) -> None:
        """One slice of due timers, or the word downstream once none is left."""
        timers, rows_before = self._affordable(self._timer_sizer), self.counters.rows_out
        watermark_ms = self._time.advance(timers, now_ms)
        elapsed_ms = self.clock.monotonic_ms() - now_ms
        self.counters.busy_ms += elapsed_ms
        if self._time.has_more and not self._time.is_held_up:
            self._timer_sizer.observe(rows=timers, elapsed_ms=elapsed_ms)
        if watermark_ms is not None and self.output is not None:
            for channel in self.output.channels:
                channel.watermark(watermark_ms)
        if watermark_ms is not None or self.counters.rows_out > rows_before:
            # It counts again downstream, and a gate that has been idle all along will not become so once more.
            self._is_idle_due |= self.gate is not None and self.gate.is_idle()

    def _take_watermarks(self, gate: Gate) -> bool:
        """Whether event time moved, so that timers come before rows."""
        if not gate.watermark_actions:
            return False
        actions, gate.watermark_actions = gate.watermark_actions, []
        has_moved = False
        for action in actions:
            match action:
                case Advance(event_time_ms):
                    self._time.on_input(event_time_ms)
                    has_moved = True
                case BecomeIdle():
                    self._is_idle_due = True
                case BecomeActive():
                    self._is_idle_due = False
                    self._tell_active()
        self._tell_idle_if_due()
        return has_moved

    def _tell_idle_if_due(self) -> None:
        """Behind what it still has to give or to tell, and behind what is in flight: while it is idle downstream, what
        makes it count again must not have to queue."""
        if not self._is_idle_due or self._holds_rows() or self._time.has_something_to_tell() or in_call(self.operators):
            return
        output = self.output
        if output is None or not output.in_flight_bytes():
            self._is_idle_due = False
            for channel in () if output is None else output.channels:
                channel.idle()

    def _tell_active(self) -> None:
        # A watermark makes the channel count again, before rows do.
        for channel in () if self.output is None else self.output.channels:
            channel.watermark(self._time.told_ms)

    def _end_input(self) -> None:
        """Operators give what they hold back; then come the last timers, then the end marks."""
        self._is_ending = True
        self._time.hurry()
        self._end_operators()

    def _end_further(self) -> bool:
        """Whether it could end: rows that are held come first."""
        if self._holds_rows():
            return False
        self._end_output()
        return True

    def _end_operators(self) -> bool:
        """Tells each operator once those in front of it hold no row; whether one was told."""
        before = self._ended_operators
        while self._ended_operators < len(self.operators) and not self._holds_rows():
            at = self._ended_operators
            self.operators[at].end_of_input(self._emits[at])
            self._ended_operators += 1
        self._time.on_rows()
        if self._ended_operators > before:
            # Rows that came too late for the last watermark wait for the next one, and none may come.
            self._time.fire_again()
        return self._ended_operators > before

    def _end_output(self) -> None:
        if self.output is not None:
            for channel in self.output.channels:
                channel.end()
        self.has_ended = True
        self._end.on_end()

    def _finish_if(self, is_finished: bool) -> None:
        if not is_finished:
            return
        for channel in () if self.output is None else self.output.channels:
            channel.finish()
        self.listener.on_finished(self.id)

    def _take(self, take: TakeSnapshot) -> None:
        """Flush, forward the barrier ahead of all that follows, freeze the state: in this order, at once."""
        started_ms = self.clock.monotonic_ms()
        found_ms = self.watch.first_barrier_ms(take.checkpoint)
        first_barrier_ms = started_ms if found_ms is None else found_ms
        for operator, emit in zip(self.operators, self._emits, strict=True):
            operator.before_barrier(emit)
        self._time.on_rows()
        if self.output is not None:
            after_ms = take.switch_after_ms
            switch_at_ms = None if after_ms is None else started_ms - take.age_ms + after_ms
            for channel in self.output.channels:
                channel.barrier(
                    take.checkpoint,
                    take.kind,
                    age_ms=take.age_ms,
                    switch_after_ms=after_ms,
                    switch_at_ms=switch_at_ms,
                )
        sections = [(i, section) for i, operator in enumerate(self.operators) for section in operator.snapshot()]
        source_state = None if self.source is None else self.source.reader.snapshot()
        prepared = None if self.sink is None else self.sink.prepare(take.checkpoint)
        self._end.on_snapshot(take.checkpoint)
        state_bytes = sum(operator.state_bytes() for operator in self.operators)
        sync_ms = self.clock.monotonic_ms() - started_ms
        self.watch.on_snapshot(
            take.checkpoint,
            take.kind,
            started_ms=started_ms,
            sync_ms=sync_ms,
            state_bytes=state_bytes,
            marks=self._marks(started_ms),
        )
        self.listener.on_snapshot(
            TaskSnapshot(
                task=self.id,
                checkpoint=take.checkpoint,
                kind=take.kind,
                start_delay_ms=max(0.0, take.age_ms - (started_ms - first_barrier_ms)),
                alignment_ms=started_ms - first_barrier_ms,
                sync_ms=sync_ms,
                sections=sections,
                source_state=source_state,
                progress=self._progress(),
                prepared=prepared,
                state_bytes=state_bytes,
                has_ended=self.has_ended,
                position=None if self.source is None else self.source.position(),
            )
        )

    def _progress(self) -> StoredTask:
        return stored_task(
            input_watermark_ms=self._time.input_ms,
            output_watermark_ms=self._time.told_ms,
            channels={} if self.gate is None else self.gate.channel_watermarks(),
            floors=self.floors.above(self._time.input_ms),
        )

    def _chain(self) -> list[Emit]:
        """For each operator the emit that feeds the next one; the last feeds the output or the sink."""
        emits: list[Emit] = []
        emit: Emit = self._leave
        for operator in reversed(self.operators):
            emits.insert(0, emit)
            emit = partial(operator.process, emit=emit)
        self._first = emit
        self._second = self._first
        if self.inputs and SECOND_INPUT in self.inputs.values():
            head = cast(TwoInputOperator, self.operators[0])
            self._second = partial(head.process_right, emit=emits[0])
        return emits

    def _leave(self, rows: pa.RecordBatch) -> None:
        self.counters.rows_out += rows.num_rows
        self.counters.bytes_out += rows.nbytes
        if self.output is not None:
            self.output.emit(rows, self.clock.monotonic_ms())
        else:
            assert self.sink is not None, "a task ends in an output or a sink"
            self.sink.write(rows)
