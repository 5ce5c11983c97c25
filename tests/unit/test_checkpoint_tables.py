"""A checkpoint read as tables: what operators kept, what was in flight, and what is said of it."""

import datetime as dt
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.unit.stored_checkpoint import RECEIVER, Captured, StoredJob, plan_of
from tests.unit.timed_rows import SCHEMA as TIMED
from tests.unit.timed_rows import batch as timed
from tidegate.coordinator.checkpoint_tables import open_table
from tidegate.model.elements import Batch, EndOfInput, Watermark
from tidegate.model.errors import Damaged, IncompatibleCheckpoint, OptionError
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, KeyGroupRange, TaskId, range_of
from tidegate.operators.build import build_operator
from tidegate.operators.contract import Operator, ProcessorHandle, TaskContext, Times
from tidegate.plan.expressions import Column
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import (
    AggregateCall,
    AggregateFunction,
    DeclaredState,
    ForgetAfterDelay,
    JoinType,
    StateShape,
    TimeMode,
)
from tidegate.plan.physical import (
    AggregateSpec,
    DeduplicateSpec,
    JoinInputSpec,
    OperatorSpec,
    StreamJoinSpec,
    TransformWithStateSpec,
)
from tidegate.protocol.checkpoint_facts import CheckpointFacts, Outcome
from tidegate.spark.table_source import CheckpointDataSource
from tidegate.state.contract import Section
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointCompleted, JobLog
from tidegate.storage.manifests import encode_manifest
from tidegate.storage.statistics import put_failed
from tidegate.storage.store import LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.state_backends import StateBackends, open_backends

INPUT = pa.schema([("k", pa.string()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.string())])
DETAILS = pa.struct([("at", pa.date32()), ("tags", pa.map_(pa.string(), pa.int64()))])
STATES = (
    DeclaredState("count", StateShape.VALUE, pa.schema([("n", pa.int64()), ("k", pa.decimal128(10, 2))])),
    DeclaredState("seen", StateShape.LIST, pa.schema([("at", pa.timestamp("us", "UTC"))]), has_ttl=True),
    DeclaredState("by", StateShape.MAP, pa.schema([("d", DETAILS)]), pa.schema([("digit", pa.int32())])),
)
ALL = KeyGroupRange(0, 128)


class Processor:
    """Keeps one of each: a value, a list, a map and a timer. Values are what Spark's types are stored as."""

    ttl_ms = 5_000

    def init(self, handle: ProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.value_state("count", ("n", "k"))
        self.seen = handle.list_state("seen", ("at",), ttl_ms=self.ttl_ms)
        self.by = handle.map_state("by", ("digit",), ("d",))

    def handle_rows(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times) -> Iterable[Any]:
        for (v,) in rows:
            self.count.update((v, Decimal("1.5")))
            self.seen.append_value((v * 1_000_000,))
            self.by.update_value((v % 10,), ([365, [["x", v], ["y", None]]],))
            self.handle.register_timer(1_000 * v)
            assert 1_000 * v in self.handle.timers()
        return ()

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[Any]:
        return ()

    def close(self) -> None:
        return


class Lasting(Processor):
    """Its elements live as long as any may."""

    ttl_ms = 1 << 62


class Alarm(Processor):
    """Keeps timers and no state: one by the value, and those at `also_ms`."""

    def __init__(self, *also_ms: int) -> None:
        self.also_ms = also_ms

    def init(self, handle: ProcessorHandle) -> None:
        self.handle = handle

    def handle_rows(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times) -> Iterable[Any]:
        for at_ms in [*(1_000 * v for (v,) in rows), *self.also_ms]:
            self.handle.register_timer(at_ms)
        return ()


class Code:
    def __init__(self, given: Processor | None = None) -> None:
        self.given = given or Processor()

    def processor(self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]) -> Processor:
        return self.given


@pytest.fixture(params=["heap", "incremental heap", "rocksdb"])
def backends(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StateBackends]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    whole_up_to_bytes = 0 if request.param == "incremental heap" else None
    opened = open_backends(request.param.removeprefix("incremental "), whole_up_to_bytes=whole_up_to_bytes)
    yield opened
    opened.close()


