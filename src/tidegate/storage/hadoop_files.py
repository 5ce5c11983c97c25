"""A store on HDFS, or on another file system of Hadoop whose rename is one step, through pyarrow and libhdfs.

Owns how a file is created exactly once there. Arrow's `move` cannot do it with files: where Hadoop refuses to rename
one onto another, Arrow deletes the other and tries again. A folder it leaves alone. So what is created is a folder with
one file in it, written under another name and then renamed; of two, the second ends inside the first, or fails.
Must never take a rename for won without seeing its own file under the final name.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pyarrow import ArrowException
from pyarrow.fs import FileSelector, FileType

from tidegate.model.errors import DidNotHappen, EnvironmentProblem, MayHaveHappened
from tidegate.storage import layout
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.storage.store import AlreadyThere, Created, Data, missing, pieces_of, whole_range

# The only file in the folder that stands for a created one.
_CONTENT = "#content-"
# What a writer that was killed leaves behind, as in `LocalFiles`; here it may be a folder.
_UNFINISHED = re.compile(r"(?:.*/)?[^/]*#\d+(?:/.*)?")
# A folder may vanish while it is listed, because its files are deleted.
_LIST_ATTEMPTS = 5
_FAILURES = (OSError, ArrowException)


@dataclass(frozen=True, slots=True)
class HadoopFiles:
    location: str
    files: Any = field(repr=False)
    """A `pyarrow.fs.FileSystem` in which renaming a folder is one step and replaces nothing."""
    root: str

    @classmethod
    def connect(cls, location: str, access: StoreAccess = FROM_ENVIRONMENT) -> "HadoopFiles":
        parts = urlsplit(location)
        extra = {name: value for name, value in access.settings.items() if name.startswith("dfs.")}
        # Not `hostname`, which is in lower case: names of clusters are not.
        name = parts.netloc.rpartition("@")[2].partition(":")[0]
        host = f"{parts.scheme}://{name}" if name else "default"
        try:
            from pyarrow.fs import HadoopFileSystem

            files = HadoopFileSystem(host, parts.port or 0, user=parts.username, extra_conf=extra)
        except (ImportError, *_FAILURES) as error:
            raise EnvironmentProblem(
                f"Location {location!r} needs Hadoop's native client, which does not work here "
                f"({_first_line(error)}): set HADOOP_HOME, JAVA_HOME and CLASSPATH=$(hadoop classpath --glob) for the "
                f"driver and the executors, or choose another location."
            ) from error
        return cls(location, files, parts.path.rstrip("/"))

    def read(self, path: str) -> bytes:
        with self._opened(path) as file:
            return bytes(file.readall())

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        with self._opened(path) as file:
            # A range that starts behind the end is an error with libhdfs.
            available = max(0, file.size() - start)
            data = bytes(file.read_at(min(length, available), start)) if available else b""
        return whole_range(data, self._name(path), start=start, length=length)

    def create(self, path: str, data: Data) -> Created | AlreadyThere:
        final, number = self._full(path), secrets.randbits(63)
        unfinished, content = f"{final}#{number}", f"{_CONTENT}{number}"
        self._write(path, f"{unfinished}/{content}", data)
        with suppress(*_FAILURES):  # what became of it is looked at, whatever is said
            self.files.move(unfinished, final)
        with self._leaving_open(path):
            if self._is_file(f"{final}/{content}"):
                return Created()
            is_there = self.files.get_file_info(final).type != FileType.NotFound
        for left in (unfinished, f"{final}/{unfinished.rsplit('/', 1)[-1]}"):
            with suppress(*_FAILURES):  # hidden from everybody, and goes with the file
                self.files.delete_dir(left)
        if is_there:
            return AlreadyThere()
        raise MayHaveHappened(f"{self._name(path)} may or may not be written: nothing is known of its rename.")

    def put(self, path: str, data: Data) -> None:
        final = self._full(path)
        unfinished = f"{final}#{secrets.randbits(63)}"
        self._write(path, unfinished, data)
        with self._leaving_open(path):
            self.files.move(unfinished, self._content_in(final) or final)

    def list(self, prefix: str = "") -> list[str]:
        with self._reading(prefix):
            found = self._files_below(self._full(prefix))
        root = f"{self.root}/".lstrip("/")
        below = (name.lstrip("/").removeprefix(root) for name in found)
        return sorted(self._shown(name) for name in below if _UNFINISHED.fullmatch(name) is None)

    def delete(self, path: str) -> None:
        final = self._full(path)
        with self._leaving_open(path), suppress(FileNotFoundError):
            if self._content_in(final) is not None:
                self.files.delete_dir(final)
            elif self._is_file(final):
                self.files.delete_file(final)
        if layout.parse_checkpoint(path) is not None:
            self._remove_if_empty(final.rpartition("/")[0])

    def _remove_if_empty(self, folder: str) -> None:
        """Of a checkpoint that goes: every later listing would ask the name node for it, for as long as the job runs.

        Only an upload that nobody waits for any more could still write there.
        """
        with suppress(*_FAILURES):
            if not self.files.get_file_info(FileSelector(folder)):
                self.files.delete_dir(folder)

    def size(self, path: str) -> int:
        with self._opened(path) as file:
            return int(file.size())

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}".rstrip("/") or "/"

    def _name(self, path: str) -> str:
        return f"{self.location.rstrip('/')}/{path}"

    def _shown(self, name: str) -> str:
        folder, _, last = name.rpartition("/")
        return folder if last.startswith(_CONTENT) else name

    def _is_file(self, full: str) -> bool:
        return bool(self.files.get_file_info(full).type == FileType.File)

    def _content_in(self, full: str) -> str | None:
        """The file in the folder that stands for a created one; None if `full` is no such folder."""
        if self.files.get_file_info(full).type != FileType.Directory:
            return None
        found = (f"{full}/{info.base_name}" for info in self.files.get_file_info(FileSelector(full)))
        return next((path for path in found if path.rsplit("/", 1)[-1].startswith(_CONTENT)), None)

    def _files_below(self, full: str) -> Sequence[str]:
        """Asks with an error for what is not there: without, libhdfs calls a name node that is away an empty folder."""
        for _ in range(_LIST_ATTEMPTS):
            try:
                found = self.files.get_file_info(FileSelector(full, recursive=True))
            except FileNotFoundError:
                if self.files.get_file_info(full).type == FileType.NotFound:
                    return []
                continue
            return [info.path for info in found if info.type == FileType.File]
        raise OSError(f"{full} changes too fast to be listed")

    def _write(self, path: str, unfinished: str, data: Data) -> None:
        try:
            self.files.create_dir(unfinished.rsplit("/", 1)[0] or "/", recursive=True)
            with self.files.open_output_stream(unfinished) as file:
                for piece in pieces_of(data):
                    file.write(piece)
        except Exception as error:
            with suppress(*_FAILURES):  # nobody lists it, so nobody else would ever remove it
                self.files.delete_file(unfinished)
            if isinstance(error, _FAILURES):
                raise DidNotHappen(f"{self._name(path)} could not be written: {_first_line(error)}.") from error
            raise

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        full = self._full(path)
        with self._reading(path), self.files.open_input_file(self._content_in(full) or full) as file:
            yield file

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise missing(self._name(path)) from None
        except _FAILURES as error:
            raise DidNotHappen(f"{self._name(path)} could not be read: {_first_line(error)}.") from error

    @contextmanager
    def _leaving_open(self, path: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            raise MayHaveHappened(f"{self._name(path)} may or may not be changed: {_first_line(error)}.") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
