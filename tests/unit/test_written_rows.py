"""Groups and keys of built-in operators written from rows: what their operator goes on with, and what is refused."""

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.in_memory import folder_in_memory
from tests.unit import test_windows_of_groups
from tests.unit.regrouped_jobs import (
    GOES_ON,
    SPECS,
    WATERMARK_MS,
    WRITTEN_BY,
    Job,
    Spec,
    a_plan,
    feed,
    go_on,
    restored_job,
    sent_by,
    shown,
    table,
)
from tests.unit.stored_checkpoint import StoredJob, plan_of
from tests.unit.test_checkpoint_tables import INPUT, rows_of
from tests.unit.test_regrouped_savepoints import key_values, left_unshown
from tests.unit.test_written_savepoints import write
from tests.unit.tiny_steps import take_tiny_steps
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import WrittenSavepoint, new_savepoint, rewritten_savepoint
from tidegate.model.errors import IncompatibleCheckpoint, OptionError
from tidegate.model.ids import KeyGroupRange
from tidegate.plan.expressions import Column
from tidegate.plan.lower import fingerprint
from tidegate.plan.nodes import AggregateCall, AggregateFunction, EventTimeKey, OutputMode
from tidegate.plan.physical import AggregateSpec, OperatorSpec
from tidegate.spark import savepoint_job
from tidegate.state.contract import Section
from tidegate.storage.manifests import encode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.worker import regrouped_rows, written_rows
from tidegate.worker.state_backends import HeapBackends, RocksBackends, StateBackends
from tidegate.worker.written_state import StateEntry

WRITABLE = {
    name: SPECS[name]
    for name in (
        "groups",
        "one group",
        "windows",
        "groups that stay in memory",
        "keys for ever",
        "keys by time",
        "keys for ten seconds",
    )
}
PLACE = ("key_group", "subtask")
NOT_A_NUMBER = float("nan")


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)
    monkeypatch.setattr(regrouped_rows, "SECTION_ROWS", 10)
    monkeypatch.setattr(written_rows, "_STREAM_ROWS", 4)


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, StateBackends]]:
    """Those with RocksDB have room for few rows."""
    with folder_in_memory() as folder:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
        opened: dict[str, StateBackends] = {
            "heap": HeapBackends(folder),
            "heap with a log": HeapBackends(folder, rows_whole_up_to_bytes=0),
            "rocksdb": RocksBackends(folder, memory_bytes=8 << 20, rows_memory_bytes=4_000),
        }
        yield opened
        for each in opened.values():
            each.close()


def rewritten(folder: Path, base: str, *, max_parallelism: int | None = None, **chosen: str) -> WrittenSavepoint:
    return rewritten_savepoint(
        str(folder),
        find_checkpoint(base),
        operator=chosen.get("operator"),
        state=chosen.get("state"),
        max_parallelism=max_parallelism,
        now_ms=5,
    )


def new(folder: Path, spec: OperatorSpec, *, max_parallelism: int = 128) -> WrittenSavepoint:
    plan = a_plan(spec, 2, max_parallelism)
    return new_savepoint(str(folder), plan, fingerprint(plan), operator=None, state=None, now_ms=5)


def rows_in(path: str) -> list[dict[str, Any]]:
    rows = rows_of(path=path, table="state")
    return [{name: value for name, value in row.items() if name not in PLACE} for row in rows]


def values_in(path: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows_in(path)]


def refused(target: WrittenSavepoint, *rows: Sequence[Any]) -> str:
    with pytest.raises(OptionError) as caught:
        write(target, *map(tuple, rows))
    assert not (Path(target.path) / "manifest.json").exists()
    return str(caught.value)


# -- what is written is what was read


