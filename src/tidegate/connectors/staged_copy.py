"""What Spark has ingested for a query and its slots have not read, as a part of a savepoint: and back in another place.

A copy consists of Spark's own checkpoint, the markers and files of the batches that are not read whole, and the note of
where they come from. Spark may go on meanwhile: what is copied later holds at least what is copied earlier speaks of.
Must never change the folder that it copies.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import msgspec

from tidegate.connectors.range_source import RangeProgress, merged_states
from tidegate.connectors.staged_source import Origin, StagedOffset, StagingFolder, offset_from
from tidegate.model.errors import DidNotHappen
from tidegate.storage.store import Buffer, sync_folder

# Spark and the slots remove what is old while it is copied: then everything is looked for once more.
_MOST_TRIES = 5
# In this order Spark writes them: a batch is done, and was begun, and its source has told of it.
_SPARK_FOLDERS = ("commits", "offsets", "sources", "state")


@dataclass(frozen=True, slots=True)
class Unread:
    """By the readers' states: what they were last given, None before the first batch; and the first batch that is not
    read whole."""

    given: tuple[StagedOffset, ...]
    first_batch: int


def unread_by(reader_states: Sequence[bytes]) -> Unread:
    ranges = merged_states(reader_states).ranges
    given = tuple(offset_from(progress.range.end) for progress in ranges)
    not_whole = [offset.batch for progress, offset in zip(ranges, given, strict=True) if not _is_read(progress)]
    return Unread(given, min([*not_whole, given[-1].batch + 1] if given else [0]))


def _is_read(progress: RangeProgress) -> bool:
    rows = progress.next_rows
    return len(rows) == len(progress.range.partitions) and all(row is None for row in rows.values())


# -- from a folder


@dataclass(frozen=True, slots=True)
class FoundFile:
    """`path`: below the staging folder. `open` raises `FileNotFoundError` if it has gone since."""

    path: str
    open: Callable[[], BinaryIO]


def files_to_copy(folder: StagingFolder, *, first_batch: int) -> Iterator[FoundFile]:
    """Nothing if Spark was never asked for a batch."""
    if not folder.is_prepared():
        return

    def found(path: Path) -> FoundFile:
        return FoundFile(path.relative_to(folder.path).as_posix(), lambda: open(path, "rb"))

    for name in _SPARK_FOLDERS:
        yield from map(found, _files_below(folder.spark_checkpoint / name))
    batches = folder.batches()
    for batch in batches:
        if batch >= first_batch:
            yield from (found(folder.path / part.path) for part in folder.batch(batch).parts)
        # The newest one's marker in any case: Spark may ask for that batch once more.
        if batch >= first_batch or batch == batches[-1]:
            yield found(folder.marker(batch))
    origins = [*folder.origins(), *(Origin(folder.id(), newest) for newest in batches[-1:])]
    yield FoundFile(folder.origins_path.name, lambda: BytesIO(msgspec.json.encode(origins)))


def _files_below(folder: Path) -> list[Path]:
    """Names that begin with a dot are Hadoop's own sums and unfinished files."""
    found = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names if name[0] != "."]
    return sorted(found)


def tries() -> Iterator[int]:
    """For who copies: again if something went meanwhile; `DidNotHappen` in the end."""
    yield from range(_MOST_TRIES)
    raise DidNotHappen("What Spark has staged changed all the time while it was copied: take the savepoint once more.")


# -- into a folder


def is_free(folder: StagingFolder) -> bool:
    """Nothing was ever staged there."""
    return not folder.is_prepared() or (not folder.batches() and not folder.spark_checkpoint.exists())


def lay_out(folder: StagingFolder, files: Iterable[tuple[str, Iterable[Buffer]]]) -> None:
    """Each by its path and its content; all or nothing, where `is_free`.

    It is another place from then on: what Spark stages next is only there.
    """
    draft = folder.path.with_name(f".{folder.path.name}-{uuid.uuid4().hex[:8]}")
    try:
        for path, pieces in files:
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            _write(draft / path, pieces)
        spark = draft / folder.spark_checkpoint.relative_to(folder.path)
        spark.mkdir(parents=True, exist_ok=True)
        # Another query to Spark: of two that run under one id in a session it stops the older one.
        _write(spark / "metadata", [msgspec.json.encode({"id": str(uuid.uuid4())})])
        StagingFolder(draft).prepare()
        if folder.path.exists():
            shutil.rmtree(folder.path)
        os.rename(draft, folder.path)
        sync_folder(folder.path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(path: Path, pieces: Iterable[Buffer]) -> None:
    with open(path, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
