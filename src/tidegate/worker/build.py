"""Turns the plan into the tasks of one slot, restored and joined by channels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidegate.connectors.registry import open_sink, open_source
from tidegate.model.clock import Clock
from tidegate.model.ids import ChannelId, Generation, Sequence, SlotIndex, TaskId
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext, UserCode
from tidegate.plan.key_groups import range_of
from tidegate.plan.physical import Edge, JobPlan, Vertex
from tidegate.state.heap import HeapBackend
from tidegate.worker.gate import ClosedCapture, Gate
from tidegate.worker.output import HashOutput, Link, OutputChannel
from tidegate.worker.restoring import NEW_CHANNEL, SlotRestore
from tidegate.worker.settings import SlotSettings
from tidegate.worker.task import Task, TaskSnapshot


def channel_table(plan: JobPlan) -> list[ChannelId]:
    """Every channel of the job in an order that all slots agree on; frames name a channel by its place here."""
    subtasks = range(plan.parallelism)
    return [ChannelId(edge.id, i, j) for edge in plan.edges for i in subtasks for j in subtasks]


@dataclass(frozen=True, slots=True)
class TaskBuilder:
    """Builds the tasks of one slot for one generation."""

    settings: SlotSettings
    slot: SlotIndex
    generation: Generation
    restore: SlotRestore
    links: Mapping[SlotIndex, Link]
    clock: Clock
    user_code: UserCode
    on_snapshot: Callable[[TaskSnapshot], None]
    on_closed: Callable[[TaskId, ClosedCapture], None]

    def build(self) -> list[Task]:
        return [self._task(vertex) for vertex in self.settings.plan.vertices]

    def _task(self, vertex: Vertex) -> Task:
        plan = self.settings.plan
        id = TaskId(vertex.id, self.slot)
        source = None
        if vertex.source is not None:
            source = open_source(vertex.source).reader(subtask=self.slot, parallelism=plan.parallelism)
            if (state := self.restore.source_states.get(id)) is not None:
                source.restore(state)
        key_groups = range_of(self.slot, parallelism=plan.parallelism, max_parallelism=plan.max_parallelism)
        context = TaskContext(
            task=id,
            parallelism=plan.parallelism,
            max_parallelism=plan.max_parallelism,
            key_groups=key_groups,
            clock=self.clock,
            user_code=self.user_code,
            open_state=lambda: HeapBackend(key_groups),
        )
        operators = [build_operator(spec) for spec in vertex.operators]
        for position, operator in enumerate(operators):
            operator.open(context, self.restore.sections.get((id, position), []))
        sink = None
        if vertex.sink is not None:
            sink = open_sink(vertex.sink).writer(task=id, generation=self.generation)
        incoming = [edge for edge in plan.edges if edge.receiver == vertex.id]
        outgoing = [edge for edge in plan.edges if edge.sender == vertex.id]
        return Task(
            id=id,
            source=source,
            gate=self._gate(incoming[0]) if incoming else None,
            operators=operators,
            output=self._output(outgoing[0]) if outgoing else None,
            sink=sink,
            clock=self.clock,
            switch_after_ms=self.settings.switch_after_ms,
            on_snapshot=self.on_snapshot,
            on_closed=self.on_closed,
        )

    def _gate(self, edge: Edge) -> Gate:
        channels = [ChannelId(edge.id, sender, self.slot) for sender in range(self.settings.plan.parallelism)]
        return Gate(
            [(channel, self.restore.recovered.get(channel, NEW_CHANNEL)) for channel in channels],
            window_bytes=self.settings.window_bytes,
            switch_after_ms=self.settings.switch_after_ms,
        )

    def _output(self, edge: Edge) -> HashOutput:
        plan = self.settings.plan
        index_of = {channel: index for index, channel in enumerate(channel_table(plan))}
        channels = []
        for receiver in range(plan.parallelism):
            channel = ChannelId(edge.id, self.slot, receiver)
            channels.append(
                OutputChannel(
                    channel,
                    index_of[channel],
                    self.links[SlotIndex(receiver)],
                    window_bytes=self.settings.window_bytes,
                    next_sequence=self.restore.next_sequences.get(channel, Sequence(0)),
                )
            )
        return HashOutput(channels, key_count=edge.partitioning.key_count, max_parallelism=plan.max_parallelism)
