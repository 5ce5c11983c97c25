"""Keyed state whose changes are stored all along, ahead of the barrier: a checkpoint writes the last few alone.

A snapshot is the newest image of the state and the files of changes since. Images are made and stored in the
background; until one is whole, the one before and all changes since count. So are files that take the place of many
small ones. Must never drop changes that no whole image holds, nor write more than a part of a file in one step. Where
files of changes cannot be written, it is stored as if there were no log.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from tidegate.model.clock import Clock
from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import ENTRIES_SECTION, LocalFile, RestoredSection, Section, StateBackend
from tidegate.state.entry_files import EntryFile, EntryFiles
from tidegate.state.heap import HeapBackend
from tidegate.state.logged import LoggedState, LoggedStates, image_parts
from tidegate.state.sst_files import Folder

log = logging.getLogger("tidegate")

# Changes are stored when the first of them has waited for so long, or when there are so many.
BATCH_MS = 100.0
BATCH_BYTES = 1 << 20
# Who makes more than this while a batch is written part by part waits for the rest of it: they are in memory.
MOST_NOTED_BYTES = 16 << 20
# A log with more than this, and with so many times what the state has, is not worth keeping: an image is begun before
# it is due. All that is only ever put once makes a log of the size of the state.
LEAST_OUTGROWN_BYTES = 64 << 20
OUTGROWN_TIMES = 2
# With fewer files of changes, those that are joined stay until the joined one is stored: a barrier would wait for that.
MOST_WAITING_FILES = 128


class StoresAhead(Protocol):
    """Stores files of state before a checkpoint needs them; all return at once."""

    def is_stored(self, name: str) -> bool: ...
    def store_changes(self, file: LocalFile) -> None: ...
    def store_joined(self, file: LocalFile) -> None:
        """One of what is stored already, or about to be: nobody waits for it."""
        ...

    def store_image(
        self, files: Callable[[], Sequence[LocalFile]], then: Callable[[BaseException | None], None]
    ) -> None:
        """Asks for the files beside the loop; `then` is called once all are stored, or with why there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Image:
    """Of one moment. `steps` make it, between steps of the stream; `files` may be asked for afterwards, and may wait.

    It is in `entries`, or in `sections` of the backend's own.
    """

    steps: Iterator[None]
    files: Callable[[], Sequence[LocalFile]]
    entries: Sequence[EntryFile] = ()
    sections: Sequence[Section] = ()


@dataclass(slots=True)
class _Making:
    """An image that is not whole yet, of the moment before file `behind` of changes was begun."""

    image: Image
    behind: int
    is_stored_soon: bool = False


@dataclass(slots=True)
class _Joining:
    """A file that will take the place of `run`: when it is stored, or at the latest with so many files of changes."""

    run: Sequence[EntryFile]
    file: EntryFile
    most_files: int
    is_stored_soon: bool = False


