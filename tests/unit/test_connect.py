"""Two inputs in one operator: keyed state they share, broadcast state that only one of them may change."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.errors import Damaged, ProtocolViolation, UserCodeFailure, UserError
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators.build import build_operator
from tidegate.operators.connect import ConnectOperator
from tidegate.operators.contract import ConnectHandle, ConnectProcessor, TaskContext, Times
from tidegate.plan.lower import fingerprint, operator_name
from tidegate.plan.nodes import RightSide, TimeMode
from tidegate.plan.physical import ConnectSpec, JobPlan, Vertex, WatermarkSpec
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.spark import connected
from tidegate.state.contract import Redistribution, RestoredSection
from tidegate.state.heap import HeapBackend
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from

LEFT = pa.schema([("user", pa.string()), ("amount", pa.int64())])
RIGHT = pa.schema([("user", pa.string()), ("limit", pa.int64()), ("note", pa.string())])
RULES = pa.schema([("rule", pa.string()), ("factor", pa.int64())])
OUTPUT = pa.schema([("user", pa.string()), ("value", pa.int64())])
ALL = KeyGroupRange(0, 128)

Rows = list[tuple[Any, ...]]
Called = Iterable[tuple[Any, ...]]


@dataclass
class Code:
    """User code that is one processor."""

    opened: ConnectProcessor

    def connect_processor(self, command: bytes) -> ConnectProcessor:
        assert command == b"command"
        return self.opened


class Limits:
    """Keyed with keyed: the right side sets a user's limit, the left side gives amounts above it."""

    is_closed = False

    def init(self, handle: ConnectHandle) -> None:
        self.handle = handle
        self.limit = handle.value_state("limit", ("n",))

    def handle_left(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times) -> Called:
        limit = self.limit.get()
        for (amount,) in rows:
            if limit is not None and amount > limit[0]:
                yield (key[0], amount)

    def handle_right(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times) -> Called:
        for limit, _note in rows:
            self.limit.update((limit,))
            yield (key[0], -limit)

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Called:
        yield (key[0], at_ms)

    def close(self) -> None:
        self.is_closed = True


class Rules:
    """Keyed with broadcast: the right side sets factors, the left side counts rows and multiplies."""

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        self.replaced = replaced
        self.seen: list[Any] = []

    def init(self, handle: ConnectHandle) -> None:
        self.handle = handle
        self.factors = handle.broadcast_state("factors")
        self.count = handle.value_state("count", ("n",))

    def handle_left(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times) -> Called:
        if "left" in self.replaced:
            return list(self.replaced["left"](self))
        before = self.count.get()
        count = (0 if before is None else before[0]) + len(list(rows))
        self.count.update((count,))
        return [(key[0], count * factor) for _, (factor,) in self.factors.items()]

    def handle_right(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times) -> Called:
        self.seen.append((key, times))
        for rule, factor in rows:
            self.factors.put((rule,), (factor,))
        return self.replaced["right"](self) if "right" in self.replaced else []

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Called:
        return list(self.replaced["timer"](self))

    def close(self) -> None:
        return


class Harness:
    def __init__(
        self,
        processor: ConnectProcessor,
        *,
        right_side: RightSide,
        left_key_count: int = 1,
        restored: Sequence[RestoredSection] = (),
        key_groups: KeyGroupRange = ALL,
        time_mode: TimeMode = TimeMode.NONE,
    ) -> None:
        keyed = right_side is RightSide.KEYED
        self.right = RIGHT if keyed else RULES
        spec = ConnectSpec(b"command", right_side, left_key_count, int(keyed), LEFT, self.right, OUTPUT, time_mode)
        operator = build_operator(spec)
        assert isinstance(operator, ConnectOperator)
        self.operator = operator
        self.clock = ManualClock(wall_start_ms=1_000)
        self.backend = HeapBackend(key_groups)
        code: Any = Code(processor)
        task = TaskId(VertexId(1), 0)
        operator.open(TaskContext(task, 1, 128, key_groups, self.clock, code, lambda: self.backend), restored)

    def left_rows(self, *rows: tuple[Any, ...]) -> Rows:
        return self._given(lambda emit: self.operator.process(batch(LEFT, rows), emit))

    def right_rows(self, *rows: tuple[Any, ...]) -> Rows:
        return self._given(lambda emit: self.operator.process_right(batch(self.right, rows), emit))

    def fire(self, max_timers: int = 100) -> Rows:
        return self._given(lambda emit: self.operator.fire(max_timers, emit))

    def _given(self, call: Callable[[Any], Any]) -> Rows:
        out: list[pa.RecordBatch] = []
        call(out.append)
        return [tuple(row.values()) for each in out for row in each.to_pylist()]


