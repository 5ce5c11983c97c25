import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.errors import IncompatibleCheckpoint, UserCodeFailure
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators.build import build_operator
from tidegate.operators.contract import NO_FLOORS, ProcessorHandle, TaskContext, Times, UserProcessor
from tidegate.operators.transform_with_state import TransformWithStateOperator
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import TimeMode
from tidegate.plan.physical import TransformWithStateSpec
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS, KeyGroupFloors
from tidegate.state.contract import RestoredSection
from tidegate.state.heap import HeapBackend
from tidegate.testing.state_suite import restored_from

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("note", pa.string())])
OUTPUT = pa.schema([("user", pa.string()), ("count", pa.int64())])
Handle = Callable[[tuple[Any, ...], Iterator[tuple[Any, ...]]], Iterable[tuple[Any, ...]]]


class Processor:
    """Counts rows per key by default; `handle` replaces what it does with them."""

    def __init__(self, handle: Handle | None = None) -> None:
        self.handle = handle or self.count
        self.is_closed = False

    def init(self, handle: ProcessorHandle) -> None:
        self.state = handle.value_state("count", ("n",))

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        return self.handle(key, rows)

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise AssertionError("no timer was registered")

    def count(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        before = self.state.get()
        count = (0 if before is None else before[0]) + sum(1 for _ in rows)
        self.state.update((count,))
        yield (key[0], count)

    def close(self) -> None:
        self.is_closed = True


@dataclass
class HandClock:
    now_ms: int = 1_000

    def monotonic_ms(self) -> float:
        return float(self.now_ms)

    def wall_ms(self) -> int:
        return self.now_ms


class Code:
    def __init__(self, processor: UserProcessor) -> None:
        self._processor = processor
        self.names: tuple[list[str], list[str]] | None = None

    def processor(self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]) -> UserProcessor:
        assert command == b"command"
        self.names = (list(value_names), list(output_names))
        return self._processor


def code_of(processor: UserProcessor) -> Any:
    """Typed as anything: an operator asks it for a processor and for nothing else."""
    return Code(processor)


class Harness:
    def __init__(
        self,
        processor: Any = None,
        *,
        input_schema: pa.Schema = INPUT,
        schema: pa.Schema = OUTPUT,
        key_count: int = 1,
        restored: Sequence[RestoredSection] = (),
        key_groups: KeyGroupRange = KeyGroupRange(0, 128),  # noqa: B008
        time_mode: TimeMode = TimeMode.NONE,
        floors: KeyGroupFloors = NO_FLOORS,
    ) -> None:
        self.clock = HandClock()
        self.processor: Any = processor or Processor()
        self.input_schema = input_schema
        self.code = code_of(self.processor)
        self.out: list[pa.RecordBatch] = []
        self.backend = HeapBackend(key_groups)
        operator = build_operator(TransformWithStateSpec(key_count, b"command", input_schema, schema, time_mode))
        assert isinstance(operator, TransformWithStateOperator)
        self.operator = operator
        task = TaskId(VertexId(1), 0)
        self.operator.open(
            TaskContext(task, 1, 128, key_groups, self.clock, self.code, lambda: self.backend, floors), restored
        )

    def process(self, *columns: list[Any]) -> list[tuple[Any, ...]]:
        self.out.clear()
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.input_schema, strict=True)]
        self.operator.process(pa.RecordBatch.from_arrays(arrays, schema=self.input_schema), self.out.append)
        return self.rows()

    def fire(self, max_timers: int = 1000) -> tuple[list[tuple[Any, ...]], bool]:
        """What the timers gave, and whether more are due."""
        self.out.clear()
        more_are_due = self.operator.fire(max_timers, self.out.append)
        return self.rows(), more_are_due

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for batch in self.out for row in batch.to_pylist()]


