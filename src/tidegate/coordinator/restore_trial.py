"""Tries in thought what a start would do: what is restored and goes where, what starts empty, what is lost, how long it
takes. Decides nothing by itself: whatever a start would say, its own code says here.

Reads the checkpoint; starts, writes and deletes nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from tidegate.connectors.contract import SinkCommitter
from tidegate.connectors.file_sink import FileSink
from tidegate.connectors.registry import open_sink
from tidegate.coordinator.compatibility import check_backend, check_fits
from tidegate.coordinator.durable import DurableJob, DurableSettings, _Choice
from tidegate.coordinator.inspection import Found, Location, StoredCheckpoint
from tidegate.coordinator.state_evolution import StateChanges, state_changes
from tidegate.model.errors import Damaged, StorageFailure, UserError
from tidegate.model.ids import range_of
from tidegate.model.units import format_bytes, format_ms
from tidegate.plan.matching import PlanMatch
from tidegate.plan.naming import names_in
from tidegate.plan.parts import SOURCE, SOURCE_POSITION, Part, Place, read_parts
from tidegate.plan.physical import JobPlan
from tidegate.protocol.recovery import CapturedRows, SinkRollback
from tidegate.protocol.rescale import overlapping
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointCompleted
from tidegate.storage.store import LocalFiles, Store, open_place
from tidegate.worker.restored_bytes import bytes_to_read
from tidegate.worker.restoring import stored_places, stored_sections

# Enough to see how fast storage is, and no more than a moment's work.
_MEASURED_BYTES = 64 << 20
_MEASURED_MS = 1_000.0
# More subtasks than these are summed up.
_SHOWN_SUBTASKS = 8


@dataclass(frozen=True, slots=True)
class TrialReport:
    """`refusal`: the sentence with which a start would be refused; None if the checkpoint can be restored."""

    refusal: str | None
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadRate:
    """`read_bytes` were read in `took_ms`, by one reader, one file after the other."""

    read_bytes: int
    took_ms: float

    @property
    def bytes_per_ms(self) -> float:
        return self.read_bytes / max(self.took_ms, 0.001)


def try_restore(found: Found, plan: JobPlan, settings: DurableSettings) -> TrialReport:
    """Of a query with that plan: a checkpoint or savepoint as `restore.from` names it, a location as its own."""
    match found:
        case StoredCheckpoint():
            return _try_one(found, plan, settings)
        case Location():
            return _try_location(found, plan, settings)


def no_checkpoint(location: Location) -> str:
    return f"{location.root!r} has no complete checkpoint yet: a query there begins anew, or with its restore.from."


def measure_rate(stored: StoredCheckpoint, captured_rows: CapturedRows = CapturedRows.DELIVER) -> ReadRate:
    """Reads some of the checkpoint's own files, as a restore would; raises `Damaged` if one is not what it was.

    Of the last one, which need not be read to its end, nothing is known then.
    """
    read_bytes = 0
    started = time.perf_counter()
    took_ms = 0.0
    files = [(path, expected) for path, expected in stored.files().items() if _is_read(path, captured_rows)]
    for piece in chain.from_iterable(stored.checked_pieces(path, expected) for path, expected in files):
        read_bytes += len(piece)
        took_ms = (time.perf_counter() - started) * 1000
        if read_bytes >= _MEASURED_BYTES or took_ms >= _MEASURED_MS:
            break
    return ReadRate(read_bytes, took_ms)


# -- what a start would choose


def _try_one(stored: StoredCheckpoint, plan: JobPlan, settings: DurableSettings) -> TrialReport:
    head = _head(stored, plan)
    named = replace(settings, restore_from=f"{stored.root}/{stored.path}")

    def open_location(location: str) -> Store:
        return stored.store if location == stored.root else open_place(location)

    try:
        with TemporaryDirectory() as nothing:
            # As for a query that has no checkpoint of its own yet.
            new = LocalFiles(Path(nothing))
            _job(new, plan, named, location=nothing, open_location=open_location).check_compatible()
        details = _details(stored, plan, settings)
        takes = _time(stored, plan, settings, measure_rate(stored, _captured_rows(stored, settings)))
    except (UserError, StorageFailure) as refusal:
        return _refused(head, refusal)
    return TrialReport(None, (head, "It can be restored.", *details, takes))


def _try_location(location: Location, plan: JobPlan, settings: DurableSettings) -> TrialReport:
    job = _job(location.store, plan, settings, location=location.root, open_location=open_place)
    newest = max(completed.checkpoint for completed in location.retained())
    head = f"Location {location.root} with checkpoint {newest} as its newest; the query has {plan.parallelism} slots"
    # Ends, because what is noted as damaged is not chosen again.
    while True:
        try:
            job.check_compatible()
            choice = job.choice
            if choice is None or choice.restored is None:
                raise UserError(no_checkpoint(location))
            stored = location.open(choice.restored)
        except (UserError, StorageFailure) as refusal:
            return _refused(head, refusal)
        try:
            details = _details(stored, plan, settings)
            takes = _time(stored, plan, settings, measure_rate(stored, _captured_rows(stored, settings)))
        except Damaged as damage:
            # Slots that read it would find the same, and the driver go back behind it.
            job.note_damage(choice.restored.checkpoint, str(damage))
            continue
        except (UserError, StorageFailure) as refusal:
            return _refused(head, refusal)
        verdict = ["It can be restored.", *_goes_back(choice, settings.rollback)]
        return TrialReport(None, (_head(stored, plan), *verdict, *details, takes))


class _Choosing(DurableJob):
    """Keeps what `check_compatible` has chosen."""

    choice: _Choice | None = None

    def _choose(self, retained: Sequence[CheckpointCompleted]) -> _Choice:
        self.choice = super()._choose(retained)
        return self.choice


def _job(
    store: Store, plan: JobPlan, settings: DurableSettings, *, location: str, open_location: Callable[[str], Store]
) -> _Choosing:
    """As a start has it; only ever asked, so that it writes nothing."""
    committer = _committer_of(plan, location)
    return _Choosing(store, committer, plan, settings, open_location=open_location, wall_ms=lambda: 0)


def _committer_of(plan: JobPlan, location: str) -> SinkCommitter:
    """Asked only what could be taken back."""
    sink = next(vertex.sink for vertex in plan.vertices if vertex.sink is not None)
    if isinstance(open_sink(sink), FileSink):
        # Which of the files are this query's.
        sink = replace(sink, options={**sink.options, "checkpointLocation": location})
    return open_sink(sink).committer()


def _goes_back(choice: _Choice, rollback: SinkRollback) -> Iterator[str]:
    if not choice.skipped:
        return
    if choice.why_not_back is None:
        output = "; what was committed since is taken back"
    elif rollback is SinkRollback.DUPLICATES_ALLOWED:
        output = f"; what was committed since may come out twice, because {choice.why_not_back}"
    else:
        output = ""  # nothing was
    yield (
        f"The query goes back to it, and what came after it is read again{output}, because of damage: "
        f"{'; '.join(damage.rstrip('.') for damage in choice.damage)}."
    )


def _head(stored: StoredCheckpoint, plan: JobPlan) -> str:
    manifest = stored.manifest
    what = "Savepoint" if manifest.is_savepoint else "Checkpoint"
    return (
        f"{what} {manifest.checkpoint} of generation {manifest.generation} at {stored.root}, "
        f"{manifest.parallelism} slots; the query has {plan.parallelism}"
    )


def _refused(head: str, refusal: Exception) -> TrialReport:
    return TrialReport(str(refusal), (head, f"It cannot be restored: {refusal}"))


def _captured_rows(stored: StoredCheckpoint, settings: DurableSettings) -> CapturedRows:
    is_without = stored.manifest.checkpoint == settings.without_captured_rows
    return CapturedRows.DROP if is_without else CapturedRows.DELIVER


def _is_read(path: str, captured_rows: CapturedRows) -> bool:
    return captured_rows is CapturedRows.DELIVER or layout.parse_channel_file(path) is None


# -- what would go where


def _details(stored: StoredCheckpoint, plan: JobPlan, settings: DurableSettings) -> list[str]:
    """Raises if it does not fit."""
    manifest = stored.manifest
    match = check_fits(
        manifest,
        plan,
        settings.fingerprint,
        not_restored=settings.not_restored,
        stored_places=lambda: stored_places(stored.store, manifest),
    )
    sections = stored_sections(stored.store, manifest)
    check_backend(manifest, match, settings.state_backend, lambda: sections)
    holds = frozenset(place for place, _ in sections)
    return [
        *_operators(stored, plan, settings.fingerprint, match, holds),
        *_in_flight(stored, match, _captured_rows(stored, settings)),
    ]


def _operators(
    stored: StoredCheckpoint, plan: JobPlan, fingerprint: Sequence[str], match: PlanMatch, holds: frozenset[Place]
) -> Iterator[str]:
    now = read_parts(fingerprint, names_in(plan))
    before = {part.place: part for part in stored.parts()}
    changes = state_changes(plan, match, stored.manifest.plan)
    for part in () if now is None else now.parts:
        old = before.get(match.operators[part.place]) if part.place in match.operators else None
        if old is None:
            begins = "starts from its beginning" if part.kind == SOURCE else "starts empty"
            yield f"  {part} ({part.kind}, {_place(part)}): new, {begins}"
            continue
        renamed = "" if old.id == part.id else f", {old} there"
        content = "" if old.place in holds else ", nothing stored"
        counts = stored.manifest.vertex_parallelism[old.place.vertex], plan.parallelism_of(part.place.vertex)
        yield (
            f"  {part} ({part.kind}{renamed}): {_place(old)} -> {_place(part)}, "
            f"{counts[0]} -> {counts[1]} subtasks{content}"
        )
        if "keys=[" in part.shape and counts[0] != counts[1]:
            yield from _key_groups(*counts, max_parallelism=plan.max_parallelism)
        if part.place in changes:
            yield from _states(changes[part.place])
    for part in match.missing:
        yield f"  {part} ({part.kind}, {_place(part)}): {'dropped' if part.place in holds else 'gone, nothing stored'}"


def _states(changes: StateChanges) -> Iterator[str]:
    for name in changes.left_out:
        yield f"    state {name!r}: not declared any more; it stays stored, and is there again if it is declared again"
    for name in changes.deleted:
        yield f"    state {name!r}: dropped, since the query deletes it"
    for name in changes.added:
        yield f"    state {name!r}: new, starts empty"


def _key_groups(before: int, now: int, *, max_parallelism: int) -> Iterator[str]:
    for subtask in range(min(now, _SHOWN_SUBTASKS)):
        own = range_of(subtask, parallelism=now, max_parallelism=max_parallelism)
        if own.first == own.last:
            yield f"    subtask {subtask}: no key groups"
            continue
        takes = overlapping(subtask, parallelism=now, old_parallelism=before, max_parallelism=max_parallelism)
        of = f"subtask {takes[0]}" if len(takes) == 1 else f"subtasks {takes[0]} to {takes[-1]}"
        yield f"    subtask {subtask}: key groups {own.first} to {own.last - 1}, of {of}"
    if now > _SHOWN_SUBTASKS:
        yield f"    and so on for {now - _SHOWN_SUBTASKS} more"


def _in_flight(stored: StoredCheckpoint, match: PlanMatch, captured_rows: CapturedRows) -> Iterator[str]:
    counts: dict[int, int] = {}
    for channel in stored.manifest.channels:
        if channel.first < channel.n:
            counts[channel.channel.edge] = counts.get(channel.channel.edge, 0) + channel.n - channel.first
    for edge, before in match.ways.items():
        if before.id in counts:
            goes = f"e{before.id} -> e{edge}" if captured_rows is CapturedRows.DELIVER else "dropped"
            yield f"  rows in flight into v{before.receiver}: {counts[before.id]} elements, {goes}"


# -- how long it takes


def _time(stored: StoredCheckpoint, plan: JobPlan, settings: DurableSettings, rate: ReadRate) -> str:
    """Slots read side by side; whether that is quicker depends on what their machines share."""
    by_slot = bytes_to_read(stored.store, stored.manifest, plan, _captured_rows(stored, settings))
    if rate.read_bytes == 0:
        return "To read: nothing beside the manifest."
    alone_ms, shared_ms = (size_bytes / rate.bytes_per_ms for size_bytes in (max(by_slot), sum(by_slot)))
    measured = f"{format_bytes(rate.bytes_per_ms * 1000)} a second, on {format_bytes(rate.read_bytes)} of it"
    together = f"{format_bytes(sum(by_slot))} by {plan.parallelism} slots side by side, at most " if by_slot[1:] else ""
    or_shared = f", or {format_ms(shared_ms)} if all of them share that rate" if by_slot[1:] else ""
    return (
        f"To read: {together}{format_bytes(max(by_slot))} by one slot: about {format_ms(alone_ms)} at the rate of one "
        f"reader here ({measured}){or_shared}. Not in it: starting the slots, making state of what they read, and "
        f"reading again what came after the checkpoint."
    )


def _place(part: Part) -> str:
    vertex, position = part.place
    return f"v{vertex} source" if position == SOURCE_POSITION else f"v{vertex} op{position}"
