"""Entries of groups: which of them are each group's, and how those that are nobody's any more are left behind.

What holds the entries is a log of values or an index of pairs, to which entries are only added. What is there stays in
use while a copy without those of nobody is made, part by part, between steps of the stream; then the copy takes its
place. Must never take longer than for a part, whatever there is, nor change what somebody has frozen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.accumulators.chains import Chains, ChainsOfNow, Ends, Found
from tidegate.operators.accumulators.owners import Owners
from tidegate.operators.columnar import GrowingArray, Slots

# Below this, leaving entries of nobody behind is not worth a copy of the others; unless these are large.
_FEW_ENTRIES: Final = 1 << 12
_FEW_BYTES: Final = 1 << 22
# So many entries are copied in a step, and so many for each that comes: a few ms.
MOST_COPIED: Final = 1 << 14
_COPIED_PER_ADDED: Final = 4
# Fewer if these take more bytes than so many; but more than have come, or the copy would never have them all.
_COPIED_BYTES: Final = 1 << 22
_LEAST_COPIED_PER_ADDED: Final = 2
# The system gives new memory when it is first written to, which takes as long as copying: so much of it in a step.
_TOUCHED_BYTES: Final = 1 << 21
_MAX_LIST_VALUES: Final = (1 << 31) - 1  # offsets of a Spark array in Arrow have 32 bits


class Held(Protocol):
    """What entries are, by number."""

    @property
    def count(self) -> int: ...
    def empty_copy(self, count: int, /) -> Self:
        """Without any, but with room for so many."""
        ...

    def append_from(self, other: Self, numbers: Slots, /) -> None:
        """Entries of the other, each at the next number."""
        ...

    def size_bytes(self) -> int: ...
    def memory_met_anywhere(self) -> list[npt.NDArray[Any]]:
        """Of zeros, of one without any entries: memory that a few entries write to all over it."""
        ...


HeldT = TypeVar("HeldT", bound=Held)


@dataclass(slots=True)
class _Copy(Generic[HeldT]):
    """`copied`: so many of the first entries are in it, without those that were nobody's.

    `dead_count`: of those that are in it and have become nobody's since. `untouched`: memory to write to before.
    """

    held: HeldT
    chains: Chains
    copied: int = 0
    dead_count: int = 0
    untouched: list[npt.NDArray[Any]] = field(default_factory=list)

    def has_touched_all(self) -> bool:
        """Writes to a part of the memory that a few entries would write to all over it; whether none is left."""
        left_bytes = _TOUCHED_BYTES
        while self.untouched and left_bytes > 0:
            memory = self.untouched.pop()
            part = max(1, left_bytes // memory.itemsize)
            memory[:part] = np.zeros((), dtype=memory.dtype)
            left_bytes -= memory[:part].nbytes
            if len(memory) > part:
                self.untouched.append(memory[part:])
        return not self.untouched


class GroupedEntries(Generic[HeldT]):
    def __init__(self, held: HeldT) -> None:
        self.held = held
        self._owners = Owners()
        self._chains = Chains()
        self._dead_count = 0
        self._copy: _Copy[HeldT] | None = None
        # Whether those of nobody are to go, however few they are.
        self._makes_room = False

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return self._owners.arrays

    def grow_to(self, slot_count: int) -> None:
        self._owners.grow_to(slot_count)

    def owners_of(self, slots: Slots) -> Slots:
        """Of each a number, never 0, that stays the same until the slot is cleared; for who adds entries."""
        owners = self._owners.of_or_new(slots)
        self._chains.grow_to(self._owners.count)
        return owners

    def add(self, owners: Slots) -> None:
        """The last entries that are held, as many as there are owners, are theirs."""
        self._chains.append(owners)
        if not self.is_tidy():
            self.tidy_up(_COPIED_PER_ADDED * len(owners), least=_LEAST_COPIED_PER_ADDED * len(owners))

    def clear(self, slots: Slots) -> None:
        self._count_dead(self._owners.clear(slots))

    def keep(self) -> None:
        """Slots have other numbers now: what stands in `arrays` has been copied."""
        self._count_dead(self._owners.keep())
        # However few they are: they may be large, and it is to make room that others were left behind.
        self._makes_room = self._dead_count > 0

    def found(self, slots: Slots) -> Found:
        """The entries of these."""
        return self._chains.now().of(self._chains.ends(self._owners.of(slots)))

    def freeze(self, slots: Slots | None, take: Callable[[Slots], pa.Array], kind: pa.DataType) -> "FrozenLists":
        """As lists of that type. `take`: what such entries are; of those that are there now, also later."""
        return FrozenLists(self._chains.now(), self._chains.ends(self._owners.of(slots)), take, kind)

    def bytes_of(self, slots: Slots | None) -> Slots:
        """What the entries of each take, if all entries take the same."""
        bytes_each = self._bytes_each() + self._chains.size_bytes() // max(1, self._chains.count)
        return self._chains.sizes(self._owners.of(slots)) * bytes_each

    def size_bytes(self) -> int:
        copy = self._copy
        copy_bytes = 0 if copy is None else copy.held.size_bytes() + copy.chains.size_bytes()
        return self.held.size_bytes() + self._chains.size_bytes() + self._owners.size_bytes() + copy_bytes

    # -- leaving behind what is nobody's

    def is_tidy(self) -> bool:
        """Whether there is nothing to leave behind, or not enough of it."""
        if self._copy is not None:
            return False
        dead, count = self._dead_count, self._chains.count
        if dead == 0 or self._makes_room:
            return dead == 0
        return 2 * dead <= count or (dead <= _FEW_ENTRIES and self.held.size_bytes() <= _FEW_BYTES)

    def tidy_up(self, most: int, *, least: int = 1) -> None:
        """A part of it, about so many entries; fewer if they are large, but not fewer than `least`."""
        if self._copy is None:
            self._owners.begin_leaving()
            self._copy = _Copy(self.held.empty_copy(self._chains.count - self._dead_count), Chains())
            self._copy.untouched = [
                *self._copy.chains.reserved(self._owners.count),
                *self._copy.held.memory_met_anywhere(),
            ]
        copy = self._copy
        if self._dead_count < self._chains.count:
            if not copy.has_touched_all():
                return
            self._copy_some(copy, max(least, min(most, _COPIED_BYTES // self._bytes_each())))
        else:
            copy.copied = self._chains.count
        if copy.copied == self._chains.count:
            copy.chains.grow_to(self._owners.count)
            self._copy, self._makes_room = None, False
            self.held, self._chains, self._dead_count = copy.held, copy.chains, copy.dead_count
            self._owners.end_leaving()

    def _copy_some(self, copy: _Copy[HeldT], most: int) -> None:
        stop = min(copy.copied + most, self._chains.count)
        owners = self._chains.owners_between(copy.copied, stop)
        kept = np.flatnonzero(self._owners.is_somebody(owners))
        copy.chains.grow_to(self._owners.count)
        if len(kept):
            copy.held.append_from(self.held, kept + copy.copied)
            copy.chains.append(owners[kept])
        copy.copied = stop

    def _bytes_each(self) -> int:
        return max(1, self.held.size_bytes() // max(1, self.held.count))

    def _count_dead(self, owners: Slots) -> None:
        self._dead_count += int(self._chains.sizes(owners).sum())
        if self._copy is not None:
            self._copy.chains.grow_to(self._owners.count)
            self._copy.dead_count += int(self._copy.chains.sizes(owners).sum())
        if self._dead_count == self._chains.count and not self.is_tidy():
            # Of nothing there is no copy to make.
            self.tidy_up(0)


class FrozenLists:
    """The entries of each slot as a list, as they were at a moment, to be read part by part."""

    def __init__(
        self,
        chains: ChainsOfNow,
        ends: Ends,
        take: Callable[[Slots], pa.Array],
        kind: pa.DataType,
    ) -> None:
        self._chains = chains
        self._ends = ends
        self._take = take
        self._kind = kind

    def __call__(self, part: slice) -> list[pa.Array]:
        return [self.of(part)]

    def of(self, part: slice) -> pa.Array:
        found = self._chains.of(self._ends[part])
        if len(found.entries) > _MAX_LIST_VALUES:
            raise UserCodeFailure(
                f"Groups that are shown together hold {len(found.entries)} collected values, an Arrow array at most "
                f"{_MAX_LIST_VALUES}: collect less, such as with a shorter window."
            )
        offsets = pa.py_buffer(found.ends.astype(np.int32))
        return pa.Array.from_buffers(
            self._kind, len(found.ends) - 1, [None, offsets], children=[self._take(found.entries)]
        )
