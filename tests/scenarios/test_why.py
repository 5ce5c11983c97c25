"""`why` names the culprit of jobs that were made slow, or made to fail, in one certain way: production coordinator and
slots over real sockets, without Spark. The contrasts are large, because the machine may be busy with other things.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.scenarios.staged_jobs import (
    ALIGNED,
    KEYS,
    LONG_MS,
    PATIENCE_S,
    SWITCHING,
    UNALIGNED,
    Staged,
    has_failed,
    invoke,
    is_held_up,
    is_slow,
    playing,
    sleeping,
    takes,
)
from tidegate.api.explain_checkpoint import explain_checkpoint
from tidegate.connectors import registry
from tidegate.connectors.contract import Polled, Prepared
from tidegate.model.errors import UserError
from tidegate.model.ids import CheckpointId
from tidegate.network.messages import BarrierSent, CutSent, PeerMessage
from tidegate.plan.nodes import Scan, Sink
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoint_facts import Outcome
from tidegate.protocol.commit import CommitPermit
from tidegate.protocol.critical_path import PhaseKind
from tidegate.protocol.culprits import (
    BigSynchronousPart,
    Cause,
    Declined,
    Expired,
    LateChannel,
    LongCall,
    SilentSlot,
    SkewedSubtask,
    SlowCommit,
    SlowOperator,
    SlowStore,
    UploadFailed,
    root_of,
)
from tidegate.protocol.why import WhyReport, why
from tidegate.storage.statistics import read_failed
from tidegate.storage.store import open_store
from tidegate.testing.faulty_store import FaultyStore, Result, Slow, StoreOperation
from tidegate.worker import main as worker_main
from tidegate.worker.slot_tasks import SlotTasks


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Staged]:
    with playing(tmp_path) as start:
        yield start


class Once:
    """Sleeps in one call, a while after the first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calls = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        time.sleep(0.0002)
        with self._lock:
            self._calls += 1
            is_the_one = self._calls == 3000
        if is_the_one:
            time.sleep(self._seconds)


either_mode = pytest.mark.parametrize("switch_after_ms", [ALIGNED, SWITCHING], ids=["aligned", "auto"])


def first_slow(staged: Staged, switch_after_ms: float | None, **changes: Any) -> WhyReport:
    """Of a job with slow rows, so slow that it switches where it may."""
    if switch_after_ms is ALIGNED:
        return staged(before_row=sleeping(0.001), **changes).first(is_slow)
    stage = staged(before_row=sleeping(0.003), switch_after_ms=switch_after_ms, **changes)
    return stage.first(lambda facts: is_slow(facts) and facts.kind == "switched")


# -- complete, but slow


@either_mode
def test_a_slow_operator_behind_queued_data(staged: Staged, switch_after_ms: float | None) -> None:
    report = first_slow(staged, switch_after_ms)
    assert isinstance(report.culprit, SlowOperator), report
    assert report.culprit.where.what.startswith("v1.") and "TransformWithState" in report.culprit.where.name
    assert report.culprit.queued_bytes > 1000
    assert any("checkpoint.unaligned" in line for line in report.advice)
    assert report.cost_to_stream.encoding_ms is not None
    assert report.other_mode is not None
    if switch_after_ms is ALIGNED:
        assert report.other_mode.mode == "unaligned" and report.other_mode.inflight_bytes > 1000
        assert report.other_mode.duration_ms is not None, report
        assert report.other_mode.duration_ms < report.duration_ms
    else:
        assert report.other_mode.mode == "aligned" and report.other_mode.duration_ms is not None
        assert report.other_mode.duration_ms > report.duration_ms


def test_what_unaligned_would_have_cost_is_told_where_the_manifest_took_the_state(staged: Staged) -> None:
    """Counters are small: after the first checkpoint there is nothing to upload."""
    report = staged(before_row=sleeping(0.001)).first(
        lambda facts: is_slow(facts) and not any(slot.stored_bytes for slot in facts.slots)
    )
    other = report.other_mode
    assert isinstance(report.culprit, SlowOperator) and other is not None, report
    assert other.mode == "unaligned" and other.duration_ms is not None, report
    assert other.duration_ms < report.duration_ms and "of an earlier checkpoint" in other.basis, report


def test_one_long_call(staged: Staged) -> None:
    report = staged(before_row=Once(LONG_MS * 3 / 1000)).first(takes(LONG_MS * 2))
    assert isinstance(report.culprit, LongCall), report
    assert "TransformWithState" in report.culprit.where.name
    assert report.culprit.duration_ms > LONG_MS * 2