def test_the_processor_is_called_once_per_key_in_order_of_appearance_with_its_rows_in_order() -> None:
    calls: list[tuple[Any, list[Any]]] = []

    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        calls.append((key, list(rows)))
        return []

    harness = Harness(Processor(handle))
    assert harness.process(["z", "a", "z", None, "a", "z"], [1, 2, 3, 4, 5, 6], list("abcdef")) == []
    assert calls == [
        (("z",), [(1, "a"), (3, "c"), (6, "f")]),
        (("a",), [(2, "b"), (5, "e")]),
        ((None,), [(4, "d")]),
    ]
    assert harness.out == []


def test_the_user_code_is_opened_with_the_names_of_its_columns() -> None:
    assert Harness().code.names == (["amount", "note"], ["user", "count"])


def test_state_is_kept_per_key_across_slices() -> None:
    harness = Harness()
    assert harness.process(["a", "b", "a"], [1, 2, 3], ["", "", ""]) == [("a", 2), ("b", 1)]
    assert harness.process(["b", "a"], [1, 2], ["", ""]) == [("b", 2), ("a", 3)]


def test_state_lies_in_the_key_group_of_the_edge() -> None:
    harness = Harness()
    keys = [f"user-{number}" for number in range(50)]
    harness.process(keys, [1] * 50, [""] * 50)
    rows = pa.RecordBatch.from_arrays([pa.array(keys)], ["user"])
    expected = sorted(key_group_of(hash_rows(rows, 1), 128).tolist())
    state = harness.backend.keyed("count")
    assert sorted(group for group in range(128) for _ in state.scan(group)) == expected


def test_a_value_can_be_asked_for_and_cleared() -> None:
    seen: list[Any] = []

    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        state = harness.processor.state
        seen.append((state.exists(), state.get()))
        state.clear() if state.exists() else state.update((7,))
        return []

    harness = Harness(Processor(handle))
    for _ in range(3):
        harness.process(["a"], [1], [""])
    assert seen == [(False, None), (True, (7,)), (False, None)]


def test_a_snapshot_restores_the_state_of_the_keys_in_range() -> None:
    first = Harness()
    keys = [f"user-{number}" for number in range(50)]
    first.process(keys, [1] * 50, [""] * 50)
    sections = restored_from(first.operator.snapshot())
    assert first.operator.state_bytes() > 0
    second = Harness(restored=sections, key_groups=KeyGroupRange(0, 64))
    groups = key_group_of(hash_rows(pa.RecordBatch.from_arrays([pa.array(keys)], ["user"]), 1), 128).tolist()
    own = [key for key, group in zip(keys, groups, strict=True) if group < 64]
    assert second.process(own, [1] * len(own), [""] * len(own)) == [(key, 2) for key in own]


def test_lazy_output_is_taken_while_the_state_still_points_at_its_key() -> None:
    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        for amount, _ in rows:
            harness.processor.state.update((amount,))
            yield (key[0], harness.processor.state.get()[0])

    harness = Harness(Processor(handle))
    assert harness.process(["a", "b", "a"], [1, 2, 3], ["", "", ""]) == [("a", 1), ("a", 3), ("b", 2)]


def test_composite_keys_of_many_types_reach_the_user_as_python_values() -> None:
    schema = pa.schema(
        [("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(10, 2)), ("f", pa.float64()), ("v", pa.int64())]
    )
    calls: list[tuple[Any, list[Any]]] = []

    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        calls.append((key, list(rows)))
        harness.processor.state.update((len(calls),))
        return []

    harness = Harness(Processor(handle), input_schema=schema, key_count=3)
    noon = dt.datetime(2024, 2, 29, 12)
    harness.process([noon] * 3, [Decimal("1.50")] * 3, [0.0, -0.0, 1.0], [1, 2, 3])
    assert calls == [((noon, Decimal("1.50"), 0.0), [(1,), (2,)]), ((noon, Decimal("1.50"), 1.0), [(3,)])]


def test_timestamps_are_naive_in_utc_also_inside_of_other_types() -> None:
    nested = pa.struct([("at", pa.timestamp("us", "UTC"))])
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("n", nested)])
    seen: list[Any] = []

    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        seen.extend(rows)
        return [(seen[0][0],)]

    out = pa.schema([("t", pa.timestamp("us", "UTC"))])
    harness = Harness(Processor(handle), input_schema=schema, schema=out)
    aware, naive = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, 12)
    assert harness.process([1], [aware], [{"at": aware}]) == [(aware,)]
    assert seen == [(naive, {"at": naive})]
    assert seen[0][0].tzinfo is None


