"""Files of state that are stored before the barrier comes: the next checkpoint finds them there.

They are stored under the id that the next checkpoint will have, so to everybody else they are files that it wrote
itself. Must never let another checkpoint refer to them: once theirs is settled, they may be deleted.
"""

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.model.clock import Clock
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.state.contract import LocalFile
from tidegate.state.sst_files import Chunks
from tidegate.storage import layout
from tidegate.storage.manifests import SharedFile
from tidegate.storage.state_file import sum_of
from tidegate.storage.store import Store
from tidegate.worker.mailbox import Background

log = logging.getLogger("tidegate")

# With more changes than this that are not stored, tasks take no more input.
MOST_UNSTORED_BYTES = 64 << 20
# Stored at one go; what a checkpoint stores waits for that long at the most. Behind an outage of the store there are
# many small files, each of which is a request.
_MOST_AT_ONCE_BYTES = 8 << 20
_MOST_AT_ONCE_FILES = 16
_RETRY_AFTER_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file, for as long as anybody else refers to its keeper: what is let go of need not be stored."""

    name: str
    path: Path
    length_bytes: int
    keeper: "weakref.ref[object]"

    @staticmethod
    def of(file: LocalFile) -> "_Wanted":
        return _Wanted(file.name, file.path, file.length_bytes, weakref.ref(file.keeper))

    def local(self) -> LocalFile | None:
        keeper = self.keeper()
        return None if keeper is None else LocalFile(self.name, self.path, self.length_bytes, keeper)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A file that is stored for a checkpoint."""

    checkpoint: CheckpointId
    stored: SharedFile
    wanted: _Wanted


@dataclass(frozen=True, slots=True)
class _Image:
    """Files that count only together; `then` is called when all are stored."""

    names: frozenset[str]
    then: Callable[[BaseException | None], None]


