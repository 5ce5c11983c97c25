"""The truth about a job: which generation runs, which checkpoints exist, what is committed.

Owns the entries and the race for the next number. Everything else about a job's past is derived from the entries
by the pure functions below; the log never decides what to restore or commit.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from tidegate.model.errors import Damaged, DidNotHappen, MayHaveHappened, ProtocolViolation, Superseded
from tidegate.model.ids import CheckpointId, Generation
from tidegate.storage import layout
from tidegate.storage.manifests import seal, unseal
from tidegate.storage.store import AlreadyThere, Created, Store

# A create whose outcome is unknown is settled by creating again: this often, without waiting, then the caller is told.
_SETTLE_ATTEMPTS = 3


class GenerationStarted(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    generation: Generation
    driver: str
    parallelism: int
    at_ms: int


class CheckpointCompleted(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """`location`: where a savepoint lies; the manifest's path is relative to it, or to the job's own location."""

    checkpoint: CheckpointId
    generation: Generation
    manifest: str
    location: str | None = None
    completed_at_ms: int = 0
    is_savepoint: bool = False
    # A damaged manifest cannot tell any more whether something of it may have been committed.
    has_committables: bool = True


class Committed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    checkpoint: CheckpointId


class CheckpointRetired(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Written before its files are deleted, so that nobody chooses it while they go."""

    checkpoint: CheckpointId


