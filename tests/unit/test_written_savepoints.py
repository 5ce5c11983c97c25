"""A savepoint written from rows: what a restored operator finds, what is taken over, what is refused."""

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.unit.stored_checkpoint import Captured, StoredJob, plan_of
from tests.unit.test_checkpoint_tables import (
    INPUT,
    STATES,
    process,
    rows_of,
    stateful,
    stored_alarms,
    stored_states,
)
from tests.unit.test_groups_on_disk import spec_of
from tests.unit.test_list_and_map_state import initial
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import (
    WrittenRows,
    WrittenSavepoint,
    new_savepoint,
    regrouped_savepoint,
    rewritten_savepoint,
    savepoint_without_keys,
)
from tidegate.model.elements import Batch
from tidegate.model.errors import IncompatibleCheckpoint, OptionError
from tidegate.model.ids import ChannelId, EdgeId, KeyGroupRange, SlotIndex, TaskId, range_of
from tidegate.operators.build import build_operator
from tidegate.operators.contract import ProcessorHandle, TaskContext, Times
from tidegate.operators.initial_state import was_applied
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.lower import fingerprint
from tidegate.plan.nodes import OutputMode, TimeMode
from tidegate.plan.physical import DeduplicateSpec, JobPlan, TransformWithStateSpec
from tidegate.state.contract import Section
from tidegate.storage.manifests import encode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.storage.stored_plan import UserState, encode_schema
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.restoring import plain_name, restore_slot
from tidegate.worker.state_backends import StateBackends, open_backends
from tidegate.worker.written_state import StateEntry

DETAILS = {"at": dt.date(1971, 1, 1), "tags": [("x", 7), ("y", None)]}
SECOND = dt.timedelta(seconds=1)
NAMES = [f"name-{number}" for number in range(100)]
START = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(params=["heap", "incremental heap", "rocksdb"])
def backends(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StateBackends]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    whole_up_to_bytes = 0 if request.param == "incremental heap" else None
    made = open_backends(request.param.removeprefix("incremental "), whole_up_to_bytes=whole_up_to_bytes)
    yield made
    made.close()


def job_plan(parallelism: int = 2) -> JobPlan:
    return plan_of(stateful(), schema=INPUT, parallelism=parallelism)


def new(folder: Path, state: str = "count", *, parallelism: int = 2) -> WrittenSavepoint:
    plan = job_plan(parallelism)
    return new_savepoint(str(folder), plan, fingerprint(plan), operator=None, state=state, now_ms=5)


def write(target: WrittenSavepoint, *rows: tuple[Any, ...]) -> str:
    """As Spark's job does it, without Spark: rows are encoded, go to their slots, and are stored there."""
    entries = [] if target.rows is None else encoded(target, target.rows, rows)
    for slot in range(target.slots):
        entries += target.taken_over(slot)
    files = []
    for slot in range(target.slots):
        own = [
            entry
            for entry in entries
            if entry.key_group
            in range_of(
                slot,
                parallelism=target.subtasks_of(entry.operator),
                max_parallelism=target.manifest.max_parallelism,
            )
        ]
        files.append(target.write_slot(slot, own, token=f"try{slot}"))
    target.finish(files)
    return target.path


def encoded(target: WrittenSavepoint, state: WrittenRows, rows: Sequence[tuple[Any, ...]]) -> list[StateEntry]:
    columns = list(zip(*rows, strict=True)) or [()] * len(state.columns)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, state.columns, strict=True)]
    return list(target.encoder(state).entries(pa.RecordBatch.from_arrays(arrays, schema=state.columns)))


