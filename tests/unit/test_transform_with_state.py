"""A user's processor: how it is called, and what it may keep, for how long."""

import datetime as dt
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.processor_harness import Harness, Processor
from tidegate.model.errors import IncompatibleCheckpoint, UserCodeFailure
from tidegate.model.ids import KeyGroupRange
from tidegate.operators.contract import ProcessorHandle
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.testing.state_suite import restored_from


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


def test_a_processor_that_would_end_the_slot_is_told_with_its_key() -> None:
    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        sys.exit("enough")

    with pytest.raises(UserCodeFailure, match=r"for key \('alice',\) raised SystemExit: enough"):
        Harness(Processor(handle)).process(["alice"], [1], [""])


@pytest.mark.parametrize("method", ["init", "close"])
def test_an_init_or_close_that_would_end_the_slot_is_told(method: str) -> None:
    class Leaving(Processor):
        def init(self, handle: ProcessorHandle) -> None:
            self.leave_from("init")

        def close(self) -> None:
            self.leave_from("close")

        def leave_from(self, called: str) -> None:
            if called == method:
                sys.exit("enough")

    with pytest.raises(UserCodeFailure, match=f"{method} raised SystemExit: enough"):
        Harness(Leaving()).operator.close()


def test_an_interrupt_is_not_blamed_on_the_processor() -> None:
    def handle(key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Harness(Processor(handle)).process(["alice"], [1], [""])


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


# -- values with a TTL


class Forgetful(Processor):
    def init(self, handle: ProcessorHandle) -> None:
        self.state = handle.value_state("count", ("n",), ttl_ms=100)


def test_a_value_with_a_ttl_is_forgotten_unless_it_is_updated() -> None:
    harness = Harness(Forgetful())
    assert harness.process(["a", "b"], [1, 2], ["", ""]) == [("a", 1), ("b", 1)]
    harness.clock.advance(60)
    assert harness.process(["a"], [1], [""]) == [("a", 2)]
    harness.clock.advance(60)
    assert harness.process(["a", "b"], [1, 2], ["", ""]) == [("a", 3), ("b", 1)]


def test_expired_values_are_removed_while_the_task_is_idle() -> None:
    harness = Harness(Forgetful())
    keys = [f"user-{number}" for number in range(50)]
    harness.process(keys, [1] * 50, [""] * 50)
    harness.clock.advance(100)
    for _ in range(128):
        harness.operator.on_idle(harness.out.append)
    assert harness.operator.state_bytes() == 0


def test_expired_values_are_removed_even_if_the_task_never_rests() -> None:
    harness = Harness(Forgetful())
    for number in range(500):
        harness.process([f"user-{number}"], [1], [""])
        harness.clock.advance(50)
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
