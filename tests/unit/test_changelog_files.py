"""State whose changes are stored all along: how many files of them there are, and how much is written in one step."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.test_changelog import Subtask, closed, kind, names_of, subtask
from tests.unit.test_channel_state import Slot
from tidegate.model.ids import CheckpointId, KeyGroupRange
from tidegate.state import changelog, entry_files
from tidegate.state.entry_files import EntryFiles
from tidegate.state.sst_files import Folder
from tidegate.state.stepwise_file import Pieces, StepwiseFile
from tidegate.storage.store import LocalFiles
from tidegate.testing.state_suite import restored_from
from tidegate.worker import stored_ahead

__all__ = ["closed", "kind", "subtask"]

ALL = KeyGroupRange(0, 128)
FRAME = 1_000


@pytest.fixture
def written(subtask: Subtask, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each call of `on_time` writes, in frames that are small."""
    monkeypatch.setattr(entry_files, "FRAME_BYTES", FRAME)
    by_step, write, on_time = list[int](), StepwiseFile._write, subtask.backend.on_time

    def counted(file: StepwiseFile, pieces: Pieces | None) -> None:
        if by_step:
            by_step[-1] += sum(len(piece) for piece in pieces or ())
        write(file, pieces)

    def step(now_ms: float) -> None:
        by_step.append(0)
        on_time(now_ms)

    monkeypatch.setattr(StepwiseFile, "_write", counted)
    monkeypatch.setattr(subtask.backend, "on_time", step)
    return by_step


def change(subtask: Subtask, batch: int, *, entries: int = 30) -> None:
    """Of each batch some keys are its own, and some are those of all."""
    for number in range(entries):
        subtask.put(b"%d-%d" % (batch, number) if number % 2 else b"%d" % number, b"%d" % batch * 40)


def fill(subtask: Subtask, batches: int, *, first: int = 0) -> None:
    for batch in range(first, first + batches):
        change(subtask, batch)
        subtask.store_batch()


def restored(subtask: Subtask, kind: str, folder: Path) -> dict[bytes, bytes]:
    return Subtask(kind, folder, restored=restored_from(subtask.taken())).entries()


# -- a part in each step


def test_a_batch_is_written_a_frame_in_each_step(subtask: Subtask, written: list[int]) -> None:
    change(subtask, 0, entries=400)
    subtask.store_batch()
    assert len(subtask.ahead.changes) == 1
    assert sum(written) > 5 * FRAME and max(written) <= 2 * FRAME


def test_files_are_joined_a_frame_in_each_step(subtask: Subtask, written: list[int]) -> None:
    fill(subtask, 7)
    del written[:]
    fill(subtask, 1, first=7)
    subtask.work_off()
    assert [file.level for file in subtask.backend._files.changes] == [1]
    assert sum(written) > 8 * FRAME and max(written) <= 2 * FRAME


def begin_join(subtask: Subtask) -> None:
    """Up to where a part of the joined file is written."""
    fill(subtask, 8)
    joining = subtask.backend._joining
    assert joining is not None and not joining.file.is_written()
    subtask.pass_time(0)
    assert 0 < joining.file.written_bytes < 8 * FRAME


def test_a_barrier_amid_a_join_refers_to_the_files_that_are_stored(
    subtask: Subtask, kind: str, tmp_path: Path, written: list[int]
) -> None:
    begin_join(subtask)
    assert names_of(subtask.taken()) == subtask.ahead.changes, "nothing is left to be stored behind it"
    assert restored(subtask, kind, tmp_path / "amid") == subtask.entries()
    change(subtask, 8)
    expected = subtask.entries()
    assert restored(subtask, kind, tmp_path / "and after") == expected
    subtask.work_off()
    assert [file.level for file in subtask.backend._files.changes] == [1, 0], "and it goes on"
    assert restored(subtask, kind, tmp_path / "joined") == expected


def test_a_joined_file_counts_once_it_is_stored(subtask: Subtask, written: list[int]) -> None:
    begin_join(subtask)
    before = list(subtask.ahead.changes)
    while subtask.backend._joining is not None and not subtask.backend._joining.is_stored_soon:
        subtask.pass_time(0)
    assert len(subtask.ahead.changes) == 9
    subtask.pass_time(0)
    assert names_of(subtask.taken()) == before, "a barrier would have to store it"
    subtask.ahead.stored.update(subtask.ahead.changes)
    assert names_of(subtask.taken()) == subtask.ahead.changes[8:], "though nobody looked at the time since"


def test_without_a_store_files_are_joined_all_the_same(subtask: Subtask) -> None:
    subtask.backend._image_at_ms = float("inf")
    fill(subtask, 1_000)
    assert len(subtask.backend._files.changes) < changelog.MOST_WAITING_FILES + 8


