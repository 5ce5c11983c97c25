"""Values that groups hold: freezing some costs what these are, and what is nobody's goes part by part."""

import tracemalloc
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tiny_steps import take_tiny_steps
from tidegate.operators.accumulators import grouped_entries
from tidegate.operators.accumulators.calls import CallStates
from tidegate.operators.accumulators.chains import Chains
from tidegate.operators.accumulators.collected import CollectedSet
from tidegate.operators.accumulators.grouped_entries import MOST_COPIED, GroupedEntries
from tidegate.operators.accumulators.pair_index import PairIndex
from tidegate.operators.accumulators.stored_values import ValueLog
from tidegate.operators.compaction import KeptArrays
from tidegate.plan.expressions import Column
from tidegate.plan.nodes import AggregateCall, AggregateFunction

SLOTS = 6
V = Column(0, "v", pa.int64())
LISTS = pa.list_(pa.int64())
CALLS = {
    "list": AggregateCall(AggregateFunction.COLLECT_LIST, (V,), LISTS, True),
    "set": AggregateCall(AggregateFunction.COLLECT_SET, (V,), LISTS, True),
    "distinct": AggregateCall(AggregateFunction.COUNT, (V,), pa.int64(), True, distinct=(V,)),
}


def opened(names: Sequence[str], slot_count: int) -> CallStates:
    states = CallStates([CALLS[name] for name in names])
    states.grow_to(slot_count)
    return states


def add(states: CallStates, slots: Sequence[int], values: Sequence[int]) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], names=["v"])
    states.add(rows, np.array(slots, dtype=np.int64))


def leave(states: CallStates, kept: Sequence[int]) -> None:
    """All slots but these, which get new numbers."""
    slots = np.array(kept, dtype=np.int64)
    arrays = KeptArrays(states.arrays(), slots)
    assert arrays.copy_some(1 << 30)
    arrays.put_in_place()
    states.keep(slots)


