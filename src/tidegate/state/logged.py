"""Keyed state whose changes are noted, so that a snapshot costs what changed and not what there is.

Must never note a change that the state under it has not taken, nor lose one that no file holds yet.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import ENTRIES_SECTION, BulkState, OrderedState, RestoredSection, Section, StateBackend
from tidegate.state.entry_files import IMAGE_FILE_BYTES, Changes, EntryFiles
from tidegate.state.heap import HeapBackend
from tidegate.state.sst_files import Folder

log = logging.getLogger("tidegate")

# Changes of checkpoints that are aborted before they are written stay in memory until the next one writes them: so
# many, then they are written at once.
MOST_UNWRITTEN_CHANGES = 1 << 20


class LoggedState:
    """`noted`: by key group and key what was put since it was last taken, None for what was deleted.

    Nothing is noted while it is None. `noted_bytes`: of all that was, what was overwritten meanwhile included.
    """

    def __init__(self, state: BulkState) -> None:
        self._state = state
        self.noted: dict[int, dict[bytes, bytes | None]] | None = None
        self.noted_bytes = 0
        self.get = state.get
        self.scan = state.scan
        self.get_many = state.get_many
        self.entries_from = state.entries_from

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        self._state.put(key_group, key, value)
        if self.noted is not None:
            self._note(key_group, key, value)

    def delete(self, key_group: int, key: bytes) -> None:
        # What is not there needs no word: many processors clear what they never had.
        if self._state.get(key_group, key) is not None:
            self._state.delete(key_group, key)
            if self.noted is not None:
                self._note(key_group, key, None)

    def put_many(self, key_groups: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._state.put_many(key_groups, keys, values)
        if self.noted is not None:
            for key_group, key, value in zip(key_groups, keys, values, strict=True):
                self._note(key_group, key, value)

    def delete_many(self, key_groups: Sequence[int], keys: Sequence[bytes]) -> None:
        for key_group, key in zip(key_groups, keys, strict=True):
            self.delete(key_group, key)

    def _note(self, key_group: int, key: bytes, value: bytes | None) -> None:
        assert self.noted is not None
        group = self.noted.get(key_group)
        if group is None:
            group = self.noted[key_group] = {}
        group[key] = value
        self.noted_bytes += len(key) if value is None else len(key) + len(value)


class LoggedOrderedState(LoggedState):
    """Over an `OrderedState`, and one itself."""

    def __init__(self, state: BulkState) -> None:
        super().__init__(state)
        assert isinstance(state, OrderedState), "one whose entries have no order would need an index"
        self.keys_from = state.keys_from
        self.last_key_from = state.last_key_from
        self.first_keys = state.first_keys


class LoggedStates:
    """All states of one backend, each opened once."""

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend
        self._states: dict[str, LoggedState] = {}
        self._is_noting = False

    def keyed(self, name: str) -> LoggedState:
        logged = self._states.get(name)
        if logged is None:
            state = self._backend.keyed(name)
            logged = LoggedOrderedState(state) if isinstance(state, OrderedState) else LoggedState(state)
            self._states[name] = logged
            logged.noted = {} if self._is_noting else None
        return logged

    def begin(self) -> None:
        """From now on changes are noted; what was noted before is forgotten."""
        self._is_noting = True
        for state in self._states.values():
            state.noted, state.noted_bytes = {}, 0

    def end(self) -> None:
        self._is_noting = False
        for state in self._states.values():
            state.noted, state.noted_bytes = None, 0

    def take(self) -> Changes:
        """What was noted since the last time."""
        changes: dict[str, Mapping[int, Mapping[bytes, bytes | None]]] = {}
        for name, state in self._states.items():
            if state.noted:
                changes[name], state.noted = state.noted, {}
            state.noted_bytes = 0
        return changes

    def noted_bytes(self) -> int:
        return sum(state.noted_bytes for state in self._states.values())

    def has_noted(self) -> bool:
        return any(state.noted for state in self._states.values())


class IncrementalHeapBackend:
    """`StateBackend` in this process's memory, whose snapshots are files: an image, and what changed since.

    A state of up to `whole_up_to_bytes` is in sections without files instead, as `HeapBackend` gives them; so is any
    once a file could not be written.
    """

    def __init__(self, key_groups: KeyGroupRange, *, folder: Folder, whole_up_to_bytes: int) -> None:
        self._heap = HeapBackend(key_groups, files_in=folder.path.parent)
        self._files = EntryFiles(key_groups, folder)
        self._whole_up_to_bytes = whole_up_to_bytes
        self._states = LoggedStates(self._heap)
        self._has_image = False
        self._is_given_up = False
        self._unwritten_changes = 0

    def keyed(self, name: str) -> LoggedState:
        return self._states.keyed(name)

    def state_names(self) -> list[str]:
        return self._heap.state_names()

    def snapshot(self) -> list[Section]:
        if not self._is_given_up:
            try:
                return self._snapshot()
            except (OSError, DidNotHappen) as error:
                # State in memory must not depend on this machine's disk.
                log.warning("State is stored whole from now on, because files of what changed cannot be: %s", error)
                self._is_given_up = True
        self._store_whole_from_now_on()
        return self._heap.snapshot()

    def _snapshot(self) -> list[Section]:
        changes = self._states.take()
        if self._files.has_failed():
            raise DidNotHappen("one could not be written")
        if not self._has_image or self._is_image_due():
            self._files.clear()
            if self._heap.size_bytes() <= self._whole_up_to_bytes:
                self._store_whole_from_now_on()
                return self._heap.snapshot()
            self._has_image = True
            self._states.begin()
            self._files.image = self._files.new_image(image_parts(self._heap, self._files.key_groups))
        elif changes:
            self._files.append_and_join(changes)
            self._write_backlog(changes)
        return [self._files.section()]

    def _store_whole_from_now_on(self) -> None:
        self._files.clear()
        self._states.end()
        self._has_image = False

    def restore(self, sections: Iterable[RestoredSection]) -> None:
        """Before any state is asked for. Also takes what `HeapBackend` stored."""
        given = list(sections)
        if [(section.name, section.key_groups) for section in given] == [(ENTRIES_SECTION, self._files.key_groups)]:
            self._heap.apply(self._files.adopt(given[0]))
            self._has_image = True
            self._states.begin()
        else:
            self._heap.restore(given)

    def size_bytes(self) -> int:
        return self._heap.size_bytes()

    def close(self) -> None:
        self._heap.close()
        self._files.close()

    def _is_image_due(self) -> bool:
        """Once more was written since than the image has: so for each change at most about as much else is written."""
        return self._files.is_written() and self._files.changes_bytes() > self._files.image_bytes()

    def _write_backlog(self, changes: Changes) -> None:
        if all(file.is_written() for file in self._files.changes[:-1]):
            self._unwritten_changes = 0
        self._unwritten_changes += sum(len(group) for groups in changes.values() for group in groups.values())
        if self._unwritten_changes > MOST_UNWRITTEN_CHANGES:
            for file in self._files.changes[:-1]:
                deque(file.steps(), maxlen=0)
            self._unwritten_changes = 0


def image_parts(heap: HeapBackend, key_groups: KeyGroupRange) -> Iterator[tuple[KeyGroupRange, Changes]]:
    """All entries of this moment, in parts of about a file each, none of which has a key group of another."""
    states = {name: heap.keyed(name) for name in heap.state_names()}
    frozen = {name: state.frozen() for name, state in states.items()}
    own = sorted({key_group for groups in frozen.values() for key_group in groups})
    first, part_bytes = key_groups.first, 0
    part: dict[str, dict[int, Mapping[bytes, bytes | None]]] = {}
    for at, key_group in enumerate(own):
        for name, groups in frozen.items():
            if key_group in groups:
                part.setdefault(name, {})[key_group] = groups[key_group]
                part_bytes += states[name].group_bytes(key_group)
        if part_bytes >= IMAGE_FILE_BYTES or at == len(own) - 1:
            yield KeyGroupRange(first, key_group + 1), part
            first, part_bytes, part = key_group + 1, 0, {}
