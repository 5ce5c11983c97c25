"""Paths are built in one place, sort as they should, and read back to what they were built from."""

import pytest

from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.storage import layout
from tidegate.storage.layout import CheckpointFolder

FOLDER = CheckpointFolder(CheckpointId(12), Generation(3))


def test_paths_are_those_of_the_design() -> None:
    assert layout.log_entry(7) == "log/000000000007"
    assert str(FOLDER) == "checkpoints/12-g3"
    assert layout.manifest(FOLDER) == "checkpoints/12-g3/manifest.json"
    assert layout.state_file(FOLDER, SlotIndex(0)) == "checkpoints/12-g3/0.state"
    assert layout.shared_file("6f1c-aa") == "shared/6f1c-aa"
    assert layout.staging_folder("source-0") == "staging/source-0"


def test_log_entries_sort_as_their_numbers_do() -> None:
    numbers = [0, 9, 10, 99, 100, 12345678901]
    assert sorted(layout.log_entry(n) for n in reversed(numbers)) == [layout.log_entry(n) for n in numbers]


@pytest.mark.parametrize("number", [0, 1, 999_999])
def test_a_log_entry_reads_back(number: int) -> None:
    assert layout.parse_log_entry(layout.log_entry(number)) == number


@pytest.mark.parametrize("path", ["log/7", "log/000000000007.tmp", "log/x", "logs/000000000007", "log/000000000007/a"])
def test_a_foreign_file_is_no_log_entry(path: str) -> None:
    assert layout.parse_log_entry(path) is None


@pytest.mark.parametrize("path", [str(FOLDER), layout.manifest(FOLDER), layout.state_file(FOLDER, SlotIndex(5))])
def test_everything_in_a_checkpoint_folder_tells_its_checkpoint(path: str) -> None:
    assert layout.parse_checkpoint(path) == FOLDER


@pytest.mark.parametrize("path", ["checkpoints/12", "checkpoints/x-g1", "shared/12-g3", "checkpoints/12-g3x/a"])
def test_a_foreign_folder_is_no_checkpoint(path: str) -> None:
    assert layout.parse_checkpoint(path) is None


def test_a_state_file_reads_back_and_others_do_not() -> None:
    assert layout.parse_state_file(layout.state_file(FOLDER, SlotIndex(11))) == (FOLDER, 11)
    assert layout.parse_state_file(layout.manifest(FOLDER)) is None
    assert layout.parse_state_file("checkpoints/12-g3/deep/0.state") is None


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a#1"])
def test_a_name_that_would_leave_its_folder_or_hide_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        layout.shared_file(name)


@pytest.mark.parametrize("run", ["", "5f2c9a1b"])
def test_a_savepoints_folder_reads_back(run: str) -> None:
    folder = layout.savepoint(FOLDER.checkpoint, FOLDER.generation, run=run)
    found = layout.SavepointFolder(FOLDER.checkpoint, FOLDER.generation, run)
    assert layout.parse_savepoint(f"savepoints/{folder}/0.state") == found
    assert layout.parse_savepoint(f"savepoints/{folder}-mine/0.state") is None


def test_what_is_written_for_a_savepoint_is_told_from_what_lies_beside_it() -> None:
    written = [layout.savepoint_manifest(), layout.savepoint_state_file(SlotIndex(7)), "shared/12-g3-s0.0a-1.sst"]
    written.append(layout.channel_file(FOLDER, SlotIndex(1)))
    assert all(layout.is_file_of_savepoint(path, FOLDER) for path in written)
    for path in ("notes.txt", "0.state.bak", "x/0.state", "shared/12-g4-s0.0a-1.sst", "shared/notes", "manifest.json2"):
        assert not layout.is_file_of_savepoint(path, FOLDER)
