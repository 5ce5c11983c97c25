"""The entries of each owner, in the order in which they came: in chunks, each of which knows the one before it.

What is written to a place never changes. So whoever notes how far the last chunk of an owner is filled can read, at any
time later, the entries that it had then, without a copy of any. A chunk has room for half of what its owner has, up to
a bound, so that an owner has few of them and little room is left over. Owns numbers only: must never look at what an
entry is.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.columnar import AppendedArray, FilledArray, Slots, ascending_order

_NO_CHUNK: Final = 0
_LEAST_ROOM: Final = 4
# More would be left over by many, and fewer make more rounds: some hundreds for ten million entries of one owner.
_MOST_ROOM: Final = 1 << 15
_MOST_PLACES: Final = (1 << 31) - 1  # numbers of entries, places and chunks have 32 bits
_CHUNK_BITS: Final = 32

# Of an owner: its last chunk, the next place in it, how many places are left there, and how many entries it has.
_OWNER: Final = np.dtype([(name, np.int32) for name in ("chunk", "place", "room", "size")])
# Of owners at a moment: what is read by.
Ends: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Found:
    """The entries of some owners, those of the first before those of the second; where each one's end, from 0."""

    entries: Slots
    ends: Slots


@dataclass(frozen=True, slots=True)
class ChainsOfNow:
    """What is there at a moment, to be read later. `starts`, `before`: of chunks. `entries`: by place."""

    starts: npt.NDArray[np.int32]
    before: npt.NDArray[np.int32]
    entries: npt.NDArray[np.int32]

    def of(self, ends: Ends) -> Found:
        """Of owners whose last chunks are filled so far."""
        owners, chunks, stops = self._chunks_of(ends)
        starts = self.starts[chunks].astype(np.int64)
        lengths = stops - starts
        counts = np.zeros(len(ends) + 1, dtype=np.int64)
        np.add.at(counts, owners + 1, lengths)
        # Each place is as far behind the start of its chunk as it is behind the chunk's first in the result.
        firsts = np.cumsum(lengths) - lengths
        places = np.repeat(starts - firsts, lengths)
        places += np.arange(len(places))
        return Found(self.entries[places].astype(np.int64), np.cumsum(counts))

    def _chunks_of(self, ends: Ends) -> tuple[Slots, Slots, Slots]:
        """All chunks, by owner and then as they came; of each the owner it is of, and where it is filled to."""
        owners = np.flatnonzero(ends["chunk"] != _NO_CHUNK)
        chunks, stops = ends["chunk"][owners], ends["place"][owners]
        found = [(owners << _CHUNK_BITS) | chunks]
        found_stops = [stops]
        while len(owners):
            before = self.before[chunks]
            has_more = np.flatnonzero(before != _NO_CHUNK)
            owners, chunks = owners[has_more], before[has_more]
            found.append((owners << _CHUNK_BITS) | chunks)
            # A chunk that has one behind it is full.
            found_stops.append(self.starts[chunks + 1])
        numbers, all_stops = np.concatenate(found), np.concatenate(found_stops)
        order = np.argsort(numbers)
        numbers = numbers[order]
        return numbers >> _CHUNK_BITS, numbers & ((1 << _CHUNK_BITS) - 1), all_stops[order].astype(np.int64)