class ChangelogBackend:
    """`StateBackend` over one in memory or in RocksDB. Images are begun every `interval_ms`, the first at a time.

    Sooner, if the log has outgrown the state.
    """

    def __init__(
        self,
        state: StateBackend,
        key_groups: KeyGroupRange,
        *,
        folder: Folder,
        ahead: StoresAhead,
        clock: Clock,
        interval_ms: float,
        first_image_at_ms: float,
    ) -> None:
        self._state = state
        self._states = LoggedStates(state)
        self._files = EntryFiles(key_groups, folder)
        self._folder_path = folder.path
        self._is_given_up = False
        self._ahead = ahead
        self._clock = clock
        self._interval_ms = interval_ms
        self._image_at_ms = first_image_at_ms
        self._batch_at_ms: float | None = None
        # Files of changes that no snapshot has yet, the first of them perhaps in part.
        self._to_write: list[EntryFile] = []
        self._joining: _Joining | None = None
        self._may_join = False
        self._has_outgrown = False
        self._has_image_failed = False
        self._image_sections: Sequence[Section] = ()
        self._making: _Making | None = None
        # An empty state is an image of itself.
        self._has_image = True
        self._states.begin()

    def keyed(self, name: str) -> LoggedState:
        return self._states.keyed(name)

    def state_names(self) -> list[str]:
        return self._state.state_names()

    def snapshot(self) -> list[Section]:
        if not self._is_given_up:
            try:
                return self._snapshot()
            except (OSError, DidNotHappen) as error:
                self._give_up_log(error)
        return self._state.snapshot()

    def _snapshot(self) -> list[Section]:
        if self._files.has_failed():
            raise DidNotHappen("one could not be written")
        if any(section.has_failed() for section in self._image_sections):
            self._forget_image()
        # What is not written yet, the steps of the section write; its checkpoint stores it, and nobody else must.
        self._to_write, self._batch_at_ms = [], None
        if not self._has_image:
            self._clear_files()
            self._take_over(_image_of(self._state, self._files))
            self._states.begin()
            self._has_image = True
        else:
            self._take_noted()
            self._put_joined_in_place()
        entries = [self._files.section()] if self._files.image or self._files.changes else []
        return [*self._image_sections, *entries]

    def restore(self, sections: Iterable[RestoredSection]) -> None:
        """Before any state is asked for. Also takes what backends without a log stored."""
        given = list(sections)
        is_same = [(each.name, each.key_groups) for each in given] == [(ENTRIES_SECTION, self._files.key_groups)]
        if is_same and isinstance(self._state, HeapBackend):
            self._state.apply(self._files.adopt(given[0]))
        elif given:
            self._state.restore(given)
            self._has_image = False
            self._states.end()

    def size_bytes(self) -> int:
        return self._state.size_bytes()

    def unstored_bytes(self) -> int:
        """Of changes: noted, or in files of which none is stored yet."""
        unstored = (file for file in self._files.changes if not self._ahead.is_stored(file.name))
        return self._states.noted_bytes() + sum(file.size_bytes for file in unstored)

    def close(self) -> None:
        self._making, self._joining, self._to_write = None, None, []
        self._image_sections = ()
        self._state.close()
        self._files.close()

    # -- all along

    def on_time(self, now_ms: float) -> None:
        """Between steps of the stream; takes a few ms at the most."""
        if not self._has_image or self._is_given_up:
            return
        try:
            self._look_after(now_ms)
        except (OSError, DidNotHappen) as error:
            self._give_up_log(error)

    def _look_after(self, now_ms: float) -> None:
        if self._batch_at_ms is None and self._states.has_noted():
            self._batch_at_ms = now_ms + BATCH_MS
        is_due = self._batch_at_ms is not None and now_ms >= self._batch_at_ms
        while self._to_write and self._states.noted_bytes() >= MOST_NOTED_BYTES:
            self._write_some()
        if not self._to_write and (is_due or self._states.noted_bytes() >= BATCH_BYTES):
            self._begin_batch()
        self._write_some()
        if not self._has_joined_some():
            self._make_image(now_ms)

    def next_deadline_ms(self) -> float | None:
        if not self._has_image or self._is_given_up:
            return None
        under_way = [each for each in (self._making, self._joining) if each is not None]
        if self._to_write or not all(each.is_stored_soon for each in under_way):
            # Whatever else is due waits for it.
            return self._clock.monotonic_ms()
        deadlines = [self._image_at_ms] if self._making is None else []
        if self._states.has_noted():
            # If nobody has looked at the time since the first of them, let it be looked at now.
            deadlines.append(self._clock.monotonic_ms() if self._batch_at_ms is None else self._batch_at_ms)
        return min(deadlines, default=None)

    def _take_noted(self) -> EntryFile | None:
        """As a file that is still to be written."""
        self._batch_at_ms = None
        noted_bytes = self._states.noted_bytes()
        changes = self._states.take()
        if not changes:
            return None
        file = self._files.append(changes, noted_bytes)
        least_bytes = max(LEAST_OUTGROWN_BYTES, OUTGROWN_TIMES * self._state.size_bytes())
        self._may_join, self._has_outgrown = True, self._files.changes_bytes() > least_bytes
        return file

    def _begin_batch(self) -> None:
        if (file := self._take_noted()) is not None:
            self._to_write.append(file)

    def _write_some(self) -> None:
        """A part of the first file that is to be written."""
        if not self._to_write:
            return
        file = self._to_write[0]
        if file not in self._files.changes:
            del self._to_write[0]  # joined with others, or in an image meanwhile
        elif next(file.steps(), _MADE) is _MADE:
            del self._to_write[0]
            self._ahead.store_changes(file.local())

    # -- joining files of changes

    def _has_joined_some(self) -> bool:
        """Whether there was a part of a joined file to write."""
        if self._joining is None and self._may_join:
            self._may_join = False
            if run := self._files.run_to_join(self._state.size_bytes()):
                # Half of them: so there is time for what is joined to be joined again, before as many have come.
                most_files = max(len(self._files.changes) + len(run) // 2, MOST_WAITING_FILES)
                self._joining = _Joining(run, self._files.joined(run), most_files)
        joining = self._joining
        if joining is None:
            return False
        if joining.is_stored_soon:
            self._put_joined_in_place()
            return False
        if next(joining.file.steps(), _MADE) is _MADE:
            joining.is_stored_soon = True
            self._ahead.store_joined(joining.file.local())
        return True

    def _put_joined_in_place(self) -> None:
        """Once it is stored: until then a barrier finds the files there that it is made of, and they are."""
        joining = self._joining
        if joining is None or not joining.is_stored_soon:
            return
        # There may be no store to reach, and batches come all the same.
        if self._ahead.is_stored(joining.file.name) or len(self._files.changes) >= joining.most_files:
            self._files.put_in_place(joining.run, joining.file)
            self._joining, self._may_join = None, True

    # -- images

    def _make_image(self, now_ms: float) -> None:
        if self._making is None:
            is_too_long = self._has_outgrown and not self._has_image_failed
            if now_ms < self._image_at_ms and not is_too_long:
                return
            self._image_at_ms = now_ms + self._interval_ms
            self._begin_batch()
            self._has_outgrown = self._has_image_failed = False
            if not self._files.changes:
                return
            self._making = _Making(_image_of(self._state, self._files), self._files.newest_number())
        making = self._making
        if making.is_stored_soon:
            return
        if next(making.image.steps, _MADE) is _MADE:
            making.is_stored_soon = True
            self._ahead.store_image(making.image.files, lambda error: self._on_stored(making, error))

    def _on_stored(self, making: _Making, error: BaseException | None) -> None:
        if self._making is not making:
            return  # closed meanwhile
        if error is not None:
            self._give_up(error)
            return
        self._making = None
        # A later file may begin with changes from before: they are in the image as they were last, so again they make
        # no difference.
        self._files.changes = [file for file in self._files.changes if file.number > making.behind]
        if self._joining is not None and self._joining.run[-1] not in self._files.changes:
            self._joining = None
        self._has_outgrown = False
        self._take_over(making.image)

    def _give_up_log(self, error: BaseException) -> None:
        """State must not depend on this machine's disk for more than it would without a log."""
        log.warning(
            "Changes of state cannot be kept in %s, so checkpoints store it as without state.changelog from now on: %s "
            "See to room and permissions there, or name another folder in spark.local.dir, and restart the query.",
            self._folder_path,
            error,
        )
        self._is_given_up = True
        self._making, self._image_sections, self._batch_at_ms = None, (), None
        self._states.end()
        self._clear_files()

    def _give_up(self, error: BaseException) -> None:
        self._making, self._has_image_failed = None, True
        log.warning("An image of state could not be made, the next one is tried in due time: %s", error)

    def _forget_image(self) -> None:
        """As after a restore: the next one is of all there is, so an older one in the making must not follow it."""
        self._has_image = False
        self._making, self._image_sections = None, ()
        self._states.end()

    def _clear_files(self) -> None:
        self._to_write, self._joining = [], None
        self._files.clear()

    def _take_over(self, image: Image) -> None:
        self._files.image = list(image.entries)
        self._image_sections = image.sections


_MADE = object()


def _image_of(state: StateBackend, files: EntryFiles) -> Image:
    if isinstance(state, HeapBackend):
        entries = files.new_image(image_parts(state, files.key_groups))
        steps = chain.from_iterable(file.steps() for file in entries)
        return Image(steps, lambda: [file.local() for file in entries], entries=entries)
    sections = state.snapshot()

    def of_sections() -> list[LocalFile]:
        return [file for section in sections if section.files is not None for file in section.files()]

    return Image(iter(()), of_sections, sections=sections)
