"""The sending side of barriers: for each channel and checkpoint, exactly one cut.

Unaligned: cut at once, at the first element not yet handed to the wire. Aligned: cut when everything before the
barrier has been handed over; until then it may still switch, and then cuts where it stands.
"""

from dataclasses import dataclass

from tidegate.model.ids import CheckpointId, Sequence
from tidegate.protocol.barriers import Cut
from tidegate.protocol.kinds import CheckpointKind


@dataclass(frozen=True, slots=True)
class SendCut:
    """Tell the receiver; when `cut.held_from < cut.before`, store those elements on this side."""

    checkpoint: CheckpointId
    cut: Cut


@dataclass(slots=True)
class _Pending:
    before: Sequence
    switch_at_ms: float | None


class ChannelCuts:
    """One per output channel. Sequence numbers below `first_unsent` have been handed to the wire."""

    def __init__(self, *, first_unsent: Sequence) -> None:
        self._first_unsent = first_unsent
        self._pending: dict[CheckpointId, _Pending] = {}

    def on_snapshot(
        self, checkpoint: CheckpointId, kind: CheckpointKind, *, before: Sequence, switch_at_ms: float | None
    ) -> list[SendCut]:
        self._pending[checkpoint] = _Pending(before, switch_at_ms)
        if kind is not CheckpointKind.ALIGNED:
            # Whatever is older and still waiting has its barrier further ahead: it cuts here as well.
            return self._cut_where_it_stands([id for id in self._pending if id <= checkpoint])
        return self._cut_what_is_sent()

    def on_sent(self, first_unsent: Sequence) -> list[SendCut]:
        self._first_unsent = first_unsent
        return self._cut_what_is_sent() if self._pending else []

    def on_time(self, now_ms: float) -> list[SendCut]:
        due = [id for id, p in self._pending.items() if p.switch_at_ms is not None and p.switch_at_ms <= now_ms]
        return self._cut_where_it_stands([id for id in self._pending if due and id <= max(due)])

    def switch_now(self, checkpoint: CheckpointId) -> list[SendCut]:
        """Waiting longer costs more than capturing: as if its time had passed."""
        if checkpoint not in self._pending or self._pending[checkpoint].switch_at_ms is None:
            return []
        return self._cut_where_it_stands([id for id in self._pending if id <= checkpoint])

    def switchable(self) -> list[tuple[CheckpointId, Sequence, float]]:
        """What may still switch: where its barrier stands, and when it will."""
        return [(id, p.before, p.switch_at_ms) for id, p in self._pending.items() if p.switch_at_ms is not None]

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self._pending.pop(checkpoint, None)

    def next_deadline_ms(self) -> float | None:
        return min((p.switch_at_ms for p in self._pending.values() if p.switch_at_ms is not None), default=None)

    def _cut_what_is_sent(self) -> list[SendCut]:
        sent = [id for id, pending in self._pending.items() if pending.before <= self._first_unsent]
        return self._cut_where_it_stands(sent)

    def _cut_where_it_stands(self, checkpoints: list[CheckpointId]) -> list[SendCut]:
        cuts = []
        for checkpoint in sorted(checkpoints):
            before = self._pending.pop(checkpoint).before
            cuts.append(SendCut(checkpoint, Cut(held_from=min(self._first_unsent, before), before=before)))
        return cuts
