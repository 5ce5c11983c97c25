"""Publishes the files of committed epochs: one by one, or merged first.

Without compaction a commit renames each file into the sink's folder. With it, a commit renames each file into a
hidden folder of the query (from then on it is committed, and nobody sees it yet); once enough has gathered, the files
are merged, and the merged file is renamed into view. So a row becomes visible once, in one rename, and no visible file
is ever replaced, or removed unless its epoch is taken back. Which files a merge takes and where its result goes is
written down, in one rename, before anything of it is visible; whoever finds such a note after a crash does what it
says, from any point on.
"""

import os
import secrets
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from tidegate.connectors.committable import FileCommittable
from tidegate.connectors.sink_encodings import Encoding, sync_file, written_as
from tidegate.model.errors import Damaged, ProtocolViolation, StorageFailure
from tidegate.model.ids import CheckpointId, Generation
from tidegate.protocol.commit import CommitPermit
from tidegate.storage.decoding import from_json, from_msgpack
from tidegate.storage.store import sync_folder

# A committable rides with a few later checkpoints at most, so what merges took long ago is not asked for again.
_REMEMBERED_MERGES = 64
_NOTE, _DONE = ".note", ".done"
# Beside the notes: how the files are written that are held back.
_WRITTEN_AS = "written-as.txt"


@dataclass(frozen=True, slots=True)
class CompactionRule:
    """Files of committed epochs are merged up to `target_bytes`, or after `epochs` at the latest, then published."""

    target_bytes: int
    epochs: int


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """`path`: where readers look. `owner` keeps apart several queries that write there."""

    path: Path
    hidden_folder: Path
    owner: str


class Move(msgspec.Struct, frozen=True):
    """From a path below the hidden folder to one below the sink's. `taken`: the held files whose rows are in it."""

    source: str
    target: str
    taken: list[str] = []


class MergeNote(msgspec.Struct, frozen=True):
    """`taken`: the held files whose rows are in what is moved."""

    checkpoint: CheckpointId
    moves: list[Move]
    taken: list[str]


