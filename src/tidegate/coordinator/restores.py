"""What became of restores: what the slots read, and what they dropped because the user gave it up. Says it aloud.

Decides nothing.
"""

import logging
from collections.abc import Iterable

from tidegate.coordinator.durable import GenerationBasis
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.views import DroppedEdgeView, DroppedView, RestoreView
from tidegate.model.ids import CheckpointId, EdgeId
from tidegate.model.units import format_bytes
from tidegate.network.messages import DroppedOnEdge, Ready
from tidegate.plan.physical import JobPlan
from tidegate.protocol.recovery import CapturedRows

log = logging.getLogger("tidegate")


class Restores:
    """`dropped` stays when a later generation restores everything: the rows are lost all the same."""

    def __init__(self, spec: JobSpec) -> None:
        self._query = spec.name
        self._plan = spec.slot_settings.plan
        self.newest: RestoreView | None = None
        self.dropped: DroppedView | None = None

    def on_restored(self, basis: GenerationBasis, ready: Iterable[Ready]) -> None:
        if basis.restored_checkpoint is None:
            return
        said = list(ready)
        self.newest = RestoreView(
            checkpoint=basis.restored_checkpoint,
            recovered_bytes=sum(one.recovered_bytes for one in said),
            local_bytes=sum(one.local_bytes for one in said),
            remote_bytes=sum(one.remote_bytes for one in said),
            damaged_copies=sum(one.damaged_copies for one in said),
        )
        log.info(
            "Query %r restored checkpoint %d: %s were read from copies on the slots' machines and %s from the store%s.",
            self._query,
            self.newest.checkpoint,
            format_bytes(self.newest.local_bytes),
            format_bytes(self.newest.remote_bytes),
            f"; {self.newest.damaged_copies} copies were damaged" if self.newest.damaged_copies else "",
        )
        if basis.captured_rows is CapturedRows.DROP:
            self._on_dropped(basis.restored_checkpoint, [lost for one in said for lost in one.dropped])

    def _on_dropped(self, checkpoint: CheckpointId, lost: Iterable[DroppedOnEdge]) -> None:
        # Replaced, not added: until another one completes, every generation restores this one and drops the same.
        self.dropped = DroppedView(checkpoint=checkpoint, edges=_by_edge(self._plan, lost))
        edges = "; ".join(_described(edge) for edge in self.dropped.edges) or "it held none"
        log.error(
            "ROWS ARE LOST in query %r: %d rows (%s) that checkpoint %d held in flight are dropped, as "
            "checkpoint.recoverWithoutChannelState says: %s. Remove the option now that it has done its work.",
            self._query, self.dropped.rows, format_bytes(self.dropped.size_bytes), checkpoint, edges,
        )  # fmt: skip


def _by_edge(plan: JobPlan, lost: Iterable[DroppedOnEdge]) -> tuple[DroppedEdgeView, ...]:
    found: dict[EdgeId, list[DroppedOnEdge]] = {}
    for one in lost:
        found.setdefault(one.edge, []).append(one)
    return tuple(
        DroppedEdgeView(
            edge=_name(plan, edge),
            rows=sum(one.rows for one in parts),
            size_bytes=sum(one.bytes for one in parts),
            unread_bytes=sum(one.unread_bytes for one in parts),
        )
        for edge, parts in sorted(found.items())
    )


def _name(plan: JobPlan, id: EdgeId) -> str:
    edge = next(edge for edge in plan.edges if edge.id == id)
    return f"{plan.vertices[edge.sender].name} => {plan.vertices[edge.receiver].name}"


def _described(edge: DroppedEdgeView) -> str:
    unread = f", and {format_bytes(edge.unread_bytes)} that cannot be read" if edge.unread_bytes else ""
    return f"{edge.rows} rows ({format_bytes(edge.size_bytes)}) of {edge.edge}{unread}"
