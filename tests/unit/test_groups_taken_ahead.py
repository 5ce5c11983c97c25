"""Groups that are taken into their log between snapshots: each snapshot is of its barrier, whatever comes."""

import pytest

from tests.unit.test_groups_on_disk import (
    Subtask,
    backends,
    numbered,
    on_disk,
    rows_from,
    shown_counts,
    tiny_steps,
)
from tests.unit.tiny_steps import take_ahead
from tidegate.operators import log_book, logged_rows
from tidegate.operators.aggregate import AggregateOperator
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import RocksBackends

__all__ = ["backends", "tiny_steps"]


def begin_round(operator: AggregateOperator) -> None:
    """Up to where some rows are in a file to which others will be added."""
    log = operator._store.log  # type: ignore[union-attr]
    newest = log.next_number
    for _ in range(100):
        take_ahead(operator, 1)
        if log.next_number > newest:
            return
    raise AssertionError("none is ever taken")


def test_a_barrier_in_the_middle_of_a_round_ends_it(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken afterwards must not be added to a file that the snapshot has."""
    monkeypatch.setattr(log_book, "FILE_ROWS", 1000)
    subtask = on_disk(backends)
    subtask.process(numbered(subtask.spec, range(100)))
    for _ in range(2):
        restored_from(subtask.snapshot()[1])
        subtask.process(numbered(subtask.spec, range(70)))
    begin_round(subtask.operators[1])
    first = restored_from(subtask.snapshot()[1])
    take_ahead(subtask.operators[1], 100)
    subtask.process(numbered(subtask.spec, [1]))
    later = restored_from(subtask.snapshot()[1])
    expected = dict.fromkeys(range(70), 4) | dict.fromkeys(range(70, 100), 2)
    assert shown_counts(on_disk(backends, first), range(100)) == expected
    assert shown_counts(on_disk(backends, later), range(100)) == expected | {1: 5}


def test_rows_that_are_owed_to_a_snapshot_are_taken_for_it_before_any_is_taken_ahead(backends: RocksBackends) -> None:
    subtask = on_disk(backends)
    subtask.process(numbered(subtask.spec, range(100)))
    for _ in range(2):
        restored_from(subtask.snapshot()[1])
        subtask.process(numbered(subtask.spec, range(70)))
    (_, taken) = subtask.snapshot()
    subtask.process(numbered(subtask.spec, range(70, 100)))
    take_ahead(subtask.operators[1], 100)
    expected = dict.fromkeys(range(70), 4) | dict.fromkeys(range(70, 100), 2)
    assert shown_counts(on_disk(backends, restored_from(taken)), range(100)) == expected
    assert subtask.operators[1].is_consistent()


def test_a_group_that_ends_after_its_row_was_taken_ahead_stays_away(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged_rows, "_MOST_GONE", 1000)
    monkeypatch.setattr(log_book, "FILE_ROWS", 1000)
    subtask = on_disk(backends, name="append")
    rows = [(window, (number, None), 1, None, None) for number in range(30) for window in (0, 5)]
    subtask.process(rows_from(subtask.spec, rows))
    begin_round(subtask.operators[1])
    subtask.on_watermark(1_000, fires=100)
    assert sum(rows.num_rows for rows in subtask.out[1]) == 30
    take_ahead(subtask.operators[1], 20)
    again = on_disk(backends, restored_from(subtask.snapshot()[1]), name="append")
    again.on_watermark(1 << 40, fires=100)
    assert sum(rows.num_rows for rows in again.out[1]) == 30, "those of the other window"


def give_up_small_files(operator: AggregateOperator) -> int:
    """Up to where rows of small files are in no file, because none of them was taken again; how many are."""
    for _ in range(100):
        take_ahead(operator, 1)
        logged = operator._on_disk.logged  # type: ignore[union-attr]
        if (given_up := int((logged._numbers.used < 0).sum())) and not logged._gives_up_from:
            return given_up
    raise AssertionError("none is ever given up")


def with_small_files(backends: RocksBackends, monkeypatch: pytest.MonkeyPatch, name: str) -> Subtask:
    """Groups 0 to 29 are in a large file, and some of them, as they were later, in small ones.

    In the large one there are others too, of a window that ends later if there are windows.
    """
    monkeypatch.setattr(logged_rows, "_MOST_GONE", 1000)
    monkeypatch.setattr(log_book, "FILE_ROWS", 1000)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 10)
    monkeypatch.setattr(log_book, "AHEAD", log_book.Rule(stored_per_live=100, small_files=3))
    monkeypatch.setattr(log_book, "AT_BARRIER_AFTER_AHEAD", log_book.Rule(stored_per_live=100, small_files=100))
    subtask = on_disk(backends, name=name)
    take_ahead(subtask.operators[1], 1)
    subtask.process(rows_from(subtask.spec, [(5, (number, None), 1, None, None) for number in range(30, 40)]))
    for numbers in (range(30), range(4), range(4, 8), range(8, 12)):
        rows = [(0, (number, None), 1, None, None) for number in numbers]
        subtask.process(rows_from(subtask.spec, rows))
        restored_from(subtask.snapshot()[1])
    return subtask


def test_a_barrier_amid_files_that_are_given_up_has_their_rows(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    subtask = with_small_files(backends, monkeypatch, "update")
    assert give_up_small_files(subtask.operators[1]) > 4
    again = on_disk(backends, restored_from(subtask.snapshot()[1]))
    assert shown_counts(again, range(30)) == dict.fromkeys(range(12), 3) | dict.fromkeys(range(12, 30), 2)
    assert subtask.operators[1].is_consistent()


def test_a_group_that_ends_while_its_file_is_given_up_stays_away(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large file has it too, as it was before."""
    subtask = with_small_files(backends, monkeypatch, "append")
    assert give_up_small_files(subtask.operators[1]) > 4
    subtask.on_watermark(1_000, fires=100)
    assert sum(rows.num_rows for rows in subtask.out[1]) == 30
    take_ahead(subtask.operators[1], 20)
    again = on_disk(backends, restored_from(subtask.snapshot()[1]), name="append")
    again.on_watermark(1 << 40, fires=100)
    assert sum(rows.num_rows for rows in again.out[1]) == 10, "those of the other window"


def test_nothing_is_taken_ahead_while_groups_are_left_behind(backends: RocksBackends) -> None:
    """What is copied of them would say that they have changed still."""
    subtask = on_disk(backends, name="append")
    operator = subtask.operators[1]
    rows = [(5 * (number > 60), (number, None), 1, None, None) for number in range(80)]
    subtask.process(rows_from(subtask.spec, rows))
    assert operator._log_now() is not None
    for _ in range(100):
        subtask.on_watermark(1_000, fires=1)
        if operator._compaction is not None:
            break
    assert operator._compaction is not None
    assert operator._log_now() is None
    subtask.settle()
    assert operator._log_now() is not None