class FileCommitter:
    def __init__(
        self, places: FilePlaces, encoding: Encoding, schema: pa.Schema, compaction: CompactionRule | None
    ) -> None:
        self._places = places
        self._encoding = encoding
        self._schema = schema
        self._compaction = compaction
        self._written_as = written_as(encoding, schema)
        self._knows_what_is_held = False

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        files = _decode(committables)
        for file in files:
            # One prepared for a checkpoint that failed goes with a later one, never with an earlier one.
            if file.checkpoint > permit.checkpoint:
                raise ProtocolViolation(
                    f"{file.final} belongs to checkpoint {file.checkpoint} and was to be committed "
                    f"with {permit.checkpoint}."
                )
        self._finish_merges()
        if self._compaction is None:
            self._publish(files)
            self._release(permit.checkpoint, [*self._held()])
        else:
            if files or self._held():
                self._let_go_what_was_written_otherwise()
            self._publish([file for file in files if file.written_as != self._written_as])
            self._hold([file for file in files if file.written_as == self._written_as])
            self._release(permit.checkpoint, self._due(permit.checkpoint))
        self._tidy()

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        kept = {committable.hidden for committable in _decode(keep)}
        for path in self._places.hidden_folder.glob(f"{self._places.owner}-g*"):
            if path.is_file() and path.name not in kept and _generation_of(path.name) < generation:
                path.unlink(missing_ok=True)
        self._finish_merges()
        self._tidy()

    def publish_held(self) -> None:
        """The query ends in order: nobody would come to merge what it has held back."""
        self._finish_merges()
        if self._held():
            self._let_go_what_was_written_otherwise()
        held = self._held()
        self._release(_newest(held), list(held))
        self._tidy()

    # -- taking back

    def why_not_back(self, committables: Sequence[bytes], *, to: CheckpointId) -> str | None:
        leaving = {file.final: file for file in _decode(committables) if file.checkpoint > to}
        for merged in self._merges_of(leaving):
            if not set(merged.taken) <= leaving.keys():
                return f"{self._places.path / merged.target} has rows of checkpoint {to} and before in it as well"
        found = {name for move in self._merges_of(leaving) if self._is_visible(move.target) for name in move.taken}
        for name, file in leaving.items():
            places = (self._places.path / name, self._held_folder / name, self._places.hidden_folder / file.hidden)
            if name not in found and not any(place.exists() for place in places):
                return f"{self._places.path / name} is gone, and whoever took it away may have read its rows"
        return None

    def roll_back(self, committables: Sequence[bytes], *, to: CheckpointId) -> None:
        self._finish_merges()
        leaving = {file.final: file for file in _decode(committables) if file.checkpoint > to}
        visible = [*leaving, *(move.target for move in self._merges_of(leaving))]
        paths = [self._places.path / name for name in visible]
        paths += [self._held_folder / name for name in leaving]
        paths += [self._places.hidden_folder / file.hidden for file in leaving.values()]
        folders = {path.parent for path in paths if path.exists()}
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in sorted(folders):
            sync_folder(folder)
        _remove_empty_below(self._held_folder)
        self._tidy()

    def _merges_of(self, names: Collection[str]) -> list[Move]:
        """The merged files, published or noted to be, that have rows of these."""
        notes = [*self._notes_folder.glob(f"*{_NOTE}"), *self._notes_folder.glob(f"*{_DONE}")]
        moves = [move for path in notes for move in from_json(path.read_bytes(), MergeNote).moves]
        return [move for move in moves if any(name in names for name in move.taken)]

    def _is_visible(self, target: str) -> bool:
        return (self._places.path / target).exists()

    # -- without compaction

    def _publish(self, files: Sequence[FileCommittable]) -> None:
        folders: set[Path] = set()
        for file in files:
            target = self._places.path / file.final
            folders |= self._move(self._places.hidden_folder / file.hidden, target, file)
        for folder in sorted(folders | ({self._places.path} if files else set())):
            sync_folder(folder)

    # -- holding back and merging

    def _hold(self, files: Sequence[FileCommittable]) -> None:
        folders: set[Path] = set()
        for file in files:
            folders |= self._move(self._places.hidden_folder / file.hidden, self._held_folder / file.final, file)
        for folder in sorted(folders):
            sync_folder(folder)

    def _move(self, source: Path, target: Path, file: FileCommittable) -> set[Path]:
        """Renames, making folders as needed; the folders to sync."""
        with suppress(FileNotFoundError):
            return _rename(source, target)
        places = (target, self._places.path / file.final, self._held_folder / file.final)
        if not any(place.exists() for place in places) and not self._was_taken(file):
            raise Damaged(
                f"The prepared file {source} is missing and {target} is not there either, so {file.rows} "
                f"rows cannot be committed: restore one of the two from a backup."
            )
        # Renamed by a commit that did not come to its end, perhaps not to the sync either.
        return {target.parent} if target.exists() else set()

    def _held(self) -> dict[str, int]:
        """What is held back: by path below the held folder, with its bytes; in the order of commits."""
        if not self._held_folder.exists():
            return {}
        found = [path for path in self._held_folder.rglob("*") if path.is_file()]
        names = sorted((path.relative_to(self._held_folder).as_posix() for path in found), key=_order_of)
        return {name: (self._held_folder / name).stat().st_size for name in names}

    def _due(self, checkpoint: CheckpointId) -> list[str]:
        """Everything of a folder whose oldest file has waited long enough; of others what fills whole files."""
        compaction = self._compaction
        assert compaction is not None, "files are held only where they are merged"
        held = self._held()
        oldest: dict[str, CheckpointId] = {}
        for name in held:
            oldest.setdefault(_folder_of(name), _checkpoint_of(name))
        due = []
        for group in self._groups(list(held)):
            is_old = checkpoint - oldest[_folder_of(group[0])] >= compaction.epochs - 1
            if is_old or sum(held[name] for name in group) >= compaction.target_bytes:
                due += group
        return due

    def _let_go_what_was_written_otherwise(self) -> None:
        """Files that a query before this one has held with other options or columns: published as they are."""
        if self._knows_what_is_held:
            return
        note = self._notes_folder / _WRITTEN_AS
        if not note.exists() or note.read_text() != self._written_as:
            held = self._held()
            self._publish_moves(_newest(held), [self._move_of(name) for name in held])
            self._notes_folder.mkdir(parents=True, exist_ok=True)
            draft = note.with_suffix(".draft")
            draft.write_text(self._written_as)
            sync_file(draft)
            os.replace(draft, note)
            sync_folder(self._notes_folder)
        self._knows_what_is_held = True

    def _release(self, checkpoint: CheckpointId, names: Sequence[str]) -> None:
        groups = enumerate(self._groups(names))
        self._publish_moves(checkpoint, [self._merged(group, checkpoint, number) for number, group in groups])

    def _publish_moves(self, checkpoint: CheckpointId, moves: Sequence[Move]) -> None:
        if not moves:
            return
        names = [name for move in moves for name in move.taken]
        note = MergeNote(checkpoint, list(moves), names)
        self._write_note(note, f"{checkpoint:08d}-{secrets.token_hex(4)}")
        self._finish_merges()

    def _groups(self, names: Sequence[str]) -> list[list[str]]:
        """Files of one folder that become one: as many as it takes to reach the target."""
        target = self._compaction.target_bytes if self._compaction is not None else 0
        held = self._held()
        groups: list[list[str]] = []
        open_groups: dict[str, list[str]] = {}
        for name in names:
            folder = _folder_of(name)
            if folder not in open_groups:
                open_groups[folder] = []
                groups.append(open_groups[folder])
            open_groups[folder].append(name)
            if sum(held[member] for member in open_groups[folder]) >= target:
                del open_groups[folder]
        return groups

    def _move_of(self, name: str) -> Move:
        return Move(f"{self._held_folder.name}/{name}", name, [name])

    def _merged(self, names: Sequence[str], checkpoint: CheckpointId, number: int) -> Move:
        if len(names) == 1:
            return self._move_of(names[0])
        folder, _, first = names[0].rpartition("/")
        token = secrets.token_hex(4)
        suffix = self._encoding.suffix
        merging = f"{self._places.owner}-merging-{checkpoint:08d}-{number}-{token}{suffix}"
        target = self._places.hidden_folder / merging
        sources = [self._held_folder / name for name in names]
        self._encoding.merge(sources, target, self._schema)
        sync_file(target)
        # Under the number of its first epoch, so that names tell which epochs came before.
        final = f"{first[:13]}-to-{_checkpoint_of(names[-1]):08d}-{number}-{token}{suffix}"
        return Move(merging, f"{folder}/{final}" if folder else final, list(names))

    def _write_note(self, note: MergeNote, name: str) -> None:
        self._notes_folder.mkdir(parents=True, exist_ok=True)
        draft = self._notes_folder / f"{name}.draft"
        draft.write_bytes(msgspec.json.encode(note))
        sync_file(draft)
        sync_folder(self._places.hidden_folder)
        # A driver that took over while this one stood still has removed the draft, or what it speaks of.
        if not all(path.exists() for path in self._spoken_of(note)):
            raise _taken_over(self._places.path)
        try:
            os.replace(draft, draft.with_suffix(_NOTE))
        except FileNotFoundError:
            raise _taken_over(self._places.path) from None
        sync_folder(self._notes_folder)

    def _spoken_of(self, note: MergeNote) -> list[Path]:
        sources = [self._places.hidden_folder / move.source for move in note.moves]
        return sources + [self._held_folder / name for name in note.taken]

    def _finish_merges(self) -> None:
        """Does what every note says, wherever it was interrupted, and removes what no note speaks of."""
        for path in sorted(self._notes_folder.glob(f"*{_NOTE}")):
            note = from_json(path.read_bytes(), MergeNote)
            self._carry_out(note)
            os.replace(path, path.with_suffix(_DONE))
            sync_folder(self._notes_folder)
        # Drafts first: without its draft a merge cannot come into force, whatever is left of it.
        for draft in self._notes_folder.glob("*.draft"):
            draft.unlink(missing_ok=True)
        for leftover in self._places.hidden_folder.glob(f"{self._places.owner}-merging-*"):
            leftover.unlink(missing_ok=True)
        for old in sorted(self._notes_folder.glob(f"*{_DONE}"))[:-_REMEMBERED_MERGES]:
            old.unlink(missing_ok=True)

    def _carry_out(self, note: MergeNote) -> None:
        folders: set[Path] = set()
        for move in note.moves:
            # Not there any more: it was moved before the crash, and may even have been taken away by its reader.
            with suppress(FileNotFoundError):
                folders |= _rename(self._places.hidden_folder / move.source, self._places.path / move.target)
        for folder in sorted(folders | {self._places.path}):
            sync_folder(folder)
        for name in note.taken:
            (self._held_folder / name).unlink(missing_ok=True)
        _remove_empty_below(self._held_folder)

    def _was_taken(self, file: FileCommittable) -> bool:
        notes = sorted(self._notes_folder.glob(f"*{_DONE}"))
        for path in notes:
            if file.final in from_json(path.read_bytes(), MergeNote).taken:
                return True
        return len(notes) >= _REMEMBERED_MERGES and file.checkpoint < int(notes[0].name[:8])

    # -- places

    @property
    def _held_folder(self) -> Path:
        return self._places.hidden_folder / f"held-{self._places.owner}"

    @property
    def _notes_folder(self) -> Path:
        return self._places.hidden_folder / f"merges-{self._places.owner}"

    def _tidy(self) -> None:
        with suppress(OSError):  # Still in use, or gone: both are fine.
            self._places.hidden_folder.rmdir()