def failing(output: Any) -> Processor:
    return Processor(lambda key, rows: [output])


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (("a", "many"), "column 'count'.*int64"),
        (("a", 2**70), "column 'count'.*int64"),
        (("a", 1.5), "column 'count'.*int64"),
        ((5, 1), "column 'user'.*string"),
        (("a",), r"2 columns \(user, count\)"),
        (["a", 1], r"2 columns \(user, count\)"),
    ],
)
def test_an_output_that_does_not_fit_names_its_column(output: Any, sentence: str) -> None:
    with pytest.raises(UserCodeFailure, match=sentence):
        Harness(failing(output)).process(["a"], [1], [""])


def test_an_error_in_user_code_comes_with_key_and_traceback() -> None:
    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        deliberately_wrong = 1 // 0
        yield (key[0], deliberately_wrong)

    with pytest.raises(UserCodeFailure) as failure:
        Harness(Processor(handle)).process(["alice"], [1], [""])
    assert "ZeroDivisionError" in str(failure.value)
    assert "'alice'" in str(failure.value)
    assert "deliberately_wrong = 1 // 0" in str(failure.value)


def test_an_error_in_init_is_the_users() -> None:
    class Broken(Processor):
        def init(self, handle: ProcessorHandle) -> None:
            raise LookupError("no model file")

    with pytest.raises(UserCodeFailure, match="init raised LookupError: no model file"):
        Harness(Broken())


@pytest.mark.parametrize("value", [(1, 2), [1], 1])
def test_an_update_of_another_shape_names_the_state_and_its_fields(value: Any) -> None:
    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        harness.processor.state.update(value)
        return []

    harness = Harness(Processor(handle))
    with pytest.raises(UserCodeFailure, match=r"'count'.*\(n\)"):
        harness.process(["a"], [1], [""])


def test_state_has_no_key_outside_of_a_call() -> None:
    harness = Harness()
    harness.process(["a"], [1], [""])
    with pytest.raises(UserCodeFailure, match=r"'count'.*outside"):
        harness.processor.state.get()


def test_closing_closes_the_users_processor_once() -> None:
    harness = Harness()
    harness.operator.close()
    assert harness.processor.is_closed
    harness.operator.close()


def test_an_error_in_the_users_close_is_told_and_the_state_is_closed_all_the_same() -> None:
    class Broken(Processor):
        def close(self) -> None:
            raise OSError("connection gone")

    harness = Harness(Broken())
    harness.process(["a"], [1], [""])
    with pytest.raises(UserCodeFailure, match="connection gone"):
        harness.operator.close()
    assert harness.backend.size_bytes() == 0


@pytest.mark.parametrize(
    ("value", "kind"),
    [(dt.datetime(2024, 1, 1, 12), pa.date32()), (5, pa.date32()), (5, pa.timestamp("us", "UTC")), (1.5, pa.int32())],
)
def test_a_value_that_arrow_would_quietly_change_is_refused(value: Any, kind: pa.DataType) -> None:
    with pytest.raises(UserCodeFailure, match="column 'x'"):
        Harness(failing((value,)), schema=pa.schema([("x", kind)])).process(["a"], [1], [""])


# -- timers

TIMED_INPUT = pa.schema([("user", pa.string()), ("at_ms", pa.int64())])


class Alarm:
    """Registers a timer at the time of each row; a timer gives (user, its time) and counts in the user's state."""

    def __init__(self) -> None:
        self.times: list[Times] = []

    def init(self, handle: ProcessorHandle) -> None:
        self.timing = handle
        self.fired = handle.value_state("fired", ("n",))

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        self.times.append(times)
        for (at_ms,) in rows:
            self.timing.register_timer(at_ms)
        return []

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        self.times.append(times)
        before = self.fired.get()
        self.fired.update((1 if before is None else before[0] + 1,))
        yield (key[0], at_ms)

    def close(self) -> None:
        return