@pytest.mark.parametrize("written_by", WRITTEN_BY)
@pytest.mark.parametrize("name", WRITABLE)
def test_a_table_that_is_written_as_it_is_goes_on_as_if_nothing_had_been(
    name: str, written_by: str, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = WRITABLE[name]
    job = Job(spec, backends[written_by])
    feed(job, name, times=6, first_second=0)
    job.snapshot()
    feed(job, f"{name} again", times=4, first_second=4)
    job.advance(WATERMARK_MS)
    path = job.store(tmp_path / "before")
    before, rows = table(path, spec), values_in(path)
    assert sum(before.values()) == len(rows) >= (1 if name == "one group" else 20)
    written = {
        number: write(rewritten(tmp_path / f"for-{number}", path, max_parallelism=number), *rows)
        for number in (None, 7, 300)
    }
    job.out.clear()
    go_on(job)
    expected = table(job.store(tmp_path / "undisturbed"), spec)
    assert expected and expected != before and job.out
    for at, (number, parallelism, goes_on_with) in enumerate(((None, 3, "heap"), (None, 2, "rocksdb"), *GOES_ON)):
        assert table(written[number], spec) == before
        on = restored_job(written[number], spec, number or 128, parallelism, backends[goes_on_with])
        assert table(on.store(tmp_path / f"restored-{at}"), spec) == before
        go_on(on)
        assert table(on.store(tmp_path / f"after-{at}"), spec) == expected
        if not isinstance(spec, AggregateSpec) or spec.mode is not OutputMode.UPDATE:
            # Groups that change are shown more often the less room there is.
            assert shown(on) == shown(job)


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [None, 0, -1, (1 << 63) - 1, -(1 << 63)]),
    "byte": (pa.int8(), [None, 0, -128, 127]),
    "double": (pa.float64(), [None, 0.0, -0.0, -7.25, float("inf"), NOT_A_NUMBER]),
    "float": (pa.float32(), [None, 0.0, -0.0, -7.25, float("-inf"), NOT_A_NUMBER]),
    "bool": (pa.bool_(), [None, True, False]),
    "date": (pa.date32(), [None, dt.date(1970, 1, 1), dt.date(2026, 11, 19)]),
    "instant": (pa.timestamp("us", "UTC"), [None, dt.datetime(1969, 1, 1, tzinfo=dt.UTC)]),
    "time": (pa.timestamp("us"), [None, dt.datetime(2026, 11, 19, 1, 2, 3, 4)]),
    "string": (pa.string(), [None, "", "ü", "x" * 50]),
    "bytes": (pa.binary(), [None, b"", b"\x00\xff"]),
    "decimal": (pa.decimal128(20, 2), [None, Decimal("0.00"), Decimal("-123456789012345678.90")]),
    "list": (pa.list_(pa.int64()), [None, [], [1, None]]),
}
NUMBERS, WHOLE = ("long", "double", "decimal"), ("long", "byte")
SORTABLE = tuple(name for name in KINDS if name != "list")
ANY = tuple(KINDS)
BY_FUNCTION: dict[AggregateFunction, tuple[str, ...]] = {
    AggregateFunction.SUM: NUMBERS,
    AggregateFunction.MIN: SORTABLE,
    AggregateFunction.MAX: SORTABLE,
    AggregateFunction.FIRST: ANY,
    AggregateFunction.FIRST_NON_NULL: ANY,
    AggregateFunction.LAST: ANY,
    AggregateFunction.LAST_NON_NULL: ANY,
    AggregateFunction.BIT_AND: WHOLE,
    AggregateFunction.BIT_OR: WHOLE,
    AggregateFunction.BIT_XOR: WHOLE,
}
CALLS = [(function, kind) for function, kinds in BY_FUNCTION.items() for kind in kinds]


def aggregation_of(*calls: tuple[AggregateFunction, pa.DataType]) -> AggregateSpec:
    """By a key, each call over a column of its own, in complete mode."""
    rows = pa.schema([("k", pa.int64()), *((f"v{at}", kind) for at, (_, kind) in enumerate(calls))])
    made = tuple(
        AggregateCall(function, (Column(at, f"v{at - 1}", kind),), kind, False)
        for at, (function, kind) in enumerate(calls, 1)
    )
    results = tuple(Column(at, field.name, field.type) for at, field in enumerate(rows))
    return AggregateSpec(1, made, results, rows, rows, OutputMode.COMPLETE)