def batch(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def keyed(processor: Any = None, **options: Any) -> Harness:
    return Harness(processor or Limits(), right_side=RightSide.KEYED, **options)


def broadcast(processor: Any = None, **options: Any) -> Harness:
    return Harness(processor or Rules(), right_side=RightSide.BROADCAST, **options)


# -- both sides keyed


def test_two_keyed_inputs_share_the_state_of_a_key() -> None:
    harness = keyed()
    assert harness.left_rows(("a", 5), ("b", 50)) == []
    assert harness.right_rows(("a", 3, "x"), ("b", 60, "y"), ("a", 4, "z")) == [("a", -3), ("a", -4), ("b", -60)]
    assert harness.left_rows(("b", 50), ("a", 4), ("a", 5)) == [("a", 5)]


def test_keyed_state_comes_back_by_key_group_and_there_is_no_broadcast_section() -> None:
    first = keyed()
    users = [f"user-{number}" for number in range(30)]
    first.right_rows(*[(user, 10, "") for user in users])
    sections = first.operator.snapshot()
    assert {section.redistribution for section in sections} == {Redistribution.KEYED}
    stored = restored_from(sections)
    halves = [keyed(restored=stored, key_groups=KeyGroupRange(low, low + 64)) for low in (0, 64)]
    held = [half.operator.state_bytes() for half in halves]
    assert all(held)
    assert sum(held) == first.operator.state_bytes()


def test_timers_of_either_side_fire_for_their_key() -> None:
    class Timed(Limits):
        def handle_left(self, key: Any, rows: Any, times: Times) -> Called:
            for (at_ms,) in rows:
                self.handle.register_timer(at_ms)
            return []

        def handle_right(self, key: Any, rows: Any, times: Times) -> Called:
            for at_ms, _ in rows:
                self.handle.register_timer(at_ms)
            return []

    harness = keyed(Timed(), time_mode=TimeMode.EVENT_TIME)
    harness.left_rows(("a", 10), ("b", 30))
    harness.right_rows(("a", 10, ""), ("a", 20, ""))
    harness.operator.on_watermark(20)
    assert harness.fire() == [("a", 10), ("a", 20)]
    assert harness.operator.watermark_behind(20) == 20
    assert harness.operator.next_timer_ms() is None


def test_there_is_no_broadcast_state_between_two_keyed_inputs() -> None:
    with pytest.raises(UserCodeFailure, match="'factors'.*both inputs are keyed"):
        keyed(Rules())


def test_an_output_that_does_not_fit_names_the_method_that_gave_it() -> None:
    class Wrong(Limits):
        def handle_right(self, key: Any, rows: Any, times: Times) -> Called:
            return [(key[0], "many")]

    with pytest.raises(UserCodeFailure, match="handle_right gave a value for column 'value'"):
        keyed(Wrong()).right_rows(("a", 1, ""))


def test_closing_closes_the_processor_and_the_state() -> None:
    processor = Limits()
    harness = keyed(processor)
    harness.right_rows(("a", 3, ""))
    harness.operator.close()
    harness.operator.close()
    assert processor.is_closed
    assert harness.backend.size_bytes() == 0


# -- a broadcast right side


def test_broadcast_rows_change_what_every_key_sees() -> None:
    harness = broadcast()
    assert harness.left_rows(("a", 1)) == []
    assert harness.right_rows(("double", 2), ("triple", 3)) == []
    assert harness.left_rows(("a", 1), ("b", 1)) == [("a", 4), ("a", 6), ("b", 2), ("b", 3)]


def test_broadcast_rows_come_without_a_key_and_with_the_operators_event_time() -> None:
    processor = Rules()
    harness = broadcast(processor)
    harness.right_rows(("double", 2))
    harness.operator.on_watermark(70)
    harness.right_rows(("double", 3))
    harness.right_rows()
    assert processor.seen == [((), Times(1_000, MIN_WATERMARK_MS)), ((), Times(1_000, 70))]


def test_broadcast_rows_may_emit_nothing() -> None:
    def right(rules: Rules) -> Called:
        yield ("a", 1)

    with pytest.raises(UserCodeFailure, match="handle_right gave .*broadcast state only"):
        broadcast(Rules(right=right)).right_rows(("double", 2))


@pytest.mark.parametrize("change", ["put", "delete"])
@pytest.mark.parametrize("where", ["left", "timer"])
def test_broadcast_state_is_changed_by_broadcast_rows_only(where: str, change: str) -> None:
    def left(rules: Rules) -> Called:
        rules.handle.register_timer(5)
        return []

    def changing(rules: Rules) -> Called:
        rules.factors.put(("double",), (9,)) if change == "put" else rules.factors.delete(("double",))
        return []

    calls: dict[str, Callable[[Rules], Called]] = {"left": left, "timer": changing}
    harness = broadcast(
        Rules(**(calls if where == "timer" else {"left": changing})), time_mode=TimeMode.PROCESSING_TIME
    )
    harness.right_rows(("double", 2))
    with pytest.raises(UserCodeFailure, match="'factors' is changed outside of handle_right"):
        harness.left_rows(("a", 1))
        harness.fire()


def test_broadcast_state_stays_closed_after_broadcast_rows_that_failed() -> None:
    def right(rules: Rules) -> Called:
        raise LookupError("no such rule")

    processor = Rules(right=right)
    with pytest.raises(UserCodeFailure, match="handle_right raised LookupError"):
        broadcast(processor).right_rows(("double", 2))
    with pytest.raises(UserCodeFailure, match="outside of handle_right"):
        processor.factors.put(("x",), (1,))


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda rules: rules.count.get(), "'count' is used outside of handle_left and handle_timer"),
        (lambda rules: rules.count.update((1,)), "'count' is used outside of handle_left and handle_timer"),
        (lambda rules: rules.handle.register_timer(5), "register_timer is used outside of handle_left"),
    ],
)
def test_broadcast_rows_have_no_keyed_state_and_no_timers(use: Callable[[Rules], Any], sentence: str) -> None:
    def right(rules: Rules) -> Called:
        use(rules)
        return []

    harness = broadcast(Rules(right=right), time_mode=TimeMode.EVENT_TIME)
    harness.left_rows(("a", 1))
    with pytest.raises(UserCodeFailure, match=sentence):
        harness.right_rows(("double", 2))