def alarmed(processor: Any = None, *, time_mode: TimeMode = TimeMode.EVENT_TIME, **options: Any) -> Harness:
    return Harness(processor or Alarm(), input_schema=TIMED_INPUT, time_mode=time_mode, **options)


def group_of(user: str) -> int:
    return int(key_group_of(hash_rows(pa.RecordBatch.from_arrays([pa.array([user])], ["user"]), 1), 128)[0])


def test_event_time_timers_fire_in_time_order_once_the_watermark_reaches_them() -> None:
    harness = alarmed()
    harness.process(["a", "b", "a"], [30, 20, 10])
    assert harness.fire() == ([], False)
    harness.operator.on_watermark(20)
    assert harness.fire() == ([("a", 10), ("b", 20)], False)
    assert harness.fire() == ([], False)
    harness.operator.on_watermark(29)
    assert harness.fire() == ([], False)
    harness.operator.on_watermark(MAX_WATERMARK_MS)
    assert harness.fire() == ([("a", 30)], False)


def test_processing_time_timers_fire_by_the_clock_and_tell_when_the_next_is_due() -> None:
    harness = alarmed(time_mode=TimeMode.PROCESSING_TIME)
    assert harness.operator.next_timer_ms() is None
    harness.process(["a", "b"], [1_500, 1_200])
    assert harness.operator.next_timer_ms() == 1_200
    harness.operator.on_watermark(5_000)
    assert harness.fire() == ([], False)
    harness.clock.now_ms = 1_200
    assert harness.fire() == ([("b", 1_200)], False)
    assert harness.operator.next_timer_ms() == 1_500


def test_event_time_timers_are_not_awaited_by_the_clock() -> None:
    harness = alarmed()
    harness.process(["a"], [10])
    assert harness.operator.next_timer_ms() is None


def test_timers_fire_in_slices_without_losing_one() -> None:
    harness = alarmed()
    harness.process(["a"] * 5, [1, 2, 3, 4, 5])
    harness.operator.on_watermark(10)
    assert [harness.fire(2) for _ in range(3)] == [
        ([("a", 1), ("a", 2)], True),
        ([("a", 3), ("a", 4)], True),
        ([("a", 5)], False),
    ]


def test_a_timer_finds_the_state_of_its_key() -> None:
    harness = alarmed()
    harness.process(["a", "b", "a"], [10, 10, 20])
    harness.operator.on_watermark(20)
    harness.fire()
    state = harness.backend.keyed("fired")
    assert sorted(value for group in range(128) for _, value in state.scan(group)) == [b"\x91\x01", b"\x91\x02"]
    with pytest.raises(UserCodeFailure, match="'fired'.*outside"):
        harness.processor.fired.get()


def test_a_timer_may_delete_the_next_and_register_one_that_goes_before_it() -> None:
    class Moving(Alarm):
        def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
            if at_ms == 10:
                assert self.timing.timers() == [10, 20, 30]
                self.timing.delete_timer(20)
                self.timing.register_timer(25)
            yield (key[0], at_ms)

    for slice_size in (1, 1000):
        harness = alarmed(Moving())
        harness.process(["a"] * 3, [10, 20, 30])
        harness.operator.on_watermark(100)
        fired, more_are_due = [], True
        while more_are_due:
            rows, more_are_due = harness.fire(slice_size)
            fired += rows
        assert fired == [("a", 10), ("a", 25), ("a", 30)]


def test_user_code_sees_the_clock_and_the_watermark() -> None:
    harness = alarmed()
    harness.process(["a"], [10])
    harness.operator.on_watermark(50)
    harness.operator.on_watermark(40)
    harness.clock.now_ms = 2_000
    harness.fire()
    assert harness.processor.times == [Times(1_000, MIN_WATERMARK_MS), Times(2_000, 50)]