class Chains:
    """Entries are numbered from 0 on, as they come."""

    def __init__(self) -> None:
        self._by_owner: FilledArray[Any] = FilledArray(_OWNER)
        self._owners: AppendedArray[np.int32] = AppendedArray(np.int32)
        # By place, of which a chunk has some, one after the other.
        self._entries: FilledArray[np.int32] = FilledArray(np.int32)
        # Of chunks: the first place, and the one before it. Chunk 0 is before all others.
        self._starts: AppendedArray[np.int32] = AppendedArray(np.int32)
        self._before: AppendedArray[np.int32] = AppendedArray(np.int32)
        self._starts.append(np.zeros(1, dtype=np.int32))
        self._before.append(np.zeros(1, dtype=np.int32))
        # Owner 0 is nobody, and has nothing.
        self.grow_to(1)

    @property
    def count(self) -> int:
        """Of entries."""
        return self._owners.count

    def reserved(self, owner_count: int) -> list[npt.NDArray[Any]]:
        """Room for so many owners, before any has an entry: memory of zeros, that a few write to all over it."""
        self._by_owner.reserve(owner_count)
        return [self._by_owner.memory]

    def grow_to(self, owner_count: int) -> None:
        if owner_count > self._by_owner.count:
            self._by_owner.grow_to(owner_count)

    def append(self, owners: Slots) -> None:
        """The next entries are theirs."""
        if len(owners) == 0:
            return
        order = ascending_order(owners)
        entries = np.arange(self.count, self.count + len(owners)) if order is None else order + self.count
        self._owners.append(owners)
        if order is not None:
            owners = owners[order]
        firsts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
        self._fill(owners[firsts], firsts, np.diff(firsts, append=len(owners)), entries)

    def ends(self, owners: Slots) -> Ends:
        """It does not change with what comes."""
        return self._by_owner.used[owners]

    def now(self) -> ChainsOfNow:
        return ChainsOfNow(self._starts.used, self._before.used, self._entries.used)

    def sizes(self, owners: Slots) -> Slots:
        """How many entries each has."""
        return self._by_owner.used["size"][owners].astype(np.int64)

    def owners_between(self, start: int, stop: int) -> Slots:
        """Of entries."""
        return self._owners.used[start:stop].astype(np.int64)

    def size_bytes(self) -> int:
        arrays = (self._by_owner, self._owners, self._entries, self._starts, self._before)
        return sum(array.used.nbytes for array in arrays)

    def _fill(self, owners: Slots, firsts: Slots, lengths: Slots, entries: Slots) -> None:
        """Distinct owners get so many of the entries each, from there on."""
        state = self._by_owner.used[owners]
        # Each entry is as far behind the place of its owner as it is behind the owner's first.
        ranks = np.arange(len(entries))
        places = _each(state["place"] - firsts, lengths, len(entries)) + ranks
        fitting = firsts + state["room"]
        full = np.flatnonzero(lengths > state["room"])
        state["size"] += lengths
        state["place"] += lengths
        state["room"] -= lengths
        if len(full):
            # What does not fit any more begins a chunk; so much further than if it did.
            behind = np.flatnonzero(ranks >= _each(fitting, lengths, len(entries)))
            steps = np.zeros(len(owners), dtype=np.int64)
            steps[full] = self._begin_chunks(state, full)
            places[behind] += _each(steps, lengths, len(entries))[behind]
        self._by_owner.put(owners, state)
        self._entries.put(places, entries)

    def _begin_chunks(self, state: npt.NDArray[Any], full: Slots) -> Slots:
        """For owners that have less than no room; how much further they are in them."""
        of_full = state[full]
        missing = -of_full["room"].astype(np.int64)
        rooms = np.maximum(np.clip(of_full["size"] // 2, _LEAST_ROOM, _MOST_ROOM), missing)
        starts, count = self._entries.count + np.cumsum(rooms) - rooms, int(rooms.sum())
        if self._entries.count + count > _MOST_PLACES:
            raise UserCodeFailure(
                f"A task of an aggregation cannot hold more than the {self.count} values that it has in arrays or for "
                f"DISTINCT: collect less, such as with a shorter window, or raise the parallelism."
            )
        self._entries.grow_to(self._entries.count + count)
        first = self._starts.count
        self._starts.append(starts)
        self._before.append(of_full["chunk"])
        steps: Slots = starts + missing - of_full["place"]
        of_full["chunk"] = np.arange(first, first + len(full))
        of_full["place"] = starts + missing
        of_full["room"] = rooms - missing
        state[full] = of_full
        return steps


def _each(of_owners: npt.NDArray[Any], lengths: Slots, entry_count: int) -> npt.NDArray[Any]:
    """For each entry what its owner has."""
    return of_owners if len(of_owners) == entry_count else np.repeat(of_owners, lengths)
