"""Timers of a user's processor, by event time and by the clock."""

import datetime as dt
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit import processor_harness
from tests.unit.processor_harness import Harness, Processor
from tidegate.model.errors import IncompatibleCheckpoint, UserCodeFailure
from tidegate.model.ids import KeyGroupRange
from tidegate.operators.contract import ProcessorHandle, Times
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import TimeMode
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS, KeyGroupFloors
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import open_backends

TIMED_INPUT = pa.schema([("user", pa.string()), ("at_ms", pa.int64())])


@pytest.fixture(autouse=True, params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test with each: processors must not know the difference."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    backends = open_backends(request.param)
    monkeypatch.setattr(processor_harness, "HeapBackend", backends.open)
    yield
    backends.close()


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
    harness.clock.advance(200)
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
    harness.clock.advance(1_000)
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


class SlowTimers(Processor):
    """Whose timers take half a second each."""

    def __init__(self) -> None:
        super().__init__(self.register)
        self.clock: ManualClock | None = None

    def init(self, handle: ProcessorHandle) -> None:
        self.timers = handle

    def register(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        self.timers.register_timer(100)
        return []

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        assert self.clock is not None
        self.clock.advance(500)
        return [(key[0], 1)]


def test_a_slice_of_timers_ends_behind_the_one_that_takes_long_however_many_were_cheap_before() -> None:
    processor = SlowTimers()
    harness = Harness(processor, time_mode=TimeMode.EVENT_TIME)
    processor.clock = harness.clock
    harness.process(["a", "b", "c"], [1, 2, 3], ["", "", ""])
    harness.operator.on_watermark(200)
    assert [len(fired) for fired, _ in (harness.fire(), harness.fire(), harness.fire())] == [1, 1, 1]
    assert harness.fire() == ([], False)