def opened(
    spec: OperatorSpec,
    key_groups: KeyGroupRange = ALL,
    backends: StateBackends | None = None,
    processor: Processor | None = None,
) -> Operator:
    operator = build_operator(spec)
    state = open_backends("heap") if backends is None else backends
    code: Any = Code(processor)
    task = TaskId(RECEIVER, 0)
    operator.open(TaskContext(task, 1, 128, key_groups, ManualClock(), code, lambda: state.open(key_groups)), [])
    return operator


def process(operator: Operator, rows: pa.RecordBatch) -> None:
    out: list[pa.RecordBatch] = []
    operator.process(rows, out.append)


def stateful(**options: Any) -> TransformWithStateSpec:
    return TransformWithStateSpec(1, b"", INPUT, OUTPUT, TimeMode.PROCESSING_TIME, states=STATES, **options)


def alarm() -> TransformWithStateSpec:
    return TransformWithStateSpec(1, b"", INPUT, OUTPUT, TimeMode.PROCESSING_TIME, name="alarm")


def stored_states(
    folder: Path,
    backends: StateBackends | None = None,
    *,
    parallelism: int = 2,
    make: Callable[[], Processor] = Processor,
) -> str:
    """Of the keys a to f, with the values 11 to 16, each in its owner's subtask."""
    sections = snapshots(stateful(), backends, parallelism, make)
    job = StoredJob(plan_of(stateful(), schema=INPUT, parallelism=parallelism), sections)
    job.write(LocalFiles(_made(folder)))
    return str(folder)


def stored_alarms(folder: Path, backends: StateBackends | None = None, *, make: Callable[[], Processor] = Alarm) -> str:
    """The same, and behind it an operator that keeps timers only."""
    plan = plan_of(stateful(), alarm(), schema=INPUT, parallelism=2)
    both = snapshots(stateful(), backends), snapshots(alarm(), backends, make=make)
    StoredJob(plan, *both).write(LocalFiles(_made(folder)))
    return str(folder)


