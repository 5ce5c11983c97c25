"""What a snapshot is made of: nothing is copied that does not change, and memory is used again, but never too early."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit.test_aggregate import Harness, spec_of
from tidegate.operators.columnar import GrowingArray
from tidegate.state.contract import RestoredSection, Section


def filled(array: GrowingArray[np.int64], value: int, count: int) -> None:
    array.grow_to(count)
    array.used[:] = value


def counts_in(sections: list[list[memoryview]], harness: Harness) -> dict[Any, int]:
    restored = [RestoredSection("aggregate", None, memoryview(b"".join(pieces))) for pieces in sections]
    again = Harness(harness.spec, restored)
    again.process(*[[] for _ in harness.spec.input_schema])
    again.operator._changed.mark(np.arange(again.operator.index.count))
    return {row[0]: row[1] for row in again.flushed()}


def test_memory_of_a_copy_that_nobody_reads_is_used_again() -> None:
    array: GrowingArray[np.int64] = GrowingArray(np.int64)
    filled(array, 1, 100)
    first_address = array.frozen().ctypes.data
    filled(array, 2, 200)
    again = array.frozen()
    assert again.ctypes.data == first_address
    assert again.tolist() == [2] * 200


@pytest.mark.parametrize("of", [slice(None), slice(3, 9)])
def test_a_copy_of_which_any_part_is_still_read_stays_as_it_is(of: slice) -> None:
    array: GrowingArray[np.int64] = GrowingArray(np.int64)
    filled(array, 1, 100)
    buffer = pa.py_buffer(array.frozen()[of])
    filled(array, 2, 100)
    assert array.frozen().tolist() == [2] * 100
    assert set(np.frombuffer(buffer, dtype=np.int64).tolist()) == {1}


def test_a_copy_is_not_as_long_as_what_has_grown_since() -> None:
    array: GrowingArray[np.int64] = GrowingArray(np.int64)
    filled(array, 1, 100)
    array.frozen()
    filled(array, 3, 50_000)
    assert array.frozen().tolist() == [3] * 50_000


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.large_string(), pa.binary()])
def test_snapshots_that_are_stored_late_hold_each_the_values_of_its_moment(kind: pa.DataType) -> None:
    harness = Harness(spec_of([kind]))
    keys = [str(number).encode() if kind == pa.binary() else str(number) for number in range(3000)]
    own: list[Any] = list(range(3000)) if kind == pa.int64() else keys
    taken: list[list[list[memoryview]]] = []
    frozen: list[list[Section]] = []
    for _ in range(3):
        harness.process([*own, None], [1] * 3001)
        frozen.append(harness.operator.snapshot())
        # The first is encoded at once, and held on to; the others later.
        if len(frozen) == 1:
            taken.append([list(section.pieces()) for section in frozen[0]])
    harness.process([*own, None], [1] * 3001)
    taken += [[list(section.pieces()) for section in sections] for sections in frozen[1:]]
    harness.process([*own, None], [1] * 3001)
    for number, sections in enumerate(taken, start=1):
        assert counts_in(sections, harness) == dict.fromkeys([*own, None], number)


def test_encoding_copies_neither_keys_nor_running_values() -> None:
    harness = Harness(spec_of([pa.int64()]))
    harness.process(list(range(5000)), [1] * 5000)
    (section,) = harness.operator.snapshot()
    new_bytes = sum(len(piece) for piece in section.pieces() if len(piece) < 8 * 5000)
    shared = [np.frombuffer(piece, dtype=np.int64) for piece in section.pieces() if len(piece) == 8 * 5000]
    (keys,) = (column._values.used for column in harness.operator._index._columns)
    assert len(shared) == 4
    assert sum(np.shares_memory(piece, keys) for piece in shared) == 1
    copies = [array._copy for call in harness.operator._calls._calls for array in call.accumulator.arrays]
    assert sum(np.shares_memory(piece, copy) for piece in shared for copy in copies) == 3
    assert new_bytes < 5 * 5000
