"""When rows of a log are taken between checkpoints: what has waited, what is enough, what becomes of files."""

import errno
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.ahead_by_hand import AheadByHand
from tidegate.model.ids import KeyGroupRange
from tidegate.state.row_log import LogFile, Part, RowLog
from tidegate.state.rows_ahead import LONGEST_LOOK_MS, LOOK_MS, SHORT_WAIT_MS, WAIT_MS, RowsAhead
from tidegate.state.sst_files import Folder
from tidegate.state.stepwise_file import Pieces, StepwiseFile
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

ENOUGH = 100


@dataclass
class Rows:
    """An operator's rows: so many have changed, of which a round takes some, a file in each part."""

    log: RowLog
    waiting: int = 0
    taken_of_round: int = 0
    parts: int = 1
    looks: int = 0
    has_many: bool = False
    does_change_again: bool = False
    files: list[LogFile] = field(default_factory=list)
    _part: int = 0

    def waiting_rows(self) -> int:
        self.looks += 1
        return self.waiting

    def enough_rows(self) -> int:
        return ENOUGH

    def changes_again(self) -> bool:
        return self.does_change_again

    def has_many_files(self) -> bool:
        return self.has_many

    def take_part(self) -> bool:
        self._part += 1
        if self.taken_of_round:
            self.files.append(self.log.append([_part_of(1), _part_of(2)], self.taken_of_round))
        if self._part < self.parts:
            return True
        self._part = 0
        return False

    def taken_files(self) -> list[LogFile]:
        files, self.files = self.files, []
        return files

    def looked_at(self) -> tuple[int, int]:
        return self.waiting, self.taken_of_round


def _part_of(number: int) -> Part:
    return lambda: [memoryview(b"part %d" % number)]


class Following:
    def __init__(self, folder: Path) -> None:
        self.clock, self.ahead = ManualClock(), AheadByHand()
        self.log = RowLog(KeyGroupRange(0, 8), Folder(folder))
        self.rows: Rows | None = Rows(self.log)
        self.follower = RowsAhead(self.log, ahead=self.ahead, clock=self.clock)
        self.follower.follow(lambda: self.rows)

    def pass_time(self, ms: float) -> None:
        """Between steps of the stream, as often as something is due."""
        until_ms = self.clock.monotonic_ms() + ms
        while (due_ms := self.follower.next_deadline_ms()) is not None and due_ms <= until_ms:
            self.clock.advance_to(due_ms)
            self.follower.on_time(due_ms)
        self.clock.advance_to(until_ms)


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path / "slot")


@pytest.fixture
def rows(following: Following) -> Rows:
    assert following.rows is not None
    return following.rows