def snapshots(
    spec: OperatorSpec,
    backends: StateBackends | None = None,
    parallelism: int = 2,
    make: Callable[[], Processor] = Processor,
) -> dict[int, list[Section]]:
    keys, values = list("abcdef"), list(range(11, 17))
    rows = pa.record_batch([pa.array(keys), pa.array(values, pa.int64())], schema=INPUT)
    owners = key_group_of(hash_rows(rows, 1), 128)
    sections = {}
    for subtask in range(parallelism):
        own = range_of(subtask, parallelism=parallelism, max_parallelism=128)
        operator = opened(spec, own, backends, make())
        own_rows = rows.filter(pa.array([int(owner) in own for owner in owners]))
        process(operator, own_rows.slice(0, 1))
        operator.snapshot()  # so that the rest is what changed since
        process(operator, own_rows.slice(1))
        sections[subtask] = operator.snapshot()
    return sections


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def rows_of(**options: str) -> list[dict[str, Any]]:
    """Of all partitions, read from a table that was sent somewhere."""
    table = pickle.loads(pickle.dumps(open_table(options)))
    batches = [batch for partition in range(table.partitions) for batch in table.read(partition)]
    assert all(batch.schema == table.schema for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


# -- states


def test_a_value_state_has_its_keys_and_values_by_their_types(tmp_path: Path, backends: StateBackends) -> None:
    path = stored_states(tmp_path / "saved", backends)
    table = open_table({"path": path, "table": "state", "state": "count"})
    # The value's k is another column than the key's.
    assert table.schema.names == ["k", "n", "value_k", "key_group", "subtask"]
    assert table.schema.field("value_k").type == pa.decimal128(10, 2)
    rows = rows_of(path=path, table="state", state="count")
    assert sorted((row["k"], row["n"], row["value_k"]) for row in rows) == [
        (key, n, Decimal("1.50")) for n, key in enumerate("abcdef", 11)
    ]
    keys = pa.record_batch([pa.array([row["k"] for row in rows])], names=["k"])
    assert [row["key_group"] for row in rows] == key_group_of(hash_rows(keys, 1), 128).tolist()
    halves = [range_of(subtask, parallelism=2, max_parallelism=128) for subtask in range(2)]
    assert all(row["key_group"] in halves[row["subtask"]] for row in rows)
    assert {row["subtask"] for row in rows} == {0, 1}


def test_a_list_state_has_a_row_for_each_element_and_its_expiration(tmp_path: Path, backends: StateBackends) -> None:
    rows = rows_of(path=stored_states(tmp_path / "saved", backends), table="state", state="seen", operator="v1.op0")
    now = dt.datetime.fromtimestamp(ManualClock().wall_ms() / 1000, dt.UTC)
    assert sorted((row["k"], row["index"], row["at"].second, row["expiration"]) for row in rows) == [
        (key, 0, n, now + dt.timedelta(seconds=5)) for n, key in enumerate("abcdef", 11)
    ]


def test_a_map_state_has_a_row_for_each_entry_with_nested_values(tmp_path: Path, backends: StateBackends) -> None:
    rows = rows_of(path=stored_states(tmp_path / "saved", backends), table="state", state="by")
    (row,) = [row for row in rows if row["k"] == "b"]
    assert row["digit"] == 2
    assert row["d"] == {"at": dt.date(1971, 1, 1), "tags": [("x", 12), ("y", None)]}


def test_running_values_of_groups_are_those_the_aggregation_would_show(tmp_path: Path) -> None:
    value, amount = Column(1, "v", pa.int64()), Column(2, "amount", pa.decimal128(10, 2))
    calls = (
        AggregateCall(AggregateFunction.SUM, (value,), pa.int64(), True),
        AggregateCall(AggregateFunction.AVG, (value,), pa.float64(), True),
        AggregateCall(AggregateFunction.MIN, (value,), pa.int64(), True),
        AggregateCall(AggregateFunction.SUM, (amount,), pa.decimal128(20, 2), True),
        AggregateCall(AggregateFunction.COUNT, (Column(0, "x", pa.int64()),), pa.int64(), True, distinct=(value,)),
    )
    columns = pa.schema([("user", pa.string()), ("v", pa.int64()), ("amount", amount.type)])
    shown = pa.schema([("user", pa.string()), ("total", pa.int64()), ("mean", pa.float64())])
    results = (Column(0, "user", pa.string()), Column(1, "", pa.int64()), Column(2, "", pa.float64()))
    spec = AggregateSpec(1, calls, results, columns, shown)
    operator = opened(spec)
    amounts = pa.array([Decimal("0.10"), Decimal("0.20"), Decimal("-7.00")], amount.type)
    rows = [pa.array(["a", "a", "b"]), pa.array([5, -2, 7], pa.int64()), amounts]
    process(operator, pa.RecordBatch.from_arrays(rows, schema=columns))
    store = LocalFiles(tmp_path)
    StoredJob(plan_of(spec, schema=columns), {0: operator.snapshot()}).write(store)
    found = rows_of(path=str(tmp_path), table="state", operator="Aggregate(sum, avg, min, sum, count distinct)")
    a, b = sorted(found, key=lambda row: str(row["user"]))
    seen = sorted(value["value_0"] for value in a.pop("distinct_0"))
    assert (seen, b["distinct_0"]) == ([-2, 5], [{"value_0": 7}])
    assert a == {
        "user": "a", "total": 3, "mean": 1.5, "min_2": -2, "sum_3": Decimal("0.30"),
        "key_group": a["key_group"], "subtask": 0,
    }  # fmt: skip
    assert (b["min_2"], b["sum_3"]) == (7, Decimal("-7.00"))


@pytest.mark.parametrize(("forget", "expected"), [(None, None), (ForgetAfterDelay(3_000), 10)])
def test_keys_of_a_deduplication_tell_when_they_are_forgotten(tmp_path: Path, forget: Any, expected: Any) -> None:
    spec = DeduplicateSpec(1, 1, forget, TIMED)
    operator = opened(spec)
    process(operator, timed([("a", 7, 1), ("a", 8, 2)]))
    StoredJob(plan_of(spec, schema=TIMED), {0: operator.snapshot()}).write(LocalFiles(tmp_path))
    (row,) = rows_of(path=str(tmp_path), table="state")
    assert row["k"] == "a"
    assert row["forgotten_at"] == (None if expected is None else dt.datetime.fromtimestamp(expected, dt.UTC))


def test_both_sides_of_a_join_are_states_of_their_own(tmp_path: Path) -> None:
    side = JoinInputSpec(1, (0, 1, 2), TIMED, None, None, None)
    spec = StreamJoinSpec(JoinType.INNER, side, side, None, pa.schema([*TIMED, *TIMED]))
    operator: Any = opened(spec)
    process(operator, timed([("a", 1, 1), ("b", 2, 2)]))
    operator.process_right(timed([("a", 3, 3)]), lambda rows: None)
    StoredJob(plan_of(spec, schema=TIMED), {0: operator.snapshot()}).write(LocalFiles(tmp_path))
    left = rows_of(path=str(tmp_path), table="state", state="left")
    assert sorted((row["k"], row["ts"].second, row["v"]) for row in left) == [("a", 1, 1), ("b", 2, 2)]
    (right,) = rows_of(path=str(tmp_path), table="state", state="right")
    assert (right["k"], right["v"]) == ("a", 3)
    assert {"has_partner", "key_group", "subtask"} <= right.keys()


# -- timers, tasks, rows in flight


def test_timers_have_their_keys_as_text_or_by_the_types_of_a_chosen_operator(
    tmp_path: Path, backends: StateBackends
) -> None:
    path = stored_states(tmp_path / "saved", backends)
    rows = rows_of(path=path, table="timers")
    assert sorted((json.loads(row["key"])["k"], row["time"].second, row["kind"]) for row in rows) == [
        (key, n, "processing_time") for n, key in enumerate("abcdef", 11)
    ]
    assert {row["operator"] for row in rows} == {"v1.op0"}
    typed = rows_of(path=path, table="timers", operator="TransformWithState")
    assert sorted((row["k"], row["time"].second) for row in typed) == list(zip("abcdef", range(11, 17), strict=True))


def test_timers_of_an_operator_without_state_are_read_by_its_name(tmp_path: Path, backends: StateBackends) -> None:
    path = stored_alarms(tmp_path / "saved", backends)
    for name in ("alarm", "v1.op1"):
        rows = rows_of(path=path, table="timers", operator=name)
        assert sorted((row["k"], row["time"].second) for row in rows) == list(zip("abcdef", range(11, 17), strict=True))
        assert {row["operator"] for row in rows} == {"v1.op1"}


def test_an_operator_without_timers_is_refused_with_those_that_have_some(tmp_path: Path) -> None:
    keys = DeduplicateSpec(1, None, None, INPUT)
    StoredJob(plan_of(alarm(), keys, schema=INPUT)).write(LocalFiles(_made(tmp_path / "one")))
    for wanted in ("v1.op1", "nobody"):
        with pytest.raises(OptionError, match=rf"'{wanted}', which is no operator with timers.*v1.op0 \(alarm\)"):
            open_table({"path": str(tmp_path / "one"), "table": "timers", "operator": wanted})
    StoredJob(plan_of(keys, schema=INPUT)).write(LocalFiles(_made(tmp_path / "none")))
    with pytest.raises(OptionError, match="No operator of this checkpoint has timers"):
        open_table({"path": str(tmp_path / "none"), "table": "timers", "operator": "v1.op0"})


FIRST = dt.datetime(1, 1, 2, tzinfo=dt.UTC)
LAST = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


def times_in_spark(name: str, **options: str) -> list[dt.datetime]:
    """As Spark's executors read them."""
    source = CheckpointDataSource(options)
    reader = source.reader(source.schema())
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return [value for batch in batches for value in batch.column(name).to_pylist()]


def test_timers_beyond_what_spark_can_hold_are_shown_at_the_end_of_time(tmp_path: Path) -> None:
    too_late_ms = int(LAST.timestamp()) * 1_000 + 1
    path = stored_alarms(tmp_path / "saved", make=lambda: Alarm((1 << 63) - 1, too_late_ms, -(1 << 63)))
    times = times_in_spark("time", path=path, table="timers", operator="alarm")
    between = [dt.datetime.fromtimestamp(v, dt.UTC) for v in range(11, 17)]
    assert sorted(times) == [*[FIRST] * 6, *between, *[LAST] * 12]


def test_expirations_beyond_what_spark_can_hold_are_shown_at_the_end_of_time(tmp_path: Path) -> None:
    path = stored_states(tmp_path / "saved", make=Lasting)
    assert times_in_spark("expiration", path=path, table="state", state="seen") == [LAST] * 6


def test_every_task_has_its_numbers(tmp_path: Path) -> None:
    rows = rows_of(path=stored_states(tmp_path / "saved"), table="tasks")
    assert [row["task"] for row in rows] == ["v0.0", "v1.0", "v0.1", "v1.1"]
    assert [(row["start_delay_ms"], row["alignment_ms"], row["sync_ms"]) for row in rows] == [(1.0, 2.0, 3.0)] * 4
    assert [row["state_bytes"] for row in rows] == [40, 40, 41, 41]


def in_flight(folder: Path) -> str:
    def some(*values: int) -> Batch:
        keys = pa.array([f"k{value}" for value in values])
        return Batch(pa.record_batch([keys, pa.array(values, pa.int64())], schema=INPUT))

    channels = {
        ChannelId(EdgeId(0), 0, 1): Captured((some(1, 2, 3), Watermark(5), some(4)), first=7, row=2, held=1),
        ChannelId(EdgeId(0), 1, 0): Captured((some(9), EndOfInput()), held=2),
    }
    StoredJob(plan_of(schema=INPUT, parallelism=2), channels=channels).write(LocalFiles(_made(folder)))
    return str(folder)


def test_rows_in_flight_tell_their_channel_side_and_place(tmp_path: Path) -> None:
    rows = rows_of(path=in_flight(tmp_path / "saved"), table="inflight", edge="e0")
    assert [
        (row["sender"], row["receiver"], row["side"], row["sequence"], row["row"], row["k"], row["v"]) for row in rows
    ] == [
        (1, 0, "sender", 0, 0, "k9", 9),
        (0, 1, "receiver", 7, 2, "k3", 3),
        (0, 1, "sender", 9, 0, "k4", 4),
    ]


def test_rows_in_flight_of_all_edges_are_text(tmp_path: Path) -> None:
    rows = rows_of(path=in_flight(tmp_path / "saved"), table="inflight")
    assert [json.loads(row["columns"]) for row in rows] == [{"k": f"k{v}", "v": v} for v in (9, 3, 4)]
    assert {row["edge"] for row in rows} == {"e0"}


# -- which checkpoint


def stored_location(folder: Path, *, savepoint: Path | None = None) -> LocalFiles:
    """Checkpoints 1 and 2, of which 1 has another parallelism; one that failed after them, and then a savepoint."""
    store = LocalFiles(_made(folder))
    log = JobLog(store, driver="test")
    log.start_generation(parallelism=1, at_ms=0)
    for number in (1, 2):
        path = layout.manifest(layout.CheckpointFolder(CheckpointId(number), Generation(1)))
        plan = plan_of(schema=INPUT, parallelism=number)
        StoredJob(plan, checkpoint=CheckpointId(number)).write(store, path)
        log.append(
            CheckpointCompleted(
                checkpoint=CheckpointId(number), generation=Generation(1), manifest=path, completed_at_ms=1_009
            )
        )
    failed = CheckpointFacts(
        checkpoint=3, generation=1, outcome=Outcome.FAILED, kind="unaligned", is_savepoint=False, triggered_at_ms=2_000,
        duration_ms=600.0, interval_ms=1.0, timeout_ms=1.0, failure="expired", detail="slot 1 did not answer",
    )  # fmt: skip
    put_failed(store, [failed])
    if savepoint is not None:
        plan, path = plan_of(schema=INPUT, parallelism=4), layout.savepoint_manifest()
        StoredJob(plan, checkpoint=CheckpointId(4)).write(LocalFiles(_made(savepoint)), path)
        log.append(
            CheckpointCompleted(
                checkpoint=CheckpointId(4), generation=Generation(1), manifest=path, location=str(savepoint),
                completed_at_ms=3_000, is_savepoint=True,
            )
        )  # fmt: skip
    return store


def test_a_location_means_its_newest_checkpoint_unless_another_is_named(tmp_path: Path) -> None:
    stored_location(tmp_path / "chk")
    assert len(rows_of(path=str(tmp_path / "chk"), table="tasks")) == 4
    assert len(rows_of(path=str(tmp_path / "chk"), table="tasks", checkpoint="1")) == 2
    assert len(rows_of(path=str(tmp_path / "chk" / "checkpoints" / "1-g1"), table="tasks")) == 2


def test_a_location_whose_newest_savepoint_was_moved_means_the_newest_that_is_there(tmp_path: Path) -> None:
    location, saved = str(tmp_path / "chk"), tmp_path / "saved"
    stored_location(tmp_path / "chk", savepoint=saved)
    assert len(rows_of(path=location, table="tasks")) == 8
    saved.rename(tmp_path / "moved")
    assert len(rows_of(path=location, table="tasks")) == 4
    assert not saved.exists()
    saved.mkdir()
    assert len(rows_of(path=location, table="tasks")) == 4
    with pytest.raises(OptionError, match=r"no longer there, for .*saved/manifest\.json is missing"):
        open_table({"path": location, "table": "tasks", "checkpoint": "4"})


def test_a_location_of_which_nothing_is_there_any_more_names_what_is_missing(tmp_path: Path) -> None:
    stored_location(tmp_path / "chk", savepoint=tmp_path / "saved")
    for manifest in tmp_path.rglob("manifest.json"):
        manifest.unlink()
    named = r"saved/manifest\.json, .*2-g1/manifest\.json, .*1-g1/manifest\.json is missing"
    with pytest.raises(OptionError, match=named):
        open_table({"path": str(tmp_path / "chk"), "table": "tasks"})


def test_a_damaged_newest_checkpoint_is_an_error_though_older_ones_are_there(tmp_path: Path) -> None:
    stored_location(tmp_path / "chk", savepoint=tmp_path / "saved")
    manifest = tmp_path / "saved" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with pytest.raises(Damaged, match=r"saved/manifest\.json cannot be used"):
        rows_of(path=str(tmp_path / "chk"), table="tasks")


def test_a_location_lists_what_it_retains_and_what_failed_newest_first(tmp_path: Path) -> None:
    stored_location(tmp_path / "chk")
    three, two, one = rows_of(path=str(tmp_path / "chk"), table="checkpoints")
    assert (three["id"], three["status"], three["duration_ms"]) == (3, "failed", 600.0)
    assert three["failure_reason"] == "expired: slot 1 did not answer"
    assert (two["id"], two["status"], two["kind"], two["duration_ms"]) == (2, "completed", "unaligned", 9.0)
    assert two["path"] == str(tmp_path / "chk" / "checkpoints" / "2-g1")
    assert two["state_bytes"] == 40 + 40 + 41 + 41
    assert one["new_state_bytes"] == (tmp_path / "chk" / "checkpoints" / "1-g1" / "0.state").stat().st_size


def test_a_checkpoint_whose_manifest_is_damaged_is_listed_with_what_is_wrong(tmp_path: Path) -> None:
    stored_location(tmp_path / "chk")
    manifest = tmp_path / "chk" / "checkpoints" / "1-g1" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    rows = rows_of(path=str(tmp_path / "chk"), table="checkpoints")
    (damaged,) = [row for row in rows if row["id"] == 1]
    assert damaged["status"] == "damaged"
    assert "1-g1/manifest.json cannot be used" in damaged["failure_reason"]


# -- what is wrong


def flip_bits(path: Path) -> None:
    """In each section: they begin at multiples of 64."""
    data = bytearray(path.read_bytes())
    for at in range(0, len(data) // 2, 64):
        data[at] ^= 1
    path.write_bytes(bytes(data))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip_bits, cut_off, Path.unlink])
