"""The truth about a job: which generation runs, which checkpoints exist, what is committed.

Owns the entries and the race for the next number. Everything else about a job's past is derived from the entries
by the pure functions below; the log never decides what to restore or commit.

Old entries go once a summary of them is there. Their numbers are then free again, so whoever creates an entry, or
finds none, looks afterwards for a summary that covers its number: only without one was it the end of the log.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from tidegate.model.errors import Damaged, DidNotHappen, MayHaveHappened, Missing, ProtocolViolation, Superseded
from tidegate.model.ids import CheckpointId, Generation
from tidegate.storage import layout
from tidegate.storage.decoding import from_json
from tidegate.storage.manifests import seal, unseal
from tidegate.storage.store import AlreadyThere, Created, Store

# A create whose outcome is unknown is settled by creating again: this often, without waiting, then the caller is told.
_SETTLE_ATTEMPTS = 3
# Somebody who reads all of it while it is being shortened begins again: so often, as nobody shortens it all the time.
_READ_ATTEMPTS = 5
# So many entries are read one by one by whoever opens the log, and listed; a checkpoint has three.
SHORTENED_FROM = 300
# By the runs that a summary names, what they left of savepoints is known as this job's; older ones have tidied up.
_REMEMBERED_RUNS = 20


class GenerationStarted(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """`run`: the part of the names of its savepoints that no other start of any query has; empty in older logs."""

    generation: Generation
    driver: str
    parallelism: int
    at_ms: int
    run: str = ""


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
    # Nor what that is; only if the sink can take it back.
    output: tuple[bytes, ...] = ()


class Committed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """`duration_ms`: from the trigger until the entry of its completion was there, which that entry cannot say.

    0 if the driver that wrote this does not know it.
    """

    checkpoint: CheckpointId
    duration_ms: float = 0.0


class CheckpointRetired(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Written before its files are deleted, so that nobody chooses it while they go.

    Of a claimed one, which nobody chooses once the job has its own, behind that: without the entry it is tried again.
    """

    checkpoint: CheckpointId


