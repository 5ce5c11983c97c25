"""Turns the plan into the tasks of one slot, restored and joined by channels."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from tidegate.connectors.contract import SinkWriter, WritesBeside
from tidegate.connectors.registry import open_sink, open_source
from tidegate.model.clock import Clock
from tidegate.model.ids import ChannelId, EdgeId, Generation, Sequence, SlotIndex, TaskId, VertexId, range_of
from tidegate.operators.build import build_operator
from tidegate.operators.contract import OpenCalls, TaskContext, UserCode
from tidegate.plan.nodes import JoinEventTime, OutputMode
from tidegate.plan.physical import (
    ConnectSpec,
    Edge,
    EvalPythonSpec,
    JobPlan,
    MapInArrowSpec,
    StreamJoinSpec,
    TransformWithStateSpec,
    Vertex,
)
from tidegate.protocol.admission import ActiveBackpressure, SourceAdmission
from tidegate.protocol.debloat import Debloat, WindowBounds
from tidegate.protocol.input_watermarks import NO_EVENT_TIME
from tidegate.protocol.rescale import connections
from tidegate.protocol.windows import MostAhead
from tidegate.worker.gate import Gate, RecoveredWatermarks
from tidegate.worker.hurry import Hurry
from tidegate.worker.output import EdgeOutput, Link, OutputChannel, TaskOutput
from tidegate.worker.restoring import NEW_CHANNEL, RestoredTask, SlotRestore
from tidegate.worker.settings import START_WINDOW_BYTES, SlotSettings
from tidegate.worker.slices import ProbingSizer, SliceSizer
from tidegate.worker.source_head import SourceHead
from tidegate.worker.state_backends import StateBackends
from tidegate.worker.task import SLICE_TARGET_MS, Task
from tidegate.worker.task_reports import TaskListener
from tidegate.worker.whole_result import WholeResultWriter

log = logging.getLogger("tidegate")

_USER_CODE = (ConnectSpec, EvalPythonSpec, MapInArrowSpec, TransformWithStateSpec)


def _close_what_was_opened(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception:  # a user's: why the tasks cannot be built is what counts
        log.exception("What was opened for a task that cannot be built could not be closed")


def channel_table(plan: JobPlan) -> list[ChannelId]:
    """Every channel of the job in an order that all slots agree on; frames name a channel by its place here."""
    return [
        ChannelId(edge.id, sender, receiver)
        for edge in plan.edges
        for sender, receiver in connections(plan.shape_of(edge))
    ]


@dataclass(frozen=True, slots=True)
class TaskBuilder:
    """Builds the tasks of one slot for one generation.

    `undo` closes what was opened, if not all can be. `wake`: called by other threads when a task may go on.
    """

    settings: SlotSettings
    slot: SlotIndex
    generation: Generation
    restore: SlotRestore
    links: Mapping[SlotIndex, Link]
    clock: Clock
    user_code: UserCode
    open_calls: OpenCalls
    hurry: Hurry
    table: list[ChannelId]
    state: StateBackends
    listener: TaskListener
    wake: Callable[[], None]
    undo: ExitStack

    def build(self) -> list[Task]:
        plan = self.settings.plan
        return [self._task(vertex) for vertex in plan.vertices if self.slot < plan.parallelism_of(vertex.id)]

    def _task(self, vertex: Vertex) -> Task:
        plan, settings = self.settings.plan, self.settings
        id = TaskId(vertex.id, self.slot)
        parallelism = plan.parallelism_of(vertex.id)
        restored = self.restore.tasks.get(id, RestoredTask())
        source = None
        if vertex.source is not None:
            reader = open_source(vertex.source).reader(subtask=self.slot, parallelism=parallelism)
            self.undo.callback(_close_what_was_opened, reader.close)
            if restored.source_state is not None:
                reader.restore(restored.source_state)
            settling_ms = (settings.idle_after_ms or 0.0) if parallelism > 1 else 0.0
            source = SourceHead(
                reader,
                self._admission(),
                settings.idle_after_ms,
                settling_ms,
                is_restored=restored.source_state is not None,
            )
        key_groups = range_of(self.slot, parallelism=parallelism, max_parallelism=plan.max_parallelism)
        context = TaskContext(
            task=id,
            parallelism=parallelism,
            max_parallelism=plan.max_parallelism,
            key_groups=key_groups,
            clock=self.clock,
            user_code=self.user_code,
            open_state=lambda: self.state.open(key_groups, id),
            floors=restored.floors,
            open_calls=self.open_calls,
            open_rows=lambda: self.state.open_rows(key_groups, id),
            open_runs=lambda: self.state.open_runs(key_groups, id),
        )
        operators = [build_operator(spec) for spec in vertex.operators]
        for position, operator in enumerate(operators):
            operator.open(context, restored.sections.get(position, []))
            self.undo.callback(_close_what_was_opened, operator.close)
        sink: SinkWriter | None = None
        if vertex.sink is not None:
            sink = open_sink(vertex.sink).writer(task=id, generation=self.generation)
            self.undo.callback(_close_what_was_opened, sink.close)
            if isinstance(sink, WritesBeside):
                sink.call_when_done(self.wake)
            if vertex.sink.mode is OutputMode.COMPLETE:
                sink = WholeResultWriter(sink, operators, vertex.sink.schema)
        incoming = [edge for edge in plan.edges if edge.receiver == vertex.id]
        outgoing = [edge for edge in plan.edges if edge.sender == vertex.id]
        return Task(
            id=id,
            source=source,
            gate=self._gate(vertex, incoming, restored) if incoming else None,
            inputs={edge.id: edge.input for edge in incoming},
            operators=operators,
            output=TaskOutput([self._output(edge) for edge in outgoing]) if outgoing else None,
            sink=sink,
            clock=self.clock,
            listener=self.listener,
            restored=restored.progress,
            floors=restored.floors,
            watermark_interval_ms=settings.watermark_interval_ms,
            sizer=_sizer_for(vertex),
            giving_sizer=_sizer_for(vertex),
            hurry=self.hurry,
            late_rows=context.late_rows,
            state_has_room=self.state.has_room,
        )

    def _admission(self) -> SourceAdmission:
        return SourceAdmission(
            self.settings.active_backpressure,
            interval_ms=self.settings.checkpoint_interval_ms,
            max_concurrent=self.settings.max_concurrent_checkpoints,
            now_ms=self.clock.monotonic_ms(),
        )

    def _gate(self, vertex: Vertex, edges: list[Edge], restored: RestoredTask) -> Gate:
        ids = {edge.id for edge in edges}
        channels = [channel for channel in self.table if channel.edge in ids and channel.receiver == self.slot]
        progress, target_ms = restored.progress, self.settings.debloat_target_ms
        bounds = self._window_bounds(vertex.id)[self.slot]
        debloat = None
        if target_ms is not None:
            debloat = Debloat(target_ms=target_ms, bounds=bounds, channels=channels, now_ms=self.clock.monotonic_ms())
        return Gate(
            [(channel, self.restore.recovered.get(channel, NEW_CHANNEL)) for channel in channels],
            window_bytes=bounds.start_bytes,
            guarantee=self.settings.guarantee,
            watermarks=RecoveredWatermarks(progress.channel_watermarks(), progress.input_watermark_ms),
            debloat=debloat,
            waiting_inputs=waiting_inputs(vertex, edges),
            event_time_of={edge.id: edge.event_time_of for edge in edges if edge.event_time_of is not None},
        )

    def _most_ahead(self, sender: VertexId) -> MostAhead | None:
        """Active backpressure: the next barrier would stand behind all that a source sends."""
        settings = self.settings
        is_source = settings.plan.vertices[sender].source is not None
        if not is_source or settings.active_backpressure is ActiveBackpressure.OFF:
            return None
        return MostAhead(settings.checkpoint_interval_ms, unknown_bytes=START_WINDOW_BYTES)

    def _window_bounds(self, receiver: VertexId) -> dict[int, WindowBounds]:
        """By slot. Both ends of a channel work it out for themselves, and begin with the same window."""
        edges = {edge.id for edge in self.settings.plan.edges if edge.receiver == receiver}
        of_slot = Counter(channel.receiver for channel in self.table)
        of_gate = Counter(channel.receiver for channel in self.table if channel.edge in edges)
        return {
            slot: self.settings.window_bounds(gate_channels=count, slot_channels=of_slot[slot])
            for slot, count in of_gate.items()
        }

    def _output(self, edge: Edge) -> EdgeOutput:
        bounds = self._window_bounds(edge.receiver)
        channels = [
            OutputChannel(
                channel,
                index,
                self.links[SlotIndex(channel.receiver)],
                window_bytes=bounds[channel.receiver].start_bytes,
                next_sequence=self.restore.next_sequences.get(channel, Sequence(0)),
                ahead=self._most_ahead(edge.sender),
            )
            for index, channel in enumerate(self.table)
            if channel.edge == edge.id and channel.sender == self.slot
        ]
        return EdgeOutput(channels, edge.partitioning, max_parallelism=self.settings.plan.max_parallelism)


def waiting_inputs(vertex: Vertex, edges: Iterable[Edge]) -> dict[EdgeId, int] | None:
    """Which edges wait together for which others; None if each of them holds back by itself, as long as it has rows."""
    head = vertex.operators[0] if vertex.operators else None
    if isinstance(head, StreamJoinSpec) and head.event_time is JoinEventTime.OF_BOTH_SIDES:
        # Rows of a join are let go by event time, which must have come as far on both sides.
        return {edge.id: edge.input for edge in edges}
    event_times = {edge.id: edge.event_times for edge in edges}
    if len(set(event_times.values())) < 2 or None in event_times.values():
        return None
    numbers = {known: number for number, known in enumerate(dict.fromkeys(event_times.values()))}
    return {edge: numbers[known] if known else NO_EVENT_TIME for edge, known in event_times.items()}


def _sizer_for(vertex: Vertex) -> SliceSizer:
    runs_user_code = any(isinstance(operator, _USER_CODE) for operator in vertex.operators)
    return ProbingSizer(SLICE_TARGET_MS) if runs_user_code else SliceSizer(SLICE_TARGET_MS)