def test_a_damaged_state_file_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = stored_states(tmp_path / "saved")
    (damaged,) = [file for file in (tmp_path / "saved").rglob("*.state") if file.name == "1.state"]
    table = open_table({"path": path, "table": "state", "state": "count"})
    damage(damaged)
    assert list(table.read(0))
    with pytest.raises(Damaged, match=r"1\.state"):
        list(table.read(1))


@pytest.mark.parametrize("damage", [flip_bits, cut_off, Path.unlink])
def test_a_damaged_file_of_captured_rows_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = in_flight(tmp_path / "saved")
    for file in (tmp_path / "saved" / "shared").iterdir():
        damage(file)
    with pytest.raises(Damaged, match=r"shared/1-g1-s\d\.channels"):
        rows_of(path=path, table="inflight")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "rows"}, "'table' is 'rows': use one of state, inflight, timers, tasks, checkpoints"),
        ({}, "'table' is missing"),
        ({"table": "state", "colour": "red"}, "Table 'state' has no option 'colour'"),
        ({"table": "tasks", "operator": "v1.op0"}, "Table 'tasks' has no option 'operator': use path, table, checkp"),
        ({"table": "state"}, r"'state' is missing, but operator v1.op0 \(TransformWithState\) has count, seen, by"),
        ({"table": "state", "state": "sum"}, "'state' is 'sum', but operator v1.op0 .* has count, seen, by"),
        ({"table": "state", "operator": "v7.op0"}, r"'v7.op0', which is unknown: .* v1.op0 \(TransformWithState\)"),
        ({"table": "inflight", "edge": "e4"}, r"'edge' is 'e4': use one of e0 \(sender to receiver\)"),
        ({"table": "tasks", "checkpoint": "1"}, "is one checkpoint: leave the option out"),
        ({"table": "checkpoints"}, "holds no job log"),
    ],
)
def test_wrong_options_are_refused_with_what_there_is(tmp_path: Path, options: dict[str, str], message: str) -> None:
    path = stored_states(tmp_path / "saved")
    with pytest.raises(OptionError, match=message):
        open_table({"path": path, **options})


