"""Reads the files of one checkpoint from the copies on this machine where they are intact, else from the store.

Counts what comes from where. It never writes to the store, and never trusts a copy whose length and checksum are not
those in the manifest.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path

from tidegate.storage.manifests import Manifest
from tidegate.storage.state_file import FileSum
from tidegate.storage.store import ReadableStore
from tidegate.worker.local_copies import LocalCopies

_CHUNK_BYTES = 4 << 20


@dataclass(slots=True)
class ReadBytes:
    """`damaged_copies`: they were removed, and the store was read instead."""

    locally: int = 0
    remotely: int = 0
    damaged_copies: int = 0


class LocalFirst:
    def __init__(self, store: ReadableStore, manifest: Manifest, copies: LocalCopies | None, reads: ReadBytes) -> None:
        self._store = store
        self._copies = copies
        self._reads = reads
        self._sums = {file.path: FileSum(file.length_bytes, file.crc32) for file in manifest.slots}
        for slot in manifest.slots:
            self._sums.update({file.path: FileSum(file.length, file.crc32) for file in slot.shared})
        self._copy_of: dict[str, Path | None] = {}

    def read(self, path: str) -> bytes:
        expected = self._sums.get(path)
        copied = None if expected is None else self._from_copy(path, start=0, length=expected.length_bytes)
        return self._remotely(self._store.read(path)) if copied is None else copied

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        copied = self._from_copy(path, start=start, length=length)
        if copied is not None:
            return copied
        return self._remotely(self._store.read_range(path, start=start, length=length))

    def size(self, path: str) -> int:
        return self._store.size(path) if self._copy(path) is None else self._sums[path].length_bytes

    def _from_copy(self, path: str, *, start: int, length: int) -> bytes | None:
        """None if there is none, also if it has gone or become shorter since it was found intact."""
        copy = self._copy(path)
        if copy is None:
            return None
        try:
            with open(copy, "rb") as file:
                file.seek(start)
                data = file.read(length)
        except OSError:
            data = b""
        if len(data) != length:
            self._copy_of[path] = None
            self._reads.damaged_copies += 1
            return None
        self._reads.locally += len(data)
        return data

    def _remotely(self, data: bytes) -> bytes:
        self._reads.remotely += len(data)
        return data

    def _copy(self, path: str) -> Path | None:
        if path not in self._copy_of:
            self._copy_of[path] = self._intact_copy(path)
        return self._copy_of[path]

    def _intact_copy(self, path: str) -> Path | None:
        expected = self._sums.get(path)
        if self._copies is None or expected is None:
            return None
        for copy in self._copies.find(path):
            try:
                if _sum_of(copy) == expected:
                    return copy
                copy.unlink(missing_ok=True)
            except OSError:
                # Another slot has just found it damaged, or the disk cannot be read: the store can.
                pass
            self._reads.damaged_copies += 1
        return None


def _sum_of(file: Path) -> FileSum:
    length_bytes = crc32 = 0
    with open(file, "rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            length_bytes += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
    return FileSum(length_bytes, crc32)
