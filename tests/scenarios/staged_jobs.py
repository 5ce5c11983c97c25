"""A job that is made slow, or made to fail, in one certain way, for tests of what `why` says of it: production
coordinator and slots over real sockets, without Spark.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.coordinator.coordinator import Coordinator
from tidegate.coordinator.job import JobSpec
from tidegate.plan.expressions import Call, Column, Literal
from tidegate.plan.lower import lower
from tidegate.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateFunction,
    MapInArrow,
    Node,
    Project,
    Scan,
    Sink,
    TransformWithState,
)
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoint_facts import CheckpointFacts, Outcome
from tidegate.protocol.why import WhyReport, why
from tidegate.storage.store import Store, open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import CountingProcessor, NamedUserCode, ThreadLauncher
from tidegate.worker.settings import SlotSettings

ROWS = 20_000
KEYS = 64
ALIGNED, UNALIGNED = None, 0.0
# As with checkpoint.unaligned at auto, and checkpoint.alignedTimeout as it is by default.
SWITCHING = 1_000.0
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
GROUPS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
LONG_MS = 700.0
PATIENCE_S = 90.0


def without_figures(text: str) -> str:
    return re.sub(r"\d[\d.,]*", "#", text)


@dataclass(slots=True)
class Stage:
    """One job that is played until it has shown what it should; `folder` holds its input, output and checkpoints.

    `function` stands in front of the keyed task; with `groups_into` behind an aggregation, whose groups go into that.
    """

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
    debloat_target_ms: float | None = None
    groups_into: Sink | None = None
    coordinator: Coordinator = field(init=False)
    ended: list[WhyReport] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir()
        for file in range(8 if self.groups_into is None else 0):
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
            if report.outcome == "completed" and report.other_mode is not None:
                assert report.other_mode.basis in said, f"{report}\n\n{said}"

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
        settings = SlotSettings(
            plan=lower(*self._plan(), parallelism=2, max_parallelism=128),
            checkpoint_location=self.location,
            window_bytes=self.window_bytes,
            state_backend="heap",
            active_backpressure=self.active_backpressure,
            checkpoint_interval_ms=self.interval_ms,
            debloat_target_ms=self.debloat_target_ms,
        )
        return local_job(
            "staged",
            settings,
            interval_ms=self.interval_ms,
            timeout_ms=self.timeout_ms,
            tolerable_failures=1_000,
            switch_after_ms=self.switch_after_ms,
            keep=50,
            available_now=self.groups_into is None,
        )

    def _plan(self) -> tuple[Node, Sink]:
        if self.groups_into is not None:
            return MapInArrow(groups_all_the_time(), b"function", "function", GROUPS), self.groups_into
        k, v = Column(0, "k", pa.int64()), Column(1, "v", pa.int64())
        read: Node = Scan(self.source_format, {"path": str(self.folder / "in")}, SCHEMA)
        if self.function is not None:
            read = MapInArrow(read, b"function", "function", SCHEMA)
        keyed = Project(read, (k, k, v), pa.schema([("k", pa.int64()), *SCHEMA]))
        counted = pa.schema([("k", pa.int64()), ("n", pa.int64())])
        sink = Sink(self.sink_format, {"path": str(self.folder / "out")}, counted)
        return TransformWithState(keyed, 1, b"count", counted), sink


def groups_all_the_time() -> Aggregate:
    """`groupBy("k").count()` of a stream that goes on; all groups change within an epoch."""
    value, k = Column(0, "value", pa.int64()), Column(0, "k", pa.int64())
    numbers = Scan("rate", {"rowsPerSecond": "5000"}, pa.schema([("value", pa.int64())]))
    key = Call("Remainder", (value, Literal(KEYS, pa.int64())), pa.int64(), True)
    calls = (AggregateCall(AggregateFunction.COUNT_ROWS, (), pa.int64(), True),)
    return Aggregate(numbers, (key,), calls, (k, Column(1, "n", pa.int64())), GROUPS)


Staged = Callable[..., Stage]


@contextmanager
def playing(folder: Path) -> Iterator[Staged]:
    """Gives what starts a job; whatever the test found, it is stopped at the end."""
    stages: list[Stage] = []

    def start(**changes: Any) -> Stage:
        stage = Stage(folder, **changes)
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


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    return result.exit_code, result.output
