"""Where the slot of a hash is found: open addressing, grown bit by bit, so that no step rebuilds a large table.

A table that gets too full still takes slots while the next one is filled behind it, in the order of places, so that
memory too is touched bit by bit. Owns places only: must never look at keys.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tidegate.plan.key_groups import Hashes

Slots: TypeAlias = npt.NDArray[np.int64]

FREE: Final = -1
# So many places are copied with each step, however few keys it adds: a millisecond or less.
LEAST_COPIED_PLACES: Final = 1 << 14
# Sparse enough that most keys stand at their first place.
_PLACES_PER_KEY: Final = 4
# From so many keys to 16 places on, the next table is begun; when it is ready there are not many more.
_KEYS_PER_16_PLACES: Final = 3
# With fewer a key is found too slowly; the next table is ready long before, unless one step adds very many keys.
_LEAST_PLACES_PER_KEY: Final = 2
# At this pace the next table is ready when there are 5 keys to 16 places.
_COPIED_PLACES_PER_ADDED: Final = 8
_FIRST_PLACES: Final = 1024


class Places:
    """One table: at each place a slot, or `FREE`. As long as a power of two, and never full."""

    def __init__(self, place_count: int) -> None:
        # Slots from 1, as memory that is new is 0 without having been written.
        self._slots: npt.NDArray[np.int32] = np.zeros(place_count, dtype=np.int32)
        self._mask = place_count - 1

    @classmethod
    def for_keys(cls, key_count: int) -> "Places":
        place_count = _FIRST_PLACES
        while place_count < _PLACES_PER_KEY * key_count:
            place_count *= 2
        return cls(place_count)

    def twice_as_long(self) -> "Places":
        """An empty one."""
        return Places(2 * len(self._slots))

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def memory(self) -> npt.NDArray[np.int32]:
        return self._slots

    def size_bytes(self) -> int:
        return self._slots.nbytes

    def home(self, hashes: Hashes) -> Slots:
        return (hashes & np.uint64(self._mask)).view(np.int64)

    def next(self, places: Slots) -> Slots:
        return (places + 1) & self._mask

    def at(self, places: Slots) -> Slots:
        found: Slots = self._slots.take(places).astype(np.int64)
        found -= 1
        return found

    def set(self, places: Slots, slots: Slots | int) -> None:
        self._slots[places] = slots + 1

    def put(self, slots: Slots, hashes: Hashes) -> None:
        """Slots that are not there, at the first free places behind where they belong."""
        places, numbers = self.home(hashes), (slots + 1).astype(np.int32)
        while len(numbers):
            is_free = self._slots[places] == 0
            self._slots[places[is_free]] = numbers[is_free]
            is_unplaced = self._slots[places] != numbers
            numbers, places = numbers[is_unplaced], self.next(places[is_unplaced])

    def between(self, start: int, stop: int) -> Slots:
        """The slots at those places."""
        part = self._slots[start:stop]
        slots: Slots = part[part != 0].astype(np.int64)
        slots -= 1
        return slots


class KeyTable:
    """`now` has all slots. The next one, while there is one, has those that `now` has in its first places."""

    def __init__(self, key_count: int = 0) -> None:
        self.now = Places.for_keys(key_count)
        self._next: Places | None = None
        self._copied = 0

    def has_room(self, key_count: int) -> bool:
        return _LEAST_PLACES_PER_KEY * key_count <= len(self.now)

    def make_room(self, key_count: int, hashes: Hashes) -> None:
        """At once, for a step that adds as many keys as there are. `hashes` are those of all slots that are there."""
        self.now, self._next, self._copied = Places.for_keys(key_count), None, 0
        self.now.put(np.arange(len(hashes)), hashes)

    def add(self, places: Slots, slots: Slots, hashes: Hashes) -> None:
        """Slots at places of `now` that were free."""
        self.now.set(places, slots)
        if self._next is not None:
            is_copied = places < self._copied
            self._next.put(slots[is_copied], hashes[is_copied])

    def put(self, slots: Slots, hashes: Hashes) -> None:
        """Slots that are not there, in a table that is not being replaced."""
        assert self._next is None, "places would be missed"
        self.now.put(slots, hashes)

    def prepare(self, added_keys: int, hashes: Hashes) -> None:
        """A part of the next table, if one is needed, in proportion to the keys that a step added."""
        if self._next is None:
            if 16 * len(hashes) <= _KEYS_PER_16_PLACES * len(self.now):
                return
            self._next, self._copied = self.now.twice_as_long(), 0
        stop = min(self._copied + max(LEAST_COPIED_PLACES, _COPIED_PLACES_PER_ADDED * added_keys), len(self.now))
        slots = self.now.between(self._copied, stop)
        self._next.put(slots, hashes[slots])
        self._copied = stop
        if stop == len(self.now):
            self.now, self._next = self._next, None

    def places_left(self) -> int:
        """How many places are still to be copied until there is one table again."""
        return 0 if self._next is None else len(self.now) - self._copied

    def size_bytes(self) -> int:
        """Of the next one what has been written to: the rest of its memory is not there yet."""
        next_bytes = 0 if self._next is None else self._next.size_bytes() * self._copied // len(self.now)
        return self.now.size_bytes() + next_bytes
