"""The coordinator's loop over slots that are threads: what happens when several things happen at once."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.memory import MemoryCommitter, read_memory_table
from tidegate.coordinator.coordinator import Coordinator
from tidegate.coordinator.draining import Draining
from tidegate.coordinator.durable import DurableJob
from tidegate.coordinator.launch import Launched, LaunchExit
from tidegate.coordinator.roster import RosterEvent
from tidegate.model.clock import SystemClock
from tidegate.model.errors import DidNotHappen, UserCodeFailure
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.messages import Deploy, Progress, ToSlot
from tidegate.plan.lower import lower
from tidegate.plan.nodes import MapInArrow, Scan, Sink
from tidegate.protocol.restart import FixedDelay, RestartStrategy
from tidegate.storage.store import open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import NamedUserCode, ThreadLauncher
from tidegate.worker.main import SlotOrder
from tidegate.worker.settings import SlotSettings

SCHEMA = pa.schema([("v", pa.int64())])
PATIENCE_S = 30.0


class SlowToLeave(ThreadLauncher):
    """Slots whose end is reported late, as Spark does."""

    def launch(self, order: SlotOrder, *, slots: int, on_exit: Callable[[LaunchExit], None]) -> Launched:
        def later(exit: LaunchExit) -> None:
            time.sleep(0.3)
            on_exit(exit)

        return super().launch(order, slots=slots, on_exit=later)


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise ValueError("seven is not allowed")
    yield from ()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for number in range(4):
        pq.write_table(pa.table({"v": pa.array(range(50), pa.int64())}), tmp_path / "in" / f"{number}.parquet")
    return tmp_path


def coordinator(
    folder: Path,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = unchanged,
    *,
    interval_ms: float = 50.0,
    timeout_ms: float = 60_000.0,
    max_concurrent: int = 3,
    restart: RestartStrategy | None = None,
    available_now: bool = True,
) -> Coordinator:
    scan = Scan("parquet", {"path": str(folder / "in")}, SCHEMA)
    root = MapInArrow(scan, b"f", "f", SCHEMA)
    plan = lower(root, Sink("memory", {"queryName": folder.name}, SCHEMA), parallelism=2, max_parallelism=8)
    location = str(folder / "chk")
    spec = local_job(
        folder.name,
        SlotSettings(plan=plan, checkpoint_location=location, window_bytes=1 << 16, state_backend="heap"),
        interval_ms=interval_ms,
        timeout_ms=timeout_ms,
        max_concurrent=max_concurrent,
        switch_after_ms=None,
        restart=restart,
        available_now=available_now,
    )
    return Coordinator(spec, open_store(location), SlowToLeave(NamedUserCode({"f": function})), versions={})


def test_a_checkpoint_that_completes_while_the_slots_leave_does_not_end_the_job_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = MemoryCommitter.commit

    def slow_commit(self: MemoryCommitter, *arguments: object) -> None:
        time.sleep(0.05)  # several checkpoints are triggered meanwhile, and committed after the last one
        commit(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(MemoryCommitter, "commit", slow_commit)
    job = coordinator(folder, interval_ms=2.0)
    job.start()
    assert job.wait(PATIENCE_S)
    assert job.failure() is None and job.view().state == "finished"
    assert read_memory_table(folder.name).num_rows == 200


def test_a_checkpoint_that_expires_when_the_next_is_due_fails_the_job_with_its_reason(folder: Path) -> None:
    def stuck(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.4)
            yield batch

    job = coordinator(folder, stuck, interval_ms=30.0, timeout_ms=50.0, max_concurrent=1)
    job.start()
    assert job.wait(PATIENCE_S)
    assert "expired" in str(job.failure())


def test_slots_that_join_in_one_turn_are_deployed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = coordinator(folder)
    poll, tell_all = job._roster.poll, job._roster.tell_all
    held_back: list[RosterEvent] = []
    told: list[ToSlot] = []

    def both_at_once(timeout_ms: float) -> list[RosterEvent]:
        held_back.extend(poll(timeout_ms))
        if len(job._roster.members()) == 1:
            return []
        events = held_back.copy()
        held_back.clear()
        return events

    def note(message: ToSlot) -> None:
        told.append(message)
        tell_all(message)

    monkeypatch.setattr(job._roster, "poll", both_at_once)
    monkeypatch.setattr(job._roster, "tell_all", note)
    job.start()
    assert job.wait(PATIENCE_S)
    assert job.failure() is None and read_memory_table(folder.name).num_rows == 200
    assert len([message for message in told if isinstance(message, Deploy)]) == 1


def test_a_stop_while_the_job_fails_for_good_does_not_hide_the_failure(folder: Path) -> None:
    job = coordinator(folder, failing)
    job.start()
    while job.view().last_failure is None:
        assert not job.wait(0.001)
    job.stop()
    assert job.wait(PATIENCE_S)
    assert isinstance(job.failure(), UserCodeFailure) and "seven is not allowed" in str(job.failure())


def test_a_stop_while_the_slots_leave_lets_the_job_finish(folder: Path) -> None:
    job = coordinator(folder)
    job.start()
    while job.view().state != "finishing":
        assert not job.wait(0.001)
    while not job._is_leaving:
        assert not job.wait(0.001)
    job.stop()
    assert job.wait(PATIENCE_S)
    assert job.failure() is None and job.view().state == "finished"


def test_the_reason_of_a_failure_is_heard_before_the_connections_it_broke(folder: Path) -> None:
    """One slot fails, the other finds its connection closed: people are told why, not what followed."""

    def failing_in_one_slot(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if first.acquire(blocking=False):
                raise ValueError("seven is not allowed")
            yield batch

    for _ in range(5):
        first = threading.Lock()
        job = coordinator(folder, failing_in_one_slot, available_now=False)
        job.start()
        assert job.wait(PATIENCE_S)
        assert isinstance(job.failure(), UserCodeFailure) and "seven is not allowed" in str(job.failure())


class LateSlots(ThreadLauncher):
    """Slots that come up a while after they were asked for."""

    was_asked = threading.Event()

    def launch(self, order: SlotOrder, *, slots: int, on_exit: Callable[[LaunchExit], None]) -> Launched:
        real: list[Launched] = []
        start = super().launch
        later = threading.Timer(0.3, lambda: real.append(start(order, slots=slots, on_exit=on_exit)))
        later.daemon = True
        later.start()
        self.was_asked.set()
        return NothingYet()


class NothingYet:
    was_cancelled = threading.Event()

    def cancel(self) -> None:
        self.was_cancelled.set()

    def running_slots(self) -> int | None:
        return None


def test_slots_that_come_after_a_stop_are_told_to_leave(folder: Path) -> None:
    job = coordinator(folder)
    job._launcher = launcher = LateSlots(NamedUserCode({"f": unchanged}))
    job.start()
    assert launcher.was_asked.wait(PATIENCE_S)
    job.stop()
    assert job.wait(PATIENCE_S)
    assert not NothingYet.was_cancelled.is_set(), "it waits until it may cancel them"
    assert job.failure() is None and job.view().state == "stopped"


def test_what_a_query_held_is_free_once_its_end_is_known_and_a_late_call_comes_at_once(folder: Path) -> None:
    job = coordinator(folder)
    was_known: list[bool] = []
    job.on_finish(lambda: was_known.append(job.wait(0)))
    job.start()
    assert job.wait(PATIENCE_S)
    assert was_known == [False]
    job.on_finish(lambda: was_known.append(True))
    assert was_known == [False, True]


def test_whoever_waits_hears_of_a_loop_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(timeout_ms: float) -> list[RosterEvent]:
        raise ValueError("a bug")

    job = coordinator(folder)
    monkeypatch.setattr(job._roster, "poll", broken)
    job.start()
    assert job.wait(PATIENCE_S)
    assert str(job.failure()) == "The coordinator failed: ValueError: a bug"
    assert job.view().state == "failed"


class LongRunningMachine(SystemClock):
    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + 1e9


def test_a_generation_that_never_comes_up_counts_as_an_attempt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self: DurableJob, *, at_ms: int) -> None:
        attempts.append(at_ms)
        raise DidNotHappen("The store cannot be reached.")

    attempts: list[int] = []
    monkeypatch.setattr(DurableJob, "start_generation", unreachable)
    job = coordinator(folder, restart=FixedDelay(2, 1.0))
    job._clock = LongRunningMachine()
    job.start()
    assert job.wait(PATIENCE_S), f"{len(attempts)} attempts and no end"
    assert len(attempts) == 3
    assert isinstance(job.failure(), DidNotHappen)


def test_nothing_is_drained_while_sources_are_looked_at() -> None:
    class Looking:
        rounds = 0
        assigned = 0

        def look_now(self) -> None: ...
        def have_given_all(self, *, since_round: int) -> bool:
            return self.rounds >= since_round

        def wait_for_commit(self) -> bool:
            return False

    draining = Draining()
    splits: Any = Looking()
    draining.ask(threading.Event())
    idle = Progress(Generation(1), is_idle=True, splits_received=0, tasks=[])
    for _ in range(4):
        draining.on_progress(SlotIndex(0), idle)
    assert not draining.wants_checkpoint({SlotIndex(0): idle}, splits, slots=1)
    splits.rounds = 2
    assert draining.wants_checkpoint({SlotIndex(0): idle}, splits, slots=1)


def test_a_restart_drains_anew() -> None:
    """A checkpoint of the new generation may be complete before what was drained is read again."""
    draining, done = Draining(), threading.Event()
    draining.ask(done)
    draining.checkpoint_from = CheckpointId(7)
    draining.begin_again()
    draining.on_committed(CheckpointId(8), inflight_bytes=0)
    assert not done.is_set()
    draining.checkpoint_from = CheckpointId(9)
    draining.on_committed(CheckpointId(9), inflight_bytes=0)
    assert done.is_set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_ever_for_a_query_whose_end_goes_wrong(folder: Path) -> None:
    def broken() -> None:
        raise ValueError("a bug")

    job = coordinator(folder)
    job.on_finish(broken)
    job.start()
    assert job.wait(PATIENCE_S)
