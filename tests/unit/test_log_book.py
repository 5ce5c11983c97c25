"""Which files of a log of rows are kept."""

import pytest

from tidegate.operators import log_book
from tidegate.operators.log_book import (
    AHEAD,
    AT_BARRIER_AFTER_AHEAD,
    FileUse,
    has_many_small_files,
    kept_files,
    rows_ahead,
)


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_book, "FILE_ROWS", 100)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 10)
    monkeypatch.setattr(log_book, "_FEW_ROWS", 20)


def uses(*files: tuple[int, int]) -> list[FileUse]:
    return [FileUse(row_count, live_count, True) for row_count, live_count in files]


def test_files_are_kept_while_half_of_the_rows_are_needed() -> None:
    assert kept_files(uses((100, 50), (100, 50), (100, 50)), 0) == (0, 3)


def test_the_oldest_are_given_up_until_half_of_the_rows_are_needed() -> None:
    assert kept_files(uses((100, 10), (100, 30), (100, 90)), 0) == (1, 3)


def test_no_more_rows_are_written_again_than_changed_or_are_in_a_file() -> None:
    assert kept_files(uses(*[(1000, 60)] * 5), 0) == (2, 5)
    assert kept_files(uses(*[(1000, 60)] * 5), 200) == (4, 5)


def test_a_file_of_which_nothing_is_needed_goes_if_it_is_the_oldest() -> None:
    assert kept_files(uses((15, 0), (100, 100), (15, 0)), 50) == (1, 3)


def test_small_files_at_the_end_are_written_anew_with_what_is_new() -> None:
    assert kept_files(uses((100, 90), (9, 9), (4, 4)), 3) == (0, 1)
    assert kept_files(uses((100, 90), (9, 9), (4, 4)), 1) == (0, 3), "not for so little"


def test_a_small_file_stays_if_it_is_not_known_what_it_says() -> None:
    assert kept_files([*uses((100, 90)), FileUse(9, 9, False)], 5) == (0, 2)


def test_a_snapshot_leaves_small_files_to_what_is_done_ahead_of_it() -> None:
    few = uses((100, 90), *[(5, 5)] * 31)
    assert kept_files(few, 5, AT_BARRIER_AFTER_AHEAD) == (0, 32)
    assert kept_files(uses((100, 90), *[(5, 5)] * 32), 5, AT_BARRIER_AFTER_AHEAD) == (0, 1), "there was no time to"


def test_a_snapshot_takes_small_files_along_that_are_little_beside_what_it_writes() -> None:
    assert kept_files(uses((100, 90), (5, 5), (5, 5)), 20, AT_BARRIER_AFTER_AHEAD) == (0, 1)
    assert kept_files(uses((100, 90), (5, 5), (5, 5)), 19, AT_BARRIER_AFTER_AHEAD) == (0, 3)


def test_many_small_files_are_made_into_one_ahead_of_the_barrier() -> None:
    many = uses((100, 90), *[(5, 5)] * 8)
    assert has_many_small_files(many) and not has_many_small_files(many[:-1])
    assert kept_files(many, rows_ahead(many, 0), AHEAD) == (0, 1)
    assert kept_files(many[:-1], rows_ahead(many[:-1], 5), AHEAD) == (0, 8)
    assert rows_ahead(many[:-1], 0) == 0 and rows_ahead(many[:-1], 3) == 3 and rows_ahead(many, 7) == 7


def test_files_that_would_not_become_one_are_not_many() -> None:
    """Each is more than twice as long as all behind it."""
    assert not has_many_small_files(uses((10_000, 10_000), *[(3**at, 3**at) for at in range(8, 0, -1)]))
