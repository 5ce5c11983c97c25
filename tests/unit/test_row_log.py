"""A log of rows: files that snapshots share, written in steps, there as long as anybody needs them."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tidegate.model.errors import Damaged, DidNotHappen, IncompatibleCheckpoint
from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection, Section
from tidegate.state.row_log import Part, RowLog
from tidegate.state.sst_files import Folder
from tidegate.state.stepwise_file import Pieces, StepwiseFile
from tidegate.testing.state_suite import restored_from

ALL = KeyGroupRange(0, 8)


def log_in(folder: Path) -> RowLog:
    folder.mkdir(exist_ok=True)
    return RowLog(ALL, Folder(folder))


def parts(*contents: bytes) -> list[Part]:
    return [lambda content=content: [memoryview(content)] for content in contents]  # type: ignore[misc]


def files_of(section: Section) -> dict[str, bytes]:
    assert section.steps is not None and section.files is not None
    deque(section.steps(), maxlen=0)
    return {file.name: file.path.read_bytes() for file in section.files()}


def on_disk(folder: Path) -> int:
    return len(list(folder.glob("*/*.rows")))


def test_each_step_writes_one_part_whoever_asks_for_it(tmp_path: Path) -> None:
    log = log_in(tmp_path / "slot")
    log.append(parts(b"a", b"b", b"c"), 3)
    first, second = log.section(), log.section()
    assert first.steps is not None and second.steps is not None
    one, other = first.steps(), second.steps()
    next(one)
    next(other)
    assert list(one) == [None]
    assert list(other) == []
    assert list(files_of(second).values()) == [b"abc"]


def test_a_file_goes_when_neither_the_log_nor_a_snapshot_has_it(tmp_path: Path) -> None:
    log = log_in(tmp_path / "slot")
    log.append(parts(b"old"), 1)
    section = log.section()
    files_of(section)
    log.files = []
    assert on_disk(tmp_path / "slot") == 1
    del section
    assert on_disk(tmp_path / "slot") == 0


def test_the_folder_goes_with_the_log(tmp_path: Path) -> None:
    slot = Folder(tmp_path / "slot")
    log = RowLog(ALL, slot)
    log.append(parts(b"a"), 1)
    del slot
    files_of(log.section())
    log.close()
    assert not (tmp_path / "slot").exists()


def test_a_log_that_is_adopted_keeps_the_names_of_its_files_and_their_order(tmp_path: Path) -> None:
    log = log_in(tmp_path / "one")
    for content in (b"first", b"second"):
        log.append(parts(content), 1)
    stored = files_of(log.section())
    (section,) = restored_from([log.section()])
    again = log_in(tmp_path / "two")
    again.adopt(section)
    again.append(parts(b"third"), 1)
    found = files_of(again.section())
    assert list(found.values()) == [b"first", b"second", b"third"]
    assert list(found)[:2] == list(stored)
    assert [file.number for file in again.files] == [1, 2, 3]
    assert [file.written_bytes for file in again.files] == [5, 6, 5]


def test_what_could_not_be_written_is_never_stored(tmp_path: Path) -> None:
    log = log_in(tmp_path / "slot")
    file = log.append(parts(b"a", b"b"), 2)
    file.path.mkdir()
    for _ in range(2):
        with pytest.raises(DidNotHappen, match="could not be written"):
            files_of(log.section())


def test_what_could_be_written_in_part_is_written_again_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_in(tmp_path / "slot")
    file = log.append(parts(b"first", b"second", b"third"), 3)
    section, write, failures = log.section(), StepwiseFile._write, ["No space left on device"]

    def half(file: StepwiseFile, pieces: Pieces | None) -> None:
        if file.written_bytes and failures:
            file.path.write_bytes(b"firstse")
            raise OSError(failures.pop())
        write(file, pieces)

    monkeypatch.setattr(StepwiseFile, "_write", half)
    with pytest.raises(DidNotHappen, match="No space left"):
        files_of(section)
    assert file.has_failed()
    assert list(files_of(log.section()).values()) == [b"firstsecondthird"]
    assert not file.has_failed()


def test_a_part_that_cannot_be_made_is_never_left_out(tmp_path: Path) -> None:
    def broken() -> list[memoryview]:
        raise ValueError("cannot be encoded")

    log = log_in(tmp_path / "slot")
    log.append([*parts(b"a"), broken, *parts(b"b")], 3)
    for _ in range(2):
        with pytest.raises(DidNotHappen, match="cannot be encoded"):
            files_of(log.section())


def test_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    log = RowLog(ALL, Folder(tmp_path / "spark" / "slot"))
    log.append(parts(b"a"), 1)
    assert (tmp_path / "spark" / "slot").stat().st_mode & 0o077 == 0


def described(version: int, names: Sequence[str]) -> memoryview:
    return memoryview(msgspec.msgpack.encode([version, [[name, 1] for name in names]]))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (described(1, ["gone.rows"]), Damaged, "lacks its file gone.rows"),
        (described(2, []), IncompatibleCheckpoint, "format 2"),
        (memoryview(b"\xc1"), Damaged, "cannot be read"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused(
    tmp_path: Path, data: memoryview, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        log_in(tmp_path / "slot").adopt(RestoredSection(ROW_LOG_SECTION, ALL, data))
