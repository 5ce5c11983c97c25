"""Keys to slots: the same key has the same slot for ever, while table and columns grow bit by bit."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.model.errors import UnsupportedPlan
from tidegate.operators import columnar, key_table
from tidegate.operators.columnar import AppendedArray, GrowingArray, KeyIndex, VariableKeys
from tidegate.operators.key_table import KeyTable


def rows_of(keys: list[int | str | None], kind: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys, kind)], names=["key"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_every_key_keeps_its_slot_while_the_table_grows(
    seed: int, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_table, "LEAST_COPIED_PLACES", 8)
    monkeypatch.setattr(columnar, "_LEAST_MOVED_VALUES", 1)
    random = np.random.default_rng(seed)
    index = KeyIndex([kind])
    known: dict[int | str | None, int] = {}
    for step in range(300):
        numbers = random.integers(-20 * step - 1, 20 * step + 1, random.integers(1, 60)).tolist()
        keys = [None if key % 97 == 0 else str(key) if kind == pa.string() else key for key in numbers]
        slots = index.find_or_add(rows_of(keys, kind)).tolist()
        for key, slot in zip(keys, slots, strict=True):
            assert known.setdefault(key, slot) == slot
    assert sorted(known.values()) == list(range(index.count))
    (stored,) = index.gather(slice(0, index.count))
    assert {key: slot for slot, key in enumerate(stored.to_pylist())} == known


NAN = float("nan")
LISTS: list[tuple[pa.DataType, list[list[Any]]]] = [
    # Those of one line are equal, as Spark groups them.
    (pa.list_(pa.int64()), [[None], [[]], [[None]], [[0]], [[0, 0]], [[0, None]], [[1, 2]], [[2, 1]]]),
    (pa.list_(pa.string()), [[None], [[]], [[""]], [["", ""]], [["ab", "c"]], [["a", "bc"]], [[None, "abc"]]]),
    (pa.list_(pa.float64()), [[None], [[0.0], [-0.0]], [[NAN], [-NAN]], [[0.0, NAN], [-0.0, NAN]], [[1.5]]]),
    (pa.list_(pa.list_(pa.int32())), [[[[1], [2]]], [[[1, 2]]], [[[1, 2], []]], [[[1, 2], None]], [[]], [[None]]]),
    (
        pa.list_(pa.struct([("x", pa.float32()), ("y", pa.string())])),
        [[[{"x": 0.0, "y": "a"}], [{"x": -0.0, "y": "a"}]], [[{"x": None, "y": "a"}]], [[None]], [[]]],
    ),
    (
        pa.struct([("at", pa.int64()), ("names", pa.list_(pa.string()))]),
        [[None], [{"at": None, "names": None}], [{"at": 1, "names": []}], [{"at": 1, "names": ["a"]}]],
    ),
]


@pytest.mark.parametrize(("kind", "classes"), LISTS, ids=str)
def test_lists_are_keys_by_their_elements(kind: pa.DataType, classes: list[list[Any]]) -> None:
    numbers = [number for number, equal in enumerate(classes) for _ in equal]
    values = [value for equal in classes for value in equal]
    index = KeyIndex([kind, pa.int64()])
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(len(values)), 5))
    keys = pa.array(values, kind).take(pa.array(order))
    # A slice, whose buffers begin before it.
    rows = pa.RecordBatch.from_arrays(
        [pa.concat_arrays([keys, keys]), pa.array([7] * 2 * len(keys))], names=["key", "n"]
    )
    slots = index.find_or_add(rows.slice(3))
    expected = [numbers[at] for at in [*order, *order]][3:]
    assert index.count == len(classes)
    assert len(set(zip(slots.tolist(), expected, strict=True))) == len(classes)
    gathered, _ = index.gather(slots)
    assert gathered.type == kind
    assert [str(each) for each in gathered.to_pylist()] == [str(values[numbers.index(number)]) for number in expected]
    kept = index.kept(np.arange(1, index.count))
    assert kept.find_or_add(rows.slice(3)).max() == index.count - 1


@pytest.fixture
def compared_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is taken of stored keys to be compared, each time."""
    found: list[int] = []
    equal = VariableKeys.equal

    def noted(self: VariableKeys, slots: Any, rows: Any, which: Any) -> Any:
        found.append(int(self.bytes_of(slots).sum()))
        return equal(self, slots, rows, which)

    monkeypatch.setattr(VariableKeys, "equal", noted)
    return found


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.string()], ids=str)
def test_a_long_key_is_compared_with_no_row_of_another(kind: pa.DataType, compared_bytes: list[int]) -> None:
    def key_of(number: int, length: int) -> Any:
        return [float(number)] * length if pa.types.is_list(kind) else f"{number:08d}" * length

    index = KeyIndex([pa.int64(), kind])
    long, short = key_of(1, 10_000), [key_of(number, 1) for number in range(2, 500)]
    known: dict[str, int] = {}
    for keys in ([long], [long, *short], [long, *short, long]):
        rows = pa.RecordBatch.from_arrays([pa.array([7] * len(keys)), pa.array(keys, kind)], names=["n", "key"])
        compared_bytes.clear()
        slots = index.find_or_add(rows).tolist()
        assert all(known.setdefault(str(key), slot) == slot for key, slot in zip(keys, slots, strict=True))
        # The rows have as much themselves, and each list a little beside its elements.
        assert sum(compared_bytes) <= 2 * rows.nbytes
    assert sorted(known.values()) == list(range(499))


