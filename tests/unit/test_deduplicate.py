"""One row per key: the first; keys are forgotten by event time, after a delay, or never."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.timed_rows import ALL, SCHEMA, batch, rows_of
from tidegate.model.errors import Damaged, IncompatibleCheckpoint, ProtocolViolation
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import deduplicate, stored_rows
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext
from tidegate.operators.deduplicate import DeduplicateOperator
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import Forget, ForgetAfterDelay, ForgetByKey
from tidegate.plan.physical import DeduplicateSpec
from tidegate.protocol.watermarks import KeyGroupFloors
from tidegate.state.contract import RestoredSection
from tidegate.testing.state_suite import restored_from

Row = tuple[str | None, int | None, int]


@dataclass
class Harness:
    """Times of rows are given in seconds, 1 to 1000 being plain numbers to read."""

    spec: DeduplicateSpec
    restored: list[RestoredSection] = field(default_factory=list)
    key_groups: KeyGroupRange = ALL
    floors: KeyGroupFloors = field(default_factory=lambda: KeyGroupFloors(()))

    def __post_init__(self) -> None:
        none: Any = None
        operator = build_operator(self.spec)
        assert isinstance(operator, DeduplicateOperator)
        self.operator = operator
        task = TaskId(VertexId(1), 0)
        self.context = TaskContext(task, 1, 128, self.key_groups, none, none, none, floors=self.floors)
        self.operator.open(self.context, self.restored)

    def process(self, *rows: Row) -> list[Row]:
        out: list[pa.RecordBatch] = []
        self.operator.process(batch(rows), out.append)
        return rows_of(out)

    def advance(self, seconds: int) -> None:
        self.operator.on_watermark(seconds * 1000)
        while self.operator.fire(1, lambda rows: pytest.fail("forgetting shows nowhere")):
            pass

    def sections(self) -> list[RestoredSection]:
        return restored_from(self.operator.snapshot())


def by_key(*, forget: Forget | None = None, event_time: int | None = None, key_count: int = 1) -> DeduplicateSpec:
    return DeduplicateSpec(key_count, event_time, forget, SCHEMA)


BY_KEY_AND_TIME = by_key(key_count=2, event_time=1, forget=ForgetByKey(1))
WITHIN_TEN_SECONDS = by_key(event_time=1, forget=ForgetAfterDelay(10_000))


def test_the_first_row_of_a_key_passes_and_the_order_is_kept() -> None:
    harness = Harness(by_key())
    assert harness.process(("b", 1, 1), ("a", 2, 2), ("b", 3, 3), ("c", 4, 4)) == [
        ("b", 1, 1),
        ("a", 2, 2),
        ("c", 4, 4),
    ]
    assert harness.process(("a", 5, 5), ("d", 6, 6), ("d", 7, 7)) == [("d", 6, 6)]


def test_the_order_is_kept_among_keys_that_come_again() -> None:
    harness = Harness(WITHIN_TEN_SECONDS)
    harness.process(("a", 1, 1), ("b", 1, 2))
    harness.advance(50)
    assert harness.process(("b", 60, 3), ("a", 60, 4), ("a", 61, 0)) == [("b", 60, 3), ("a", 60, 4)]
    harness.advance(80)
    assert harness.process(("a", 90, 5), ("b", 90, 6), ("b", 91, 0)) == [("a", 90, 5), ("b", 90, 6)]


def test_nulls_are_one_key() -> None:
    assert Harness(by_key()).process((None, 1, 1), ("", 2, 2), (None, 3, 3)) == [(None, 1, 1), ("", 2, 2)]


def test_without_a_watermark_keys_stay_for_ever() -> None:
    harness = Harness(by_key())
    harness.process(("a", 1, 1))
    harness.advance(1_000_000)
    assert harness.process(("a", 2, 2)) == []


def test_a_late_row_is_dropped_and_counted() -> None:
    harness = Harness(BY_KEY_AND_TIME)
    harness.advance(10)
    assert harness.process(("a", 10, 1), ("b", 11, 2), ("c", 9, 3)) == [("b", 11, 2)]
    assert harness.context.late_rows.count == 2


def test_a_late_row_is_dropped_even_if_event_time_is_no_key() -> None:
    harness = Harness(by_key(event_time=1))
    harness.advance(10)
    assert harness.process(("a", 10, 1), ("a", 11, 2)) == [("a", 11, 2)]


def test_a_row_without_a_time_is_never_late_and_its_key_never_forgotten() -> None:
    harness = Harness(BY_KEY_AND_TIME)
    harness.advance(10)
    assert harness.process(("a", None, 1)) == [("a", None, 1)]
    harness.advance(1000)
    assert harness.process(("a", None, 2)) == []


def test_keys_that_event_time_has_passed_leave_the_state() -> None:
    harness = Harness(BY_KEY_AND_TIME)
    harness.process(*[(f"k{at}", at, at) for at in range(1, 9001)])
    full = harness.operator.state_bytes()
    harness.advance(8990)
    assert harness.operator.state_bytes() < full / 10
    assert harness.process(("k9000", 9000, 0), ("k9001", 9001, 1)) == [("k9001", 9001, 1)]


def test_within_the_watermark_a_key_passes_again_once_its_first_row_has_expired() -> None:
    harness = Harness(WITHIN_TEN_SECONDS)
    assert harness.process(("a", 100, 1)) == [("a", 100, 1)]
    harness.advance(109)
    assert harness.process(("a", 115, 2)) == []
    harness.advance(110)
    assert harness.process(("a", 115, 3), ("a", 116, 4)) == [("a", 115, 3)]
    harness.advance(124)
    assert harness.process(("a", 130, 5)) == []
    harness.advance(125)
    assert harness.process(("a", 130, 6)) == [("a", 130, 6)]


def test_within_the_watermark_a_time_that_is_null_counts_as_0() -> None:
    harness = Harness(WITHIN_TEN_SECONDS)
    harness.advance(5)
    assert harness.process(("a", None, 1), ("a", None, 2)) == [("a", None, 1)]
    harness.advance(10)
    assert harness.process(("a", None, 3)) == [("a", None, 3)]


@pytest.mark.parametrize("spec", [by_key(), BY_KEY_AND_TIME, WITHIN_TEN_SECONDS])
def test_a_restored_operator_knows_the_same_keys(spec: DeduplicateSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "SECTION_ROWS", 7)
    first = Harness(spec)
    rows = [(f"k{at}", 100 + at, at) for at in range(50)]
    first.process(*rows)
    first.advance(105)
    second = Harness(spec, first.sections())
    second.advance(105)
    assert second.process(*rows, ("new", 200, 1)) == [("new", 200, 1)]


def test_at_another_parallelism_each_part_knows_the_keys_of_its_key_groups() -> None:
    first = Harness(by_key())
    rows = [(f"k{at}", at, at) for at in range(1, 100)]
    first.process(*rows)
    groups = key_group_of(hash_rows(batch(rows), 1), 128)
    for part in (KeyGroupRange(0, 40), KeyGroupRange(40, 128)):
        restored = Harness(by_key(), first.sections(), part)
        own = [row for row, group in zip(rows, groups, strict=True) if int(group) in part]
        assert restored.process(*own) == []
        assert len(rows_of_state(restored)) == len(own)


def test_a_key_group_that_was_further_keeps_its_lateness() -> None:
    floors = KeyGroupFloors(((KeyGroupRange(0, 128), 20_000),))
    harness = Harness(BY_KEY_AND_TIME, floors=floors)
    harness.advance(5)
    assert harness.process(("a", 20, 1), ("a", 21, 2)) == [("a", 21, 2)]


def test_a_snapshot_is_of_its_moment() -> None:
    harness = Harness(WITHIN_TEN_SECONDS)
    harness.process(("a", 100, 1))
    sections = harness.operator.snapshot()
    harness.process(("b", 100, 2))
    harness.advance(115)
    restored = Harness(WITHIN_TEN_SECONDS, restored_from(sections))
    assert restored.process(("a", 120, 3), ("b", 120, 4)) == [("b", 120, 4)]


def test_damaged_and_foreign_state_is_named() -> None:
    with pytest.raises(Damaged, match="deduplication"):
        Harness(by_key(), [RestoredSection(deduplicate.SECTION_NAME, ALL, memoryview(b"nonsense"))])
    with pytest.raises(ProtocolViolation, match="other"):
        Harness(by_key(), [RestoredSection("other", ALL, memoryview(b""))])
    first = Harness(by_key())
    first.process(("a", 1, 1))
    with pytest.raises(IncompatibleCheckpoint, match="deduplication"):
        Harness(BY_KEY_AND_TIME, first.sections())


def rows_of_state(harness: Harness) -> list[Any]:
    return [row for section in harness.sections() for row in pa.ipc.open_stream(section.data).read_all().to_pylist()]


_KEYS = st.sampled_from(["a", "b", "c", None])
_ROWS = st.lists(st.tuples(_KEYS, st.integers(1, 60), st.integers(0, 9)), max_size=12)
_STEPS = st.lists(st.one_of(_ROWS, st.integers(1, 70)), max_size=12)


@settings(max_examples=150)
@given(steps=_STEPS, delay_s=st.integers(0, 20), restores=st.sets(st.integers(0, 12)))
def test_it_does_what_a_dictionary_would(steps: list[list[Row] | int], delay_s: int, restores: set[int]) -> None:
    spec = by_key(event_time=1, forget=ForgetAfterDelay(delay_s * 1000))
    harness, known, watermark = Harness(spec), dict[str | None, int](), -1
    for number, step in enumerate(steps):
        if number in restores:
            harness = Harness(spec, harness.sections())
            harness.advance(watermark)
        if isinstance(step, int):
            watermark = max(watermark, step)
            harness.advance(watermark)
            known = {key: end for key, end in known.items() if end > watermark}
            continue
        expected = []
        for key, at, value in step:
            assert at is not None
            if at > watermark and key not in known:
                known[key] = at + delay_s
                expected.append((key, at, value))
        assert harness.process(*step) == expected
