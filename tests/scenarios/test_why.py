"""`why` names the culprit of jobs that were made slow, or made to fail, in one certain way: production coordinator and
slots over real sockets, without Spark. The contrasts are large, because the machine may be busy with other things.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tidegate.api.explain_checkpoint import explain_checkpoint
from tidegate.cli.main import app
from tidegate.connectors import registry
from tidegate.connectors.contract import Polled, Prepared
from tidegate.coordinator.coordinator import Coordinator
from tidegate.coordinator.job import JobSpec
from tidegate.model.errors import UserError
from tidegate.model.ids import CheckpointId
from tidegate.network.messages import BarrierSent, CutSent, PeerMessage
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import MapInArrow, Node, Project, Scan, Sink, TransformWithState
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoint_facts import CheckpointFacts, Outcome
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
from tidegate.storage.store import Store, open_store
from tidegate.testing.faulty_store import FaultyStore, Result, Slow, StoreOperation
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import CountingProcessor, NamedUserCode, ThreadLauncher
from tidegate.worker import main as worker_main
from tidegate.worker.settings import SlotSettings
from tidegate.worker.slot_tasks import SlotTasks

ROWS = 20_000
KEYS = 64
ALIGNED, UNALIGNED = None, 0.0
# As with checkpoint.unaligned at auto, and checkpoint.alignedTimeout as it is by default.
SWITCHING = 1_000.0
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
LONG_MS = 700.0
PATIENCE_S = 90.0


def without_figures(text: str) -> str:
    return re.sub(r"\d[\d.,]*", "#", text)


@dataclass(slots=True)
class Stage:
    """One job that is played until it has shown what it should; `folder` holds its input, output and checkpoints."""

    folder: Path
    before_row: Callable[[], None] = lambda: None
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None
    key_of: Callable[[int], int] = lambda i: i % KEYS
    source_format: str = "parquet"
    sink_format: str = "parquet"
    switch_after_ms: float | None = ALIGNED
    window_bytes: int = 8 << 10
    interval_ms: float = 200.0
    timeout_ms: float = 60_000.0
    driver_store: Callable[[Store], Store] = lambda store: store
    active_backpressure: ActiveBackpressure = ActiveBackpressure.OFF
    coordinator: Coordinator = field(init=False)
    ended: list[WhyReport] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir()
        for file in range(8):
            ids = range(file * ROWS // 8, (file + 1) * ROWS // 8)
            rows = pa.table({"k": [self.key_of(i) for i in ids], "v": list(ids)})
            pq.write_table(rows, self.folder / "in" / f"{file}.parquet")
        store = self.driver_store(open_store(self.location))
        code = NamedUserCode(
            functions={} if self.function is None else {"function": self.function},
            processors={"count": lambda: CountingProcessor(before_row=self.before_row)},
        )
        self.coordinator = Coordinator(self._spec(), store, ThreadLauncher(code), versions={})

    @property
    def location(self) -> str:
        return str(self.folder / "chk")

    def first(self, wanted: Callable[[CheckpointFacts], bool]) -> WhyReport:
        """The report of the first checkpoint that is like that, as it is explained while the job runs."""
        facts = self.until(lambda: next((f for f in self.coordinator.checkpoint_facts() if wanted(f)), None))
        report = why(facts)
        assert sum(phase.duration_ms for phase in report.critical_path) == pytest.approx(facts.duration_ms, abs=0.01)
        if facts.outcome is not Outcome.IN_PROGRESS:
            self.ended.append(report)
        return report

    def check_command(self) -> None:
        """`tidegate why` says the same, from storage alone, but for figures: slots may have told more since."""
        for report in self.ended:
            code, said = invoke("why", self.location, str(report.checkpoint))
            assert code == 0, f"{report}\n\n{said}"
            for sentence in (report.summary, *report.advice):
                assert without_figures(sentence) in without_figures(said), f"{report}\n\n{said}"

    def until(self, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            ended = self.coordinator.wait(0.05)
            if ended and (found := look()) is not None:
                return found
            assert not ended, f"it {self.coordinator.view().state}: {self.coordinator.failure()}"
            assert time.monotonic() < deadline, self.coordinator.view().checkpoints[:3]
        return found

    def _spec(self) -> JobSpec:
        k, v = Column(0, "k", pa.int64()), Column(1, "v", pa.int64())
        read: Node = Scan(self.source_format, {"path": str(self.folder / "in")}, SCHEMA)
        if self.function is not None:
            read = MapInArrow(read, b"function", "function", SCHEMA)
        keyed = Project(read, (k, k, v), pa.schema([("k", pa.int64()), *SCHEMA]))
        counted = pa.schema([("k", pa.int64()), ("n", pa.int64())])
        sink = Sink(self.sink_format, {"path": str(self.folder / "out")}, counted)
        plan = lower(TransformWithState(keyed, 1, b"count", counted), sink, parallelism=2, max_parallelism=128)
        return local_job(
            "staged",
            SlotSettings(
                plan=plan,
                checkpoint_location=self.location,
                window_bytes=self.window_bytes,
                state_backend="heap",
                active_backpressure=self.active_backpressure,
                checkpoint_interval_ms=self.interval_ms,
            ),
            interval_ms=self.interval_ms,
            timeout_ms=self.timeout_ms,
            tolerable_failures=1_000,
            switch_after_ms=self.switch_after_ms,
            keep=50,
            available_now=True,
        )


Staged = Callable[..., Stage]


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Staged]:
    """Starts a job; whatever the test found, it is stopped at the end."""
    stages: list[Stage] = []

    def start(**changes: Any) -> Stage:
        stage = Stage(tmp_path, **changes)
        stages.append(stage)
        stage.coordinator.start()
        return stage

    yield start
    for stage in stages:
        stage.coordinator.stop()
        assert stage.coordinator.wait(PATIENCE_S)
        stage.check_command()


def takes(at_least_ms: float) -> Callable[[CheckpointFacts], bool]:
    return lambda facts: facts.outcome is Outcome.COMPLETED and facts.duration_ms >= at_least_ms


is_slow = takes(LONG_MS * 0.8)
# About as long as the delay that is staged: nothing is asked of what a busy machine made a little slow.
is_held_up = takes(LONG_MS * 1.4)


def has_failed(reason: str) -> Callable[[CheckpointFacts], bool]:
    return lambda facts: facts.failure == reason


def sleeping(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


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
    assert report.other_mode is not None
    if switch_after_ms is ALIGNED:
        assert report.other_mode.mode == "unaligned" and report.other_mode.inflight_bytes > 1000
    else:
        assert report.other_mode.mode == "aligned" and report.other_mode.duration_ms is not None
        assert report.other_mode.duration_ms > report.duration_ms


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

    report = staged(function=flushes_long, before_row=sleeping(0.0001)).first(is_held_up)
    assert isinstance(report.culprit, BigSynchronousPart), report
    assert "MapInArrow" in report.culprit.where.name
    assert report.culprit.duration_ms > LONG_MS
    assert report.cost_to_stream.sync_ms > LONG_MS


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


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    return result.exit_code, result.output


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
