"""Two streams joined by key: pairs, rows that find no partner, and what event time lets go."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.timed_rows import ALL, SCHEMA, batch, rows_of
from tidegate.model.errors import Damaged, IncompatibleCheckpoint, ProtocolViolation
from tidegate.model.ids import KeyGroupRange, TaskId, VertexId
from tidegate.operators import join_rows, stored_rows, stream_join
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext
from tidegate.operators.stream_join import StreamJoinOperator
from tidegate.plan.expressions import Call, Column, Literal
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import JoinInputSpec, RowEnd, StreamJoinSpec
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS, KeyGroupFloors
from tidegate.state.contract import RestoredSection
from tidegate.testing.state_suite import restored_from

Row = tuple[str | None, int | None, int | None]
Pair = tuple[Any, ...]
NONE: Row = (None, None, None)


def side(*, ahead_s: int | None = None, only_if: Call | None = None, event_time: int | None = 1) -> JoinInputSpec:
    end = None if ahead_s is None else RowEnd(1, ahead_s * 1000)
    return JoinInputSpec(1, (0, 1, 2), SCHEMA, only_if, event_time, end)


def join(
    kind: JoinType, *, left: JoinInputSpec | None = None, right: JoinInputSpec | None = None, condition: Any = None
) -> StreamJoinSpec:
    columns = SCHEMA if kind is JoinType.LEFT_SEMI else pa.schema([*SCHEMA, *SCHEMA])
    return StreamJoinSpec(kind, left or side(ahead_s=-5), right or side(ahead_s=-5), condition, columns)


@dataclass
class Harness:
    """Times are in seconds."""

    spec: StreamJoinSpec
    restored: list[RestoredSection] = field(default_factory=list)
    key_groups: KeyGroupRange = ALL
    floors: KeyGroupFloors = field(default_factory=lambda: KeyGroupFloors(()))

    def __post_init__(self) -> None:
        none: Any = None
        operator = build_operator(self.spec)
        assert isinstance(operator, StreamJoinOperator)
        self.operator = operator
        task = TaskId(VertexId(1), 0)
        self.context = TaskContext(task, 1, 128, self.key_groups, none, none, none, floors=self.floors)
        self.operator.open(self.context, self.restored)

    def left(self, *rows: Row) -> list[Pair]:
        out: list[pa.RecordBatch] = []
        self.operator.process(batch(rows), out.append)
        return rows_of(out)

    def right(self, *rows: Row) -> list[Pair]:
        out: list[pa.RecordBatch] = []
        self.operator.process_right(batch(rows), out.append)
        return rows_of(out)

    def advance(self, seconds: int) -> list[Pair]:
        out: list[pa.RecordBatch] = []
        self.operator.on_watermark(seconds * 1000)
        while self.operator.fire(1, out.append):
            pass
        return rows_of(out)

    def sections(self) -> list[RestoredSection]:
        return restored_from(self.operator.snapshot())


def value_of(index: int) -> Column:
    return Column(index, "v", pa.int64())


LESS = Call("LessThan", (value_of(2), value_of(5)), pa.bool_(), ansi=True)
POSITIVE = Call("GreaterThan", (value_of(2), Literal(0, pa.int64())), pa.bool_(), ansi=True)


def test_rows_of_the_same_key_meet_whichever_comes_first() -> None:
    harness = Harness(join(JoinType.INNER))
    assert harness.left(("a", 1, 1), ("b", 1, 2)) == []
    assert harness.right(("a", 2, 10)) == [("a", 1, 1, "a", 2, 10)]
    assert harness.left(("a", 3, 3)) == [("a", 3, 3, "a", 2, 10)]


def test_duplicates_give_every_pair() -> None:
    harness = Harness(join(JoinType.INNER))
    harness.left(("a", 1, 1), ("a", 1, 1))
    harness.left(("a", 1, 2))
    assert Counter(harness.right(("a", 1, 3), ("a", 1, 3))) == {
        ("a", 1, 1, "a", 1, 3): 4,
        ("a", 1, 2, "a", 1, 3): 2,
    }


def test_many_pairs_come_out_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_rows, "PAIRS_AT_ONCE", 8)
    harness = Harness(join(JoinType.INNER))
    harness.left(*[("a", 1, at) for at in range(30)])
    out: list[pa.RecordBatch] = []
    harness.operator.process_right(batch([("a", 1, at) for at in range(7)]), out.append)
    assert max(rows.num_rows for rows in out) <= 8
    assert Counter(rows_of(out)) == {("a", 1, x, "a", 1, y): 1 for x in range(30) for y in range(7)}


def test_the_condition_decides_among_equal_keys_and_a_null_is_not_true() -> None:
    harness = Harness(join(JoinType.INNER, condition=LESS))
    harness.left(("a", 1, 5), ("a", 1, 9), ("a", 1, None))
    assert harness.right(("a", 1, 7)) == [("a", 1, 5, "a", 1, 7)]


def test_equal_hashes_of_different_keys_do_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_rows, "hash_rows", lambda rows, count: hash_rows(rows, 0))
    harness = Harness(join(JoinType.INNER))
    harness.left(("a", 1, 1), (None, 1, 2), ("", 1, 3))
    assert harness.right(("", 1, 10), (None, 1, 11), ("b", 1, 12)) == [
        ("", 1, 3, "", 1, 10),
        (None, 1, 2, None, 1, 11),
    ]


def test_a_left_outer_join_gives_rows_without_partner_when_none_can_come() -> None:
    harness = Harness(join(JoinType.LEFT_OUTER))
    harness.left(("a", 10, 1), ("b", 11, 2))
    harness.right(("a", 10, 3), ("c", 10, 4))
    assert harness.advance(14) == []
    assert harness.advance(15) == []  # "a", which had one
    assert harness.advance(16) == [("b", 11, 2, *NONE)]
    assert harness.advance(100) == []
    assert harness.operator.state_bytes() == 0


def test_a_right_outer_join_gives_rows_of_the_right_without_partner() -> None:
    harness = Harness(join(JoinType.RIGHT_OUTER))
    harness.left(("a", 10, 1), ("b", 11, 2))
    harness.right(("a", 10, 3), ("c", 10, 4))
    assert harness.advance(15) == [(*NONE, "c", 10, 4)]


def test_a_full_outer_join_gives_both() -> None:
    harness = Harness(join(JoinType.FULL_OUTER))
    harness.left(("a", 10, 1), ("b", 11, 2))
    assert harness.right(("a", 10, 3), ("c", 10, 4)) == [("a", 10, 1, "a", 10, 3)]
    assert sorted(harness.advance(100), key=str) == [("b", 11, 2, *NONE), (*NONE, "c", 10, 4)]


def test_a_row_whose_only_candidates_fail_the_condition_had_no_partner() -> None:
    harness = Harness(join(JoinType.LEFT_OUTER, condition=LESS))
    harness.left(("a", 10, 9))
    assert harness.right(("a", 10, 3)) == []
    assert harness.advance(100) == [("a", 10, 9, *NONE)]


def test_a_left_semi_join_gives_each_left_row_once() -> None:
    harness = Harness(join(JoinType.LEFT_SEMI))
    assert harness.left(("a", 1, 1), ("b", 1, 2)) == []
    assert harness.right(("a", 1, 3), ("a", 1, 4)) == [("a", 1, 1)]
    assert harness.right(("a", 1, 5)) == []
    assert harness.left(("a", 2, 6)) == [("a", 2, 6)]
    assert harness.right(("a", 2, 7)) == []


def test_a_row_that_its_own_condition_excludes_comes_out_alone_at_once() -> None:
    harness = Harness(join(JoinType.LEFT_OUTER, left=side(ahead_s=-5, only_if=POSITIVE)))
    assert harness.left(("a", 10, 0), ("a", 10, 1)) == [("a", 10, 0, *NONE)]
    assert harness.right(("a", 10, 2)) == [("a", 10, 1, "a", 10, 2)]


def test_a_row_that_its_own_condition_excludes_is_dropped_by_an_inner_join() -> None:
    harness = Harness(join(JoinType.INNER, left=side(ahead_s=-5, only_if=POSITIVE)))
    assert harness.left(("a", 10, 0)) == []
    assert harness.right(("a", 10, 2)) == []


def test_late_rows_of_either_side_are_dropped_and_counted() -> None:
    harness = Harness(join(JoinType.FULL_OUTER))
    harness.advance(10)
    assert harness.left(("a", 10, 1), ("a", 11, 2)) == []
    assert harness.right(("a", 9, 1), ("a", 11, 3)) == [("a", 11, 2, "a", 11, 3)]
    assert harness.context.late_rows.count == 2


def test_rows_without_an_end_stay() -> None:
    harness = Harness(join(JoinType.INNER, left=side(), right=side(event_time=None)))
    harness.left(("a", 10, 1))
    harness.advance(1_000_000)
    assert harness.right(("a", 10, 2)) == [("a", 10, 1, "a", 10, 2)]


def test_each_side_is_kept_as_long_as_it_needs() -> None:
    harness = Harness(join(JoinType.FULL_OUTER, left=side(ahead_s=-5), right=side(ahead_s=3)))
    harness.left(("a", 10, 1))
    harness.right(("b", 13, 1))
    assert harness.advance(9) == []
    assert harness.advance(10) == [(*NONE, "b", 13, 1)]
    assert harness.advance(14) == []
    assert harness.advance(15) == [("a", 10, 1, *NONE)]


def test_rows_that_came_after_their_end_come_out_when_the_input_ends() -> None:
    harness = Harness(join(JoinType.FULL_OUTER, left=side(ahead_s=3)))
    harness.advance(10)
    harness.left(("a", 12, 1))
    out: list[pa.RecordBatch] = []
    harness.operator.fire(100, out.append)
    assert rows_of(out) == [("a", 12, 1, *NONE)]


def test_the_watermark_behind_waits_for_the_side_that_is_kept_longest() -> None:
    operator = Harness(join(JoinType.INNER, left=side(ahead_s=-5), right=side(ahead_s=-8))).operator
    assert operator.watermark_behind(100_000) == 92_000
    assert Harness(join(JoinType.INNER, left=side(ahead_s=3), right=side())).operator.watermark_behind(1000) == 1000
    assert operator.watermark_behind(MIN_WATERMARK_MS) == MIN_WATERMARK_MS
    assert operator.watermark_behind(MAX_WATERMARK_MS) == MAX_WATERMARK_MS


def test_rows_are_removed_in_slices_and_a_snapshot_may_fall_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_join, "LEAST_REMOVED_ROWS", 3)
    harness = Harness(join(JoinType.LEFT_OUTER))
    harness.left(*[(f"k{at}", 10, at) for at in range(10)])
    out: list[pa.RecordBatch] = []
    harness.operator.on_watermark(50_000)
    assert harness.operator.fire(1, out.append)
    assert len(rows_of(out)) == 3
    rest = Harness(join(JoinType.LEFT_OUTER), harness.sections()).advance(50)
    assert sorted(row[2] for row in [*rows_of(out), *rest]) == list(range(10))


def test_rows_are_found_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_rows, "MOST_RUN_ROWS", 20)
    harness = Harness(join(JoinType.INNER))
    for at in range(30):
        harness.left(("a", 10, at), (f"k{at}", 10, at), ("a", 11, -at))
    assert all(len(run.hashes) <= 20 for run in harness.operator._left.store.runs)
    assert len(harness.right(("a", 10, 0))) == 60
    assert harness.right(("k17", 10, 0)) == [("k17", 10, 17, "k17", 10, 0)]


def test_runs_of_long_rows_are_not_merged_beyond_what_a_column_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_rows, "MOST_RUN_BYTES", 10_000)
    harness = Harness(join(JoinType.INNER))
    for at in range(30):
        harness.left(("a" * 1_000, 10, at), (f"k{at}", 10, at))
    assert all(run.rows_bytes <= 10_000 for run in harness.operator._left.store.runs)
    assert len(harness.right(("a" * 1_000, 10, 0))) == 30


@pytest.mark.parametrize("kind", [kind for kind in JoinType if kind is not JoinType.LEFT_ANTI])
def test_a_restored_operator_goes_on_where_the_other_stopped(kind: JoinType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "SECTION_ROWS", 5)
    whole, first = Harness(join(kind)), Harness(join(kind))
    lefts = [(f"k{at % 9}", 10 + at, at) for at in range(24)]
    rights = [(f"k{at % 7}", 10 + at, -at) for at in range(20)]
    expected = [*whole.left(*lefts[:12]), *whole.right(*rights[:10])]
    assert [*first.left(*lefts[:12]), *first.right(*rights[:10])] == expected
    second = Harness(join(kind), first.sections())
    expected = [*whole.left(*lefts[12:]), *whole.right(*rights[10:]), *whole.advance(1000)]
    found = [*second.left(*lefts[12:]), *second.right(*rights[10:]), *second.advance(1000)]
    assert Counter(found) == Counter(expected)


def test_at_another_parallelism_each_part_has_the_rows_of_its_key_groups() -> None:
    first = Harness(join(JoinType.FULL_OUTER))
    rows = [(f"k{at}", 10, at) for at in range(60)]
    first.left(*rows)
    groups = key_group_of(hash_rows(batch(rows), 1), 128)
    found: list[Pair] = []
    for part in (KeyGroupRange(0, 50), KeyGroupRange(50, 128)):
        restored = Harness(join(JoinType.FULL_OUTER), first.sections(), part)
        found += restored.right(*[row for row, group in zip(rows, groups, strict=True) if int(group) in part])
        assert restored.advance(1000) == []
    assert Counter(found) == {(*row, *row): 1 for row in rows}


def test_a_key_group_that_was_further_keeps_its_lateness_and_what_it_let_go() -> None:
    first = Harness(join(JoinType.LEFT_OUTER))
    first.left(("a", 10, 1))
    floors = KeyGroupFloors(((ALL, 15_000),))
    harness = Harness(join(JoinType.LEFT_OUTER), first.sections(), floors=floors)
    assert harness.advance(2) == [("a", 10, 1, *NONE)]
    assert harness.right(("a", 15, 2)) == []
    assert harness.context.late_rows.count == 1


def test_key_groups_that_were_further_let_their_rows_go_first() -> None:
    rows = [(f"k{at}", 10, at) for at in range(40)]
    first = Harness(join(JoinType.LEFT_OUTER))
    first.left(*rows)
    ahead = KeyGroupRange(60, 128)
    harness = Harness(join(JoinType.LEFT_OUTER), first.sections(), floors=KeyGroupFloors(((ahead, 15_000),)))
    groups = key_group_of(hash_rows(batch(rows), 1), 128)
    further = [row for row, group in zip(rows, groups, strict=True) if int(group) in ahead]
    assert 0 < len(further) < len(rows)
    assert Counter(harness.advance(2)) == {(*row, *NONE): 1 for row in further}
    assert len(harness.advance(15)) == len(rows) - len(further)


def test_a_row_that_had_a_partner_before_a_restore_does_not_come_out_alone_after_it() -> None:
    first = Harness(join(JoinType.FULL_OUTER))
    first.left(("a", 10, 1))
    first.right(("a", 10, 2))
    assert Harness(join(JoinType.FULL_OUTER), first.sections()).advance(100) == []


def test_a_snapshot_is_of_its_moment() -> None:
    harness = Harness(join(JoinType.LEFT_OUTER))
    harness.left(("a", 10, 1))
    sections = harness.operator.snapshot()
    harness.right(("a", 10, 2))
    harness.advance(100)
    assert Harness(join(JoinType.LEFT_OUTER), restored_from(sections)).advance(100) == [("a", 10, 1, *NONE)]


def test_damaged_and_foreign_state_is_named() -> None:
    spec = join(JoinType.INNER)
    with pytest.raises(Damaged, match="a join"):
        Harness(spec, [RestoredSection(stream_join.LEFT_SECTION, ALL, memoryview(b"nonsense"))])
    with pytest.raises(ProtocolViolation, match="other"):
        Harness(spec, [RestoredSection("other", ALL, memoryview(b""))])
    first = Harness(spec)
    first.left(("a", 1, 1))
    narrow = JoinInputSpec(1, (0, 1), pa.schema(list(SCHEMA)[:2]), None, None, None)
    with pytest.raises(IncompatibleCheckpoint, match="a join"):
        Harness(StreamJoinSpec(JoinType.INNER, narrow, spec.right, None, pa.schema([])), first.sections())


class Model:
    """A join by two lists, one row at a time."""

    def __init__(self, kind: JoinType, left_ahead_s: int, right_ahead_s: int) -> None:
        self.kind = kind
        self.sides: tuple[list[Any], list[Any]] = ([], [])  # [row, had a partner]
        self.aheads = (left_ahead_s, right_ahead_s)
        self.watermark = 0  # as Spark's, event time begins with 1970

    def add(self, own: int, rows: list[Any]) -> list[Pair]:
        out: list[Pair] = []
        for row in (row for row in rows if row[1] > self.watermark):
            entry = [row, False]
            for partner in self.sides[1 - own]:
                left, right = (entry, partner) if own == 0 else (partner, entry)
                if left[0][0] != right[0][0] or not left[0][2] < right[0][2]:
                    continue
                if self.kind is JoinType.LEFT_SEMI:
                    out += [] if left[1] else [left[0]]
                else:
                    out.append((*left[0], *right[0]))
                left[1] = right[1] = True
            self.sides[own].append(entry)
        return out

    def advance(self, watermark: int) -> list[Pair]:
        self.watermark = max(self.watermark, watermark)
        out: list[Pair] = []
        for own, kinds in enumerate(
            [(JoinType.LEFT_OUTER, JoinType.FULL_OUTER), (JoinType.RIGHT_OUTER, JoinType.FULL_OUTER)]
        ):
            ended = [entry for entry in self.sides[own] if entry[0][1] <= self.watermark + self.aheads[own]]
            self.sides[own][:] = [entry for entry in self.sides[own] if entry not in ended]
            alone = [entry[0] for entry in ended if not entry[1] and self.kind in kinds]
            out += [(*row, *NONE) if own == 0 else (*NONE, *row) for row in alone]
        return out


_ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(1, 60), st.integers(0, 9)), max_size=8)
_STEPS = st.lists(st.tuples(st.integers(0, 1), _ROWS) | st.integers(1, 70), max_size=14)


@settings(max_examples=250)
@given(
    kind=st.sampled_from([kind for kind in JoinType if kind is not JoinType.LEFT_ANTI]),
    steps=_STEPS,
    aheads=st.tuples(st.integers(-9, 4), st.integers(-9, 4)),
    restores=st.sets(st.integers(0, 14)),
)
def test_it_gives_what_two_lists_would(
    kind: JoinType, steps: list[Any], aheads: tuple[int, int], restores: set[int]
) -> None:
    spec = join(kind, left=side(ahead_s=aheads[0]), right=side(ahead_s=aheads[1]), condition=LESS)
    harness, model = Harness(spec), Model(kind, *aheads)
    found, expected = Counter[Pair](), Counter[Pair]()
    for number, step in enumerate([*steps, 1000]):
        if number in restores:
            harness = Harness(spec, harness.sections())
            found.update(harness.advance(model.watermark))
            expected.update(model.advance(model.watermark))
        if isinstance(step, int):
            found.update(harness.advance(step))
            expected.update(model.advance(step))
        else:
            own, rows = step
            found.update(harness.left(*rows) if own == 0 else harness.right(*rows))
            expected.update(model.add(own, rows))
    assert found == expected