def test_keys_whose_hashes_are_all_the_same_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, compared_bytes: list[int]
) -> None:
    monkeypatch.setattr(columnar, "hash_rows", lambda rows, key_count: np.zeros(rows.num_rows, dtype=np.uint64))
    keys = [(number, text) for number in (None, 0, 1, 2) for text in (None, "", "a", "long" * 1_000)]
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(len(keys)), 4)).tolist()
    numbers, texts = (pa.array([keys[at][column] for at in order], kind) for column, kind in enumerate(KINDS))
    index = KeyIndex(KINDS)
    rows = pa.RecordBatch.from_arrays([numbers, texts], names=["n", "text"])
    for start in (0, 0, 5):
        compared_bytes.clear()
        slots = index.find_or_add(rows.slice(start)).tolist()
        assert len(set(zip(slots, order[start:], strict=True))) == index.count == len(keys)
    # Texts are compared of those whose numbers are the same: one in four.
    assert sum(compared_bytes) < len(keys) * rows.nbytes / 3


KINDS = [pa.int64(), pa.string()]


def test_what_keys_have_in_arrays_and_strings_is_known_unless_all_are_short() -> None:
    index = KeyIndex([pa.int64(), pa.list_(pa.int64()), pa.string()])

    def add(lists: list[Any], texts: list[Any]) -> None:
        columns = [pa.array([1] * len(lists)), pa.array(lists, pa.list_(pa.int64())), pa.array(texts)]
        index.find_or_add(pa.RecordBatch.from_arrays(columns, names=["n", "lists", "texts"]))

    add([[1], None], ["a", None])
    assert (index.variable_bytes(), index.variable_bytes(np.array([1, 0]))) == (None, None)
    add([[1] * 100, [1]], ["b", "a" * 200])
    found = index.variable_bytes()
    assert found is not None and found.sum() == index.variable_size_bytes()
    assert found[0] < 32 and 800 < found[2] < 1_000 and 200 < found[3] < 232
    chosen = index.variable_bytes(np.array([3, 3, 0]))
    assert chosen is not None and chosen.tolist() == found[[3, 3, 0]].tolist()
    assert index.kept(np.array([0, 1])).variable_bytes() is None


def test_maps_are_no_keys_wherever_they_are() -> None:
    for kind in (pa.map_(pa.string(), pa.int64()), pa.list_(pa.map_(pa.string(), pa.int64()))):
        with pytest.raises(UnsupportedPlan, match="Keys of type"):
            KeyIndex([kind])


def test_a_step_copies_places_in_proportion_to_the_keys_it_adds_and_the_next_table_is_ready_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_table, "LEAST_COPIED_PLACES", 64)
    made_at_once: list[int] = []
    make_room = KeyTable.make_room

    def counted(self: KeyTable, key_count: int, hashes: columnar.Hashes) -> None:
        made_at_once.append(key_count)
        make_room(self, key_count, hashes)

    monkeypatch.setattr(KeyTable, "make_room", counted)
    index = KeyIndex([pa.int64()])
    left_before, copied = 0, []
    for start in range(0, 40_000, 100):
        places_before = len(index.table.now)
        index.find_or_add(rows_of(list(range(start, start + 100)), pa.int64()))
        left = index.table.places_left()
        is_under_way = left > 0 or left_before > 0
        copied.append((left_before or places_before) - left if is_under_way else 0)
        left_before = left
    assert len(index.table.now) >= 4 * 20_000
    assert sum(copied) > 100_000
    assert max(copied) <= 8 * 100
    assert made_at_once == []


def test_a_step_that_adds_more_keys_than_there_were_makes_room_at_once() -> None:
    index = KeyIndex([pa.int64()])
    index.find_or_add(rows_of(list(range(10)), pa.int64()))
    slots = index.find_or_add(rows_of(list(range(5_000)), pa.int64()))
    assert sorted(slots.tolist()) == list(range(5_000))
    assert index.find_or_add(rows_of(list(range(5_000)), pa.int64())).tolist() == slots.tolist()


def test_keys_of_an_index_that_is_being_grown_can_be_kept() -> None:
    index = KeyIndex([pa.int64()])
    for start in range(0, 30_000, 1_000):
        index.find_or_add(rows_of(list(range(start, start + 1_000)), pa.int64()))
    kept = index.kept(np.arange(1, 30_000, 2))
    assert kept.find_or_add(rows_of(index.gather(np.arange(1, 30_000, 2))[0].to_pylist(), pa.int64())).tolist() == list(
        range(15_000)
    )
    assert kept.find_or_add(rows_of(index.gather(np.arange(1))[0].to_pylist(), pa.int64())).tolist() == [15_000]


def test_an_appended_array_has_most_of_it_moved_before_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_LEAST_MOVED_VALUES", 1)
    moved: list[int] = []
    move = AppendedArray._move

    def counted(self: AppendedArray[np.int64], count: int) -> None:
        before = self._moved
        move(self, count)
        moved.append(self._moved - before)

    monkeypatch.setattr(AppendedArray, "_move", counted)
    array: AppendedArray[np.int64] = AppendedArray(np.int64)
    for start in range(0, 20_000, 10):
        array.append(np.arange(start, start + 10))
    assert array.used.tolist() == list(range(20_000))
    assert 0 < max(moved) <= 40


def test_arrays_that_are_filled_together_do_not_grow_in_one_step() -> None:
    arrays: list[GrowingArray[np.int64]] = [GrowingArray(np.int64) for _ in range(8)]
    memory = [array._all for array in arrays]
    grown_at_once = []
    for count in range(8192, 200_000, 1024):
        for array in arrays:
            array.grow_to(count)
        grown_at_once.append(sum(array._all is not before for array, before in zip(arrays, memory, strict=True)))
        memory = [array._all for array in arrays]
    assert max(grown_at_once[1:]) == 1
