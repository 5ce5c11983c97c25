"""The one place that builds and reads paths below a checkpoint location. Knows names only: it touches no store."""

import re
from dataclasses import dataclass

from tidegate.model.ids import CheckpointId, Generation, SlotIndex, VertexId

LOG = "log"
LOG_SUMMARIES = f"{LOG}/summaries"
CHECKPOINTS = "checkpoints"
SHARED = "shared"
SAVEPOINTS = "savepoints"
STAGING = "staging"
STATISTICS = "statistics"
RUNNING = "running"
MANIFEST = "manifest.json"
TRIALS = "trials"

# Wide enough that names sort as numbers do for the life of any job.
_LOG_DIGITS = 12
_LOG_ENTRY = re.compile(rf"{LOG}/(\d{{{_LOG_DIGITS}}})")
_LOG_SUMMARY = re.compile(rf"{LOG_SUMMARIES}/(\d{{{_LOG_DIGITS}}})")
_CHECKPOINT = re.compile(rf"{CHECKPOINTS}/(\d+)-g(\d+)(?:/(.*))?")
_WRITTEN_STATE = re.compile(r"\d+-[^/]+\.state")
_SHARED_FILE = re.compile(rf"{SHARED}/(\d+)-g(\d+)-s\d+\.(channels|[0-9a-f]+-\d+\.(?:sst|rows|entries))")
_SAVEPOINT = re.compile(rf"{SAVEPOINTS}/savepoint-(\d+)-g(\d+)(?:-([0-9a-f]+))?/.*")
_STAGED_COPY = re.compile(rf"{STAGING}/v\d+/.*")
_STATE_FILE = re.compile(r"(\d+)\.state")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """Named by both: two generations may have tried the same id, and must not meet in one folder."""

    checkpoint: CheckpointId
    generation: Generation

    def __str__(self) -> str:
        return f"{CHECKPOINTS}/{self.checkpoint}-g{self.generation}"


@dataclass(frozen=True, slots=True)
class SavepointFolder:
    """`run`: which start of which query has taken it; empty in names that were given without."""

    checkpoint: CheckpointId
    generation: Generation
    run: str


def log_entry(number: int) -> str:
    return f"{LOG}/{number:0{_LOG_DIGITS}d}"


def log_summary(number: int) -> str:
    """Of all entries before that number."""
    return f"{LOG_SUMMARIES}/{number:0{_LOG_DIGITS}d}"


def manifest(folder: CheckpointFolder) -> str:
    return f"{folder}/manifest.json"


def state_file(folder: CheckpointFolder, slot: SlotIndex) -> str:
    return f"{folder}/{slot}.state"


def savepoint(checkpoint: CheckpointId, generation: Generation, *, run: str) -> str:
    """Its folder. `run` is unlike any other query's or start's, so that none writes into another one's savepoint."""
    return f"savepoint-{checkpoint}-g{generation}{f'-{run}' if run else ''}"


def savepoint_manifest() -> str:
    """Paths in a savepoint are relative to its own folder, so that it can be moved."""
    return "manifest.json"


def savepoint_state_file(slot: SlotIndex) -> str:
    return f"{slot}.state"


def written_state_file(slot: SlotIndex, token: str) -> str:
    """Of a savepoint that is written from rows; `token` tells attempts apart."""
    return f"{slot}-{_plain(token)}.state"


def is_written_state_file(path: str) -> bool:
    """Of this savepoint: others may lie in folders below it."""
    return _WRITTEN_STATE.fullmatch(path) is not None


def shared_file(name: str) -> str:
    return f"{SHARED}/{_plain(name)}"


def channel_file(folder: CheckpointFolder, slot: SlotIndex) -> str:
    """What one slot wrote of its channels for one checkpoint; later checkpoints may refer to it."""
    return shared_file(f"{folder.checkpoint}-g{folder.generation}-s{slot}.channels")


def state_table_file(folder: CheckpointFolder, slot: SlotIndex, name: str) -> str:
    """A file of a slot's state that never changes; later checkpoints may refer to it, of other slots too."""
    return shared_file(f"{folder.checkpoint}-g{folder.generation}-s{slot}.{name}")


def failed_statistics() -> str:
    """Of the last checkpoints that failed; nothing depends on it."""
    return f"{STATISTICS}/failed.json"


def running_query() -> str:
    """Where the query that runs here can be reached; nothing depends on it."""
    return f"{RUNNING}/query.json"


def trial(name: str) -> str:
    """A file that is written and deleted again before a query starts, to see whether it can be."""
    return f"{TRIALS}/{_plain(name)}"


def staging_folder(source: str) -> str:
    return f"{STAGING}/{_plain(source)}"


def staged_copy(vertex: VertexId, path: str) -> str:
    """In a savepoint: a file below the staging folder of a source."""
    return "/".join([STAGING, f"v{vertex}", *map(_plain, path.split("/"))])


def path_in_staging(path: str) -> str:
    """Of a file that a savepoint has there, below the staging folder of its source."""
    return path.split("/", 2)[2]


def parse_log_entry(path: str) -> int | None:
    """The number of a log entry, or None for a path that is not one."""
    match = _LOG_ENTRY.fullmatch(path)
    return None if match is None else int(match.group(1))


def parse_log_summary(path: str) -> int | None:
    match = _LOG_SUMMARY.fullmatch(path)
    return None if match is None else int(match.group(1))


def parse_shared_file(path: str) -> CheckpointFolder | None:
    """The checkpoint that wrote a shared file, or None for a path that is not one."""
    match = _SHARED_FILE.fullmatch(path)
    if match is None:
        return None
    return CheckpointFolder(CheckpointId(int(match.group(1))), Generation(int(match.group(2))))


def parse_channel_file(path: str) -> CheckpointFolder | None:
    """The same for files of captured data only."""
    return parse_shared_file(path) if path.endswith(".channels") else None


def parse_checkpoint(path: str) -> CheckpointFolder | None:
    """The checkpoint that a path belongs to: its folder itself, or anything in it."""
    match = _CHECKPOINT.fullmatch(path)
    if match is None:
        return None
    return CheckpointFolder(CheckpointId(int(match.group(1))), Generation(int(match.group(2))))


def parse_savepoint(path: str) -> SavepointFolder | None:
    """The savepoint that a file below the location's own savepoints belongs to; it may be another query's."""
    match = _SAVEPOINT.fullmatch(path)
    if match is None:
        return None
    return SavepointFolder(CheckpointId(int(match.group(1))), Generation(int(match.group(2))), match.group(3) or "")


def is_file_of_savepoint(path: str, folder: CheckpointFolder) -> bool:
    """Whether slots and driver write it for this savepoint; the path is relative to the savepoint's own folder."""
    is_own = any(pattern.fullmatch(path) for pattern in (_STATE_FILE, _STAGED_COPY))
    return is_own or path == savepoint_manifest() or parse_shared_file(path) == folder


def parse_state_file(path: str) -> tuple[CheckpointFolder, SlotIndex] | None:
    folder = parse_checkpoint(path)
    slot = _STATE_FILE.fullmatch(path.rsplit("/", 1)[-1])
    if folder is None or slot is None or path != state_file(folder, SlotIndex(int(slot.group(1)))):
        return None
    return folder, SlotIndex(int(slot.group(1)))


def _plain(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} cannot be a file name: use letters, digits, '.', '_' and '-'.")
    return name
