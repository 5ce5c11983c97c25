"""Which channels of a checkpoint those of a plan take over from, and whose part of a broadcast counts for all.

Known from the manifest alone: reads nothing.
"""

from tidegate.model.ids import ChannelId, VertexId
from tidegate.plan.matching import PlanMatch
from tidegate.plan.physical import BroadcastPartitioning, Edge, HashPartitioning, JobPlan, kind_of
from tidegate.protocol.rescale import EdgeShape, Piece, keeps_channels, most_advanced_of, recovered_channels
from tidegate.storage.manifests import ChannelRange, Manifest
from tidegate.worker.captured_parts import in_flight_of


class RestoredChannels:
    def __init__(self, manifest: Manifest, plan: JobPlan, match: PlanMatch) -> None:
        self.in_flight = in_flight_of(manifest)
        self._manifest = manifest
        self._plan = plan
        self._match = match
        self._ranges = {stored.channel: stored for stored in manifest.channels}

    def keeps(self, edge: Edge) -> bool:
        """Not if the receivers take over another one's broadcast state: then they take what that one had in flight."""
        return self._has_same_shape(edge) and self._broadcast_from_of(edge) is None

    def before(self, edge: Edge, channel: ChannelId) -> ChannelId:
        """The channel that is the same one, where they are kept."""
        return channel._replace(edge=self._match.ways[edge.id].id)

    def pieces(self, edge: Edge) -> dict[ChannelId, tuple[Piece, ...]]:
        old = self._old_shape(edge)
        if old is None:
            return {}
        return recovered_channels(
            old,
            self._plan.shape_of(edge),
            self.in_flight.values(),
            broadcast_from=self._broadcast_from_of(edge),
        )

    def stored(self, edge: Edge, channel: ChannelId, pieces: tuple[Piece, ...]) -> list[ChannelRange]:
        """What a channel takes over: what it was itself where channels are kept, else one for each of its pieces."""
        if self.keeps(edge):
            return [self._ranges[self.before(edge, channel)]]
        return [self._ranges[piece.channel] for piece in pieces]

    def broadcast_subtask(self, vertex: VertexId) -> int | None:
        """The old subtask whose part of a broadcast everybody takes, or None if each takes its own channels."""
        are_kept = all(self._has_same_shape(edge) for edge in self._broadcast_edges(vertex))
        return None if are_kept else self.most_advanced(vertex)

    def most_advanced(self, vertex: VertexId) -> int | None:
        """Of the old subtasks, by what each had left of its broadcast edges; None if there were none."""
        shapes = [shape for edge in self._broadcast_edges(vertex) if (shape := self._old_shape(edge)) is not None]
        return most_advanced_of(shapes, self.in_flight.values()) if shapes else None

    def _broadcast_edges(self, vertex: VertexId) -> list[Edge]:
        return [edge for edge in self._plan.edges if edge.receiver == vertex and is_broadcast(edge)]

    def _broadcast_from_of(self, edge: Edge) -> int | None:
        return self.broadcast_subtask(edge.receiver) if is_broadcast(edge) else None

    def _has_same_shape(self, edge: Edge) -> bool:
        old = self._old_shape(edge)
        return old is not None and keeps_channels(old, self._plan.shape_of(edge))

    def _old_shape(self, edge: Edge) -> EdgeShape | None:
        """Of the edge that it takes over from, as it was."""
        before = self._match.ways.get(edge.id)
        if before is None:
            return None
        is_hashed = isinstance(edge.partitioning, HashPartitioning)
        return EdgeShape(
            edge=before.id,
            kind=kind_of(edge.partitioning),
            senders=self._manifest.vertex_parallelism[before.sender],
            receivers=self._manifest.vertex_parallelism[before.receiver],
            key_groups=self._manifest.key_groups_in_flight if is_hashed else None,
        )


def is_broadcast(edge: Edge) -> bool:
    return isinstance(edge.partitioning, BroadcastPartitioning)