def test_no_task_waits_until_a_joined_file_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With some GiB of state it is larger than what may be unstored; but all that is in it is stored already."""
    monkeypatch.setattr(stored_ahead, "MOST_UNSTORED_BYTES", 3_000)
    slot = Slot(LocalFiles(tmp_path / "chk"))
    slot.ahead.on_run(CheckpointId(1))
    subtask = Subtask("heap", tmp_path / "slot", ahead=slot.ahead)
    for batch in range(8):
        slot.work()
        subtask.put(b"%d" % batch, bytes(1_000))
        subtask.store_batch()
    joining = subtask.backend._joining
    assert joining is not None and joining.is_stored_soon
    assert joining.file.written_bytes > 8_000
    assert slot.ahead.has_room()
    slot.work()
    subtask.pass_time(0)
    assert subtask.backend._files.changes == [joining.file]


def test_the_files_that_are_joined_stay_while_the_joined_one_takes_long_to_be_stored(subtask: Subtask) -> None:
    """A barrier would have to wait for it."""
    fill(subtask, 40)
    assert [file.level for file in subtask.backend._files.changes] == [0] * 40
    assert names_of(subtask.taken()) == [name for at, name in enumerate(subtask.ahead.changes) if at != 8]


def test_a_barrier_amid_a_batch_has_it_and_its_checkpoint_alone_stores_it(
    subtask: Subtask, kind: str, tmp_path: Path, written: list[int]
) -> None:
    change(subtask, 0, entries=400)
    subtask.pass_time(0)
    subtask.pass_time(changelog.BATCH_MS)
    assert sum(written) > 0
    change(subtask, 1)
    assert restored(subtask, kind, tmp_path / "amid") == subtask.entries()
    subtask.work_off()
    assert subtask.ahead.changes == []
    assert restored(subtask, kind, tmp_path / "and after") == subtask.entries()


def test_who_changes_more_than_can_be_written_in_steps_waits(
    subtask: Subtask, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "BATCH_BYTES", FRAME)
    monkeypatch.setattr(changelog, "MOST_NOTED_BYTES", 20 * FRAME)
    for batch in range(50):
        change(subtask, batch, entries=200)
        assert subtask.backend._states.noted_bytes() < 40 * FRAME
        subtask.pass_time(0)
    assert len(subtask.ahead.changes) > 10


# -- files that are given up meanwhile


def test_a_join_of_files_that_an_image_takes_the_place_of_is_forgotten(
    subtask: Subtask, kind: str, tmp_path: Path, written: list[int]
) -> None:
    begin_join(subtask)
    subtask.pass_time(10_000)
    while not subtask.ahead.images:
        subtask.pass_time(0)
    change(subtask, 9)
    subtask.ahead.finish_images()
    subtask.work_off()
    assert subtask.backend._joining is None
    assert restored(subtask, kind, tmp_path / "again") == subtask.entries()
    assert [file.level for file in subtask.backend._files.changes] == [0], "what changed since"


@pytest.fixture
def files(tmp_path: Path) -> Iterator[EntryFiles]:
    files = EntryFiles(ALL, Folder(tmp_path / "slot"))
    yield files
    files.close()


def test_what_is_joined_is_as_old_as_its_last_file(files: EntryFiles) -> None:
    """Else an image would leave it in the log without the later files that it replaces too."""
    run = [files.append({"s": {3: {b"k": b"%d" % number}}}) for number in range(8)]
    later = files.append({"s": {3: {b"k": b"later"}}})
    joined = files.joined(run)
    files.put_in_place(run, joined)
    assert files.changes == [joined, later]
    assert run[-2].number < joined.number < later.number <= files.newest_number()


def test_a_joined_file_takes_the_place_of_those_that_still_count(files: EntryFiles) -> None:
    run = [files.append({"s": {3: {b"k": b"%d" % number}}}) for number in range(8)]
    later = files.append({"s": {3: {b"k": b"later"}}})
    joined = files.joined(run)
    files.changes = files.changes[3:]
    files.put_in_place(run, joined)
    assert files.changes == [joined, later]
    files.changes = [later]
    files.put_in_place(run, joined)
    assert files.changes == [later], "none of them does any more"


# -- how many there are


def most_files(subtask: Subtask, batches: int, put: Callable[[int], None], *, barrier_every: int) -> int:
    """`barrier_every`: so many batches; 0 if nothing is ever stored but by barriers."""
    found = 0
    for batch in range(batches):
        if barrier_every:
            put(batch)
            subtask.store_batch()
        if not barrier_every or batch % barrier_every == 0:
            put(batch)
            found = max(found, len(names_of(subtask.taken())))
        subtask.work_off()
    return found


@pytest.mark.parametrize("barrier_every", [0, 1, 10])
def test_thousands_of_small_batches_leave_few_files_whatever_barriers_come(
    kind: str, tmp_path: Path, barrier_every: int
) -> None:
    subtask = Subtask(kind, tmp_path / "slot")
    subtask.backend._image_at_ms = float("inf")
    put = lambda batch: subtask.put(b"%d" % (batch % 50), b"%d" % batch)  # noqa: E731
    # Of 8 levels to 8^4 files, up to 8 each.
    assert most_files(subtask, 3_000, put, barrier_every=barrier_every) <= 40
    assert restored(subtask, kind, tmp_path / "again") == subtask.entries()


@pytest.mark.parametrize("every", [1, 7])
def test_thousands_of_batches_of_which_many_are_large_leave_no_more_than_some_hundred_files(
    kind: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No image comes: all of them are in the log. One of so many is large; all is a 256th of what it is in a query."""
    large_bytes = entry_files.SMALL_FILE_BYTES // 256
    monkeypatch.setattr(entry_files, "SMALL_FILE_BYTES", large_bytes)
    monkeypatch.setattr(entry_files, "FRAME_BYTES", large_bytes)
    subtask = Subtask(kind, tmp_path / "slot")
    subtask.backend._image_at_ms = float("inf")

    def put(batch: int) -> None:
        value = b"%d" % batch * (1 if batch % every else large_bytes)
        subtask.put(b"%d" % (batch % 5), value[:large_bytes])

    assert most_files(subtask, 2_000, put, barrier_every=10) <= entry_files.MOST_FILES + 2
    assert restored(subtask, kind, tmp_path / "again") == subtask.entries()