class CheckpointSkipped(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """It could not be used and its epoch is replayed: it must not be restored or committed if its files come back.

    `rolls_back_to`: what it has committed is to be taken back; None if that stays, because nothing is or the user
    accepts rows twice.
    """

    checkpoint: CheckpointId
    rolls_back_to: CheckpointId | None = None


class RolledBack(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What a skipped checkpoint had committed is taken back."""

    checkpoint: CheckpointId


class CheckpointClaimed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The job was started from a checkpoint at `location` and owns it: it is retired like one of its own.

    It is restored only by the option that named it, and what it had to commit is not this job's.
    """

    checkpoint: CheckpointId
    manifest: str
    location: str
    at_ms: int


Entry: TypeAlias = (
    GenerationStarted
    | CheckpointCompleted
    | Committed
    | CheckpointRetired
    | CheckpointSkipped
    | RolledBack
    | CheckpointClaimed
)


class _Record(msgspec.Struct, frozen=True):
    driver: str
    entry: Entry


DecodedT = TypeVar("DecodedT")


class JobLog:
    """The log as one driver sees it. `driver` is a token that no other driver process ever uses."""

    def __init__(self, store: Store, *, driver: str) -> None:
        self._store = store
        self._driver = driver
        # What a summary of all entries before number `_base` has, and the entries from there on.
        self._summarised: list[_Record] = []
        self._base = 0
        self._tail: list[_Record] = []
        self._is_read = False
        self._started_once = False

    def read(self) -> list[Entry]:
        """Without what a summary has left out, which answers no question about the job any more."""
        if not self._is_read:
            self._read_all()
            return self.entries()
        known = self._next_number()
        found: list[_Record] = []
        while (record := self._find(known + len(found))) is not None:
            found.append(record)
        if self._newest_summary() > known:
            self._read_all()
        else:
            self._tail += found
        return self.entries()

    def entries(self) -> list[Entry]:
        """What was read or written so far, without looking again."""
        return [record.entry for record in self._records()]

    def shorten(self, *, from_entries: int = SHORTENED_FROM) -> None:
        """Puts a summary in the place of what was read so far, if that is as many entries as that."""
        if len(self._tail) < from_entries:
            return
        end, kept = self._next_number(), _summary(self._records())
        # If there is one already, it says the same: what it stands for never changes.
        self._create(layout.log_summary(end), seal(msgspec.json.encode(kept)))
        self._summarised, self._base, self._tail = kept, end, []
        for path in self._store.list(layout.LOG):
            number = _first_of(layout.parse_log_entry(path), layout.parse_log_summary(path))
            if number is not None and number < end:
                self._store.delete(path)

    def start_generation(self, *, parallelism: int, at_ms: int, run: str = "") -> Generation:
        """Takes the job over. Whoever starts last owns it; a driver that had started before and lost it stops."""
        while True:
            entry = GenerationStarted(
                generation=next_generation(self.read()),
                driver=self._driver,
                parallelism=parallelism,
                at_ms=at_ms,
                run=run,
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
        if not self._is_read:
            self._read_all()
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
        number = self._next_number()
        record = _Record(self._driver, entry)
        data = seal(msgspec.json.encode(record))
        outcome = self._create(layout.log_entry(number), data)
        try:
            if isinstance(outcome, Created) and self._newest_summary() <= number:
                self._tail.append(record)
            else:
                self.read()
        except DidNotHappen as error:
            # The read did not; whether the entry is in the log is not known yet.
            raise MayHaveHappened(str(error)) from error
        # Nobody else writes under this token: an equal record here is an earlier try that went through.
        is_there = self._base <= number and record in self._tail[number - self._base :]
        self._started_once |= is_there and isinstance(entry, GenerationStarted)
        return is_there

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

    # -- reading

    def _read_all(self) -> None:
        for _ in range(_READ_ATTEMPTS):
            base = self._newest_summary()
            try:
                summarised = self._load_summary(base) if base else []
                tail = [self._load(number) for number in self._listed_from(base)]
            except Damaged:
                if self._newest_summary() == base:
                    raise
                continue
            if self._newest_summary() == base:
                self._summarised, self._base, self._tail, self._is_read = summarised, base, tail, True
                return
        raise DidNotHappen("The job log was shortened again and again while it was read: try again.")

    def _listed_from(self, base: int) -> range:
        """The numbers of the entries that are there, which must be dense."""
        numbers = [layout.parse_log_entry(path) for path in self._store.list(layout.LOG)]
        found = sorted(number for number in numbers if number is not None and number >= base)
        for expected, number in enumerate(found, base):
            if number != expected:
                raise Damaged(
                    f"The job log lacks {layout.log_entry(expected)} although {layout.log_entry(number)} is there: "
                    f"restore the missing entry from a backup, or start with a new checkpointLocation."
                )
        return range(base, base + len(found))

    def _newest_summary(self) -> int:
        """The first number that it does not cover; 0 without one."""
        numbers = [layout.parse_log_summary(path) for path in self._store.list(layout.LOG_SUMMARIES)]
        return max((number for number in numbers if number is not None), default=0)

    def _find(self, number: int) -> _Record | None:
        try:
            return self._load(number)
        except Missing:
            return None

    def _load(self, number: int) -> _Record:
        return self._decoded(layout.log_entry(number), _Record)

    def _load_summary(self, number: int) -> list[_Record]:
        return self._decoded(layout.log_summary(number), list[_Record])

    def _decoded(self, path: str, kind: type[DecodedT]) -> DecodedT:
        content = unseal(self._store.read(path), name=path)
        try:
            return from_json(content, kind)
        except msgspec.MsgspecError as error:
            raise Damaged(
                f"Job log entry {path} cannot be understood ({error}): was it written by a newer Tidegate?"
            ) from error

    def _records(self) -> list[_Record]:
        return [*self._summarised, *self._tail]

    def _next_number(self) -> int:
        return self._base + len(self._tail)

    # -- whose job it is

    def _has_started(self) -> bool:
        # Remembered, as a summary may leave it out.
        self._started_once |= any(_is_start(record) and record.driver == self._driver for record in self._records())
        return self._started_once

    def _stop_if_superseded(self) -> None:
        newest = next((record for record in reversed(self._records()) if _is_start(record)), None)
        if newest is not None and newest.driver != self._driver and self._has_started():
            raise _superseded(newest)

    def _stop_if_started_elsewhere(self, generation: Generation) -> None:
        for record in self._records():
            is_other = isinstance(record.entry, GenerationStarted) and record.entry.generation >= generation
            if is_other and record.driver != self._driver:
                raise _superseded(record)


def _summary(records: Sequence[_Record]) -> list[_Record]:
    """Those that still say something: the newest start and checkpoint, and all about checkpoints that are not gone.

    Of the starts also the newest one of each of the last runs.
    """
    entries = [record.entry for record in records]
    claimed = claimed_checkpoint(entries)
    staying = [*retained_checkpoints(entries), *skipped_checkpoints(entries)]
    newest = max((entry for entry in entries if isinstance(entry, CheckpointCompleted)), key=_id, default=None)
    ids = {entry.checkpoint for entry in staying}
    ids |= {entry.checkpoint for entry in (newest, claimed) if entry is not None}
    starts = [entry for entry in entries if isinstance(entry, GenerationStarted)]
    of_runs = {entry.run: entry.generation for entry in starts if entry.run}
    generations = {entry.generation for entry in starts[-1:]} | set(sorted(of_runs.values())[-_REMEMBERED_RUNS:])
    return [
        record
        for record in records
        if (
            record.entry.generation in generations
            if isinstance(record.entry, GenerationStarted)
            else record.entry.checkpoint in ids
        )
    ]


def _id(completed: CheckpointCompleted) -> CheckpointId:
    return completed.checkpoint


def _first_of(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


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


def known_durations_ms(entries: Sequence[Entry]) -> dict[CheckpointId, float]:
    """Of checkpoints, from the trigger until their log entry was there; not of those that a later start committed."""
    committed = [entry for entry in entries if isinstance(entry, Committed)]
    return {entry.checkpoint: entry.duration_ms for entry in committed if entry.duration_ms}


def claimed_checkpoint(entries: Sequence[Entry]) -> CheckpointClaimed | None:
    """The one that the job was last started from and has taken over, until it is retired.

    Its id is another job's: what was retired here before the claim may have had the same.
    """
    claimed: CheckpointClaimed | None = None
    for entry in entries:
        match entry:
            case CheckpointClaimed():
                claimed = entry
            case CheckpointRetired() if claimed is not None and entry.checkpoint == claimed.checkpoint:
                claimed = None
    return claimed


def unused_claim(entries: Sequence[Entry]) -> CheckpointClaimed | None:
    """The claimed one if the job has completed nothing since: its state is in no checkpoint of the job."""
    claimed = claimed_checkpoint(entries)
    newest = next(
        (each for each in reversed(entries) if isinstance(each, CheckpointClaimed | CheckpointCompleted)), None
    )
    return claimed if newest == claimed else None


def skipped_checkpoints(entries: Sequence[Entry]) -> list[CheckpointCompleted]:
    """Passed over because they were damaged, and not retired since."""
    skipped = {entry.checkpoint for entry in entries if isinstance(entry, CheckpointSkipped)}
    skipped -= {entry.checkpoint for entry in entries if isinstance(entry, CheckpointRetired)}
    return [entry for entry in entries if isinstance(entry, CheckpointCompleted) and entry.checkpoint in skipped]


def runs_of(entries: Sequence[Entry]) -> frozenset[str]:
    """Of this job, as far as the log still knows: what bears their names is its own."""
    return frozenset(entry.run for entry in entries if isinstance(entry, GenerationStarted) and entry.run)


def to_roll_back(entries: Sequence[Entry]) -> list[tuple[CheckpointCompleted, CheckpointId]]:
    """Skipped checkpoints whose output is still to be taken back, each with the one that was restored instead."""
    done = {entry.checkpoint for entry in entries if isinstance(entry, RolledBack)}
    targets = {entry.checkpoint: entry.rolls_back_to for entry in entries if isinstance(entry, CheckpointSkipped)}
    return [
        (completed, target)
        for completed in skipped_checkpoints(entries)
        if completed.checkpoint not in done and (target := targets[completed.checkpoint]) is not None
    ]


def newest_completed(entries: Sequence[Entry]) -> CheckpointCompleted | None:
    retained = retained_checkpoints(entries)
    return retained[-1] if retained else None


def uncommitted(entries: Sequence[Entry]) -> list[CheckpointCompleted]:
    """Completed checkpoints whose commit is not recorded, in the order in which they must be committed."""
    settled = {entry.checkpoint for entry in entries if isinstance(entry, Committed | CheckpointSkipped)}
    return [entry for entry in entries if isinstance(entry, CheckpointCompleted) and entry.checkpoint not in settled]


def next_checkpoint_id(entries: Sequence[Entry], stored_paths: Iterable[str]) -> CheckpointId:
    """Higher than every id that is in the log or has left a file, completed or not.

    A checkpoint may have left nothing but shared files, or a folder of its own as a savepoint. One of another job that
    was claimed counts as well: an own one of that id would be gone with it.
    """
    logged = [entry.checkpoint for entry in entries if not isinstance(entry, GenerationStarted)]
    parsed = (
        layout.parse_checkpoint(path) or layout.parse_shared_file(path) or layout.parse_savepoint(path)
        for path in stored_paths
    )
    return CheckpointId(max([0, *logged, *(folder.checkpoint for folder in parsed if folder is not None)]) + 1)
