"""Which partition folders rows belong to: found part by part, however many there are, with each name spelled once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.connectors import partition_folders
from tidegate.connectors.partition_folders import Folders, GatheredRows

FOLDERS, ROWS = 64, 1_024
TIMES = pa.timestamp("us", "UTC")


@pytest.fixture
def spelled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each name was."""
    monkeypatch.setattr(partition_folders, "_BLOCK_FOLDERS", FOLDERS)
    monkeypatch.setattr(partition_folders, "_BLOCK_ROWS", ROWS)
    names: Counter[str] = Counter()
    folder_name = partition_folders.folder_name

    def noted(column: str, value: str | None) -> str:
        name = folder_name(column, value)
        names[name] += 1
        return name

    monkeypatch.setattr(partition_folders, "folder_name", noted)
    yield names
    assert max(names.values()) == 1, "each once"


def rows_of(values: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([values, pa.array(np.arange(len(values)))], names=["p", "id"])


def spelled_in_steps(gathered: GatheredRows, values: pa.Array, slice_rows: int, spelled: Counter[str]) -> list[int]:
    found = []
    for start in range(0, len(values), slice_rows):
        before = len(spelled)
        gathered.add(rows_of(values.slice(start, slice_rows)))
        found.append(len(spelled) - before)
    return found


@pytest.mark.parametrize("slice_rows", [1, 16, 50, 300])
@pytest.mark.parametrize("kind", [pa.string(), TIMES], ids=str)
def test_a_step_spells_names_in_proportion_to_the_rows_it_brings(
    kind: pa.DataType, slice_rows: int, spelled: Counter[str]
) -> None:
    for count in (900, 2_000):
        values = pa.array(np.arange(count) * 1_000_003).cast(kind)
        gathered = GatheredRows(("p",), "Europe/Berlin")
        spelled.clear()
        found = spelled_in_steps(gathered, values, slice_rows, spelled)
        assert max(found) <= FOLDERS + 2 * slice_rows
        before = len(spelled)
        assert (len(gathered.counts()), gathered.counts().total()) == (count, count)
        assert len(spelled) - before <= FOLDERS + slice_rows, "nor does the barrier wait for many"


def test_rows_of_many_folders_behind_those_of_few_are_found_bit_by_bit(spelled: Counter[str]) -> None:
    gathered = GatheredRows(("p",), "UTC")
    few, many = pa.array([f"p{at % 3}" for at in range(10_010)]), pa.array([f"q{at}" for at in range(3_000)])
    assert sum(spelled_in_steps(gathered, few, 16, spelled)) == 3
    found = spelled_in_steps(gathered, many, 16, spelled)
    assert max(found) <= FOLDERS and sum(found) > 2_500
    assert gathered.counts() == Counter(f"p={value}/" for value in [*few.to_pylist(), *many.to_pylist()])


def test_rows_that_wait_longer_than_those_before_them_stay_in_their_order(spelled: Counter[str]) -> None:
    gathered = GatheredRows(("p",), "UTC")
    few, many = pa.array(["p"] * 5_000), pa.array([f"q{at % 1_500}" for at in range(3_000)])
    spelled_in_steps(gathered, few, 16, spelled)
    gathered.add(rows_of(many))
    found = {folder: part.column("id").to_pylist() for folder, part in gathered.whole().parts()}
    assert found.pop("p=p/") == [at % 16 for at in range(5_000)]
    assert found == {f"p=q{at}/": [at, at + 1_500] for at in range(1_500)}


def test_rows_of_few_folders_are_looked_at_many_at_a_time(
    spelled: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    of_first_rows = Folders.of_first_rows
    monkeypatch.setattr(
        Folders,
        "of_first_rows",
        lambda self, rows, most: (looked_at.append(rows.num_rows), of_first_rows(self, rows, most))[1],
    )
    gathered = GatheredRows(("p",), "UTC")
    spelled_in_steps(gathered, pa.array([at % 5 for at in range(20_480)]), 16, spelled)
    assert len(looked_at) <= 20_480 // ROWS + 5
    assert gathered.counts() == {f"p={number}/": 4_096 for number in range(5)}


def test_names_of_folders_that_come_again_are_spelled_once(spelled: Counter[str]) -> None:
    gathered = GatheredRows(("p",), "UTC")
    values = pa.array(np.random.default_rng(1).integers(0, 500, 20_000))
    found = spelled_in_steps(gathered, values, 16, spelled)
    assert max(found) <= FOLDERS
    assert len(gathered.counts()) == len(spelled) == 500


def test_two_times_that_clocks_of_the_columns_zone_show_alike_have_a_folder_each(spelled: Counter[str]) -> None:
    times = [datetime(2025, 10, 26, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    gathered = GatheredRows(("p",), "UTC")
    for time in times:
        gathered.add(rows_of(pa.array([time], pa.timestamp("us", "Europe/Berlin"))))
        gathered.counts()
    assert gathered.counts() == {"p=2025-10-26 00%3A30%3A00/": 1, "p=2025-10-26 01%3A30%3A00/": 1}


def folder_of(values: Sequence[Any]) -> str:
    texts = ["__HIVE_DEFAULT_PARTITION__" if value in (None, "") else str(value) for value in values]
    return "".join(f"{name}={text}/" for name, text in zip("ab", texts, strict=True))


rows_drawn = st.lists(
    st.tuples(st.sampled_from([None, "", "x", "y", "z"]), st.one_of(st.none(), st.integers(0, 9))), max_size=120
)


@settings(max_examples=100, deadline=None)
@given(drawn=rows_drawn, slice_rows=st.integers(1, 40), most_folders=st.integers(1, 12), most_rows=st.integers(1, 40))
def test_every_row_is_in_its_own_folder_in_its_order(
    drawn: list[tuple[str | None, int | None]], slice_rows: int, most_folders: int, most_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(partition_folders, "_BLOCK_FOLDERS", most_folders)
        patched.setattr(partition_folders, "_BLOCK_ROWS", most_rows)
        gathered = GatheredRows(("a", "b"), "UTC")
        texts, numbers = ([row[at] for row in drawn] for at in (0, 1))
        columns = [pa.array(texts, pa.string()), pa.array(numbers, pa.int64()), pa.array(range(len(drawn)))]
        rows = pa.RecordBatch.from_arrays(columns, names=["a", "b", "id"])
        for start in range(0, len(drawn), slice_rows):
            gathered.add(rows.slice(start, slice_rows))
        expected: dict[str, list[int]] = {}
        for at, row in enumerate(drawn):
            expected.setdefault(folder_of(row), []).append(at)
        assert gathered.counts() == {folder: len(ids) for folder, ids in expected.items()}
        if drawn:
            found = {folder: part.column("id").to_pylist() for folder, part in gathered.whole().parts()}
            assert found == expected
