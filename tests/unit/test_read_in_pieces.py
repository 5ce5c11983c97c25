"""Files of a checkpoint that are only looked at: they may be larger than memory, so they are read piece by piece."""

import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.unit.test_durable import STATE, manifest
from tidegate.coordinator import inspection, restore_trial
from tidegate.coordinator.inspection import StoredCheckpoint, verify
from tidegate.coordinator.restore_trial import measure_rate
from tidegate.model.errors import Damaged
from tidegate.storage.manifests import SharedFile, encode_manifest
from tidegate.storage.store import LocalFiles

MANIFEST, SLOT_FILE, TABLE = "checkpoints/1-g1/manifest.json", "checkpoints/1-g1/0.state", "shared/1-g1-s0.0a1b-7.sst"
PIECE_BYTES = 4
CHANGED_AT_THE_END = STATE[:-1] + bytes([STATE[-1] ^ 1])


@dataclass(frozen=True)
class Watched(LocalFiles):
    """Notes what is read of state files: a range by its start, a whole file as such."""

    reads: list[tuple[str, int | str]] = field(default_factory=list)

    def read(self, path: str) -> bytes:
        if path != MANIFEST:
            self.reads.append((path, "whole"))
        return super().read(path)

    def read_range(self, path: str, *, start: int, length: int) -> bytes:
        assert length <= PIECE_BYTES
        self.reads.append((path, start))
        return super().read_range(path, start=start, length=length)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(inspection, "_PIECE_BYTES", PIECE_BYTES, raising=False)
    store = Watched(tmp_path)
    stored = manifest(1, shared=[TABLE])
    store.put(MANIFEST, encode_manifest(stored))
    for path in (SLOT_FILE, TABLE):
        store.put(path, STATE)
    return store


def checkpoint(store: Watched) -> StoredCheckpoint:
    return StoredCheckpoint(str(store.root), store, MANIFEST, manifest(1, shared=[TABLE]))


def all_pieces() -> list[tuple[str, int | str]]:
    return [(path, start) for path in (SLOT_FILE, TABLE) for start in range(0, len(STATE), PIECE_BYTES)]


def test_verify_never_has_more_than_a_piece_of_a_file_in_memory(store: Watched) -> None:
    result = verify(checkpoint(store))
    assert (result.files, result.damage) == (3, ())
    assert result.size_bytes == len(store.read(MANIFEST)) + 2 * len(STATE)
    assert store.reads == all_pieces()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (CHANGED_AT_THE_END, "its checksum is not the one in the manifest"),
        (STATE + b"x", f"it has {len(STATE) + 1} bytes where the manifest says {len(STATE)}"),
        (STATE[:-1], f"it has {len(STATE) - 1} bytes where the manifest says {len(STATE)}"),
        (b"", f"it has 0 bytes where the manifest says {len(STATE)}"),
    ],
)
def test_verify_finds_in_pieces_what_it_found_in_whole_files(store: Watched, content: bytes, reason: str) -> None:
    store.put(TABLE, content)
    assert verify(checkpoint(store)).damage == (
        f"State file {store.root}/{TABLE} is damaged: {reason}; restore it from a backup, or start from another "
        "checkpoint.",
    )
    with pytest.raises(Damaged, match=reason):
        measure_rate(checkpoint(store))


@pytest.mark.parametrize(("crc32", "damaged"), [(zlib.crc32(b""), 0), (1, 1)])
def test_an_empty_file_is_checked_too(store: Watched, crc32: int, damaged: int) -> None:
    found = checkpoint(store)
    found.manifest.slots[0].shared[0] = SharedFile(TABLE, 0, crc32)
    store.put(TABLE, b"")
    assert len(verify(found).damage) == damaged


def test_a_rate_is_measured_in_pieces_which_are_checked_behind_the_last(store: Watched) -> None:
    assert measure_rate(checkpoint(store)).read_bytes == 2 * len(STATE)
    assert store.reads == all_pieces()


def test_measuring_ends_within_a_large_file_which_cannot_be_checked_then(
    store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(TABLE, CHANGED_AT_THE_END)
    monkeypatch.setattr(restore_trial, "_MEASURED_BYTES", len(STATE) + PIECE_BYTES)
    assert measure_rate(checkpoint(store)).read_bytes == len(STATE) + PIECE_BYTES
    store.reads.clear()
    monkeypatch.setattr(restore_trial, "_MEASURED_MS", 0.0)
    assert measure_rate(checkpoint(store)).read_bytes == PIECE_BYTES
    assert store.reads == [(SLOT_FILE, 0)]


def test_a_file_that_ends_just_where_measuring_does_is_checked(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(SLOT_FILE, CHANGED_AT_THE_END)
    monkeypatch.setattr(restore_trial, "_MEASURED_BYTES", len(STATE))
    with pytest.raises(Damaged, match=r"0\.state.*its checksum"):
        measure_rate(checkpoint(store))