class StoredAhead:
    """Those of one slot in one generation. All calls come from the slot's one thread."""

    def __init__(
        self, *, slot: SlotIndex, generation: Generation, store: Store, background: Background, clock: Clock
    ) -> None:
        self._slot = slot
        self._generation = generation
        self._store = store
        self._background = background
        self._clock = clock
        self._waiting_changes: deque[_Wanted] = deque()
        # Those that nobody waits for: of images, and joined ones.
        self._waiting_others: deque[_Wanted] = deque()
        self._images: list[_Image] = []
        # All of those, whether or not their image is whole, for as long as anybody refers to them.
        self._others: dict[str, _Wanted] = {}
        self._stored: dict[str, _Ahead] = {}
        # Files that the newest completed checkpoint holds.
        self._known: Mapping[str, SharedFile] = {}
        self._newest: CheckpointId | None = None
        self._under_way: set[CheckpointId] = set()
        self._is_storing = False
        self._storing_changes_bytes = 0
        self._retry_at_ms: float | None = None
        self._is_closed = False

    # -- what backends ask for

    def store_changes(self, file: LocalFile) -> None:
        self._waiting_changes.append(_Wanted.of(file))
        self._go_on()

    def store_joined(self, file: LocalFile) -> None:
        """One of what is stored already, or about to be: no task waits for it."""
        self._others[file.name] = wanted = _Wanted.of(file)
        # An image may be long, and a barrier would have to store this one.
        self._waiting_others.appendleft(wanted)
        self._go_on()

    def store_image(
        self, files: Callable[[], Sequence[LocalFile]], then: Callable[[BaseException | None], None]
    ) -> None:
        """Asks for the files beside the loop; `then` is called once all are stored, or with why there are none."""
        found: list[LocalFile] = []

        def listed(error: BaseException | None) -> None:
            if self._is_closed:
                return
            if error is not None:
                then(error)
                return
            self._images.append(_Image(frozenset(file.name for file in found), then))
            self._others.update({file.name: _Wanted.of(file) for file in found})
            self._waiting_others.extend(map(_Wanted.of, found))
            found.clear()
            self._go_on()

        self._background.submit(lambda: found.extend(files()), listed)

    def is_stored(self, name: str) -> bool:
        return name in self._known or name in self._stored

    def unstored_bytes(self) -> int:
        """Of changes."""
        waiting = (file for file in self._waiting_changes if file.keeper() is not None)
        return sum(file.length_bytes for file in waiting) + self._storing_changes_bytes

    def has_room(self) -> bool:
        """Before the generation runs there is no checkpoint to be ahead of."""
        return self._newest is None or self.unstored_bytes() <= MOST_UNSTORED_BYTES

    # -- what happens to checkpoints

    def on_run(self, next_checkpoint: CheckpointId) -> None:
        """From here on it is known which checkpoint to be ahead of."""
        self._newest = CheckpointId(next_checkpoint - 1)
        self._go_on()

    def on_trigger(self, checkpoint: CheckpointId) -> None:
        self._newest = checkpoint
        self._under_way.add(checkpoint)
        self._store_lost_again()
        self._go_on()

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self._under_way.discard(checkpoint)
        self._store_lost_again()
        self._go_on()

    def on_done(self, checkpoint: CheckpointId, known: Mapping[str, SharedFile]) -> None:
        """`known`: what the newest completed checkpoint holds; a savepoint changes nothing about that."""
        no_longer_held, self._known = self._known.keys() - known.keys(), known
        self._store_others_again(no_longer_held)
        self._under_way = {later for later in self._under_way if later > checkpoint}
        self._store_lost_again()
        self._go_on()

    def files_of(self, checkpoint: CheckpointId) -> dict[str, SharedFile]:
        """What it may refer to as its own."""
        return {name: ahead.stored for name, ahead in self._stored.items() if ahead.checkpoint == checkpoint}

    def kept_by(self, checkpoint: CheckpointId) -> dict[str, SharedFile]:
        """Files of images that are not whole yet: without a checkpoint that holds them they would be deleted."""
        stored = {**self._known, **self.files_of(checkpoint)}
        return {name: stored[name] for image in self._images for name in image.names if name in stored}

    # -- work

    def on_time(self, now_ms: float) -> None:
        if self._retry_at_ms is not None and now_ms >= self._retry_at_ms:
            self._retry_at_ms = None
            self._go_on()

    def next_deadline_ms(self) -> float | None:
        return self._retry_at_ms

    def close(self) -> None:
        self._is_closed = True
        self._waiting_changes.clear()
        self._waiting_others.clear()
        self._images.clear()
        self._others.clear()

    def _go_on(self) -> None:
        self._tell_of_images()
        if self._is_storing or self._retry_at_ms is not None or self._newest is None or self._is_closed:
            return
        # Changes first: tasks wait for them.
        waiting, taken = self._waiting_changes, self._take_some(self._waiting_changes)
        self._storing_changes_bytes = sum(file.length_bytes for file in taken)
        if not taken:
            waiting, taken = self._waiting_others, self._take_some(self._waiting_others)
        if not taken:
            return
        self._is_storing = True
        checkpoint = CheckpointId(self._newest + 1)
        folder = layout.CheckpointFolder(checkpoint, self._generation)
        stored: list[_Ahead] = []

        def work() -> None:
            for file in taken:
                if self._is_closed:
                    return  # the generation is over: nobody would find it
                path = layout.state_table_file(folder, self._slot, file.name)
                chunks = Chunks(file)
                found = sum_of(chunks)
                self._store.put(path, chunks)
                shared = SharedFile(path, found.length_bytes, found.crc32)
                stored.append(_Ahead(checkpoint, shared, _Wanted.of(file)))

        def then(error: BaseException | None) -> None:
            self._is_storing, self._storing_changes_bytes = False, 0
            self._stored.update({ahead.wanted.name: ahead for ahead in stored})
            if error is not None and not self._is_closed:
                log.warning("State could not be stored ahead of a checkpoint, it is tried again: %s", error)
                waiting.extendleft(map(_Wanted.of, reversed(taken[len(stored) :])))
                self._retry_at_ms = self._clock.monotonic_ms() + _RETRY_AFTER_MS
            taken.clear()  # what nobody else refers to is not to be kept for this
            self._store_lost_again()
            self._go_on()

        self._background.submit(work, then)

    def _take_some(self, waiting: deque[_Wanted]) -> list[LocalFile]:
        taken: list[LocalFile] = []
        taken_bytes = 0
        while waiting and taken_bytes < _MOST_AT_ONCE_BYTES and len(taken) < _MOST_AT_ONCE_FILES:
            file = waiting.popleft().local()
            if file is not None and not self.is_stored(file.name):
                taken.append(file)
                taken_bytes += file.length_bytes
        return taken

    def _tell_of_images(self) -> None:
        for image in [image for image in self._images if all(map(self.is_stored, image.names))]:
            self._images.remove(image)
            image.then(None)

    def _store_lost_again(self) -> None:
        """Their checkpoint is settled, and the newest completed one does not hold them."""
        newest = CheckpointId(0) if self._newest is None else self._newest
        settled = [
            ahead
            for ahead in self._stored.values()
            if ahead.checkpoint <= newest and ahead.checkpoint not in self._under_way
        ]
        for ahead in settled:
            name = ahead.wanted.name
            del self._stored[name]
            if name not in self._known:
                if (other := self._others.get(name)) is None:
                    self._waiting_changes.append(ahead.wanted)
                else:
                    # Of the newest image that has it: the one that it was stored for may have been let go of.
                    self._waiting_others.append(other)

    def _store_others_again(self, names: Iterable[str]) -> None:
        """A checkpoint that was under way when another one came to hold them is the newest completed one now."""
        self._others = {name: file for name, file in self._others.items() if file.keeper() is not None}
        lost = [name for name in names if name in self._others and name not in self._stored]
        self._waiting_others.extend(self._others[name] for name in sorted(lost))