def slow_uploads(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> None:
    """Slots write their state files to a store that is like that; the log is not touched."""

    def faults(operation: StoreOperation, path: str) -> Any:
        return outcome if operation is StoreOperation.PUT else Result.SUCCEEDS

    monkeypatch.setattr(worker_main, "open_shared", lambda location, _: FaultyStore(open_store(location), faults))


@either_mode
def test_a_slow_store(staged: Staged, monkeypatch: pytest.MonkeyPatch, switch_after_ms: float | None) -> None:
    slow_uploads(monkeypatch, Slow(LONG_MS * 1.5))
    report = staged(before_row=sleeping(0.0001), switch_after_ms=switch_after_ms).first(is_held_up)
    assert isinstance(report.culprit, SlowStore), report
    assert "checkpointLocation" in report.culprit.where.what
    assert report.culprit.duration_ms > LONG_MS and report.culprit.stored_bytes > 0


def test_a_slow_job_log(staged: Staged) -> None:
    def faults(operation: StoreOperation, path: str) -> Any:
        is_entry = operation is StoreOperation.CREATE and int(path.rsplit("/", 1)[-1]) > 0
        return Slow(LONG_MS * 1.5) if is_entry else Result.SUCCEEDS

    stage = staged(before_row=sleeping(0.0001), driver_store=lambda store: FaultyStore(store, faults))
    # Then one that waits behind a commit, whose own log entry is what takes so long.
    reports = stage.first(is_held_up), stage.first(lambda facts: is_held_up(facts) and bool(facts.commits_before))
    for report in reports:
        assert isinstance(report.culprit, SlowStore), report
        assert report.culprit.where.what == "the job log"


def slow_commits(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A sink format whose commits take so long, as a foreachBatch function may; the store is not touched."""

    class Committer:
        def __init__(self, committer: Any) -> None:
            self._committer = committer

        def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
            time.sleep(seconds)
            self._committer.commit(committables, permit)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._committer, name)

    class SlowToCommit:
        def __init__(self, sink: Sink) -> None:
            self._sink = registry.SINK_FORMATS["parquet"](sink)

        def committer(self) -> Any:
            return Committer(self._sink.committer())

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sink, name)

    monkeypatch.setitem(registry.SINK_FORMATS, "slow-to-commit", SlowToCommit)


@either_mode
def test_a_slow_commit_of_the_sink(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, switch_after_ms: float | None
) -> None:
    slow_commits(monkeypatch, LONG_MS * 1.5 / 1000)
    stage = staged(
        sink_format="slow-to-commit", before_row=sleeping(0.0003), switch_after_ms=switch_after_ms, window_bytes=1 << 10
    )
    waiting = stage.first(lambda facts: facts.outcome is Outcome.IN_PROGRESS and facts.duration_ms >= LONG_MS)
    assert isinstance(waiting.culprit, SlowCommit), waiting
    report = stage.first(lambda facts: facts.checkpoint == waiting.checkpoint and is_slow(facts))
    assert isinstance(report.culprit, SlowCommit), report
    assert report.culprit.checkpoint == report.checkpoint - 1
    assert report.culprit.commit_ms > LONG_MS and report.culprit.waited_ms > LONG_MS / 2
    longest = max(report.critical_path, key=lambda phase: phase.duration_ms)
    assert longest.kind is PhaseKind.BEHIND_COMMIT
    assert "foreachBatch" in report.advice[0] and not any("use a faster store" in line for line in report.advice)
    code, said = invoke("why", stage.location, str(report.checkpoint))
    assert code == 0 and f"behind the commit of checkpoint {report.culprit.checkpoint}" in said, said


def test_a_source_that_pauses_until_a_checkpoint_is_complete_is_counted(
    staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every slot has acknowledged by then: the driver waits for the sink."""
    slow_commits(monkeypatch, LONG_MS * 2 / 1000)
    stage = staged(
        sink_format="slow-to-commit",
        before_row=sleeping(0.0003),
        window_bytes=1 << 10,
        active_backpressure=ActiveBackpressure.STRICT,
    )
    report = stage.first(lambda facts: is_held_up(facts) and bool(facts.commits_before))
    assert isinstance(report.culprit, SlowCommit), report
    assert LONG_MS / 2 < report.cost_to_stream.paused_ms < report.duration_ms, report


@either_mode
def test_a_skewed_key(staged: Staged, switch_after_ms: float | None) -> None:
    def one_key_has_most(i: int) -> int:
        return 7 if i % 10 else i % KEYS

    report = first_slow(staged, switch_after_ms, key_of=one_key_has_most)
    assert isinstance(report.culprit, SkewedSubtask), report
    assert report.culprit.share > 0.75 and report.culprit.subtasks == 2
    assert any("salt" in line for line in report.advice)
    assert any("checkpoint.unaligned=auto" in line for line in report.advice) is (switch_after_ms is ALIGNED)


def test_a_big_synchronous_part(staged: Staged) -> None:
    def flushes_long(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        time.sleep(LONG_MS * 1.5 / 1000)

    # Little is queued, so that a busy machine does not wait for that longer.
    report = staged(function=flushes_long, before_row=sleeping(0.0001), window_bytes=1 << 10).first(is_held_up)
    assert isinstance(report.culprit, BigSynchronousPart), report
    assert "MapInArrow" in report.culprit.where.name
    assert report.culprit.duration_ms > LONG_MS
    assert report.cost_to_stream.sync_ms > LONG_MS


def test_with_all_defaults_nothing_is_advised_that_is_on(staged: Staged) -> None:
    """An aligned one, because it is quicker than checkpoint.alignedTimeout would be."""
    report = staged(
        before_row=sleeping(0.001),
        switch_after_ms=60_000.0,
        debloat_target_ms=1_000.0,
        active_backpressure=ActiveBackpressure.ON,
    ).first(is_slow)
    assert isinstance(report.culprit, SlowOperator), report
    assert [line.split(":")[0] for line in report.advice[1:]] == [
        "a smaller checkpoint.alignedTimeout, or checkpoint.unaligned=true",
        "a smaller network.target",
    ]


def test_one_late_channel(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Barriers of the channel from slot 0 to slot 1 are held up on their way, as by a bad network."""
    held: dict[int, list[tuple[float, PeerMessage]]] = {}
    hear, look = SlotTasks.on_peer_message, SlotTasks.on_time

    def on_peer_message(self: SlotTasks, message: PeerMessage) -> None:
        channel = None if not isinstance(message, BarrierSent | CutSent) else self._table[message.channel]
        if channel is not None and (channel.sender, channel.receiver) == (0, 1):
            held.setdefault(id(self), []).append((time.monotonic() + LONG_MS * 1.5 / 1000, message))
        else:
            hear(self, message)

    def on_time(self: SlotTasks) -> None:
        waiting = held.setdefault(id(self), [])
        while waiting and waiting[0][0] <= time.monotonic():
            hear(self, waiting.pop(0)[1])
        look(self)

    monkeypatch.setattr(SlotTasks, "on_peer_message", on_peer_message)
    monkeypatch.setattr(SlotTasks, "on_time", on_time)
    report = staged(before_row=sleeping(0.0001)).first(is_held_up)
    assert isinstance(report.culprit, LateChannel), report
    assert report.culprit.where.what == "e0:0->1" and report.culprit.sender == "v0.0"
    assert report.culprit.late_ms > LONG_MS


def test_nothing_wrong(staged: Staged) -> None:
    report = staged(before_row=sleeping(0.0001), interval_ms=5_000.0, switch_after_ms=UNALIGNED).first(
        lambda facts: facts.outcome is Outcome.COMPLETED
    )
    assert report.cause is Cause.NOTHING, report
    assert report.advice == ()


def test_an_unaligned_one_tells_what_an_aligned_one_would_have_cost(staged: Staged) -> None:
    report = staged(before_row=sleeping(0.001), switch_after_ms=UNALIGNED).first(
        lambda facts: facts.outcome is Outcome.COMPLETED and sum(t.inflight_bytes for t in facts.tasks) > 4000
    )
    other = report.other_mode
    assert other is not None and other.mode == "aligned" and other.inflight_bytes == 0
    assert other.duration_ms is not None and other.duration_ms > report.duration_ms + 100


# -- failed


def test_an_expired_one_tells_what_it_was_waiting_for(staged: Staged) -> None:
    stage = staged(before_row=sleeping(0.004), timeout_ms=600.0)
    report = stage.first(has_failed("expired"))
    assert isinstance(report.culprit, Expired), report
    waited_for = report.culprit.waiting_for
    assert isinstance(waited_for, SlowOperator) and waited_for.where.what.startswith("v1."), report
    assert waited_for.queued_bytes > 1000
    view = next(view for view in stage.coordinator.view().checkpoints if view.status == "failed")
    assert {"v1.0", "v1.1"} & set(view.unreported)
    assert {"v0.0", "v0.1"} <= {task.task for task in view.tasks}


class _StuckReader:
    """A source whose second subtask hangs in a call, once it has read for a while."""

    def __init__(self, reader: Any, go_on: threading.Event | None) -> None:
        self._reader = reader
        self._go_on = go_on
        self._polls = 0

    def poll(self, max_rows: int) -> Polled:
        self._polls += 1
        if self._go_on is not None and self._polls == 3:
            self._go_on.wait(30)
        polled: Polled = self._reader.poll(max_rows)
        return polled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


def test_a_dead_source(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    class Stuck:
        def __init__(self, scan: Scan) -> None:
            self._source = registry.SOURCE_FORMATS["parquet"](scan)

        def reader(self, *, subtask: int, parallelism: int) -> Any:
            reader = self._source.reader(subtask=subtask, parallelism=parallelism)
            return _StuckReader(reader, go_on if subtask == 1 else None)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._source, name)

    monkeypatch.setitem(registry.SOURCE_FORMATS, "stuck", Stuck)
    stage = staged(source_format="stuck", timeout_ms=1_500.0)
    try:
        report = stage.first(has_failed("expired"))
        assert isinstance(report.culprit, Expired), report
        silent = report.culprit.waiting_for
        assert isinstance(silent, SilentSlot) and silent.where.what == "slot 1", report
        assert any("Source[stuck]" in task for task in silent.tasks)
        stage.until(lambda: read_failed(open_store(stage.location)) or None)
        stage.check_command()
        stage.ended.clear()  # what is said of it now changes
    finally:
        go_on.set()
    # Once it goes on it tells what it did meanwhile.
    checkpoint = report.checkpoint
    told = stage.until(
        lambda: next(
            (
                found
                for facts in stage.coordinator.checkpoint_facts()
                if facts.checkpoint == checkpoint and isinstance(found := root_of(why(facts).culprit), LongCall)
            ),
            None,
        )
    )
    assert told.where.what == "v0.1"


def test_an_upload_failure(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_uploads(monkeypatch, Result.FAILS)
    report = staged(before_row=sleeping(0.0005)).first(has_failed("declined"))
    assert isinstance(report.culprit, UploadFailed), report
    assert "as the test asked" in report.culprit.error and report.culprit.slot in (0, 1)


def test_a_declined_one_has_the_sinks_error(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        def __init__(self, writer: Any) -> None:
            self._writer = writer

        def prepare(self, checkpoint: CheckpointId) -> Prepared:
            def fail() -> None:
                raise ValueError("the table is locked")

            return Prepared(self._writer.prepare(checkpoint).committables, fail)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._writer, name)

    class Locked:
        def __init__(self, sink: Sink) -> None:
            self._sink = registry.SINK_FORMATS["parquet"](sink)

        def writer(self, **given: Any) -> Any:
            return Writer(self._sink.writer(**given))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sink, name)

    monkeypatch.setitem(registry.SINK_FORMATS, "locked", Locked)
    report = staged(sink_format="locked", before_row=sleeping(0.0005)).first(has_failed("declined"))
    assert isinstance(report.culprit, Declined), report
    assert "the table is locked" in report.culprit.error
    assert "the table is locked" in report.summary


# -- from outside


def test_the_command_line_tells_the_same_from_storage(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_uploads(monkeypatch, Slow(LONG_MS * 1.5))
    stage = staged(before_row=sleeping(0.0001))
    report = stage.first(is_slow)
    code, said = invoke("why", stage.location, str(report.checkpoint))
    assert code == 0 and said.startswith(f"Checkpoint {report.checkpoint}: aligned, completed"), said
    assert "writing took longest" in said.lower() and "Critical path" in said
    code, said = invoke("checkpoints", stage.location)
    assert code == 0 and "slow store" in said
    code, said = invoke("why", stage.location, "999")
    assert code == 1 and "Nothing is known of checkpoint 999: known are" in said


def test_failed_ones_are_told_after_the_end(staged: Staged) -> None:
    stage = staged(before_row=sleeping(0.004), timeout_ms=600.0)
    report = stage.first(has_failed("expired"))
    stage.coordinator.stop()
    assert stage.coordinator.wait(PATIENCE_S)
    code, said = invoke("why", stage.location, str(report.checkpoint))
    assert code == 0 and "expired" in said and "TransformWithState" in said, said
    code, said = invoke("why", stage.location)
    assert code == 0 and "expired" in said


def test_a_wrong_path_is_one_sentence(tmp_path: Path) -> None:
    for command in ("why", "checkpoints"):
        code, said = invoke(command, str(tmp_path / "nowhere"))
        assert code == 1 and "There is no folder" in said and said.count("\n") <= 3
        assert not (tmp_path / "nowhere").exists()
        code, said = invoke(command, str(tmp_path))
        assert code == 1 and "holds no job log" in said


def test_an_id_that_nothing_is_known_of_is_one_sentence() -> None:
    with pytest.raises(UserError, match="no checkpoint to explain yet"):
        explain_checkpoint((), None)
