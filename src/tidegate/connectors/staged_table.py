"""Complete mode for a function on the driver: which files are the whole result table at an epoch.

A task gives its groups anew in every epoch until its input has ended, so that the table is the newest files of each
task. Owns the file that says so, written before the function is called: an id that is called again after a crash
gets the same files. Must never put files of two generations together, whose tasks may divide the groups otherwise.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tidegate.model.errors import Damaged
from tidegate.model.ids import CheckpointId
from tidegate.storage.decoding import from_json
from tidegate.storage.store import sync_folder

_NAME = "table.json"


class TaskFile(msgspec.Struct, frozen=True):
    """`checkpoint`: for which it was prepared, which may have failed."""

    name: str
    task: str
    generation: int
    checkpoint: CheckpointId


class _Table(msgspec.Struct, frozen=True):
    checkpoint: CheckpointId
    files: list[TaskFile]


class ResultTable:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def files(self) -> list[str]:
        """Of the newest epoch; they must not be removed."""
        return [file.name for file in self._read().files]

    def at(self, checkpoint: CheckpointId, given: Sequence[TaskFile]) -> list[str]:
        """The files of the table at this epoch, given the new ones; durable when this returns."""
        known = self._read()
        if known.checkpoint != checkpoint:
            known = _Table(checkpoint, _newest_of_each_task([*known.files, *given]))
            self._write(known)
        names = sorted(file.name for file in known.files)
        for name in names:
            if not (self._folder / name).is_file():
                raise Damaged(f"The staged file {self._folder / name} of the result table is missing: restore it.")
        return names

    def _read(self) -> _Table:
        path = self._folder / _NAME
        try:
            return from_json(path.read_bytes(), _Table)
        except FileNotFoundError:
            return _Table(CheckpointId(0), [])
        except msgspec.DecodeError as error:
            raise Damaged(
                f"{path} cannot be read ({error}), so the rows of the result table are not known: "
                f"restore it from a backup, or start with a new checkpointLocation."
            ) from error

    def _write(self, table: _Table) -> None:
        path, unfinished = self._folder / _NAME, self._folder / f".{_NAME}"
        with open(unfinished, "wb") as file:
            file.write(msgspec.json.encode(table))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(self._folder)


def _newest_of_each_task(files: Iterable[TaskFile]) -> list[TaskFile]:
    files = list(files)
    generation = max((file.generation for file in files), default=0)
    newest: dict[str, CheckpointId] = {}
    own = [file for file in files if file.generation == generation]
    for file in own:
        newest[file.task] = max(newest.get(file.task, file.checkpoint), file.checkpoint)
    return [file for file in own if file.checkpoint == newest[file.task]]