def test_a_key_group_that_was_further_ahead_keeps_its_own_event_time() -> None:
    group = group_of("a")
    assert group != group_of("b")
    harness = alarmed(floors=KeyGroupFloors([(KeyGroupRange(group, group + 1), 50)]))
    harness.operator.on_watermark(10)
    harness.process(["a", "b"], [50, 50])
    assert harness.fire() == ([("a", 50)], False)
    assert [times.watermark_ms for times in harness.processor.times] == [50, 10, 50]
    harness.operator.on_watermark(60)
    assert harness.fire() == ([("b", 50)], False)
    assert harness.processor.times[-1].watermark_ms == 60


def test_a_snapshot_amid_firing_restores_the_timers_that_are_left() -> None:
    harness = alarmed()
    users = [f"user-{number}" for number in range(40)]
    harness.process(users, list(range(40)))
    harness.operator.on_watermark(100)
    fired, _ = harness.fire(15)
    sections = restored_from(harness.operator.snapshot())
    rest, _ = harness.fire()
    assert fired + rest == [(user, at_ms) for at_ms, user in enumerate(users)]
    halves = [alarmed(restored=sections, key_groups=KeyGroupRange(first, first + 64)) for first in (0, 64)]
    for half in halves:
        half.operator.on_watermark(100)
    again = [half.fire()[0] for half in halves]
    assert all(again)
    assert sorted(again[0] + again[1], key=lambda row: row[1]) == rest