def _taken_over(path: Path) -> StorageFailure:
    return StorageFailure(f"What was to be merged into {path} is gone: another driver commits the same query's rows.")


def _rename(source: Path, target: Path) -> set[Path]:
    try:
        os.replace(source, target)
        return {target.parent}
    except FileNotFoundError:
        if not source.exists() or target.parent.exists():
            raise
    missing = [target.parent, *(p for p in target.parent.parents if not p.exists())]
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)
    return {target.parent, *(folder.parent for folder in missing)}


def _remove_empty_below(folder: Path) -> None:
    if folder.exists():
        for inner in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
            with suppress(OSError):
                inner.rmdir()
        with suppress(OSError):
            folder.rmdir()


def _decode(committables: Sequence[bytes]) -> list[FileCommittable]:
    return [from_msgpack(data, FileCommittable) for data in committables]


def _generation_of(hidden_name: str) -> int:
    return int(hidden_name.split("-")[1].removeprefix("g"))


def _checkpoint_of(final: str) -> CheckpointId:
    return CheckpointId(int(final.rpartition("/")[2].split("-")[1]))


def _newest(finals: Collection[str]) -> CheckpointId:
    return max((_checkpoint_of(name) for name in finals), default=CheckpointId(0))


def _folder_of(final: str) -> str:
    return final.rpartition("/")[0]


def _order_of(final: str) -> tuple[int, str]:
    return _checkpoint_of(final), final
