"""A store on S3, GCS, Azure or in memory, through obstore. Never used for local files: see `LocalFiles`."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    UnauthenticatedError,
)
from obstore.store import ObjectStore as RemoteStore
from obstore.store import from_url

from tidegate.model.errors import DidNotHappen, MayHaveHappened, OptionError
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.storage.hadoop_settings import AZURE_SCHEMES, for_obstore
from tidegate.storage.store import AlreadyThere, Created, Data, Patience, missing, pieces_of, whole_range

# Below this a list of pieces is joined: one request is cheaper than a multipart upload.
_JOIN_BELOW_BYTES = 5 << 20
# For an answer before anything starts: a service that is there answers within a second.
_SHORT_RETRIES: dict[str, Any] = {"max_retries": 2, "retry_timeout": timedelta(seconds=10)}
# The service's own word for what is wrong; the rest of its answer may show who asked.
_CODE = re.compile(r"<Code>(\w+)</Code>")
# Answers after which the service surely wrote nothing.
_REFUSALS = (PermissionError, FileNotFoundError, InvalidPathError, NotSupportedError, UnauthenticatedError)


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """S3, GCS, Azure or memory, through obstore. What the access does not say, obstore finds in the environment."""

    location: str
    remote: RemoteStore = field(repr=False)

    @classmethod
    def connect(
        cls, location: str, access: StoreAccess = FROM_ENVIRONMENT, *, patience: Patience = Patience.LONG
    ) -> "ObjectStore":
        """Opens it without asking the service anything."""
        _refuse_credentials_in(location)
        said = for_obstore(location, access)
        arguments: dict[str, Any] = {"config": dict(said.config) or None, "client_options": dict(said.client) or None}
        if said.credentials is not None:
            arguments["credential_provider"] = said.credentials
        if patience is Patience.SHORT:
            arguments["retry_config"] = _SHORT_RETRIES
        try:
            return cls(location, from_url(location, **arguments))
        except (BaseError, ValueError) as error:
            raise OptionError(f"Location {location!r} cannot be opened: {_first_line(error)}.") from error

    def read(self, path: str) -> bytes:
        with _reading(self._name(path)):
            return bytes(self.remote.get(path).bytes())

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        if length == 0:
            return b""
        with _reading(self._name(path)):
            # A range that starts behind the end is an error with some services: look at the size first.
            available = max(0, self.remote.head(path)["size"] - start)
            data = bytes(self.remote.get_range(path, start=start, length=min(length, available))) if available else b""
        return whole_range(data, self._name(path), start=start, length=length)

    def create(self, path: str, data: Data) -> Created | AlreadyThere:
        with _writing(self._name(path)):
            try:
                self.remote.put(path, b"".join(pieces_of(data)), mode="create")
            except AlreadyExistsError:
                return AlreadyThere()
        return Created()

    def put(self, path: str, data: Data) -> None:
        pieces = pieces_of(data)
        first = list(_up_to(pieces, _JOIN_BELOW_BYTES))
        with _writing(self._name(path)):
            is_small = sum(map(len, first)) < _JOIN_BELOW_BYTES
            # Of a large one, each piece is asked for when there is room for it.
            self.remote.put(path, b"".join(first) if is_small else chain(first, pieces))

    def list(self, prefix: str = "") -> list[str]:
        with _reading(self._name(prefix)):
            return sorted(found["path"] for page in self.remote.list(prefix or None) for found in page)

    def delete(self, path: str) -> None:
        with _writing(self._name(path)), suppress(FileNotFoundError):
            self.remote.delete(path)

    def delete_many(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        with _writing(self._name(paths[0])):
            try:
                self.remote.delete(paths)
                return
            except (FileNotFoundError, BaseError):
                pass  # one is missing, or the service takes no list: one by one then, which says what is wrong
        for path in paths:
            self.delete(path)

    def size(self, path: str) -> int:
        with _reading(self._name(path)):
            return int(self.remote.head(path)["size"])

    def _name(self, path: str) -> str:
        return f"{self.location.rstrip('/')}/{path}"


def _up_to(pieces: Iterator[memoryview], least_bytes: int) -> Iterator[memoryview]:
    """So many that they have at least that many bytes, or all."""
    while least_bytes > 0 and (piece := next(pieces, None)) is not None:
        least_bytes -= len(piece)
        yield piece


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise missing(name) from None
    except (BaseError, OSError) as error:
        raise DidNotHappen(f"{name} could not be read: {_first_line(error)}.") from error


@contextmanager
def _writing(name: str) -> Iterator[None]:
    try:
        yield
    except _REFUSALS as error:
        raise DidNotHappen(f"{name} was refused: {_first_line(error)}.") from error
    except (BaseError, OSError) as error:
        raise MayHaveHappened(f"{name} may or may not be written: {_first_line(error)}.") from error


def _refuse_credentials_in(location: str) -> None:
    """A location is written into logs and manifests, so it must not carry a secret; Azure's names a container there."""
    if "@" in urlsplit(location).netloc and location.split(":", 1)[0].lower() not in AZURE_SCHEMES:
        raise OptionError(
            "The location has credentials before an @ in its URL: take them out, and set "
            "spark.hadoop.fs.s3a.access.key and spark.hadoop.fs.s3a.secret.key instead."
        )


def _first_line(error: BaseException) -> str:
    # obstore adds a dump of its internals below the first line.
    first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    if (code := _CODE.search(str(error))) is None:
        return first
    return f"{first.split(': <', 1)[0]}, {code[1]}"