class CheckpointSkipped(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """It could not be used and its epoch is replayed: it must not be restored or committed if its files come back."""

    checkpoint: CheckpointId


Entry: TypeAlias = GenerationStarted | CheckpointCompleted | Committed | CheckpointRetired | CheckpointSkipped


class _Record(msgspec.Struct, frozen=True):
    driver: str
    entry: Entry


class JobLog:
    """The log as one driver sees it. `driver` is a token that no other driver process ever uses."""

    def __init__(self, store: Store, *, driver: str) -> None:
        self._store = store
        self._driver = driver
        self._records: list[_Record] = []

    def read(self) -> list[Entry]:
        numbers = [layout.parse_log_entry(path) for path in self._store.list(layout.LOG)]
        found = sorted(number for number in numbers if number is not None)
        for expected, number in enumerate(found):
            if number != expected:
                raise Damaged(
                    f"The job log lacks {layout.log_entry(expected)} although {layout.log_entry(number)} is there: "
                    f"restore the missing entry from a backup, or start with a new checkpointLocation."
                )
        for number in found[len(self._records) :]:
            self._records.append(self._load(number))
        return [record.entry for record in self._records]

    def entries(self) -> list[Entry]:
        """What was read or written so far, without looking again."""
        return [record.entry for record in self._records]

    def start_generation(self, *, parallelism: int, at_ms: int) -> Generation:
        """Takes the job over. Whoever starts last owns it; a driver that had started before and lost it stops."""
        while True:
            entry = GenerationStarted(
                generation=next_generation(self.read()), driver=self._driver, parallelism=parallelism, at_ms=at_ms
            )
            self._stop_if_superseded()
            if self._try_append(entry):
                return entry.generation

    def check_is_ours(self) -> None:
        """Raises `Superseded` if another driver has taken the job over, as far as was read."""
        self._stop_if_superseded()

    def append(self, entry: Entry) -> None:
        """Adds the entry, or raises `Superseded` if another driver has taken the job over.

        After `MayHaveHappened` the same entry may be appended again: it is then found instead of written twice.
        """
        while True:
            self._stop_if_superseded()
            if isinstance(entry, GenerationStarted):
                self._stop_if_started_elsewhere(entry.generation)
            elif not self._has_started():
                raise ProtocolViolation("A driver appended to the job log before it had started a generation.")
            if self._try_append(entry):
                return

    def _try_append(self, entry: Entry) -> bool:
        """True if the entry is in the log; False if others came first, whose entries are then known."""
        number = len(self._records)
        record = _Record(self._driver, entry)
        data = seal(msgspec.json.encode(record))
        match self._create(layout.log_entry(number), data):
            case Created():
                self._records.append(record)
                return True
            case AlreadyThere():
                try:
                    self.read()
                except DidNotHappen as error:
                    # The read did not; whether the entry that is there is this one is not known yet.
                    raise MayHaveHappened(str(error)) from error
                # Nobody else writes under this token: an equal record here is an earlier try that went through.
                return record in self._records[number:]

    def _create(self, path: str, data: bytes) -> Created | AlreadyThere:
        unsettled: MayHaveHappened | None = None
        for _ in range(_SETTLE_ATTEMPTS):
            try:
                return self._store.create(path, data)
            except MayHaveHappened as error:
                unsettled = error
            except DidNotHappen as error:
                if unsettled is None:
                    raise
                # This try surely did nothing, but an earlier one may have.
                raise unsettled from error
        assert unsettled is not None, "the loop ends by returning or with an unsettled try"
        raise unsettled

    def _load(self, number: int) -> _Record:
        path = layout.log_entry(number)
        content = unseal(self._store.read(path), name=path)
        try:
            return msgspec.json.decode(content, type=_Record)
        except msgspec.MsgspecError as error:
            raise Damaged(
                f"Job log entry {path} cannot be understood ({error}): was it written by a newer Tidegate?"
            ) from error

    def _has_started(self) -> bool:
        return any(_is_start(record) and record.driver == self._driver for record in self._records)

    def _stop_if_superseded(self) -> None:
        newest = next((record for record in reversed(self._records) if _is_start(record)), None)
        if newest is not None and newest.driver != self._driver and self._has_started():
            raise _superseded(newest)

    def _stop_if_started_elsewhere(self, generation: Generation) -> None:
        for record in self._records:
            is_other = isinstance(record.entry, GenerationStarted) and record.entry.generation >= generation
            if is_other and record.driver != self._driver:
                raise _superseded(record)


def _is_start(record: _Record) -> bool:
    return isinstance(record.entry, GenerationStarted)


def _superseded(start: _Record) -> Superseded:
    return Superseded(
        f"Another driver ({start.driver}) has taken this job over by starting a newer generation: "
        f"this one stops and commits nothing more; let only one query use a checkpointLocation."
    )


def running_generation(entries: Sequence[Entry]) -> GenerationStarted | None:
    return next((entry for entry in reversed(entries) if isinstance(entry, GenerationStarted)), None)


def next_generation(entries: Sequence[Entry]) -> Generation:
    running = running_generation(entries)
    return Generation(1 if running is None else running.generation + 1)


def retained_checkpoints(entries: Sequence[Entry]) -> list[CheckpointCompleted]:
    """Completed, and neither retired nor skipped, in the order of the log."""
    gone = {entry.checkpoint for entry in entries if isinstance(entry, CheckpointRetired | CheckpointSkipped)}
    return [entry for entry in entries if isinstance(entry, CheckpointCompleted) and entry.checkpoint not in gone]


def skipped_checkpoints(entries: Sequence[Entry]) -> list[CheckpointCompleted]:
    skipped = {entry.checkpoint for entry in entries if isinstance(entry, CheckpointSkipped)}
    return [entry for entry in entries if isinstance(entry, CheckpointCompleted) and entry.checkpoint in skipped]


def newest_completed(entries: Sequence[Entry]) -> CheckpointCompleted | None:
    retained = retained_checkpoints(entries)
    return retained[-1] if retained else None


def uncommitted(entries: Sequence[Entry]) -> list[CheckpointCompleted]:
    """Completed checkpoints whose commit is not recorded, in the order in which they must be committed."""
    settled = {entry.checkpoint for entry in entries if isinstance(entry, Committed | CheckpointSkipped)}
    return [entry for entry in entries if isinstance(entry, CheckpointCompleted) and entry.checkpoint not in settled]


def next_checkpoint_id(entries: Sequence[Entry], stored_paths: Iterable[str]) -> CheckpointId:
    """Higher than every id that is in the log or has left a file, completed or not; so that no id is ever reused."""
    logged = [entry.checkpoint for entry in entries if isinstance(entry, CheckpointCompleted)]
    folders = [layout.parse_checkpoint(path) for path in stored_paths]
    return CheckpointId(max([0, *logged, *(folder.checkpoint for folder in folders if folder is not None)]) + 1)
