"""Where bytes last: reading, atomic writing and listing below one location.

Owns the outcomes of storage calls: every write either happened, did not, or may have. It never builds a path
(`layout` does), never retries, and never interprets what it stores.
"""

import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from tidegate.model.errors import Damaged, DidNotHappen, MayHaveHappened, Missing, OptionError
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess

Buffer: TypeAlias = bytes | bytearray | memoryview
Data: TypeAlias = Buffer | Iterable[Buffer]

OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
# Of what Hadoop knows, those whose rename is one step: what copies and deletes instead may have two winners.
HADOOP_SCHEMES = ("hdfs", "viewfs", "webhdfs", "swebhdfs", "ofs", "o3fs")
# A folder can vanish between making it and writing into it, because deleting its last file removes it.
_FOLDER_ATTEMPTS = 20
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# What a writer that was killed leaves behind; obstore hides the same names.
_UNFINISHED = re.compile(r".*#\d+")


@dataclass(frozen=True, slots=True)
class Created:
    """The file was not there, and now it is."""


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """The file was there and is unchanged; it may be one's own, from an earlier try that looked failed."""


class ReadableStore(Protocol):
    """Reading what is missing raises `Damaged`; a read that fails otherwise raises `DidNotHappen`."""

    def read(self, path: str) -> bytes: ...
    def read_range(self, path: str, *, start: int, length: int) -> bytes: ...
    def size(self, path: str) -> int: ...


class Store(ReadableStore, Protocol):
    """Paths are relative, with `/`; a file is seen whole or not at all."""

    def create(self, path: str, data: Data) -> Created | AlreadyThere:
        """Of all who try to create one path, exactly one gets `Created`."""
        ...

    def put(self, path: str, data: Data) -> None: ...

    def list(self, prefix: str = "") -> list[str]:
        """All files below the folder `prefix`, sorted; the empty prefix means everything."""
        ...

    def delete(self, path: str) -> None:
        """Deleting what is not there is fine."""
        ...


@runtime_checkable
class DeletesMany(Protocol):
    """A store to which a request is dear, and which takes many files in one."""

    def delete_many(self, paths: Sequence[str]) -> None:
        """What is not there is fine. If one cannot be deleted, others may stay as well."""
        ...


def delete_all(store: Store, paths: Iterable[str]) -> None:
    if isinstance(store, DeletesMany):
        store.delete_many(list(paths))
        return
    for path in paths:
        store.delete(path)


class Patience(Enum):
    """How long a remote store is asked again when it does not answer."""

    LONG = "as a running job, which must survive a short outage"
    SHORT = "as somebody who waits for an answer before anything starts"


def open_store(location: str, access: StoreAccess = FROM_ENVIRONMENT, *, patience: Patience = Patience.LONG) -> Store:
    """The store at a local path, a `file:` URL (the folder is made) or the URL of an object store or of HDFS."""
    folder = local_path(location)
    if folder is not None:
        return LocalFiles(make_folder(folder, what="the storage location"))
    scheme = location.split(":", 1)[0].lower()
    if (mark := next((mark for mark in "?#" if mark in location), None)) is not None:
        raise OptionError(
            f"Location {location!r} has a {mark!r}, behind which a URL is no path any more: choose a name without it."
        )
    if scheme in HADOOP_SCHEMES:
        from tidegate.storage.hadoop_files import HadoopFiles

        return HadoopFiles.connect(location, access)
    if scheme not in OBJECT_SCHEMES:
        known = ", ".join(f"{name}://" for name in (*OBJECT_SCHEMES, *HADOOP_SCHEMES))
        raise OptionError(
            f"Location {location!r} has the unknown scheme {scheme!r}: use a local path, file: or one of {known}."
        )
    from tidegate.storage.object_store import ObjectStore

    return ObjectStore.connect(location, access, patience=patience)


def open_existing(location: str, access: StoreAccess = FROM_ENVIRONMENT) -> Store:
    """The same for readers: nothing is made, and a local folder need not be writable."""
    folder = local_path(location)
    if folder is None:
        return open_store(location, access)
    if not folder.is_dir():
        raise OptionError(
            f"There is no folder {str(folder)!r}: name a checkpointLocation, a checkpoint or a savepoint."
        )
    return LocalFiles(folder)


def open_place(location: str, access: StoreAccess = FROM_ENVIRONMENT) -> Store:
    """The same where a log or an option names it: nothing is made or looked at before the first read or write."""
    folder = local_path(location)
    return open_store(location, access) if folder is None else LocalFiles(folder)


def open_shared(location: str, access: StoreAccess = FROM_ENVIRONMENT) -> Store:
    """The same for slots: what the driver has made must be there on their machine too."""
    folder = local_path(location)
    if folder is not None and not folder.is_dir():
        raise DidNotHappen(
            f"The folder {str(folder)!r} of checkpoints is not there on the machine {socket.gethostname()!r}: choose a "
            f"checkpointLocation that the driver and all executors share."
        )
    return open_place(location, access)