def test_enough_rows_are_taken_at_the_next_look(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round = ENOUGH, ENOUGH
    following.pass_time(LOOK_MS - 1)
    assert following.ahead.changes == []
    following.pass_time(1)
    assert len(following.ahead.changes) == 1


def test_a_few_rows_are_taken_once_they_have_waited_and_no_sooner(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round = 1, 1
    following.pass_time(WAIT_MS - 1)
    assert following.ahead.changes == []
    following.pass_time(LOOK_MS)
    assert len(following.ahead.changes) == 1
    following.pass_time(WAIT_MS - 2 * LOOK_MS)
    assert len(following.ahead.changes) == 1, "a file has its price"
    following.pass_time(3 * LOOK_MS)
    assert len(following.ahead.changes) == 2


def test_a_share_of_enough_rows_waits_less_long(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round = -(-ENOUGH // 32), ENOUGH // 32
    following.pass_time(SHORT_WAIT_MS - 1)
    assert following.ahead.changes == []
    following.pass_time(1)
    assert len(following.ahead.changes) == 1
    rows.does_change_again = True
    following.pass_time(WAIT_MS - 1)
    assert len(following.ahead.changes) == 1
    rows.does_change_again, rows.waiting = False, ENOUGH // 32 - 1
    following.pass_time(1)
    assert len(following.ahead.changes) == 2
    following.pass_time(WAIT_MS - 1)
    assert len(following.ahead.changes) == 2


def test_many_files_become_one_though_nothing_changed(following: Following, rows: Rows) -> None:
    rows.has_many, rows.taken_of_round = True, 1
    following.pass_time(WAIT_MS - 1)
    assert following.ahead.changes == []
    following.pass_time(LOOK_MS)
    assert len(following.ahead.changes) == 1


def test_where_nothing_changed_nothing_is_taken(following: Following, rows: Rows) -> None:
    rows.taken_of_round = 1
    following.pass_time(10 * WAIT_MS)
    assert following.ahead.changes == []


def test_a_round_goes_on_until_all_its_parts_are_taken_a_step_at_a_time(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round, rows.parts = ENOUGH, ENOUGH, 3
    following.pass_time(LOOK_MS)
    assert len(following.ahead.changes) == 3


def test_a_file_is_handed_over_once_it_is_whole(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round = ENOUGH, ENOUGH
    following.clock.advance(LOOK_MS)
    now_ms = following.clock.monotonic_ms()
    handed_over = []
    for _ in range(5):
        following.follower.on_time(now_ms)
        handed_over.append(len(following.ahead.changes))
    assert handed_over == [0, 0, 0, 0, 1], "looked at, taken, two parts written, then closed"
    (file,) = following.log.files
    assert file.path.read_bytes() == b"part 1part 2"


def test_what_a_snapshot_holds_is_left_to_its_checkpoint(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round = ENOUGH, ENOUGH
    following.clock.advance(LOOK_MS)
    for _ in range(3):
        following.follower.on_time(following.clock.monotonic_ms())
    following.log.section()
    rows.waiting = 0
    following.pass_time(LOOK_MS)
    assert following.ahead.changes == [], "it would be stored for the next checkpoint, and by this one too"


def test_a_file_that_was_written_anew_with_others_meanwhile_is_not_handed_over(
    following: Following, rows: Rows
) -> None:
    rows.waiting, rows.taken_of_round = ENOUGH, ENOUGH
    following.clock.advance(LOOK_MS)
    for _ in range(3):
        following.follower.on_time(following.clock.monotonic_ms())
    following.log.files = []
    rows.waiting = 0
    following.pass_time(LOOK_MS)
    assert following.ahead.changes == []


def test_looks_that_find_hardly_a_row_to_take_come_ever_less_often(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round = 10 * ENOUGH, 1
    following.pass_time(60_000)
    in_vain, rows.looks = rows.looks, 0
    assert 60_000 / LONGEST_LOOK_MS <= in_vain < 60_000 / LONGEST_LOOK_MS + 10
    rows.taken_of_round = rows.waiting
    following.pass_time(2 * LONGEST_LOOK_MS)
    rows.looks = 0
    following.pass_time(1_000)
    assert rows.looks == 1_000 / LOOK_MS, "once it is worth it, as often as before"


def test_while_there_is_no_log_it_is_looked_for_and_nothing_else(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round, following.rows = ENOUGH, ENOUGH, None
    following.pass_time(1_000)
    assert (rows.looks, following.follower.unstored_bytes()) == (0, 0)
    following.rows = rows
    following.pass_time(LOOK_MS)
    assert len(following.ahead.changes) == 1


def test_rows_count_as_unstored_from_the_look_that_finds_them_until_their_file_is_stored(
    following: Following, rows: Rows
) -> None:
    rows.waiting, rows.taken_of_round = ENOUGH, ENOUGH
    following.pass_time(LOOK_MS)
    rows.waiting = 0
    file_bytes = len("part 1part 2")
    assert following.follower.unstored_bytes() == file_bytes
    following.ahead.stored.update(following.ahead.changes)
    assert following.follower.unstored_bytes() == 0
    rows.waiting = ENOUGH // 2
    following.pass_time(LOOK_MS)
    assert following.follower.unstored_bytes() == file_bytes // 2, "by the rows that are in files"


def test_rows_that_change_after_a_restore_count_by_those_in_the_files_that_were_restored(tmp_path: Path) -> None:
    before = RowLog(KeyGroupRange(0, 8), Folder(tmp_path / "before"))
    before.append([_part_of(1), _part_of(2)], ENOUGH)
    (stored,) = restored_from([before.section()])
    following = Following(tmp_path / "slot")
    following.log.adopt(stored)
    assert following.follower.unstored_bytes() == len("part 1part 2")
    following.ahead.stored.update(file.name for file in following.log.files)
    assert following.rows is not None
    following.rows.waiting = ENOUGH // 2
    following.pass_time(LOOK_MS)
    assert following.follower.unstored_bytes() == len("part 1part 2") // 2


def test_a_full_disk_is_left_alone_for_a_while_and_the_file_to_the_next_checkpoint(
    following: Following, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tried = StepwiseFile._write, list[float]()

    def full(file: StepwiseFile, pieces: Pieces | None) -> None:
        tried.append(following.clock.monotonic_ms())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(StepwiseFile, "_write", full)
    rows.waiting, rows.taken_of_round = ENOUGH, ENOUGH
    following.pass_time(WAIT_MS)
    assert (tried, following.ahead.changes) == ([LOOK_MS], [])
    monkeypatch.setattr(StepwiseFile, "_write", write)
    following.pass_time(LOOK_MS)
    assert len(following.ahead.changes) == 1, "the next one; it goes on by itself"
    first = following.log.files[0]
    assert first.has_failed()
    section = following.log.section()
    assert section.steps is not None
    for _ in section.steps():
        pass
    assert first.is_written()


def test_nothing_is_due_once_it_is_closed(following: Following, rows: Rows) -> None:
    rows.waiting, rows.taken_of_round = ENOUGH, ENOUGH
    following.clock.advance(LOOK_MS)
    for _ in range(3):
        following.follower.on_time(following.clock.monotonic_ms())
    following.follower.close()
    assert following.follower.next_deadline_ms() is None
    following.follower.on_time(following.clock.monotonic_ms())
    assert following.ahead.changes == []