@pytest.mark.parametrize(("function", "kind"), CALLS, ids=lambda each: str(getattr(each, "value", each)))
def test_running_values_of_every_type_are_stored_as_their_operator_stores_them(
    function: AggregateFunction, kind: str, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    """A group for each value, that of one row; the stored columns are the same bit by bit."""
    arrow_kind, values = KINDS[kind]
    if function is AggregateFunction.FIRST or (function is AggregateFunction.SUM and kind == "decimal"):
        values = values[1:]  # what a null means is not told
    spec = aggregation_of((function, arrow_kind))
    rows = pa.record_batch([pa.array(range(len(values))), pa.array(values, arrow_kind)], schema=spec.input_schema)
    job = Job(spec, backends["heap"])
    job.process(rows)
    path = job.store(tmp_path / "before")
    written = write(rewritten(tmp_path / "after", path), *values_in(path))
    assert sections_in(written) == sections_in(path) != []


def sections_in(path: str) -> list[str]:
    """The rows in them, whoever has them."""
    files = find_checkpoint(path).open_files()
    streams = [
        pa.ipc.open_stream(stored.data).read_all()
        for slot in files.manifest.slots
        for stored in files.all_sections(slot.slot)
        if stored.key.kind == "state"
    ]
    return sorted(repr(sorted(row.items())) for rows in streams for row in rows.to_pylist())


# -- other rows, and new ones


@pytest.mark.parametrize("written_by", WRITTEN_BY)
@pytest.mark.parametrize("max_parallelism", [None, 7, 300])
def test_an_edited_group_goes_on_from_what_it_was_given_and_one_without_a_row_begins_anew(
    max_parallelism: int | None, written_by: str, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = SPECS["groups"]
    rows = pa.record_batch(
        [[1, 2, 3], ["a", "b", "c"], [10, 20, 30], ["x", "y", "z"], [1.0, 2.0, 3.0]],
        schema=spec.input_schema if isinstance(spec, AggregateSpec) else None,
    )
    job = Job(spec, backends[written_by])
    job.process(rows)
    path = job.store(tmp_path / "before")
    target = rewritten(tmp_path / "after", path, max_parallelism=max_parallelism)
    write(target, (1, "a", 5, 1_000, "zz", -1.0), (3, "c", 1, 30, "z", 3.0), (4, None, 2, None, None, None))
    on = restored_job(target.path, spec, max_parallelism or 128, 3, backends["rocksdb"])
    on.process(rows)
    assert sorted(values_in(on.store(tmp_path / "on")), key=repr) == [
        (1, "a", 6, 1_010, "zz", -1.0),
        (2, "b", 1, 20, "y", 2.0),
        (3, "c", 2, 60, "z", 3.0),
        (4, None, 2, None, None, None),
    ]


def test_a_query_that_has_not_run_goes_on_from_groups_that_it_is_given(
    tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = SPECS["windows"]
    window, other = (
        {"start": dt.datetime(1970, 1, 1, 0, 0, at), "end": dt.datetime(1970, 1, 1, 0, 0, at + 10)} for at in (0, 10)
    )
    target = new(tmp_path / "new", spec, max_parallelism=64)
    write(target, (window, 1, "a", 7, 70, "m", 0.5), (other, 1, "a", 1, 1, None, None))
    on = restored_job(target.path, spec, 64, 3, backends["heap"])
    assert isinstance(spec, AggregateSpec)
    on.process(pa.record_batch([[window], [1], ["a"], [30], ["z"], [0.25]], schema=spec.input_schema))
    on.advance(10_000)
    assert [list(row.values()) for batch in on.out for row in batch.to_pylist()] == [
        [window, 1, "a", 8, 100, "z", 0.25]
    ]


def test_the_only_group_of_an_aggregation_without_keys_is_edited(
    tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = SPECS["one group"]
    job = Job(spec, backends["heap"])
    feed(job, "some", times=2, first_second=0)
    path = job.store(tmp_path / "before")
    (row,) = rows_in(path)
    changed = {name: 1_000 if name == "rows" else value for name, value in row.items()}
    written = write(rewritten(tmp_path / "after", path), tuple(changed.values()))
    on = restored_job(written, spec, 128, 2, backends["heap"])
    feed(on, "some", times=2, first_second=0)
    (after,) = rows_in(on.store(tmp_path / "on"))
    assert after["rows"] == 1_000 + row["rows"]
    none = restored_job(write(rewritten(tmp_path / "none", path)), spec, 128, 2, backends["heap"])
    assert [each["rows"] for each in rows_in(none.store(tmp_path / "anew"))] == [0]
    twice = refused(rewritten(tmp_path / "twice", path), *[tuple(row.values())] * 2)
    assert twice == "Two rows have the key () in state 'groups' of operator v1.op0: give each key once."


def test_groups_without_functions_are_their_keys(tmp_path: Path, backends: dict[str, StateBackends]) -> None:
    """As those of SELECT DISTINCT."""
    spec = replace(aggregation_of(), mode=OutputMode.UPDATE)
    target = new(tmp_path / "new", spec)
    write(target, (1,), (None,))
    on = restored_job(target.path, spec, 128, 2, backends["heap"])
    on.process(pa.record_batch([pa.array([1, 2])], names=["k"]))
    assert sorted(values_in(on.store(tmp_path / "on")), key=repr) == [(1,), (2,), (None,)]


def test_keys_are_added_and_taken_out_of_a_deduplication(tmp_path: Path, backends: dict[str, StateBackends]) -> None:
    spec = SPECS["keys for ever"]
    target = new(tmp_path / "new", spec)
    write(target, ("a", None), ("b", None), (None, None))
    names = ["a", "b", "c", None]
    rows = pa.record_batch([names, [0] * 4, range(4)], schema=pa.schema(list(spec.schema))).cast(spec.schema)  # type: ignore[union-attr]
    on = restored_job(target.path, spec, 128, 3, backends["rocksdb"])
    on.process(rows)
    assert [batch.column(0).to_pylist() for batch in on.out if batch.num_rows] == [["c"]]
    fewer = write(rewritten(tmp_path / "fewer", target.path), ("a", None))
    on = restored_job(fewer, spec, 128, 3, backends["heap"])
    on.process(rows)
    assert {name for batch in on.out for name in batch.column(0).to_pylist()} == {"b", "c", None}


def test_a_key_is_forgotten_at_the_time_that_it_was_given(tmp_path: Path, backends: dict[str, StateBackends]) -> None:
    spec = SPECS["keys for ten seconds"]
    at = dt.datetime(1970, 1, 1, 0, 0, 20, tzinfo=dt.UTC)
    target = new(tmp_path / "new", spec)
    write(target, ("a", at), ("b", at + dt.timedelta(seconds=10)))
    on = restored_job(target.path, spec, 128, 2, backends["heap"])
    on.advance(25_000)
    assert [row["k"] for row in rows_in(on.store(tmp_path / "on"))] == ["b"]


@pytest.mark.parametrize("max_parallelism", [None, 7])
@pytest.mark.parametrize("written_by", WRITTEN_BY)
def test_groups_that_the_barrier_has_left_unshown_are_shown_as_they_were_edited_and_no_others(
    written_by: str,
    max_parallelism: int | None,
    tmp_path: Path,
    backends: dict[str, StateBackends],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = SPECS["groups"]
    job = Job(spec, backends[written_by])
    left = left_unshown(job, Job(spec, backends["heap"]), monkeypatch)
    path = job.store(tmp_path / "before")
    unshown = [repr(key) for batch in left.out for key in key_values(batch, sent_by(spec))]
    gone = sorted(unshown)[::2]
    rows = {repr(list(row[:2])): row for row in values_in(path)}
    edited = [(*row[:2], 1_000, *row[3:]) for key, row in rows.items() if key not in gone]
    target = rewritten(tmp_path / "after", path, max_parallelism=max_parallelism)
    on = restored_job(write(target, *edited), spec, max_parallelism or 128, 3, backends["heap"])
    for operator in on.operators:
        while operator._changed.any:
            operator.before_barrier(on.out.append)
    found = [list(row.values()) for batch in on.out for row in batch.to_pylist()]
    assert Counter(repr(row[:2]) for row in found) == Counter(key for key in unshown if key not in gone)
    assert len(found) > 2 and {row[2] for row in found} == {1_000}


def test_in_update_mode_an_edited_group_is_given_out_with_its_next_row(
    tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = SPECS["groups"]
    target = new(tmp_path / "new", spec)
    write(target, (1, "a", 5, 1_000, "zz", -1.0), (2, "b", 5, 1_000, "zz", -1.0))
    on = restored_job(target.path, spec, 128, 2, backends["heap"])
    assert given_at_barrier(on) == []
    assert isinstance(spec, AggregateSpec)
    on.process(pa.record_batch([[1], ["a"], [10], ["x"], [1.0]], schema=spec.input_schema))
    assert given_at_barrier(on) == [[1, "a", 6, 1_010, "zz", -1.0]]


def test_in_complete_mode_edited_groups_are_given_out_at_the_next_barrier(
    tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = SPECS["groups that stay in memory"]
    target = new(tmp_path / "new", spec)
    write(target, (1, "a", 5, 1_000, "zz", -1.0))
    assert given_at_barrier(restored_job(target.path, spec, 128, 2, backends["heap"])) == [
        [1, "a", 5, 1_000, "zz", -1.0]
    ]


def given_at_barrier(job: Job) -> list[list[Any]]:
    for operator in job.operators:
        operator.before_barrier(job.out.append)
    return [list(row.values()) for batch in job.out for row in batch.to_pylist()]


def test_a_window_that_event_time_has_passed_is_given_out_at_once_though_it_was_before(
    tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    spec = SPECS["windows"]
    window = {"start": dt.datetime(1970, 1, 1, 0, 0, 0), "end": dt.datetime(1970, 1, 1, 0, 0, 10)}
    job = Job(spec, backends["heap"])
    assert isinstance(spec, AggregateSpec)
    job.process(pa.record_batch([[window], [1], ["a"], [30], ["z"], [0.25]], schema=spec.input_schema))
    job.advance(10_000)
    path = job.store(tmp_path / "before")
    assert rows_in(path) == [] and [batch.num_rows for batch in job.out] == [1]
    target = rewritten(tmp_path / "after", path)
    on = restored_job(write(target, (window, 1, "a", 9, 90, "z", 0.25)), spec, 128, 3, backends["rocksdb"])
    on.advance(10_000)
    assert [list(row.values()) for batch in on.out for row in batch.to_pylist()] == [[window, 1, "a", 9, 90, "z", 0.25]]


@pytest.mark.parametrize("max_parallelism", [None, 7])
def test_other_operators_keep_what_they_have(
    max_parallelism: int | None, tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    """A deduplication whose keys are replaced, in front of one that keeps its own."""
    spec = SPECS["keys for ever"]
    first, second = Job(spec, backends["rocksdb"]), Job(spec, backends["rocksdb"])
    feed(first, "some", times=6, first_second=0)
    feed(second, "others", times=6, first_second=0)
    (tmp_path / "before").mkdir()
    plan = plan_of(spec, spec, schema=INPUT, parallelism=2)
    StoredJob(plan, first.snapshot(), second.snapshot()).write(LocalFiles(tmp_path / "before"))

    def keys(path: str, operator: str) -> list[str]:
        return sorted(repr(row["k"]) for row in rows_of(path=path, table="state", operator=operator))

    before = str(tmp_path / "before")
    target = rewritten(tmp_path / "after", before, operator="v1.op0", max_parallelism=max_parallelism)
    path = write(target, ("only", None))
    assert keys(path, "v1.op0") == ["'only'"]
    assert keys(path, "v1.op1") == keys(before, "v1.op1") != []


def test_what_goes_through_the_shuffle_at_once_is_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoint_job, "_MOST_BYTES", 100)
    monkeypatch.setattr(savepoint_job, "BATCH_ROWS", 5)
    entries = [StateEntry(0, "aggregate", 0, b"", b"x" * size) for size in (60, 60, 300, *[1] * 12)]
    pieces = list(savepoint_job._pieces(iter(entries)))
    assert [len(piece) for piece in pieces] == [2, 1, 5, 5, 2]
    assert [entry for piece in pieces for entry in piece] == entries


# -- what is refused


DOUBLE = pa.float64()


def call(function: AggregateFunction, kind: pa.DataType = DOUBLE, **more: Any) -> AggregateSpec:
    spec = aggregation_of((function, DOUBLE))
    changed = replace(spec.calls[0], type=kind, **more)
    schema = pa.schema([spec.schema.field(0), pa.field("result", kind)])
    results = (spec.results[0], Column(1, "result", kind))
    return replace(spec, calls=(changed,), schema=schema, results=results)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (call(AggregateFunction.AVG), "column 'result' is avg, whose running values are not made of what it shows"),
        (call(AggregateFunction.STDDEV_SAMP), "column 'result' is stddev, whose running"),
        (call(AggregateFunction.COLLECT_LIST, pa.list_(pa.float64())), "column 'result' is collect_list, whose"),
        (
            call(AggregateFunction.SUM, distinct=(Column(1, "v0", pa.float64()),)),
            "column 'distinct_0' is what a DISTINCT has seen, which results are not made of",
        ),
        (SPECS["groups with lists"], "column 'c6' is collect_list, whose"),
        (
            test_windows_of_groups.spec_of(OutputMode.APPEND, EventTimeKey.SESSION),
            "sessions end up in one another as rows come between them",
        ),
        (SPECS["inner join"], "what the rows of a join have met is held by both of its sides"),
    ],
)
def test_state_that_its_table_does_not_tell_is_not_written_from_rows(spec: Spec, said: str, tmp_path: Path) -> None:
    plan = a_plan(spec, 2, 128)
    state = "left" if spec is SPECS["inner join"] else None
    with pytest.raises(OptionError) as caught:
        new_savepoint(str(tmp_path / "new"), plan, fingerprint(plan), operator=None, state=state, now_ms=5)
    assert f"cannot be written from rows, because {said}" in str(caught.value)
    assert str(caught.value).endswith(": only whole keys can be taken out of it, with tg.savepoints.drop_keys.")
    assert not (tmp_path / "new").exists()


def test_a_key_can_be_given_once_only_however_it_is_written(tmp_path: Path) -> None:
    twice = refused(new(tmp_path / "a", SPECS["keys for ever"]), *[(key, None) for key in ("a", "b", "c", "b")])
    assert twice == "Two rows have the key ('b',) in state 'keys' of operator v1.op0: give each key once."
    numbers = aggregation_of((AggregateFunction.SUM, pa.int64()))
    by_number = replace(numbers, input_schema=pa.schema([("k", pa.float64()), ("v0", pa.int64())]))
    assert "Two rows have the key (-0.0,)" in refused(new(tmp_path / "b", by_number), (0.0, 1), (1.0, 1), (-0.0, 2))
    assert "Two rows have the key (nan,)" in refused(
        new(tmp_path / "c", by_number), *[(NOT_A_NUMBER if at in (1, 9) else float(at), 1) for at in range(12)]
    )


@pytest.mark.parametrize("count", [None, -1])
def test_a_count_is_a_number_from_0_on(count: int | None, tmp_path: Path) -> None:
    spec = SPECS["one group"]
    row = (count, *[None] * (len(new(tmp_path / "a", spec).rows.columns) - 1))  # type: ignore[union-attr]
    said = refused(new(tmp_path / "a", spec), row)
    assert said == "Column 'rows' is a count, and a row has null or less than 0 in it: give a number."


def test_a_null_that_may_mean_two_things_is_refused(tmp_path: Path) -> None:
    decimals = aggregation_of((AggregateFunction.SUM, pa.decimal128(20, 2)))
    assert refused(new(tmp_path / "a", decimals), (1, Decimal("1.00")), (2, None)) == (
        "Column 'v0' is null in a row, which does not say whether nothing was added up yet or the sum has overflowed "
        "for good: give a value, or leave the group out."
    )
    firsts = aggregation_of((AggregateFunction.FIRST, pa.string()))
    assert "whether null is the first value or there is none yet" in refused(new(tmp_path / "b", firsts), (1, None))


def test_when_keys_are_forgotten_is_what_their_operator_would_have_said(tmp_path: Path) -> None:
    at = dt.datetime(1970, 1, 1, 0, 0, 20)
    later = at.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=1)
    by_time = refused(new(tmp_path / "a", SPECS["keys by time"]), ("a", at, later))
    assert by_time == (
        "Operator v1.op0 (Deduplicate) forgets its keys by 'ts': 'forgotten_at' must be that time, or the end of that "
        "window."
    )
    assert "never forgets its keys: 'forgotten_at' must be null" in refused(
        new(tmp_path / "b", SPECS["keys for ever"]), ("a", later)
    )
    assert "forgets each key at a time: 'forgotten_at' must not be null" in refused(
        new(tmp_path / "c", SPECS["keys for ten seconds"]), ("a", None)
    )


def test_a_checkpoint_that_does_not_say_how_rows_are_stored_is_refused(
    tmp_path: Path, backends: dict[str, StateBackends]
) -> None:
    job = Job(SPECS["groups"], backends["heap"])
    base = find_checkpoint(job.store(tmp_path / "before"))
    manifest = base.read_manifest()
    assert manifest.plan is not None
    (operator,) = manifest.plan.operators
    unsaid = [msgspec.structs.replace(state, on_disk=None) for state in operator.states]  # type: ignore[call-arg]
    plan = msgspec.structs.replace(manifest.plan, operators=[msgspec.structs.replace(operator, states=unsaid)])
    LocalFiles(tmp_path / "before").put("manifest.json", encode_manifest(msgspec.structs.replace(manifest, plan=plan)))
    with pytest.raises(IncompatibleCheckpoint, match="does not say which columns are the key of Aggregate.*: resume"):
        rewritten(tmp_path / "after", str(tmp_path / "before"))


def test_what_is_kept_by_key_and_is_not_known_is_refused_where_rows_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    strange = Section("strange", KeyGroupRange(0, 128), lambda: b"of a later version")
    plan = plan_of(SPECS["keys for ever"], schema=INPUT)
    StoredJob(plan, {0: [strange]}).write(LocalFiles(tmp_path / "before"))
    with pytest.raises(IncompatibleCheckpoint, match="holds 'strange' of operator v1.op0, whose rows cannot be repla"):
        rewritten(tmp_path / "after", str(tmp_path / "before"))
