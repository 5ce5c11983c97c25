"""Rows that are written ahead of a snapshot: new ones always, others once for each of those."""

import numpy as np

from tidegate.operators.rows_of_epoch import RowsOfEpoch


def chosen(epoch: RowsOfEpoch, *numbers: int) -> list[int]:
    """Of rows in files of these numbers, 0 if in none, all of which can be taken."""
    found = np.array(numbers, dtype=np.int32)
    return found[epoch.chosen(np.ones(len(found), np.bool_), found)].tolist()


def test_rows_of_older_files_and_of_none_are_new() -> None:
    epoch = RowsOfEpoch(5)
    assert chosen(epoch, 0, 3, 4) == [0, 3, 4]


def test_as_many_are_written_again_as_were_new_and_no_more() -> None:
    epoch = RowsOfEpoch(5)
    chosen(epoch, 0, 4, 4)
    assert chosen(epoch, 5, 5) == [5, 5]
    assert chosen(epoch, 6, 6) == [], "with these it would be four for three"
    assert chosen(epoch, 6) == [6]
    assert chosen(epoch, 0, 7, 7) == [0], "a new one never waits for others"


def test_rows_that_cannot_be_taken_are_neither_chosen_nor_counted() -> None:
    epoch = RowsOfEpoch(5)
    numbers = np.array([0, 0, 5], dtype=np.int32)
    assert epoch.chosen(np.array([False, True, False]), numbers).tolist() == [False, True, False]
    assert chosen(epoch, 5, 5) == []
    assert chosen(epoch, 5) == [5]


def test_rows_that_change_again_are_noticed_until_an_epoch_without_them_is_over() -> None:
    every = np.ones(16, dtype=np.bool_)
    epoch = RowsOfEpoch(5)
    epoch.chosen(every, np.zeros(16, dtype=np.int32))
    assert not epoch.changes_again()
    epoch.chosen(every[:2], np.full(2, 5, dtype=np.int32))
    assert not epoch.changes_again(), "one in eight"
    epoch.chosen(every[:1], np.full(1, 5, dtype=np.int32))
    assert epoch.changes_again()
    after = epoch.next(9)
    assert after.changes_again()
    after.chosen(every, np.full(16, 5, dtype=np.int32))
    assert not after.next(12).changes_again(), "they were of the epoch before"