class Looking:
    """Tells what each key finds in its states."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def init(self, handle: ProcessorHandle) -> None:
        self.handle = handle
        self.count = handle.value_state("count", ("n", "k"))
        self.seen = handle.list_state("seen", ("at",), ttl_ms=5_000)
        self.by = handle.map_state("by", ("digit",), ("d",))

    def handle_rows(self, key: tuple[Any, ...], rows: Iterable[Any], times: Times) -> Iterable[Any]:
        states = (self.count.get(), list(self.seen.get()), dict(self.by.items()), self.handle.timers())
        self.found[key[0]] = states
        return ()

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[Any]:
        return ()

    def close(self) -> None:
        return


class Starting(Looking):
    """Sets a value from an initial row."""

    def name_initial(self, names: tuple[str, ...]) -> None:
        return

    def handle_initial(self, key: tuple[Any, ...], rows: Iterable[Any], times: Times) -> None:
        self.count.update((99, None))


def found_by(
    path: str, keys: str, plan: JobPlan, backends: StateBackends, spec: TransformWithStateSpec | None = None
) -> dict[str, Any]:
    """What a query that starts from it finds at these keys, in whichever slot they are."""
    looking = Looking() if spec is None or spec.initial is None else Starting()
    batch = pa.record_batch([pa.array(list(keys)), pa.array([0] * len(keys), pa.int64())], schema=INPUT)
    key_groups = key_group_of(hash_rows(batch, 1), plan.max_parallelism).tolist()
    for slot in range(plan.parallelism):
        restored = restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(slot))
        own = range_of(slot, parallelism=plan.parallelism, max_parallelism=plan.max_parallelism)
        task = TaskId(plan.vertices[1].id, slot)
        code: Any = type("Code", (), {"processor": lambda self, command, **names: looking})()
        operator = build_operator(spec or stateful())
        context = TaskContext(
            task, plan.parallelism, plan.max_parallelism, own, ManualClock(), code, lambda own=own: backends.open(own)
        )
        operator.open(context, restored.tasks[task].sections.get(0, []))
        process(operator, batch.filter(pa.array([key_group in own for key_group in key_groups])))
    return looking.found


# -- a new one


def test_a_query_that_starts_from_written_values_finds_them(tmp_path: Path, backends: StateBackends) -> None:
    path = write(new(tmp_path / "new"), ("a", 5, Decimal("1.25")), ("b", None, None))
    found = found_by(path, "abc", job_plan(), backends)
    assert [found[key][0] for key in "abc"] == [(5, Decimal("1.25")), (None, None), None]


def test_lists_keep_the_order_of_their_index_and_their_expiration(tmp_path: Path, backends: StateBackends) -> None:
    now = dt.datetime.fromtimestamp(ManualClock().wall_ms() / 1000, dt.UTC)
    rows = [("a", 7, START + 2 * SECOND, now + SECOND), ("a", 3, START + SECOND, now + SECOND), ("a", 9, START, now)]
    path = write(new(tmp_path / "new", "seen"), *rows)
    # The last one has expired.
    assert found_by(path, "a", job_plan(), backends)["a"][1] == [(1_000_000,), (2_000_000,)]


def test_maps_and_nested_values_are_stored_as_user_code_stores_them(tmp_path: Path, backends: StateBackends) -> None:
    path = write(new(tmp_path / "new", "by"), ("a", 3, DETAILS), ("a", 4, None))
    entries = found_by(path, "a", job_plan(), backends)["a"][2]
    assert entries == {(3,): ([365, [["x", 7], ["y", None]]],), (4,): (None,)}


@pytest.mark.parametrize("time_zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.decimal128(9, 3)])
def test_keys_of_every_kind_are_found_by_the_rows_of_the_stream(
    tmp_path: Path, kind: pa.DataType, time_zone: str | None
) -> None:
    columns = pa.schema([("t", kind), ("v", pa.int64())])
    spec = TransformWithStateSpec(1, b"", columns, columns, TimeMode.PROCESSING_TIME, None, time_zone, states=STATES)
    plan = plan_of(spec, schema=columns)
    key = pa.array([86_400_000_000], pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else None
    key = pa.array([1 if pa.types.is_date(kind) else Decimal("10.000")], kind) if key is None else key
    target = new_savepoint(str(tmp_path), plan, fingerprint(plan), operator=None, state="count", now_ms=5)
    write(target, (key[0].as_py(), 5, None))
    looking = Looking()
    code: Any = type("Code", (), {"processor": lambda self, command, **names: looking})()
    restored = restore_slot(LocalFiles(tmp_path), "manifest.json", plan, SlotIndex(0))
    task = TaskId(plan.vertices[1].id, 0)
    operator = build_operator(spec)
    backends = open_backends("heap")
    own = KeyGroupRange(0, 128)
    context = TaskContext(task, 1, 128, own, ManualClock(), code, lambda: backends.open(own))
    operator.open(context, restored.tasks[task].sections[0])
    process(operator, pa.RecordBatch.from_arrays([key, pa.array([0], pa.int64())], schema=columns))
    assert [found[0] for found in looking.found.values()] == [(5, None)]
    (row,) = rows_of(path=str(tmp_path), table="state", state="count")
    assert row["t"] == key[0].as_py()


def test_what_was_written_reads_as_it_was_given(tmp_path: Path) -> None:
    path = write(new(tmp_path / "new", "by"), ("a", 3, DETAILS), ("f", 4, None))
    rows = rows_of(path=path, table="state", state="by")
    assert sorted((row["k"], row["digit"], row["d"]) for row in rows) == [("a", 3, DETAILS), ("f", 4, None)]


def test_sources_and_rows_in_flight_begin_anew(tmp_path: Path) -> None:
    path = write(new(tmp_path / "new"))
    for slot in range(2):
        restored = restore_slot(LocalFiles(Path(path)), "manifest.json", job_plan(), SlotIndex(slot))
        assert all(task.source_state is None for task in restored.tasks.values())
        assert all(channel.elements == () for channel in restored.recovered.values())
        assert len(restored.recovered) == len(restored.next_sequences) == 2


@pytest.mark.parametrize("parallelism", [2, 3])
def test_an_initial_state_is_not_applied_over_written_rows(
    tmp_path: Path, backends: StateBackends, parallelism: int
) -> None:
    spec = stateful(initial=initial(("a", 1), ("b", 2)))
    plan = plan_of(spec, schema=INPUT, parallelism=2)
    target = new_savepoint(str(tmp_path / "new"), plan, fingerprint(plan), operator=None, state="count", now_ms=5)
    path = write(target, ("a", 5, None))
    at_start = plan_of(spec, schema=INPUT, parallelism=parallelism)
    found = found_by(path, "ab", at_start, backends, spec)
    assert [found[key][0] for key in "ab"] == [(5, None), None]


def begun_operators(path: str, plan: JobPlan) -> list[set[int]]:
    """By slot: the operators that are not given their initial state when a query starts from it."""
    task_of = [TaskId(plan.vertices[1].id, slot) for slot in range(plan.parallelism)]
    restored = [
        restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(slot)).tasks[task].sections
        for slot, task in enumerate(task_of)
    ]
    return [{at for at, sections in of_slot.items() if was_applied(sections)} for of_slot in restored]


def test_an_operator_of_which_nothing_is_written_is_given_its_initial_state(tmp_path: Path) -> None:
    start = initial(("a", 1), ("b", 2))
    plan = plan_of(stateful(initial=start), stateful(initial=start), schema=INPUT, parallelism=2)
    target = new_savepoint(str(tmp_path / "one"), plan, fingerprint(plan), operator="v1.op0", state="count", now_ms=5)
    path = write(target, ("a", 5, None))
    assert begun_operators(path, plan) == [{0}, {0}]
    # Not any more once something is written of it, and the same again leaves it so, with other key groups too.
    for step, max_parallelism in (("two", None), ("three", None), ("four", 64), ("five", 7)):
        target = rewritten_savepoint(
            str(tmp_path / step),
            find_checkpoint(path),
            operator="v1.op1",
            state="count",
            max_parallelism=max_parallelism,
            now_ms=5,
        )
        path = write(target, ("b", 6, None))
        plan = replace(plan, max_parallelism=max_parallelism or plan.max_parallelism)
        assert begun_operators(path, plan) == [{0, 1}, {0, 1}]
        assert [row["n"] for row in rows_of(path=path, table="state", operator="v1.op0", state="count")] == [5]


def test_a_query_without_initial_state_gets_no_mark_of_one(tmp_path: Path) -> None:
    assert begun_operators(write(new(tmp_path / "new"), ("a", 5, None)), job_plan()) == [set(), set()]


# -- another one with other rows


def test_rows_of_one_state_are_replaced_and_all_others_stay(tmp_path: Path, backends: StateBackends) -> None:
    old = find_checkpoint(stored_states(tmp_path / "old", backends))
    target = rewritten_savepoint(
        str(tmp_path / "new"), old, operator=None, state="count", max_parallelism=None, now_ms=5
    )
    path = write(target, ("b", 70, None), ("new", 80, None))
    found = found_by(path, "abf", job_plan(), backends)
    assert [found[key][0] for key in "abf"] == [None, (70, None), None]
    assert found["a"][1:] == ([(11_000_000,)], {(1,): ([365, [["x", 11], ["y", None]]],)}, [11_000])
    assert len(rows_of(path=path, table="state", state="count")) == 2


def test_what_is_derived_from_timers_is_left_behind(tmp_path: Path, backends: StateBackends) -> None:
    """A heap would keep it as it is while timers come and go, and RocksDB believe it later."""
    old = find_checkpoint(stored_states(tmp_path / "old", backends))
    target = rewritten_savepoint(
        str(tmp_path / "new"), old, operator=None, state="count", max_parallelism=None, now_ms=5
    )
    files = find_checkpoint(write(target, ("b", 70, None))).open_files()
    names = {plain_name(section.key) for slot in range(2) for section in files.all_sections(SlotIndex(slot))}
    assert {name for name in names if "timers" in name} == {"keyed/timers/processing"}


@pytest.mark.parametrize("max_parallelism", [16, 1024])
def test_every_state_and_timer_gets_the_key_groups_of_another_max_parallelism(
    tmp_path: Path, backends: StateBackends, max_parallelism: int
) -> None:
    old = find_checkpoint(stored_states(tmp_path / "old", backends))
    target = rewritten_savepoint(
        str(tmp_path / "new"), old, operator=None, state="count", max_parallelism=max_parallelism, now_ms=5
    )
    path = write(target, *[(key, 1, None) for key in "abcdef"])
    plan = JobPlan(job_plan().vertices, job_plan().edges, 2, max_parallelism)
    found = found_by(path, "abcdef", plan, backends)
    for n, key in enumerate("abcdef", 11):
        value, elements, entries, timers = found[key]
        assert value == (1, None)
        assert elements == [(n * 1_000_000,)]
        assert list(entries) == [(n % 10,)]
        assert timers == [n * 1_000]


@pytest.mark.parametrize("max_parallelism", [None, 16, 1024])
def test_timers_of_an_operator_without_state_are_taken_over_once(
    tmp_path: Path, backends: StateBackends, max_parallelism: int | None
) -> None:
    old = find_checkpoint(stored_alarms(tmp_path / "old", backends))
    target = rewritten_savepoint(
        str(tmp_path / "new"), old, operator=None, state="count", max_parallelism=max_parallelism, now_ms=5
    )
    path = write(target, ("a", 1, None))
    rows = rows_of(path=path, table="timers", operator="alarm")
    assert sorted((row["k"], row["time"].second) for row in rows) == list(zip("abcdef", range(11, 17), strict=True))
    keys = pa.record_batch([pa.array([row["k"] for row in rows])], names=["k"])
    assert [row["key_group"] for row in rows] == key_group_of(hash_rows(keys, 1), max_parallelism or 128).tolist()


def test_rows_in_flight_are_taken_over(tmp_path: Path) -> None:
    plan = job_plan()
    some = in_flight_of(plan, tmp_path / "old")
    target = rewritten_savepoint(
        str(tmp_path / "new"), find_checkpoint(some), operator=None, state="count", max_parallelism=None, now_ms=5
    )
    path = write(target, ("a", 1, None))
    assert rows_of(path=path, table="inflight") == rows_of(path=some, table="inflight") != []
    (tmp_path / "old").rename(tmp_path / "gone")
    assert restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(1)).recovered_bytes > 0


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_rows_in_flight_go_to_the_slots_that_own_their_keys_by_other_key_groups(
    tmp_path: Path, parallelism: int
) -> None:
    rows = {name: pa.record_batch([pa.array([name]), pa.array([0], pa.int64())], schema=INPUT) for name in NAMES}
    hashes = {name: hash_rows(row, 1) for name, row in rows.items()}
    channels = {ChannelId(EdgeId(0), sender, receiver): Captured(()) for sender in range(2) for receiver in range(2)}
    for sender, names in enumerate([NAMES[:50], NAMES[50:]]):
        for receiver in range(2):
            own = range_of(receiver, parallelism=2, max_parallelism=128)
            elements = [Batch(rows[name]) for name in names if int(key_group_of(hashes[name], 128)[0]) in own]
            channels[ChannelId(EdgeId(0), sender, receiver)] = Captured(tuple(elements), first=7, held=3)
    (tmp_path / "old").mkdir()
    StoredJob(job_plan(), channels=channels).write(LocalFiles(tmp_path / "old"))
    path = write(
        regrouped_savepoint(
            str(tmp_path / "seven"), find_checkpoint(str(tmp_path / "old")), max_parallelism=7, now_ms=5
        )
    )
    assert rows_of(path=path, table="inflight") == rows_of(path=str(tmp_path / "old"), table="inflight")
    found = restored_names(path, replace(job_plan(parallelism), max_parallelism=7))
    expected = {
        name: {
            slot
            for slot in range(parallelism)
            if int(key_group_of(hashes[name], 7)[0]) in range_of(slot, parallelism=parallelism, max_parallelism=7)
        }
        for name in NAMES
    }
    assert sorted(name for name, _ in found) == sorted(NAMES), "each once"
    assert {name: {slot} for name, slot in found} == expected
    # The numbers of key groups in between are forgotten; with the first one again, channels are what they were.
    again = write(regrouped_savepoint(str(tmp_path / "first"), find_checkpoint(path), max_parallelism=128, now_ms=5))
    restored = restore_slot(LocalFiles(Path(again)), "manifest.json", job_plan(), SlotIndex(1))
    assert {channel: found.next_sequence for channel, found in restored.recovered.items()} == {
        channel: 7 + len(captured.elements) for channel, captured in channels.items() if channel.receiver == 1
    }


def restored_names(path: str, plan: JobPlan) -> list[tuple[str, int]]:
    """Of the rows in flight, each with the slot that has it."""
    found = []
    for slot in range(plan.parallelism):
        restored = restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(slot))
        for channel in restored.recovered.values():
            elements = [arrived.element for arrived in channel.elements]
            found += [
                (name, slot) for each in elements if isinstance(each, Batch) for name in each.rows.column(0).to_pylist()
            ]
    return found


def in_flight_of(plan: JobPlan, folder: Path) -> str:
    folder.mkdir()
    rows = pa.record_batch([pa.array(["a"]), pa.array([1], pa.int64())], schema=INPUT)
    ends = {(0, 0): 0, (0, 1): 1, (1, 0): 0, (1, 1): 0}
    channels = {
        ChannelId(EdgeId(0), sender, receiver): Captured((Batch(rows),) * 2 if held else (), held=held)
        for (sender, receiver), held in ends.items()
    }
    StoredJob(plan, channels=channels).write(LocalFiles(folder))
    return str(folder)


# -- another one without some keys


def without(folder: Path, base: str, *keys: str, operator: str | None = None) -> str:
    target = savepoint_without_keys(str(folder), find_checkpoint(base), operator=operator, now_ms=5)
    return write(target, *[(key,) for key in keys])


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_dropped_key_has_no_state_and_no_timer_and_all_others_have_theirs(
    tmp_path: Path, backends: StateBackends, parallelism: int
) -> None:
    old = stored_states(tmp_path / "old", backends)
    path = without(tmp_path / "new", old, "b", "e", "b", "was never there")
    found = found_by(path, "abcdef", job_plan(parallelism), backends)
    assert found == found_by(old, "abcdef", job_plan(parallelism), backends) | {key: (None, [], {}, []) for key in "be"}
    for table in ({"state": "count"}, {"state": "seen"}, {"state": "by"}):
        assert sorted(row["k"] for row in rows_of(path=path, table="state", **table)) == list("acdf")
    assert sorted(row["k"] for row in rows_of(path=path, table="timers", operator="v1.op0")) == list("acdf")


def test_without_keys_that_it_has_it_is_a_copy(tmp_path: Path, backends: StateBackends) -> None:
    old = stored_states(tmp_path / "old", backends)
    path = without(tmp_path / "new", old)
    assert found_by(path, "abcdef", job_plan(), backends) == found_by(old, "abcdef", job_plan(), backends)


def test_keys_are_dropped_of_one_operator_only(tmp_path: Path, backends: StateBackends) -> None:
    old = stored_alarms(tmp_path / "old", backends)
    path = without(tmp_path / "new", old, "b", operator="alarm")

    def keys(**table: str) -> list[str]:
        return sorted(row["k"] for row in rows_of(path=path, **table))

    assert keys(table="timers", operator="alarm") == list("acdef")
    assert keys(table="timers", operator="v1.op0") == list("abcdef")
    assert keys(table="state", operator="v1.op0", state="seen") == list("abcdef")


def test_states_that_the_query_declares_no_more_go_with_their_keys_too(tmp_path: Path, backends: StateBackends) -> None:
    """They are still stored, and would be there again once they are declared again."""
    old = tmp_path / "old"
    manifest = find_checkpoint(stored_states(old, backends)).read_manifest()
    assert manifest.plan is not None
    (operator,) = manifest.plan.operators
    left_out = [state for state in operator.states if isinstance(state, UserState)]
    described = msgspec.structs.replace(operator, states=[], left_out=left_out)
    plan = msgspec.structs.replace(manifest.plan, operators=[described])
    LocalFiles(old).put("manifest.json", encode_manifest(msgspec.structs.replace(manifest, plan=plan)))
    found = found_by(without(tmp_path / "new", str(old), "b"), "ab", job_plan(), backends)
    assert found["b"] == (None, [], {}, [])
    assert found["a"][1:] == ([(11_000_000,)], {(1,): ([365, [["x", 11], ["y", None]]],)}, [11_000])


def test_an_initial_state_that_was_applied_is_not_applied_again_to_a_dropped_key(tmp_path: Path) -> None:
    spec = stateful(initial=initial(("a", 1), ("b", 2)))
    plan = plan_of(spec, schema=INPUT, parallelism=2)
    target = new_savepoint(str(tmp_path / "old"), plan, fingerprint(plan), operator=None, state="count", now_ms=5)
    old = write(target, ("a", 5, None), ("b", 6, None))
    path = without(tmp_path / "new", old, "b")
    found = found_by(path, "ab", plan, open_backends("heap"), spec)
    assert [found[key][0] for key in "ab"] == [(5, None), None]


def test_rows_in_flight_of_a_dropped_key_stay(tmp_path: Path) -> None:
    old = in_flight_of(job_plan(), tmp_path / "old")
    path = without(tmp_path / "new", old, "a")
    assert rows_of(path=path, table="inflight") == rows_of(path=old, table="inflight") != []


def test_an_operator_whose_keys_cannot_be_dropped_is_refused(tmp_path: Path) -> None:
    def refused(path: str, operator: str | None) -> str:
        with pytest.raises(OptionError) as caught:
            savepoint_without_keys(str(tmp_path / "new"), find_checkpoint(path), operator=operator, now_ms=5)
        assert not (tmp_path / "new").exists()
        return str(caught.value)

    both = stored_alarms(tmp_path / "both")
    known = "use one of v1.op0 (TransformWithState), v1.op1 (alarm)."
    assert refused(both, None) == f"operator is missing, and several have keys that can be dropped: {known}"
    assert refused(both, "clock") == f"operator is 'clock', which is unknown: {known}"
    no_keys = spec_of(mode=OutputMode.COMPLETE)
    no_keys = replace(no_keys, key_count=0, results=no_keys.results[2:], schema=pa.schema(list(no_keys.schema)[2:]))
    (tmp_path / "one").mkdir()
    StoredJob(plan_of(no_keys, stateful(), schema=INPUT)).write(LocalFiles(tmp_path / "one"))
    assert refused(str(tmp_path / "one"), "v1.op0") == (
        "operator is 'v1.op0', which has no keys: use one of v1.op1 (TransformWithState)."
    )
    (tmp_path / "none").mkdir()
    StoredJob(plan_of(no_keys, schema=INPUT)).write(LocalFiles(tmp_path / "none"))
    assert refused(str(tmp_path / "none"), None) == "No operator of this checkpoint has keys that can be dropped."


def test_a_function_without_keys_has_none_to_drop(tmp_path: Path) -> None:
    """As that of a `tg.connect` with a broadcast side and no `leftBy`: all it has is broadcast state."""
    (tmp_path / "old").mkdir()
    StoredJob(job_plan()).write(LocalFiles(tmp_path / "old"))
    manifest = find_checkpoint(str(tmp_path / "old")).read_manifest()
    assert manifest.plan is not None
    (function,) = manifest.plan.operators
    unkeyed = msgspec.structs.replace(function, keys=encode_schema(pa.schema([])))
    plan = msgspec.structs.replace(manifest.plan, operators=[unkeyed])
    LocalFiles(tmp_path / "old").put("manifest.json", encode_manifest(msgspec.structs.replace(manifest, plan=plan)))

    with pytest.raises(OptionError, match="^No operator of this checkpoint has keys that can be dropped"):
        without(tmp_path / "new", str(tmp_path / "old"), "a")


def test_another_operator_is_copied_though_the_checkpoint_does_not_say_what_its_keys_are(tmp_path: Path) -> None:
    """An earlier Tidegate took it."""
    (tmp_path / "old").mkdir()
    StoredJob(plan_of(DeduplicateSpec(1, None, None, INPUT), stateful(), schema=INPUT)).write(
        LocalFiles(tmp_path / "old")
    )
    manifest = find_checkpoint(str(tmp_path / "old")).read_manifest()
    assert manifest.plan is not None
    rows, function = manifest.plan.operators
    unsaid = [msgspec.structs.replace(state, on_disk=None) for state in rows.states]  # type: ignore[call-arg]
    plan = msgspec.structs.replace(manifest.plan, operators=[msgspec.structs.replace(rows, states=unsaid), function])
    LocalFiles(tmp_path / "old").put("manifest.json", encode_manifest(msgspec.structs.replace(manifest, plan=plan)))
    assert without(tmp_path / "new", str(tmp_path / "old"), "a", operator="v1.op1") == str(tmp_path / "new")
    with pytest.raises(IncompatibleCheckpoint, match="does not say which columns are the key"):
        without(tmp_path / "newer", str(tmp_path / "old"), "a", operator="v1.op0")


def test_what_is_kept_by_key_and_is_not_known_is_refused_where_keys_are_dropped(tmp_path: Path) -> None:
    """It might be of a dropped key."""
    (tmp_path / "old").mkdir()
    strange = Section("strange", KeyGroupRange(0, 128), lambda: b"of a later version")
    StoredJob(plan_of(DeduplicateSpec(1, None, None, INPUT), schema=INPUT), {0: [strange]}).write(
        LocalFiles(tmp_path / "old")
    )
    with pytest.raises(IncompatibleCheckpoint, match="holds 'strange' of operator v1.op0, of which no keys can be"):
        savepoint_without_keys(str(tmp_path / "new"), find_checkpoint(str(tmp_path / "old")), operator=None, now_ms=5)


# -- what is refused
