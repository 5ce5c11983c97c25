"""Tells slots of their splits, no faster than they take them: a folder may have millions of files.

What a slot was not told yet waits here. It must not wait in the connection, which counts as a slot that hangs when too
much is unread.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.model.ids import Generation, SlotIndex, VertexId
from tidegate.network.messages import AssignSplits

# Well below what a control message may have.
_MESSAGE_BYTES: Final = 4 << 20
# Of what a slot was told and has not reported yet: so much is on its way at the most.
_MOST_UNREAD_BYTES: Final = 8 * _MESSAGE_BYTES


@dataclass(slots=True)
class _Slot:
    """`unread`: by message, the number of splits told until then, and its bytes."""

    waiting: deque[tuple[AssignSplits, int]] = field(default_factory=deque)
    unread: deque[tuple[int, int]] = field(default_factory=deque)
    unread_bytes: int = 0
    told: int = 0


class HandingOut:
    """Of one generation."""

    def __init__(self, generation: Generation, tell: Callable[[SlotIndex, AssignSplits], None]) -> None:
        self._generation = generation
        self._tell = tell
        self._slots: dict[SlotIndex, _Slot] = {}

    def give(self, vertex: VertexId, slot: SlotIndex, splits: Sequence[bytes], *, is_last: bool) -> None:
        """`is_last`: the vertex gets no others; told even if there are none."""
        parts = list(in_parts(splits))
        to_slot = self._slots.setdefault(slot, _Slot())
        for number, (part, size_bytes) in enumerate(parts or [([], 0)] * is_last, 1):
            ends = is_last and number >= len(parts)
            to_slot.waiting.append((AssignSplits(self._generation, vertex, part, ends), size_bytes))
        self._go_on(slot, to_slot)

    def on_received(self, slot: SlotIndex, count: int) -> None:
        """So many splits it has by now."""
        to_slot = self._slots.get(slot)
        if to_slot is None:
            return
        while to_slot.unread and to_slot.unread[0][0] <= count:
            to_slot.unread_bytes -= to_slot.unread.popleft()[1]
        self._go_on(slot, to_slot)

    def _go_on(self, slot: SlotIndex, to_slot: _Slot) -> None:
        while to_slot.waiting and to_slot.unread_bytes < _MOST_UNREAD_BYTES:
            message, size_bytes = to_slot.waiting.popleft()
            to_slot.told += len(message.splits)
            to_slot.unread.append((to_slot.told, size_bytes))
            to_slot.unread_bytes += size_bytes
            self._tell(slot, message)


def in_parts(splits: Sequence[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """As many at a time as go well into a message, with their bytes."""
    part: list[bytes] = []
    size_bytes = 0
    for split in splits:
        part.append(split)
        size_bytes += len(split)
        if size_bytes >= _MESSAGE_BYTES:
            yield part, size_bytes
            part, size_bytes = [], 0
    if part:
        yield part, size_bytes