@pytest.mark.parametrize(("every", "small_bytes", "most_times"), [(1, 0, 3.5), (7, 0, 3.5), (10_000, 100, 6)])
def test_each_change_is_written_again_a_few_times_at_most(
    subtask: Subtask, every: int, small_bytes: int, most_times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of so many is large."""
    large_bytes = 1 << 12
    if not small_bytes:
        monkeypatch.setattr(entry_files, "SMALL_FILE_BYTES", large_bytes)
    subtask.backend._image_at_ms = float("inf")
    stored_bytes, write = 0, StepwiseFile._write

    def counted(file: StepwiseFile, pieces: Pieces | None) -> None:
        nonlocal stored_bytes
        stored_bytes += sum(len(piece) for piece in pieces or ())
        write(file, pieces)

    monkeypatch.setattr(StepwiseFile, "_write", counted)
    put_bytes = 0

    def put(batch: int) -> None:
        nonlocal put_bytes
        value = bytes(large_bytes if batch % every == 0 else small_bytes)
        put_bytes += len(value)
        subtask.put(b"k", value)

    most_files(subtask, 2_000, put, barrier_every=10)
    assert stored_bytes < most_times * put_bytes


# -- images before they are due


def test_a_log_that_has_outgrown_the_state_is_replaced_by_an_image_before_it_is_due(
    subtask: Subtask, kind: str, tmp_path: Path
) -> None:
    subtask.backend._image_at_ms = float("inf")
    most = 0
    for batch in range(200):
        subtask.put(b"%d" % (batch % 3), b"%d" % (batch % 10) * changelog.BATCH_BYTES)
        subtask.work_off()
        subtask.ahead.finish_images()
        most = max(most, len(names_of(subtask.taken())))
    assert len(subtask.ahead.images) >= 2
    assert most <= 100, "64 MiB of them, or twice what RocksDB holds, and an image"
    assert restored(subtask, kind, tmp_path / "again") == subtask.entries()


def test_a_log_of_what_is_put_once_is_left_until_an_image_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "LEAST_OUTGROWN_BYTES", 1_000)
    subtask = Subtask("heap", tmp_path / "slot")
    for batch in range(40):
        subtask.put(b"%d" % batch, bytes(100))
        subtask.store_batch()
    assert subtask.ahead.images == []
    for _ in range(100):
        subtask.put(b"k", bytes(100))
        subtask.store_batch()
    assert len(subtask.ahead.images) == 1


def test_an_image_that_was_begun_too_soon_and_failed_is_tried_again_in_due_time(
    subtask: Subtask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "LEAST_OUTGROWN_BYTES", 1)
    monkeypatch.setattr(changelog, "OUTGROWN_TIMES", 0)
    subtask.put(b"k", b"1")
    subtask.store_batch()
    subtask.work_off()
    assert len(subtask.ahead.images) == 1
    subtask.ahead.finish_images(OSError("full"))
    for number in range(20):
        subtask.put(b"k", b"%d" % number)
        subtask.store_batch()
        subtask.work_off()
    assert len(subtask.ahead.images) == 1
    subtask.ahead.images.clear()
    subtask.make_image()
    assert len(subtask.ahead.images) == 1
