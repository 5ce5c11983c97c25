"""Small files of a log of rows, made one between checkpoints: what a step of it takes, and what may come between."""

from pathlib import Path
from typing import Any

import pytest

from tests.in_memory import folder_in_memory
from tests.unit.test_rows_stored_ahead import KINDS, Checked, Running, backend
from tests.unit.test_sessions_on_disk import Logged, backends, keys, sessions_of
from tests.unit.tiny_steps import take_ahead, take_tiny_steps
from tidegate.operators import aggregate, block_marks, log_book, logged_rows, session_aggregate
from tidegate.operators.aggregate import AggregateOperator
from tidegate.operators.deduplicate import DeduplicateOperator
from tidegate.operators.logged_rows import LoggedRows
from tidegate.operators.session_aggregate import SessionAggregateOperator
from tidegate.state.rows_ahead import LOOK_MS, WAIT_MS
from tidegate.worker.state_backends import ChangelogBackends, RocksBackends

__all__ = ["backend", "backends"]


def logged_of(running: Any) -> Any:
    operator = running.operator
    return operator._logged if isinstance(operator, SessionAggregateOperator) else operator._on_disk.logged


class TakenRows:
    """How many rows of groups, keys and sessions were copied in each call of `on_time`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_step: list[int] = []
        for owner, name in (
            (AggregateOperator, "frozen"),
            (DeduplicateOperator, "frozen"),
            (SessionAggregateOperator, "_frozen"),
        ):
            self._count_in(owner, name, monkeypatch)
        on_time = ChangelogBackends.on_time

        def in_step(backends: ChangelogBackends, now_ms: float) -> None:
            self.by_step.append(0)
            on_time(backends, now_ms)

        monkeypatch.setattr(ChangelogBackends, "on_time", in_step)

    def _count_in(self, owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        frozen = getattr(owner, name)

        def counted(operator: Any, slots: Any) -> Any:
            if self.by_step:
                self.by_step[-1] += len(slots)
            return frozen(operator, slots)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("kind", ["aggregation", "deduplication", "sessions"])
def test_no_step_takes_more_than_a_part_though_small_files_are_made_one(
    kind: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_book, "PART_ROWS", 50)
    taken = TakenRows(monkeypatch)
    running = Running(KINDS[kind], tmp_path, backend=backend)
    most_files = 0
    for batch in range(12):
        running.change(range(batch * 100, batch * 100 + 100))
        running.pass_time(WAIT_MS)
        most_files = max(most_files, running.log_files())
    running.pass_time(5 * WAIT_MS)
    assert most_files >= log_book.AHEAD.small_files > running.log_files(), "some were made one"
    assert sum(taken.by_step) > 1_200, "and so were written again"
    assert max(taken.by_step) <= 50
    running.take_checkpoint()
    assert logged_of(running).is_consistent()
    running.close()


def test_marking_the_rows_of_small_files_is_done_in_steps_too(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged_rows, "_MARKED", 30)
    marked, give_up = list[int](), LoggedRows._give_up_some

    def counted(logged: LoggedRows) -> None:
        before = int((logged._numbers.used < 0).sum())
        give_up(logged)
        marked.append(int((logged._numbers.used < 0).sum()) - before)

    monkeypatch.setattr(LoggedRows, "_give_up_some", counted)
    running = Running(KINDS["aggregation"], tmp_path, backend=backend)
    for batch in range(12):
        running.change(range(batch * 100, batch * 100 + 100))
        running.pass_time(WAIT_MS)
    assert sum(marked) >= 800 and max(marked) <= 30
    running.close()


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("kind", ["aggregation", "deduplication", "sessions"])
def test_whenever_a_barrier_comes_while_small_files_are_made_one_it_has_all_rows(
    kind: str, is_changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what is in those files changes before it is taken again."""
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 10)
    monkeypatch.setattr(log_book, "FILE_ROWS", 100)
    monkeypatch.setattr(log_book, "AHEAD", log_book.Rule(stored_per_live=2, small_files=8))
    monkeypatch.setattr(block_marks, "_SAMPLE_BLOCKS", 100)
    files_before = list[int]()
    for step in range(0, 66, 2):
        with folder_in_memory() as folder:
            checked = Checked(KINDS[kind], folder, "heap")
            running = checked.running
            for first, count in [(0, 12), *((12 + 4 * number, 4) for number in range(7))]:
                checked.change(range(first, first + count))
                running.pass_time(WAIT_MS)
            checked.change(range(38, 41))
            running.slot.clock.advance(WAIT_MS)
            for _ in range(step):
                running.slot.clock.advance(LOOK_MS)
                running.backends.on_time(running.slot.clock.monotonic_ms())
            files_before.append(running.log_files())
            if is_changed:
                checked.change(range(2, 40, 3))
            checked.barrier()
            assert logged_of(running).is_consistent()
            checked.complete()
            running.close()
    assert (files_before[0], files_before[-1]) == (8, 2), "all of it was seen"


def test_sessions_that_are_left_behind_meanwhile_leave_none_of_the_others_out(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those have other slots then."""
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(session_aggregate, "_FEW_SESSIONS", 2)
    monkeypatch.setattr(aggregate, "LEAST_FIRED_GROUPS", 2)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 100)
    monkeypatch.setattr(log_book, "FILE_ROWS", 100)
    monkeypatch.setattr(log_book, "AHEAD", log_book.Rule(stored_per_live=2, small_files=6))
    is_amid = list[bool]()
    for step in range(20, 60, 3):
        running = Logged(backends)
        operator = running.operator
        assert isinstance(operator, SessionAggregateOperator)
        for first, at_ms in ((0, 0), (10, 0), (20, 0), (30, 0), (40, 1000)):
            running.process(keys(range(first, first + 10), at_ms=at_ms))
            take_ahead(operator, 40)
        running.process(keys(range(50, 60), at_ms=1000))
        take_ahead(operator, step)
        ahead = logged_of(running)._round
        is_amid.append(ahead is not None and ahead.has_given_up and 10 < ahead.looked_to < 50)
        running.advance(10)
        assert operator._sessions.count == 20, "forty are left behind"
        take_ahead(operator, 40)
        assert sessions_of(Logged(backends, restored=running.stored())) == sessions_of(running)
        assert running.is_consistent()
    assert any(is_amid)
