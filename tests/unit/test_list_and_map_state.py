"""Lists and maps of a key: what user code sees of them, how they expire, and what a restore gives back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.errors import Damaged, IncompatibleCheckpoint, UserCodeFailure
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators.contract import ProcessorHandle, TaskContext, Times
from tidegate.operators.transform_with_state import TransformWithStateOperator
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import InitialState, TimeMode
from tidegate.plan.physical import TransformWithStateSpec
from tidegate.state.contract import RestoredSection
from tidegate.state.heap import HeapBackend
from tidegate.state.subkeys import IndexedSubkeys, entry_key
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import StateBackends, open_backends

INPUT = pa.schema([("k", pa.string()), ("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
OUTPUT = pa.schema([("k", pa.string()), ("said", pa.string())])
ALL = KeyGroupRange(0, 128)


class Processor:
    """Opens a list and a map, and does with a row whatever the test says."""

    def __init__(
        self, handle_row: Callable[["Processor", int], Any] | None = None, *, ttl_ms: int | None = None
    ) -> None:
        self._handle_row = handle_row or (lambda self, v: None)
        self._ttl_ms = ttl_ms
        self.initial: list[Any] = []

    def init(self, handle: ProcessorHandle) -> None:
        self.handle = handle
        self.list = handle.list_state("list", ("v",), ttl_ms=self._ttl_ms)
        self.map = handle.map_state("map", ("key",), ("v",), ttl_ms=self._ttl_ms)

    def handle_rows(self, key: tuple[Any, ...], rows: Any, times: Times) -> Iterable[tuple[Any, ...]]:
        for _, v, _ in rows:
            said = self._handle_row(self, v)
            yield (key[0], repr(said))

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        yield (key[0], f"{at_ms} {list(self.list.get())}")

    def name_initial(self, names: tuple[str, ...]) -> None:
        self.initial.append(names)

    def handle_initial(self, key: tuple[Any, ...], rows: Iterator[Any], times: Times) -> None:
        self.initial.append((key, list(rows)))
        self.list.append_value((99,))

    def close(self) -> None:
        return


_backends: list[StateBackends] = []


@pytest.fixture(autouse=True, params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test with each: handles must not know the difference."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    _backends.append(open_backends(request.param))
    yield
    _backends.pop().close()


class Code:
    def __init__(self, processor: Processor) -> None:
        self._processor = processor

    def processor(self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]) -> Processor:
        return self._processor


class Harness:
    def __init__(
        self,
        processor: Processor,
        *,
        restored: Sequence[RestoredSection] = (),
        key_groups: KeyGroupRange = ALL,
        clock: ManualClock | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        code: Any = Code(processor)
        self.context = context = TaskContext(
            TaskId(VertexId(1), 0), 1, 128, key_groups, self.clock, code, lambda: _backends[-1].open(key_groups)
        )
        self.operator = TransformWithStateOperator(TransformWithStateSpec(1, b"", INPUT, OUTPUT, **options))
        self.operator.open(context, restored)

    def process(self, *rows: tuple[str, int], at_ms: int = 0) -> list[str]:
        out: list[pa.RecordBatch] = []
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        columns = [
            pa.array(keys, pa.string()),
            pa.array(keys, pa.string()),
            pa.array(values, pa.int64()),
            pa.array([at_ms * 1000] * len(rows), pa.timestamp("us", "UTC")),
        ]
        self.operator.process(pa.RecordBatch.from_arrays(columns, schema=INPUT), out.append)
        return [row["said"] for batch in out for row in batch.to_pylist()]

    def fire(self) -> list[tuple[str, str]]:
        out: list[pa.RecordBatch] = []
        self.operator.fire(1000, out.append)
        return [(row["k"], row["said"]) for batch in out for row in batch.to_pylist()]


def stored(harness: Harness, name: str) -> int:
    """How many entries a snapshot of it has in the state of that name."""
    backend = _backends[-1].open(ALL)
    backend.restore(restored_from(harness.operator.snapshot()))
    return sum(1 for key_group in range(128) for _ in backend.keyed(name).scan(key_group))


def appended(processor: Processor, v: int) -> list[Any]:
    processor.list.append_value((v,))
    processor.map.update_value((v % 2,), (v,))
    return [list(processor.list.get()), list(processor.map.items())]


def test_a_list_keeps_its_order_and_a_map_its_last_values_per_key() -> None:
    harness = Harness(Processor(appended))
    assert harness.process(("a", 1), ("a", 2), ("b", 7), ("a", 3))[-2:] == [
        "[[(1,), (2,), (3,)], [((0,), (2,)), ((1,), (3,))]]",
        "[[(7,)], [((1,), (7,))]]",
    ]


def test_a_list_is_replaced_extended_and_cleared() -> None:
    def change(processor: Processor, v: int) -> list[Any]:
        processor.list.append_list([(1,), (2,)])
        processor.list.put([(5,), (6,)])
        processor.list.append_value((7,))
        whole, existed = list(processor.list.get()), processor.list.exists()
        processor.list.clear()
        return [whole, existed, list(processor.list.get()), processor.list.exists()]

    assert Harness(Processor(change)).process(("a", 1)) == ["[[(5,), (6,), (7,)], True, [], False]"]


def test_a_map_tells_its_keys_and_forgets_those_that_are_removed() -> None:
    def change(processor: Processor, v: int) -> list[Any]:
        for n in (3, 1, 2):
            processor.map.update_value((n,), (n * 10,))
        processor.map.remove_key((1,))
        seen = [processor.map.get_value((1,)), processor.map.get_value((2,)), processor.map.contains_key((3,))]
        keys = [key for key, _ in processor.map.items()]
        processor.map.clear()
        return [seen, keys, processor.map.exists()]

    assert Harness(Processor(change)).process(("a", 1)) == ["[[None, (20,), True], [(2,), (3,)], False]"]


def test_state_may_be_changed_while_it_is_read() -> None:
    def change(processor: Processor, v: int) -> list[Any]:
        processor.list.put([(1,), (2,)])
        for (n,) in processor.list.get():
            processor.list.append_value((n + 10,))
        return list(processor.list.get())

    assert Harness(Processor(change)).process(("a", 1)) == ["[(1,), (2,), (11,), (12,)]"]


@pytest.mark.parametrize("wrong", [(1, 2), 5, None])
def test_an_element_of_another_shape_is_refused(wrong: Any) -> None:
    harness = Harness(Processor(lambda processor, v: processor.list.append_value(wrong)))
    with pytest.raises(UserCodeFailure, match="State 'list' has the fields"):
        harness.process(("a", 1))


def test_each_element_and_each_entry_expires_by_itself() -> None:
    clock = ManualClock()
    harness = Harness(Processor(appended, ttl_ms=100), clock=clock)
    harness.process(("a", 1))
    clock.advance(60)
    assert harness.process(("a", 2)) == ["[[(1,), (2,)], [((0,), (2,)), ((1,), (1,))]]"]
    clock.advance(60)
    assert harness.process(("a", 4)) == ["[[(2,), (4,)], [((0,), (4,))]]"]


def test_expired_elements_go_without_being_read() -> None:
    clock = ManualClock()
    harness = Harness(Processor(appended, ttl_ms=100), clock=clock)
    harness.process(*[(f"k{n}", n) for n in range(50)])
    clock.advance(200)
    for _ in range(200):
        harness.operator.on_idle(lambda batch: None)
    assert (stored(harness, "list?list?ttl"), stored(harness, "map?map?ttl")) == (0, 0)


def test_lists_maps_and_timers_are_restored_at_another_parallelism_and_go_on() -> None:
    def change(processor: Processor, v: int) -> Any:
        processor.handle.register_timer(1_000 + v)
        return appended(processor, v)

    mode: dict[str, Any] = {"time_mode": TimeMode.EVENT_TIME}
    first = Harness(Processor(change), **mode)
    first.process(*[(f"k{n % 9}", n) for n in range(27)])
    sections = restored_from(first.operator.snapshot())
    said: dict[str, str] = {}
    fired: list[tuple[str, str]] = []
    for groups in (KeyGroupRange(0, 40), KeyGroupRange(40, 90), KeyGroupRange(90, 128)):
        harness = Harness(Processor(change), restored=sections, key_groups=groups, **mode)
        for key in [f"k{n}" for n in range(9)]:
            if key_group(key) in groups:
                (said[key],) = harness.process((key, 30))
        harness.operator.on_watermark(1_029)
        fired += harness.fire()
    assert said["k4"] == "[[(4,), (13,), (22,), (30,)], [((0,), (30,)), ((1,), (13,))]]"
    assert len(said) == 9
    assert sorted(int(said.split()[0]) for _, said in fired) == [1_000 + n for n in range(27)]


def key_group(key: str) -> int:
    return int(key_group_of(hash_rows(pa.record_batch({"k": [key]}), 1), 128)[0])


def test_a_state_of_another_kind_in_the_checkpoint_is_refused() -> None:
    class ValueNamedList(Processor):
        def init(self, handle: ProcessorHandle) -> None:
            handle.value_state("list", ("v",))

    harness = Harness(Processor(appended))
    harness.process(("a", 1))
    with pytest.raises(IncompatibleCheckpoint, match="'list' was stored as a list without a TTL"):
        Harness(ValueNamedList(), restored=restored_from(harness.operator.snapshot()))


def test_a_state_that_is_no_longer_opened_can_be_deleted() -> None:
    class Dropping(Processor):
        def init(self, handle: ProcessorHandle) -> None:
            handle.delete_if_exists("list")
            handle.delete_if_exists("never there")
            self.map = handle.map_state("map", ("key",), ("v",))

    harness = Harness(Processor(appended))
    harness.process(("a", 1))
    dropping = Harness(Dropping(), restored=restored_from(harness.operator.snapshot()))
    assert (stored(harness, "list?list"), stored(harness, "map?map")) == (1, 1)
    assert (stored(dropping, "list?list"), stored(dropping, "map?map")) == (0, 1)


@pytest.mark.parametrize("first", ["deleted", "opened"])
def test_a_state_cannot_be_deleted_and_opened_in_one_init_in_either_order(first: str) -> None:
    """Every recovery would empty it."""

    class Both(Processor):
        def init(self, handle: ProcessorHandle) -> None:
            if first == "deleted":
                handle.delete_if_exists("list")
            handle.list_state("list", ("v",))
            if first == "opened":
                handle.delete_if_exists("list")

    harness = Harness(Processor(appended))
    harness.process(("a", 1))
    with pytest.raises(UserCodeFailure, match="'list' is deleted and opened in one init: do one of both"):
        Harness(Both(), restored=restored_from(harness.operator.snapshot()))


def test_one_name_cannot_be_two_kinds_of_state() -> None:
    class Twice(Processor):
        def init(self, handle: ProcessorHandle) -> None:
            handle.list_state("s", ("v",))
            handle.map_state("s", ("k",), ("v",))

    with pytest.raises(UserCodeFailure, match="'s' is opened as two kinds"):
        Harness(Twice())


def test_an_entry_that_is_too_short_is_damage() -> None:
    state = HeapBackend(ALL).keyed("broken")
    state.put(1, b"\x00\x00\x00\x09key", b"")
    with pytest.raises(Damaged):
        IndexedSubkeys(state, ALL)


def test_the_index_of_subkeys_follows_what_is_put_and_deleted() -> None:
    entries = IndexedSubkeys(HeapBackend(ALL).keyed("s"), ALL)
    entries.put(1, entry_key(b"k", b"b"), b"1")
    entries.put(1, entry_key(b"k", b"a"), b"2")
    assert entries.subkeys(1, b"k") == [b"b", b"a"]
    assert entries.last_subkey(1, b"k") == b"a"
    entries.delete(1, entry_key(b"k", b"a"))
    entries.delete(1, entry_key(b"other", b"a"))
    assert (entries.subkeys(1, b"k"), entries.subkeys(1, b"other")) == ([b"b"], [])


# -- late rows


def test_a_row_at_the_watermark_is_late_and_counted() -> None:
    harness = Harness(Processor(lambda self, v: v), time_mode=TimeMode.EVENT_TIME, event_column=3)
    assert harness.process(("a", 1), at_ms=1) == ["1"]
    assert harness.process(("a", 2), at_ms=0) == [], "event time begins at 0"
    harness.operator.on_watermark(500)
    assert harness.process(("a", 3), at_ms=500) == []
    assert harness.process(("a", 4), at_ms=501) == ["4"]
    assert harness.context.late_rows.count == 2


# -- initial state


def initial(*rows: tuple[str, int]) -> InitialState:
    schema = pa.schema([("k", pa.string()), ("k", pa.string()), ("start", pa.int64())])
    keys = [key for key, _ in rows]
    table = pa.table([keys, keys, [start for _, start in rows]], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    return InitialState(1, schema, sink.getvalue().to_pybytes())


def test_an_initial_state_is_given_once_to_the_owner_of_each_key() -> None:
    start = initial(("a", 1), ("b", 2), ("a", 3))
    halves = [Processor(appended), Processor(appended)]
    harnesses = [
        Harness(half, key_groups=groups, initial=start)
        for half, groups in zip(halves, (KeyGroupRange(0, 64), KeyGroupRange(64, 128)), strict=True)
    ]
    given = [call for half in halves for call in half.initial if isinstance(call[0], tuple)]
    assert sorted(given) == [(("a",), [("a", 1), ("a", 3)]), (("b",), [("b", 2)])]
    sections = [section for harness in harnesses for section in restored_from(harness.operator.snapshot())]
    again = Processor(appended)
    restored = Harness(again, restored=sections, initial=start)
    assert again.initial == []
    assert restored.process(("a", 5)) == ["[[(99,), (5,)], [((1,), (5,))]]"]
