"""Tries in thought what a restore would do: what goes where, what starts empty, what is lost, how long it takes.

Reads the checkpoint; starts, writes and deletes nothing.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tidegate.coordinator.compatibility import NotRestored, check_backend, check_fits
from tidegate.coordinator.inspection import StoredCheckpoint
from tidegate.model.errors import IncompatibleCheckpoint, StorageFailure
from tidegate.model.ids import range_of
from tidegate.model.units import format_bytes, format_ms
from tidegate.plan.matching import PlanMatch
from tidegate.plan.naming import names_in
from tidegate.plan.parts import SOURCE, SOURCE_POSITION, Part, Place, read_parts
from tidegate.plan.physical import JobPlan
from tidegate.protocol.rescale import overlapping
from tidegate.state.contract import HEAP
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


def try_restore(
    stored: StoredCheckpoint,
    plan: JobPlan,
    fingerprint: Sequence[str],
    not_restored: NotRestored,
    *,
    state_backend: str = HEAP,
) -> TrialReport:
    manifest = stored.manifest
    what = "Savepoint" if manifest.is_savepoint else "Checkpoint"
    head = (
        f"{what} {manifest.checkpoint} of generation {manifest.generation} at {stored.root}, "
        f"{manifest.parallelism} slots; the query has {plan.parallelism}"
    )
    try:
        match = check_fits(
            manifest,
            plan,
            fingerprint,
            not_restored=not_restored,
            stored_places=lambda: stored_places(stored.store, manifest),
        )
        sections = stored_sections(stored.store, manifest)
        check_backend(manifest, match, state_backend, lambda: sections)
        rate = measure_rate(stored)
        holds = frozenset(place for place, _ in sections)
    except (IncompatibleCheckpoint, StorageFailure) as refusal:
        return TrialReport(str(refusal), (head, f"It cannot be restored: {refusal}"))
    lines = [head, "It can be restored.", *_operators(stored, plan, fingerprint, match, holds)]
    lines += [*_in_flight(stored, match), _time(stored, rate)]
    return TrialReport(None, tuple(lines))


def measure_rate(stored: StoredCheckpoint) -> ReadRate:
    """Reads some of the checkpoint's own files, as a restore would; raises `Damaged` if one is not what it was.

    Of the last one, which need not be read to its end, nothing is known then.
    """
    read_bytes = 0
    started = time.perf_counter()
    took_ms = 0.0
    files = stored.files().items()
    for piece in chain.from_iterable(stored.checked_pieces(path, expected) for path, expected in files):
        read_bytes += len(piece)
        took_ms = (time.perf_counter() - started) * 1000
        if read_bytes >= _MEASURED_BYTES or took_ms >= _MEASURED_MS:
            break
    return ReadRate(read_bytes, took_ms)


def _operators(
    stored: StoredCheckpoint, plan: JobPlan, fingerprint: Sequence[str], match: PlanMatch, holds: frozenset[Place]
) -> Iterator[str]:
    now = read_parts(fingerprint, names_in(plan))
    before = {part.place: part for part in stored.parts()}
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
    for part in match.missing:
        yield f"  {part} ({part.kind}, {_place(part)}): {'dropped' if part.place in holds else 'gone, nothing stored'}"


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


def _in_flight(stored: StoredCheckpoint, match: PlanMatch) -> Iterator[str]:
    counts: dict[int, int] = {}
    for channel in stored.manifest.channels:
        if channel.first < channel.n:
            counts[channel.channel.edge] = counts.get(channel.channel.edge, 0) + channel.n - channel.first
    for edge, before in match.ways.items():
        if before.id in counts:
            yield f"  rows in flight into v{before.receiver}: {counts[before.id]} elements, e{before.id} -> e{edge}"


def _time(stored: StoredCheckpoint, rate: ReadRate) -> str:
    size_bytes = stored.size_bytes()
    about_ms = size_bytes / max(rate.bytes_per_ms, 1e-9)
    measured = f"{format_bytes(rate.bytes_per_ms * 1000)} a second, on {format_bytes(rate.read_bytes)} of it"
    return (
        f"To read: {format_bytes(size_bytes)}, about {format_ms(about_ms)} for one reader (measured here: {measured}); "
        f"slots read side by side, and the time to start them comes on top."
    )


def _place(part: Part) -> str:
    vertex, position = part.place
    return f"v{vertex} source" if position == SOURCE_POSITION else f"v{vertex} op{position}"