def test_broadcast_state_can_be_read_changed_and_deleted() -> None:
    found: list[Any] = []

    def right(rules: Rules) -> Called:
        factors = rules.factors
        found.append((factors.get(("double",)), factors.get(("none",))))
        for key, (factor,) in factors.items():
            factors.delete(key)
            factors.put((f"{key[0]}'",), (factor + 1,))
        factors.delete(("none",))
        found.append(dict(factors.items()))
        return []

    broadcast(Rules(right=right)).right_rows(("double", 2), ("triple", 3))
    assert found == [((2,), None), {("double'",): (3,), ("triple'",): (4,)}]


def test_broadcast_state_is_one_section_that_holds_the_moment_it_was_taken() -> None:
    harness = broadcast()
    harness.right_rows(("double", 2))
    sections = harness.operator.snapshot()
    harness.right_rows(("double", 5), ("triple", 3))
    later = harness.operator.snapshot()
    assert [section.redistribution for section in sections] == [Redistribution.BROADCAST]
    assert sections[0].key_groups is None
    assert broadcast(restored=restored_from(sections)).left_rows(("a", 1)) == [("a", 2)]
    assert broadcast(restored=restored_from(later)).left_rows(("a", 1)) == [("a", 5), ("a", 3)]
    assert harness.left_rows(("a", 1)) == [("a", 5), ("a", 3)]