def local_path(location: str) -> Path | None:
    """The local path that a location names, or None if it names something remote."""
    if location.startswith("file:"):
        # As in Hadoop's paths, nothing is escaped: a percent sign is a percent sign.
        path = location.removeprefix("file:")
        if path.startswith("//") and not path.startswith("///"):
            raise OptionError(f"Location {location!r} names a host: write file:/// and the path, or the path alone.")
        return Path(os.path.abspath("/" + path.lstrip("/") if path.startswith("/") else path))
    if _SCHEME.match(location):
        return None
    return Path(os.path.abspath(location))


def make_folder(folder: Path, *, what: str) -> Path:
    """Makes the folder and checks that it can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OptionError(f"{folder} is a file, but {what} must be a folder: name another path.") from None
    except OSError as error:
        raise OptionError(f"The folder {folder} for {what} cannot be made ({error}): name another path.") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise OptionError(f"The folder {folder} for {what} cannot be written to: change its permissions or the path.")
    return folder


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder. A file appears by link or rename once it is synced: neither a kill nor a power cut shows half of one.

    Not obstore's local store, because that one never syncs: a log entry could vanish after a commit relied on it.
    """

    root: Path

    def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            raise missing(str(self.root / path)) from None
        except OSError as error:
            raise DidNotHappen(f"{self.root / path} could not be read: {error}.") from error

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        try:
            with open(self.root / path, "rb") as file:
                file.seek(start)
                data = file.read(length)
        except FileNotFoundError:
            raise missing(str(self.root / path)) from None
        except OSError as error:
            raise DidNotHappen(f"{self.root / path} could not be read: {error}.") from error
        return whole_range(data, str(self.root / path), start=start, length=length)

    def create(self, path: str, data: Data) -> Created | AlreadyThere:
        return self._publish(path, data, mode="create")

    def put(self, path: str, data: Data) -> None:
        self._publish(path, data, mode="overwrite")

    def list(self, prefix: str = "") -> list[str]:
        return sorted(
            Path(folder, name).relative_to(self.root).as_posix()
            for folder, _, names in os.walk(self.root / prefix, onerror=_unless_gone)
            for name in names
            if not _UNFINISHED.fullmatch(name)
        )

    def delete(self, path: str) -> None:
        target = self.root / path
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            raise DidNotHappen(f"{target} could not be deleted: {error}.") from error
        for folder in target.parents:
            if folder == self.root:
                return
            try:
                folder.rmdir()
            except OSError:  # Not empty, or gone already: either way there is nothing left to tidy.
                return

    def size(self, path: str) -> int:
        try:
            return (self.root / path).stat().st_size
        except FileNotFoundError:
            raise missing(str(self.root / path)) from None
        except OSError as error:
            raise DidNotHappen(f"{self.root / path} could not be read: {error}.") from error

    def _publish(self, path: str, data: Data, *, mode: Literal["create", "overwrite"]) -> Created | AlreadyThere:
        target = self.root / path
        unfinished = target.with_name(f"{target.name}#{secrets.randbits(63)}")
        try:
            self._write_synced(unfinished, data)
            if mode == "create":
                os.link(unfinished, target)
            else:
                os.replace(unfinished, target)
        except FileExistsError:
            return AlreadyThere()
        except OSError as error:
            raise DidNotHappen(f"{target} could not be written: {error}.") from error
        finally:
            with suppress(FileNotFoundError):
                unfinished.unlink()
        try:
            sync_folder(target.parent)
        except OSError as error:
            raise MayHaveHappened(f"{target} was written, but may not survive a power cut: {error}.") from error
        return Created()

    def _write_synced(self, target: Path, data: Data) -> None:
        descriptor = self._open_new(target)
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces_of(data):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    def _open_new(self, target: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(_FOLDER_ATTEMPTS):
            with suppress(FileNotFoundError):
                return os.open(target, flags, 0o666)
            with suppress(FileNotFoundError):
                self._make_folders(target.parent)
        return os.open(target, flags, 0o666)

    def _make_folders(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def pieces_of(data: Data) -> Iterator[memoryview]:
    for piece in (data,) if isinstance(data, bytes | bytearray | memoryview) else data:
        yield memoryview(piece).cast("B")


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise DidNotHappen(f"{error.filename} could not be listed: {error}.") from error


def missing(name: str) -> Missing:
    return Missing(f"{name} is missing: restore it from a backup, or start from another checkpoint.")


def whole_range(data: bytes, name: str, *, start: int, length: int) -> bytes:
    if len(data) != length:
        raise Damaged(
            f"{name} is too short: bytes {start} to {start + length} were asked for, {len(data)} of them are there."
        )
    return data
