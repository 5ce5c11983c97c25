"""Complete mode in whole jobs: what a sink shows once none of the groups passes what stands behind the aggregation."""

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors import staged_sink
from tidegate.connectors.memory import read_memory_table
from tidegate.connectors.staged_sink import call_for_epochs, call_no_more
from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.ids import CheckpointId
from tidegate.plan.expressions import Call, Column, Literal
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Aggregate, AggregateCall, AggregateFunction, Filter, OutputMode, Scan, Sink
from tidegate.storage.store import open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import NamedUserCode, ThreadLauncher
from tidegate.worker.settings import SlotSettings

INT64 = pa.int64()
WAIT_S = 60.0
_names = itertools.count()


def seen_once(folder: Path, sink_format: str, options: dict[str, str], *, available_now: bool) -> Coordinator:
    """`groupBy("k").count().where("count = 1")`."""
    schema = pa.schema([("k", INT64), ("n", INT64)])
    calls = (AggregateCall(AggregateFunction.COUNT_ROWS, (), INT64, True),)
    results = (Column(0, "k", INT64), Column(1, "n", INT64))
    scan = Scan("parquet", {"path": str(folder / "in")}, pa.schema([("k", INT64)]))
    counts = Aggregate(scan, (Column(0, "k", INT64),), calls, results, schema)
    once = Filter(counts, Call("EqualTo", (results[1], Literal(1, INT64)), pa.bool_(), True), schema)
    plan = lower(once, Sink(sink_format, options, schema, OutputMode.COMPLETE), parallelism=2, max_parallelism=128)
    spec = local_job(
        "scenario",
        SlotSettings(plan=plan, checkpoint_location=str(folder / "chk"), window_bytes=4096, state_backend="heap"),
        interval_ms=30,
        switch_after_ms=None,
        available_now=available_now,
    )
    return Coordinator(spec, open_store(str(folder / "chk")), ThreadLauncher(NamedUserCode()), versions={})


def add_file(folder: Path, name: str, keys: Sequence[int]) -> None:
    (folder / "in").mkdir(exist_ok=True)
    draft = folder / "in" / f".{name}"
    pq.write_table(pa.table({"k": pa.array(keys, INT64)}), draft)
    draft.rename(folder / "in" / f"{name}.parquet")


def wait_until(condition: Callable[[], bool], coordinator: Coordinator) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it does not become true"
        assert not coordinator.wait(0.02), coordinator.failure()


def memory_rows(name: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in read_memory_table(name).to_pylist())


def test_a_memory_table_becomes_empty_when_no_group_passes_the_filter_any_more(tmp_path: Path) -> None:
    name = f"complete_results_{next(_names)}"
    add_file(tmp_path, "first", [1, 2])
    coordinator = seen_once(tmp_path, "memory", {"queryName": name}, available_now=False)
    coordinator.start()
    try:
        wait_until(lambda: memory_rows(name) == [(1, 1), (2, 1)], coordinator)
        add_file(tmp_path, "second", [1])
        wait_until(lambda: memory_rows(name) == [(2, 1)], coordinator)
        add_file(tmp_path, "third", [2])
        wait_until(lambda: memory_rows(name) == [], coordinator)
    finally:
        coordinator.stop()
        assert coordinator.wait(WAIT_S)


@pytest.mark.parametrize("last_keys", [[1], [1, 2]], ids=["one is left", "none is left"])
def test_a_function_is_called_with_what_is_left_and_that_stays_when_tasks_have_ended(
    tmp_path: Path, last_keys: list[int]
) -> None:
    calls: list[list[tuple[Any, ...]]] = []

    def take(files: Sequence[Path], epoch: CheckpointId) -> None:
        calls.append(sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist()))

    options = {"checkpointLocation": str(tmp_path / "chk")}
    schema = pa.schema([("k", INT64), ("n", INT64)])
    folder = staged_sink.from_node(Sink("foreachBatch", options, schema, OutputMode.COMPLETE)).folder
    call_for_epochs(folder, take)
    try:
        for name, keys in (("first", [1, 2]), ("second", last_keys)):
            add_file(tmp_path, name, keys)
            coordinator = seen_once(tmp_path, "foreachBatch", options, available_now=True)
            coordinator.start()
            assert coordinator.wait(WAIT_S), f"still {coordinator.view().state}"
            assert coordinator.view().state == "finished", coordinator.failure()
            if name == "first":
                assert calls[-1] == [(1, 1), (2, 1)]
        assert calls[-1] == [(key, 1) for key in (1, 2) if key not in last_keys]
    finally:
        call_no_more(folder)
