"""A slot's part of one checkpoint on its way into the store, beside the loop: which files it becomes, and their sums.

It runs in a background thread and touches nothing that the loop owns: what it takes was encoded before, what it gives
is read when it has ended.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import overload

from tidegate.model.clock import Clock
from tidegate.model.ids import SlotIndex
from tidegate.protocol.kinds import CheckpointStorage
from tidegate.state.contract import Section
from tidegate.state.sst_files import Chunks
from tidegate.storage import layout
from tidegate.storage.manifests import MOST_CONTENT_BYTES, SharedFile, check_content
from tidegate.storage.state_file import FileSum, SectionKey, StateFileWriter, sum_of
from tidegate.storage.store import Buffer, Store
from tidegate.worker.channel_state import EncodedCaptures
from tidegate.worker.local_copies import LocalCopies
from tidegate.worker.state_files import CheckpointFiles


@dataclass(slots=True)
class UploadTimes:
    """Written by the thread that uploads, looked at by the loop."""

    began_at_ms: float | None = None
    sink_ms: float = 0.0
    storing_ms: float = 0.0
    stored_bytes: int = 0
    is_storing: bool = False


@dataclass(frozen=True, slots=True)
class Uploaded:
    """`captured`: the shared files of captured data, by which elements number them; `state_files` by their names.

    `content`: the state file, where it is stored with the manifest.
    """

    path: str
    file: FileSum
    content: bytes | None
    captured: list[SharedFile]
    state_files: dict[str, SharedFile]
    stored_bytes: int
    storing_ms: float
    ended_at_ms: float


@dataclass(slots=True, kw_only=True)
class Upload:
    """`with_files`: sections with files, whose content is known once somebody has waited for it.

    A state file below `in_manifest_below_bytes` goes into the manifest, which is written anyway: each file more costs
    its calls to the store. `raise_if_dropped` ends it in its midst when nobody waits for it any more.
    """

    folder: layout.CheckpointFolder
    slot: SlotIndex
    path: str
    storage: CheckpointStorage
    open_store: Callable[[], Store]
    writer: StateFileWriter
    captures: EncodedCaptures
    with_files: Items[tuple[SectionKey, Section]]
    known_files: Mapping[str, SharedFile]
    kept_files: Mapping[str, SharedFile]
    inline_below_bytes: int
    in_manifest_below_bytes: int
    copies: LocalCopies | None
    clock: Clock
    times: UploadTimes
    raise_if_dropped: Callable[[], None]
    _stored_bytes: int = field(default=0, init=False)

    def run(self) -> Uploaded:
        files = self._gathered_files()
        store = self.open_store()
        storing_since_ms = self.clock.monotonic_ms()
        captured = self._store_captures(store)
        state_files = self._store_state_files(store, files)
        file, content = self._store_state(store)
        if self.copies is not None:
            for reused in self.captures.reused:
                self.copies.adopt(reused.path)
            for stored_path, here in files.here.items():
                self.copies.link(stored_path, here.path)
        now_ms = self.clock.monotonic_ms()
        times = self.times
        times.storing_ms, times.stored_bytes = now_ms - storing_since_ms, self._stored_bytes
        return Uploaded(
            path=self.path,
            file=file,
            content=content,
            captured=captured,
            state_files=state_files,
            stored_bytes=times.stored_bytes,
            storing_ms=times.storing_ms,
            ended_at_ms=now_ms,
        )

    def _gathered_files(self) -> CheckpointFiles:
        is_all_in_manifest = self.storage is CheckpointStorage.DRIVER
        inline_bytes = MOST_CONTENT_BYTES if is_all_in_manifest else self.inline_below_bytes
        files = CheckpointFiles(self.folder, self.slot, self.known_files, inline_bytes)
        for key, section in self.with_files:
            assert section.files is not None
            self.writer.add(key, files.add(section, section.files()))
        if is_all_in_manifest:
            # What did not fit counts, too: it would have to be in a file of its own.
            check_content(sum(new.file.length_bytes for new in files.new.values()) + inline_bytes - files.inline_bytes)
        return files

    def _store_captures(self, store: Store) -> list[SharedFile]:
        captured = list(self.captures.reused)
        pieces = self.captures.new_pieces
        if pieces:
            path, sums = layout.channel_file(self.folder, self.slot), sum_of(pieces)
            self._put(store, path, pieces, sums)
            captured.append(SharedFile(path, sums.length_bytes, sums.crc32))
            if self.copies is not None:
                self.copies.keep(path, pieces, length_bytes=sums.length_bytes)
        return captured

    def _store_state_files(self, store: Store, files: CheckpointFiles) -> dict[str, SharedFile]:
        stored = {**self.kept_files, **files.reused}
        for name, new in files.new.items():
            chunks = _Wanted(Chunks(new.file), self.raise_if_dropped)
            sums = sum_of(chunks)
            self._put(store, new.path, chunks, sums)
            stored[name] = SharedFile(new.path, sums.length_bytes, sums.crc32)
        return stored

    def _store_state(self, store: Store) -> tuple[FileSum, bytes | None]:
        pieces = self.writer.finish()
        sums = sum_of(pieces)
        if self.storage is CheckpointStorage.DRIVER:
            check_content(sums.length_bytes)
            self._stored_bytes += sums.length_bytes
        elif sums.length_bytes >= self.in_manifest_below_bytes:
            self._put(store, self.path, pieces, sums)
            if self.copies is not None:
                self.copies.keep(self.path, pieces, length_bytes=sums.length_bytes)
            return sums, None
        return sums, b"".join(pieces)

    def _put(self, store: Store, path: str, pieces: Items[Buffer], sums: FileSum) -> None:
        store.put(path, _Wanted(pieces, self.raise_if_dropped))
        self._stored_bytes += sums.length_bytes


class _Wanted(Items[Buffer]):
    """The pieces of a file for as long as anybody waits for it: an upload ends in its midst when nobody does."""

    def __init__(self, pieces: Items[Buffer], raise_if_dropped: Callable[[], None]) -> None:
        self._pieces = pieces
        self._raise_if_dropped = raise_if_dropped

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Items[Buffer]: ...
    def __getitem__(self, index: int | slice) -> Buffer | Items[Buffer]:
        self._raise_if_dropped()
        return self._pieces[index]

    def __len__(self) -> int:
        return len(self._pieces)