def test_changing_one_broadcast_state_leaves_what_a_snapshot_holds_of_another() -> None:
    def right(rules: Rules) -> Called:
        rules.handle.broadcast_state("seen").put(("n",), (len(rules.seen),))
        return []

    harness = broadcast(Rules(right=right))
    harness.right_rows(("double", 2))
    (section,) = harness.operator.snapshot()
    harness.right_rows(("double", 5))
    restored = Rules()
    broadcast(restored, restored=restored_from([section]))
    assert list(restored.handle.broadcast_state("seen").items()) == [(("n",), (1,))]
    assert list(restored.factors.items()) == [(("double",), (2,))]


def test_a_restored_broadcast_state_goes_on_beside_keyed_state() -> None:
    first = broadcast()
    first.right_rows(("double", 2))
    first.left_rows(("a", 1))
    second = broadcast(restored=restored_from(first.operator.snapshot()))
    assert second.operator.state_bytes() == first.operator.state_bytes() > 0
    second.right_rows(("triple", 3))
    assert second.left_rows(("a", 1)) == [("a", 4), ("a", 6)]


def test_broadcast_state_that_is_empty_is_a_section_too() -> None:
    (section,) = broadcast().operator.snapshot()
    assert broadcast(restored=restored_from([section])).left_rows(("a", 1)) == []


def test_the_size_of_broadcast_state_follows_what_is_in_it() -> None:
    harness = broadcast(Rules(right=lambda rules: rules.factors.delete(("gone",)) or []))
    harness.right_rows(("kept", 1))
    size_bytes = harness.operator.state_bytes()
    harness.right_rows(("gone", 1), ("kept", 2))
    assert harness.operator.state_bytes() == size_bytes > 0


def test_a_section_that_does_not_fit_is_refused() -> None:
    stored = restored_from(broadcast().operator.snapshot())
    with pytest.raises(ProtocolViolation, match="right side is broadcast was given 2 sections"):
        broadcast(restored=[*stored, *stored])
    with pytest.raises(ProtocolViolation, match="right side is keyed"):
        keyed(restored=stored)
    with pytest.raises(Damaged, match="Broadcast state"):
        broadcast(restored=[RestoredSection("broadcast", None, memoryview(b"\xff\x00"))])


def test_a_left_side_without_a_key_gets_its_rows_and_may_emit_but_has_no_keyed_state() -> None:
    class Unkeyed(Rules):
        def handle_left(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times) -> Called:
            assert key == ()
            factors = [factor for _, (factor,) in self.factors.items()]
            for user, amount in rows:
                if user == "state":
                    self.count.get()
                yield (user, amount * sum(factors))

    harness = broadcast(Unkeyed(), left_key_count=0)
    harness.right_rows(("double", 2))
    assert harness.left_rows(("a", 1), ("b", 2)) == [("a", 2), ("b", 4)]
    assert harness.left_rows() == []
    with pytest.raises(UserCodeFailure, match="'count' is used outside of a connect by key"):
        harness.left_rows(("state", 1))


# -- in the plan


def test_the_fingerprint_names_what_stored_state_depends_on() -> None:
    spec = ConnectSpec(b"p", RightSide.BROADCAST, 1, 0, LEFT, RULES, OUTPUT)
    watermark = WatermarkSpec(0, 5, pa.schema([("ts", pa.timestamp("us"))]))
    assert [operator_name(spec), operator_name(watermark)] == ["Connect", "Watermark"]
    vertex = Vertex(VertexId(0), "v", None, (spec, watermark), None)
    assert fingerprint(JobPlan((vertex,), (), 1, 128)) == [
        "v0 op0 Connect keys=[string] side=broadcast left=[user: string, amount: int64] "
        "right=[rule: string, factor: int64] out=[user: string, value: int64]",
        "v0 op1 Watermark",
    ]


def test_the_carrier_does_not_run_in_sparks_engine() -> None:
    connection = connected.Connection(connected.ConnectProcessor(), RightSide.KEYED, "None", 1)
    carrier = connected.carrying(connection)
    with pytest.raises(UserError, match=r"tg\.connect runs in a Tidegate query: write its DataFrame"):
        carrier(iter([]), iter([]))
