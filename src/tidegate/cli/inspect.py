"""`tidegate inspect`: what a checkpoint, a savepoint or a whole location consists of, and whether it is intact.

Reads storage only. Removes nothing but orphans, and only when asked to.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import assert_never

from rich.console import Console
from rich.table import Table

from tidegate.coordinator.inspection import Location, StoredCheckpoint, open_path, verify
from tidegate.coordinator.orphans import find_orphans, remove
from tidegate.model.clock import SystemClock
from tidegate.model.errors import Damaged, UserError
from tidegate.model.units import format_bytes, format_ms, parse_duration_ms
from tidegate.plan.parts import SOURCE_POSITION
from tidegate.storage.job_log import running_generation


def show(console: Console, path: str) -> int:
    found = open_path(path)
    match found:
        case Location():
            _show_location(console, found)
        case StoredCheckpoint():
            _show_checkpoint(console, found)
        case _:
            assert_never(found)
    return 0


def show_verified(path: str) -> int:
    """Exit code 1 if anything is damaged."""
    result = verify(open_path(path))
    for sentence in result.damage:
        print(sentence)
    said = f"{result.files} files, {format_bytes(result.size_bytes)}"
    print(f"{said}: {len(result.damage)} damaged." if result.damage else f"{said}: all as their manifests say.")
    return 1 if result.damage else 0


def show_orphans(path: str, *, older_than: str) -> int:
    found, orphans = _orphans(path, older_than)
    for orphan in orphans:
        print(f"{format_bytes(found.store.size(orphan)):>10}  {orphan}")
    print(_orphans_said(found, len(orphans), "that nobody needs"))
    return 0


def remove_orphans(path: str, *, older_than: str) -> int:
    found, orphans = _orphans(path, older_than)
    remove(found.store, orphans)
    for orphan in orphans:
        print(f"removed {orphan}")
    print(_orphans_said(found, len(orphans), "removed"))
    return 0


def _orphans(path: str, older_than: str) -> tuple[Location, list[str]]:
    found = open_path(path)
    if not isinstance(found, Location):
        raise UserError(f"{path!r} is one checkpoint or savepoint: name the checkpointLocation to look for orphans.")
    age_ms = parse_duration_ms(older_than, option="--older-than")
    return found, find_orphans(found.store, found.entries, before_ms=SystemClock().wall_ms() - age_ms)


def _orphans_said(found: Location, count: int, what: str) -> str:
    newest = running_generation(found.entries)
    kept = "" if newest is None else f"; those of generation {newest.generation}, which may be running, are left alone"
    return f"{count} files {what}{kept}."


def _show_location(console: Console, location: Location) -> None:
    newest = running_generation(location.entries)
    started = "" if newest is None else f", newest generation {newest.generation} with {newest.parallelism} slots"
    console.print(f"checkpointLocation {location.root}{started}")
    table = Table(box=None, pad_edge=False)
    for name in ("id", "kind", "completed", "committed"):
        table.add_column(name, no_wrap=True)
    for name in ("files", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("path", overflow="fold")
    last: StoredCheckpoint | None = None
    for completed in location.retained():
        path = completed.manifest.rpartition("/")[0] if completed.location is None else completed.location
        done = datetime.fromtimestamp(completed.completed_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        committed = "yes" if location.is_committed(completed) else "no"
        try:
            last = location.open(completed)
        except Damaged as error:
            table.add_row(
                f"{completed.checkpoint}-g{completed.generation}", "damaged", done, committed, "", "", str(error)
            )
            continue
        kind = f"{last.manifest.kind}{' savepoint' if completed.is_savepoint else ''}"
        table.add_row(
            f"{completed.checkpoint}-g{completed.generation}",
            kind,
            done,
            committed,
            str(len(last.files())),
            format_bytes(last.size_bytes()),
            path,
        )
    console.print(table)
    if last is not None:
        console.print(f"\nOperators of checkpoint {last.manifest.checkpoint}:")
        _show_operators(console, last)


def _show_checkpoint(console: Console, stored: StoredCheckpoint) -> None:
    for line in _headlines(stored):
        console.print(line, highlight=False)
    console.print("\nOperators:")
    _show_operators(console, stored)
    table = Table(box=None, pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("crc32", no_wrap=True)
    for path, file in stored.files().items():
        table.add_row(path, format_bytes(file.length_bytes), f"{file.crc32:08x}")
    console.print("\nFiles:")
    console.print(table)


def _headlines(stored: StoredCheckpoint) -> Iterator[str]:
    manifest = stored.manifest
    what = "Savepoint" if manifest.is_savepoint else "Checkpoint"
    at = datetime.fromtimestamp(manifest.triggered_at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    yield f"{what} {manifest.checkpoint} of generation {manifest.generation}, {manifest.kind}, {at} UTC"
    yield f"below {stored.root}, taken in {format_ms(manifest.duration_ms)}"
    yield f"{manifest.parallelism} slots, {manifest.max_parallelism} key groups"
    in_flight = sum(1 for channel in manifest.channels if channel.first < channel.n)
    yield f"{len(stored.files())} files, {format_bytes(stored.size_bytes())}; rows in flight on {in_flight} channels"
    committables = sum(len(part.committables) for part in manifest.committables)
    yield f"{committables} pieces of output to commit"


def _show_operators(console: Console, stored: StoredCheckpoint) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("id", "kind", "place"):
        table.add_column(name, no_wrap=True)
    table.add_column("subtasks", justify="right")
    table.add_column("shape", overflow="fold")
    for part in stored.parts():
        vertex, position = part.place
        place = f"v{vertex}" if position == SOURCE_POSITION else f"v{vertex} op{position}"
        table.add_row(part.id, part.kind, place, str(stored.manifest.vertex_parallelism[vertex]), part.shape)
    console.print(table)