Held = list[list[int]]
a_slot = st.integers(0, SLOTS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.tuples(a_slot, st.integers(0, 9)), min_size=1, max_size=12)),
        st.tuples(st.just("add"), st.lists(st.tuples(a_slot, st.integers(0, 9)), min_size=1, max_size=12)),
        st.tuples(st.just("clear"), st.lists(a_slot, min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("keep"), st.lists(a_slot, max_size=SLOTS, unique=True)),
        st.tuples(st.just("merge"), st.lists(a_slot, min_size=2, max_size=2, unique=True)),
        st.tuples(st.just("tidy up"), st.none()),
        st.tuples(st.just("freeze"), st.lists(a_slot, max_size=SLOTS, unique=True)),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(drawn=steps)
def test_what_was_frozen_is_read_as_it_was_whatever_came_since(drawn: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        take_tiny_steps(monkeypatch)
        states, held = opened(list(CALLS), SLOTS), [[] for _ in range(SLOTS)]  # type: tuple[CallStates, Held]
        frozen: list[tuple[Callable[[slice], list[pa.Array]], Held]] = []
        for kind, what in drawn:
            match kind:
                case "add":
                    add(states, [slot for slot, _ in what], [value for _, value in what])
                    for slot, value in what:
                        held[slot].append(value)
                case "clear":
                    states.clear(np.array(what))
                    for slot in what:
                        held[slot] = []
                case "keep":
                    leave(states, what)
                    states.grow_to(SLOTS)
                    held = [held[slot] for slot in what] + [[] for _ in range(SLOTS - len(what))]
                case "merge":
                    source, target = what
                    states.merge(sources=np.array([source]), targets=np.array([target]))
                    states.clear(np.array([source]))
                    held[target], held[source] = held[target] + held[source], []
                case "tidy up":
                    states.has_tidied_up()
                case "freeze":
                    frozen.append((states.freeze(np.array(what, dtype=np.int64)), [list(held[slot]) for slot in what]))
        frozen.append((states.freeze(), held))
        for read, expected in frozen:
            for at, values in enumerate(expected):
                lists, sets, seen = (column.to_pylist()[0] for column in read(slice(at, at + 1)))
                assert lists == values
                assert sorted(sets) == sorted(set(values))
                assert sorted(row["value_0"] for row in seen) == sorted(set(values))


@pytest.mark.parametrize("name", CALLS)
def test_freezing_copies_as_much_however_many_values_there_are(name: str) -> None:
    def copied_bytes(values_each: int) -> int:
        states = opened([name], 100)
        add(states, list(range(100)) * values_each, range(100 * values_each))
        states.freeze(np.arange(10))
        arrow_bytes = pa.total_allocated_bytes()
        tracemalloc.start()
        frozen = states.freeze(np.arange(10))
        found_bytes = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - arrow_bytes
        tracemalloc.stop()
        assert len(frozen(slice(3, 4))[0][0]) == values_each
        return found_bytes

    few, many = copied_bytes(2), copied_bytes(2_000)
    assert many < few + 1_000 < 10_000, (few, many)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_nobodys_is_left_behind_part_by_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    for held in (ValueLog, PairIndex):
        append_from: Callable[..., None] = held.append_from

        def counted(own: Any, other: Any, numbers: Any, append_from: Callable[..., None] = append_from) -> None:
            copied.append(len(numbers))
            append_from(own, other, numbers)

        monkeypatch.setattr(held, "append_from", counted)
    states = opened([name], 1_000)
    add(states, list(range(1_000)) * 100, range(100_000))
    before_bytes = states.size_bytes()
    leave(states, range(0, 1_000, 2))
    assert copied == [], "the step in which slots get other numbers copies no value"
    while not states.has_tidied_up():
        pass
    assert sum(copied) == 50_000 and max(copied) <= MOST_COPIED
    assert states.size_bytes() < 0.75 * before_bytes
    assert [len(stored) for stored in states.freeze()(slice(0, 500))[0]] == [100] * 500


def test_new_memory_is_written_to_part_by_part_before_values_are_put_anywhere_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouped_entries, "_TOUCHED_BYTES", 1 << 12)
    states = opened(["set"], 1_000)
    add(states, list(range(1_000)) * 100, range(100_000))
    leave(states, range(0, 1_000, 2))
    (groups,) = states._entries()
    steps = 0
    while not states.has_tidied_up() and groups._copy is not None and groups._copy.copied == 0:
        steps += 1
    assert groups._copy is not None
    assert steps >= 4 * len(groups._copy.held.table.now) / (1 << 12)
    while not states.has_tidied_up():
        pass
    assert [len(stored) for stored in states.freeze()(slice(0, 500))[0]] == [100] * 500


def test_rows_that_come_all_the_time_do_not_keep_what_is_nobodys_in_memory() -> None:
    states = opened(["set"], 1_000)
    add(states, list(range(1_000)) * 100, range(100_000))
    leave(states, range(100))
    states.grow_to(1_000)
    steps = 0
    while steps < 1_000 and not all(groups.is_tidy() for groups in states._entries()):
        add(states, range(100), range(1 << 20 | steps << 10, (1 << 20 | steps << 10) + 100))
        steps += 1
    assert steps <= ceil(100_000 / (4 * 100 - 100)) + 2, "four are copied for each that comes, once there is memory"
    assert [len(stored) for stored in states.freeze()(slice(0, 100))[0]] == [100 + steps] * 100


@pytest.mark.parametrize("name", ["list", "set"])
def test_a_group_that_is_new_has_nothing_of_one_that_went_while_others_were_left_behind(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_tiny_steps(monkeypatch)
    states = opened([name], 3)
    add(states, [0] * 10 + [1] * 10 + [2] * 10, range(30))
    leave(states, [1, 2])
    for _ in range(6):
        assert not states.has_tidied_up()
    # Some of its values are copied already.
    states.clear(np.array([0]))
    while not states.has_tidied_up():
        pass
    add(states, [0], [99])
    new, other = states.freeze()(slice(0, 2))[0].to_pylist()
    assert (new, sorted(other)) == ([99], list(range(20, 30)))


def test_a_set_counts_what_finding_its_values_takes() -> None:
    collected = CollectedSet(LISTS, ignores_nulls=True)
    collected.grow_to(10)
    values = np.arange(50_000)
    collected.add([pa.array(values)], values % 10)
    places = len(collected.groups.held.table.now)
    assert places > 2 * 50_000
    # Beside the value, its owner, the hash of both, and whether they are null.
    assert collected.groups.held.size_bytes() >= 4 * places + 50_000 * (3 * 8 + 2)
    assert collected.size_bytes() > collected.groups.held.size_bytes()


def test_an_owner_has_few_chunks_and_little_room_left_over_however_its_values_come() -> None:
    one, many = Chains(), Chains()
    for chains in (one, many):
        chains.grow_to(1_001)
    for at in range(0, 100_000, 10):
        one.append(np.full(10, 1))
        many.append(np.arange(at, at + 10) % 1_000 + 1)
    for chains, owner_count in ((one, 1), (many, 1_000)):
        assert chains._entries.count < 1.6 * 100_000
        assert chains._starts.count < owner_count * 30


def test_the_copy_without_what_is_nobodys_is_whole_some_day_however_large_values_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If each step added more than it may copy by its bytes, the copy would be made for ever."""
    monkeypatch.setattr(grouped_entries, "_COPIED_BYTES", 1)
    groups = GroupedEntries(ValueLog(pa.int64()))
    groups.grow_to(100)

    def add_to_all() -> None:
        slots = np.arange(100)
        groups.held.append(pa.array(slots))
        groups.add(groups.owners_of(slots))

    for _ in range(100):
        add_to_all()
    groups.clear(np.arange(90))
    assert not groups.is_tidy()
    for _ in range(200):
        add_to_all()
    assert groups.is_tidy()
    assert len(groups.found(np.array([0])).entries) == 200
    assert len(groups.found(np.array([99])).entries) == 300