def test_the_key_of_a_timer_is_the_key_of_its_rows() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(38, 2)), ("n", pa.int32())])
    keys: list[tuple[Any, ...]] = []

    class Recording(Alarm):
        def handle_rows(self, key: Any, rows: Any, times: Times) -> Iterable[tuple[Any, ...]]:
            keys.append(key)
            self.timing.register_timer(5)
            return []

        def handle_timer(self, key: Any, at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
            keys.append(key)
            return []

    harness = Harness(Recording(), input_schema=schema, key_count=3, time_mode=TimeMode.EVENT_TIME)
    wide = Decimal("123456789012345678901234567890123400.00")
    harness.process([dt.datetime(2024, 2, 29, 12)], [wide], [None])
    harness.operator.on_watermark(5)
    harness.fire()
    assert [str(key) for key in keys] == [str((dt.datetime(2024, 2, 29, 12), wide, None))] * 2


@pytest.mark.parametrize("method", ["register_timer", "delete_timer", "timers"])
def test_without_a_time_mode_there_are_no_timers(method: str) -> None:
    class Calling(Alarm):
        def handle_rows(self, key: Any, rows: Any, times: Times) -> Iterable[tuple[Any, ...]]:
            getattr(self.timing, method)(*([] if method == "timers" else [5]))
            return []

    harness = alarmed(Calling(), time_mode=TimeMode.NONE)
    with pytest.raises(UserCodeFailure, match=f"{method}.*time mode is none"):
        harness.process(["a"], [1])
    assert harness.fire() == ([], False)


def test_a_timer_needs_a_key() -> None:
    with pytest.raises(UserCodeFailure, match="register_timer is used outside of handleInputRows"):
        alarmed().processor.timing.register_timer(5)


@pytest.mark.parametrize(("at_ms", "sentence"), [(1 << 63, "out of range"), ("soon", "TypeError")])
def test_a_timer_at_no_time_is_refused(at_ms: Any, sentence: str) -> None:
    class Calling(Alarm):
        def handle_rows(self, key: Any, rows: Any, times: Times) -> Iterable[tuple[Any, ...]]:
            self.timing.register_timer(at_ms)
            return []

    with pytest.raises(UserCodeFailure, match=sentence):
        alarmed(Calling()).process(["a"], [1])


def test_an_error_in_a_timer_comes_with_its_key() -> None:
    class Broken(Alarm):
        def handle_timer(self, key: Any, at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
            raise LookupError("no such user")

    harness = alarmed(Broken())
    harness.process(["alice"], [1])
    harness.operator.on_watermark(1)
    with pytest.raises(UserCodeFailure, match="handleExpiredTimer for key .'alice',. raised LookupError"):
        harness.fire()


def test_timers_of_another_time_mode_are_not_forgotten_silently() -> None:
    harness = alarmed()
    harness.process(["a"], [10])
    sections = restored_from(harness.operator.snapshot())
    for mode in (TimeMode.NONE, TimeMode.PROCESSING_TIME):
        with pytest.raises(IncompatibleCheckpoint, match="event_time"):
            alarmed(restored=sections, time_mode=mode)


def test_event_time_passes_through() -> None:
    assert alarmed().operator.watermark_behind(7) == 7


# -- values with a TTL


class Forgetful(Processor):
    def init(self, handle: ProcessorHandle) -> None:
        self.state = handle.value_state("count", ("n",), ttl_ms=100)


def test_a_value_with_a_ttl_is_forgotten_unless_it_is_updated() -> None:
    harness = Harness(Forgetful())
    assert harness.process(["a", "b"], [1, 2], ["", ""]) == [("a", 1), ("b", 1)]
    harness.clock.now_ms += 60
    assert harness.process(["a"], [1], [""]) == [("a", 2)]
    harness.clock.now_ms += 60
    assert harness.process(["a", "b"], [1, 2], ["", ""]) == [("a", 3), ("b", 1)]


def test_expired_values_are_removed_while_the_task_is_idle() -> None:
    harness = Harness(Forgetful())
    keys = [f"user-{number}" for number in range(50)]
    harness.process(keys, [1] * 50, [""] * 50)
    harness.clock.now_ms += 100
    for _ in range(128):
        harness.operator.on_idle(harness.out.append)
    assert harness.operator.state_bytes() == 0


def test_expired_values_are_removed_even_if_the_task_never_rests() -> None:
    harness = Harness(Forgetful())
    for number in range(500):
        harness.process([f"user-{number}"], [1], [""])
        harness.clock.now_ms += 50
    state = harness.backend.keyed("count?ttl")
    assert sum(1 for group in range(128) for _ in state.scan(group)) < 100


def test_switching_a_ttl_on_or_off_is_not_misread() -> None:
    with_ttl, without = Harness(Forgetful()), Harness()
    for harness in (with_ttl, without):
        harness.process(["a"], [1], [""])
    with pytest.raises(IncompatibleCheckpoint, match="'count' was stored as a value with a TTL"):
        Harness(restored=restored_from(with_ttl.operator.snapshot()))
    with pytest.raises(IncompatibleCheckpoint, match="'count' was stored as a value without a TTL"):
        Harness(Forgetful(), restored=restored_from(without.operator.snapshot()))


@pytest.mark.parametrize(
    ("name", "ttl_ms", "sentence"),
    [
        ("count", 0, "TTL of 0"),
        ("count", -5, "TTL of -5"),
        ("count", 1.5, "TTL of 1.5"),
        ("count?ttl", None, "kept for timers, lists, maps and TTLs"),
        ("timers/event", None, "kept for timers, lists, maps and TTLs"),
    ],
)
def test_a_state_that_cannot_be_kept_apart_or_expire_is_refused(name: str, ttl_ms: Any, sentence: str) -> None:
    class Opening(Processor):
        def init(self, handle: ProcessorHandle) -> None:
            handle.value_state(name, ("n",), ttl_ms=ttl_ms)

    with pytest.raises(UserCodeFailure, match=sentence):
        Harness(Opening())


def test_a_state_opened_with_two_lifetimes_is_refused() -> None:
    class Opening(Processor):
        def init(self, handle: ProcessorHandle) -> None:
            handle.value_state("count", ("n",), ttl_ms=5)
            handle.value_state("count", ("n",))

    with pytest.raises(UserCodeFailure, match="'count'.*two different TTLs"):
        Harness(Opening())
