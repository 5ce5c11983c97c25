"""Functions that wait, over real sockets and in real threads: nothing is lost or doubled, and no thread is left."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.errors import UserCodeFailure
from tidegate.operators.contract import CallStyle, WaitingFunction
from tidegate.plan.lower import lower
from tidegate.plan.nodes import AnswerOrder, AsyncMap, Node, Scan, Sink, Union
from tidegate.protocol.restart import FixedDelay, RestartStrategy
from tidegate.storage.store import open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import NamedUserCode, ThreadLauncher
from tidegate.worker.settings import SlotSettings

ROWS = 400
SCHEMA = pa.schema([("v", pa.int64())])
Call = Callable[[tuple[Any, ...]], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for file in range(2):
        pq.write_table(pa.table({"v": list(range(file, ROWS, 2))}), tmp_path / "in" / f"{file}.parquet")
    return tmp_path


def job(
    folder: Path,
    call: Call,
    *,
    slots: int = 2,
    order: AnswerOrder = AnswerOrder.AS_TAKEN,
    style: CallStyle = CallStyle.BLOCKING,
    timeout_ms: float | None = None,
    restart: RestartStrategy | None = None,
    beside: Path | None = None,
) -> Coordinator:
    """`beside`: a folder whose rows go to the sink without a call."""
    plain = Scan("parquet", {"path": str(folder / "in")}, SCHEMA)
    waiting: Node = AsyncMap(plain, b"f", "f", SCHEMA, 8, order, timeout_ms)
    if beside is not None:
        waiting = Union((waiting, Scan("parquet", {"path": str(beside)}, SCHEMA)), SCHEMA)
    plan = lower(waiting, Sink("parquet", {"path": str(folder / "out")}, SCHEMA), parallelism=slots, max_parallelism=16)
    spec = local_job(
        "waiting",
        SlotSettings(plan=plan, checkpoint_location=str(folder / "chk"), window_bytes=4096, state_backend="heap"),
        interval_ms=20,
        switch_after_ms=0.0,
        keep=2,
        restart=restart,
        available_now=True,
    )
    code = NamedUserCode(waiting={"f": WaitingFunction(style, call, lambda row: [row])})
    return Coordinator(spec, open_store(str(folder / "chk")), ThreadLauncher(code), versions={})


def committed(folder: Path) -> Counter[int]:
    return Counter(pq.read_table(folder / "out").column("v").to_pylist())


def slowly(row: tuple[Any, ...]) -> tuple[Any, ...]:
    time.sleep(0.002 * (row[0] % 3))
    return row


class FailsOnce:
    def __init__(self) -> None:
        self._has_failed = threading.Event()

    def __call__(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        time.sleep(0.003)
        if row[0] == 333 and not self._has_failed.is_set():
            self._has_failed.set()
            raise ConnectionError("the service is gone")
        return row


@pytest.mark.parametrize("order", AnswerOrder)
def test_a_failed_call_restarts_in_place_and_loses_and_doubles_nothing(folder: Path, order: AnswerOrder) -> None:
    coordinator = job(folder, FailsOnce(), order=order, restart=FixedDelay(3, delay_ms=10))
    coordinator.start()
    assert coordinator.wait(60)
    assert (coordinator.view().state, coordinator.view().generation) == ("finished", 2)
    assert committed(folder) == Counter(range(ROWS))


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_rows_that_wait_are_taken_over_at_another_parallelism(folder: Path, slots: int) -> None:
    """No call of the first run is ever answered from some point on, and its checkpoints complete all the same."""
    is_over = threading.Event()
    stalled: list[int] = []

    def stalls(row: tuple[Any, ...]) -> tuple[Any, ...]:
        if row[0] > 100:
            stalled.append(row[0])
            is_over.wait(60)
        return row

    first = job(folder, stalls)
    first.start()
    deadline = time.monotonic() + 60
    while len(stalled) < 2 * 8:
        assert time.monotonic() < deadline, "not all calls wait at once"
        time.sleep(0.01)
    before = first.view().committed_checkpoints
    while first.view().committed_checkpoints < before + 3:
        assert time.monotonic() < deadline, "a checkpoint waits for a call"
        time.sleep(0.01)
    first.stop()
    assert first.wait(60)
    is_over.set()
    assert sum(committed(folder).values()) < ROWS
    second = job(folder, slowly, slots=slots)
    second.start()
    assert second.wait(60)
    assert committed(folder) == Counter(range(ROWS))


def test_other_tasks_of_the_slot_go_on_while_all_calls_wait(folder: Path) -> None:
    is_over, beside = threading.Event(), folder / "beside"

    def waits(row: tuple[Any, ...]) -> tuple[Any, ...]:
        is_over.wait(60)
        return row

    beside.mkdir()
    others = range(1000, 1000 + ROWS)
    pq.write_table(pa.table({"v": list(others)}), beside / "0.parquet")
    coordinator = job(folder, waits, slots=1, beside=beside)
    coordinator.start()

    def wait_until(is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < deadline, "rows that need no call wait for those that do"
            time.sleep(0.01)

    try:
        wait_until(lambda: sum(task.rows_in for task in coordinator.view().tasks if not task.is_source) == ROWS)
        before = coordinator.view().committed_checkpoints
        wait_until(lambda: coordinator.view().committed_checkpoints >= before + 2)
        assert committed(folder) == Counter(others)
    finally:
        is_over.set()
    assert coordinator.wait(60)
    assert committed(folder) == Counter([*range(ROWS), *others])


def test_a_call_that_takes_too_long_ends_the_query_with_its_row(folder: Path) -> None:
    is_over = threading.Event()

    def hangs(row: tuple[Any, ...]) -> tuple[Any, ...]:
        is_over.wait(60)
        return row

    coordinator = job(folder, hangs, timeout_ms=100)
    coordinator.start()
    assert coordinator.wait(60)
    failure = coordinator.failure()
    is_over.set()
    assert isinstance(failure, UserCodeFailure)
    assert "has not answered within 100 ms for the row (v=" in str(failure)


def test_coroutines(folder: Path) -> None:
    async def waits(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return slowly(row)

    coordinator = job(folder, waits, style=CallStyle.AWAITED)
    coordinator.start()
    assert coordinator.wait(60)
    assert committed(folder) == Counter(range(ROWS))