def test_an_operator_must_be_chosen_if_several_keep_state(tmp_path: Path) -> None:
    plan = plan_of(stateful(), stateful(), schema=INPUT)
    StoredJob(plan).write(LocalFiles(tmp_path))
    for chosen, message in (
        ({}, "several operators keep state"),
        ({"operator": "TransformWithState"}, "names several"),
    ):
        with pytest.raises(OptionError, match=rf"{message}.*v1.op0 \(Trans.*v1.op1 \(Trans"):
            open_table({"path": str(tmp_path), "table": "state", "state": "count", **chosen})


def test_a_path_without_a_checkpoint_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="There is no folder"):
        open_table({"path": str(tmp_path / "nowhere"), "table": "tasks"})
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(OptionError, match="holds no checkpoint"):
        open_table({"path": str(tmp_path), "table": "tasks"})
    stored_location(tmp_path / "chk")
    with pytest.raises(OptionError, match="'checkpoint' is '9', and .* holds 1, 2"):
        open_table({"path": str(tmp_path / "chk"), "table": "tasks", "checkpoint": "9"})


def test_a_checkpoint_without_names_and_types_is_refused(tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    manifest = StoredJob(plan_of(stateful(), schema=INPUT)).write(store)
    store.put("manifest.json", encode_manifest(msgspec.structs.replace(manifest, plan=None)))
    with pytest.raises(IncompatibleCheckpoint, match="did not store names and types"):
        open_table({"path": str(tmp_path), "table": "state"})
