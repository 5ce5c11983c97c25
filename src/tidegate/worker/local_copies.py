"""Copies of a slot's checkpoint files on the executor's own disk, for the next restore on this machine.

A copy is never the truth: whoever reads one compares length and checksum with the manifest, and without it the store
has the file. So nothing here is synced, renamed or retried, and a disk that is full ends the copying, never a
checkpoint. Bounded by what the newest completed checkpoint needs, and what is being stored meanwhile.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path

from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.storage import layout
from tidegate.storage.store import Buffer, local_path

log = logging.getLogger("tidegate")

_FOLDER = "tidegate-copies-"


class LocalRecovery(Enum):
    OFF = "off"
    WHERE_IT_HELPS = "where_it_helps"  # not where the checkpoints are on the same disk already
    ALWAYS = "always"


def open_local_copies(
    recovery: LocalRecovery, location: str, *, folder: Path, slot: SlotIndex, slots: int, least_bytes: int
) -> "LocalCopies | None":
    """`folder`: the executor's own. `least_bytes`: smaller files are read from the store as quickly."""
    match recovery:
        case LocalRecovery.OFF:
            return None
        case LocalRecovery.WHERE_IT_HELPS if _is_on_same_disk(location, folder):
            return None
    name = _FOLDER + hashlib.sha256(location.encode()).hexdigest()[:16]
    return LocalCopies(folder / name, slot=slot, slots=slots, least_bytes=least_bytes)


def _is_on_same_disk(location: str, folder: Path) -> bool:
    store = local_path(location)
    try:
        return store is not None and os.stat(store).st_dev == os.stat(folder).st_dev
    except OSError:
        return False


class LocalCopies:
    """Those of one slot; the job's other slots on this machine have theirs beside it. One thread at a time writes."""

    def __init__(self, of_job: Path, *, slot: SlotIndex, slots: int, least_bytes: int) -> None:
        self._of_job = of_job
        self._own = of_job / str(slot)
        self._slots = slots
        self._least_bytes = least_bytes
        self._needed: dict[CheckpointId, frozenset[str]] = {}
        self._is_given_up = False

    # -- beside the loop, where files are stored

    def keep(self, path: str, pieces: Iterable[Buffer], *, length_bytes: int) -> None:
        """What was just stored under this path."""
        if length_bytes < self._least_bytes or self._is_given_up:
            return
        target = self._own / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "wb") as file:
                for piece in pieces:
                    file.write(piece)
        except OSError as error:
            self._give_up(error)

    def link(self, path: str, file: Path) -> None:
        """The same for a file on this disk that never changes: it costs nothing."""
        target = self._own / path
        if self._is_given_up or target.exists():
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
        except OSError as error:
            self._give_up(error)

    def adopt(self, path: str) -> None:
        """A file that another slot has stored, and this one refers to: its copy is kept, if it is on this machine."""
        for copy in self.find(path):
            if copy.is_relative_to(self._own):
                return
            with suppress(OSError):  # Gone since: the store has it.
                target = self._own / path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(copy, target)
                return

    def prune(self, checkpoint: CheckpointId, needed: Collection[str]) -> None:
        """Removes what neither this completed checkpoint nor a later one needs, and what slots of old left."""
        for path in [path for path in self._own.rglob("*") if path.is_file()]:
            name = path.relative_to(self._own).as_posix()
            if name not in needed and _writer_of(name) <= checkpoint:
                path.unlink(missing_ok=True)
        for folder in sorted((path for path in self._own.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):  # Not empty.
                folder.rmdir()
        for other in self._of_job.glob("*"):
            if other.name.isdecimal() and int(other.name) >= self._slots:
                shutil.rmtree(other, ignore_errors=True)

    # -- the loop

    def on_acknowledged(self, checkpoint: CheckpointId, needed: frozenset[str]) -> None:
        self._needed[checkpoint] = needed

    def on_done(self, checkpoint: CheckpointId) -> frozenset[str]:
        """What it needs; the rest may be pruned."""
        needed = self._needed.get(checkpoint, frozenset())
        self._needed = {later: paths for later, paths in self._needed.items() if later > checkpoint}
        return needed

    def on_abort(self, checkpoint: CheckpointId) -> None:
        self._needed.pop(checkpoint, None)

    # -- at a restore, and at the end

    def find(self, path: str) -> list[Path]:
        """Copies of a file of the job on this machine, whoever made them; the own one first."""
        others = sorted(self._of_job.glob(f"*/{path}"))
        return sorted(others, key=lambda found: not found.is_relative_to(self._own))

    def discard(self) -> None:
        """The job is over: also what slots have left here that went elsewhere."""
        shutil.rmtree(self._of_job, ignore_errors=True)

    def _give_up(self, error: OSError) -> None:
        self._is_given_up = True
        shutil.rmtree(self._own, ignore_errors=True)
        log.warning("Checkpoints are not kept on this machine any more (state.localRecovery): %s.", error)


def _writer_of(path: str) -> CheckpointId:
    folder = layout.parse_checkpoint(path) or layout.parse_shared_file(path)
    return CheckpointId(0) if folder is None else folder.checkpoint
