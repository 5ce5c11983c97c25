"""Jobs of one built-in operator, stored and restored with other key groups, for the tests of such savepoints."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.unit import test_windows_of_groups
from tests.unit.stored_checkpoint import RECEIVER, StoredJob, plan_of
from tests.unit.test_checkpoint_tables import INPUT, rows_of
from tests.unit.test_groups_on_disk import spec_of
from tests.unit.test_rows_from_disk import KEYS, a_batch, a_value
from tests.unit.test_stream_join import SCHEMA, join, side
from tests.unit.test_written_savepoints import write
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import regrouped_savepoint
from tidegate.model.ids import KeyGroupRange, SlotIndex, TaskId, range_of
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext
from tidegate.operators.stream_join import StreamJoinOperator
from tidegate.plan.expressions import Column
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.nodes import EventTimeKey, ForgetAfterDelay, ForgetByKey, JoinType, OutputMode
from tidegate.plan.physical import (
    AggregateSpec,
    DeduplicateSpec,
    JobPlan,
    OperatorSpec,
    StreamJoinSpec,
)
from tidegate.protocol.watermarks import MIN_WATERMARK_MS
from tidegate.state.contract import Section
from tidegate.storage.store import LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.restoring import RestoredTask, restore_slot
from tidegate.worker.state_backends import StateBackends
from tidegate.worker.stored_task import StoredTask

Spec = AggregateSpec | DeduplicateSpec | StreamJoinSpec
SPECS: dict[str, Spec] = {
    "groups": spec_of(mode=OutputMode.UPDATE),
    "one group": replace(
        spec_of(mode=OutputMode.COMPLETE),
        key_count=0,
        results=(Column(0, "rows", pa.int64()),),
        schema=pa.schema([("rows", pa.int64())]),
    ),
    "windows": spec_of(mode=OutputMode.APPEND, with_window=True),
    "groups that stay in memory": spec_of(mode=OutputMode.COMPLETE),
    "groups with lists": spec_of(mode=OutputMode.UPDATE, lists=True),
    "sessions": test_windows_of_groups.spec_of(OutputMode.APPEND, EventTimeKey.SESSION),
    "keys for ever": DeduplicateSpec(1, None, None, KEYS),
    "keys by time": DeduplicateSpec(2, 1, ForgetByKey(1), KEYS),
    "keys for ten seconds": DeduplicateSpec(1, 1, ForgetAfterDelay(10_000), KEYS),
    "inner join": join(JoinType.INNER, left=side(ahead_s=-5), right=side(ahead_s=-5)),
    "left outer join": join(JoinType.LEFT_OUTER, left=side(ahead_s=-5), right=side(ahead_s=-5)),
    "full outer join": join(JoinType.FULL_OUTER, left=side(ahead_s=-5), right=side(ahead_s=-5)),
    "left semi join": join(JoinType.LEFT_SEMI, left=side(ahead_s=-5), right=side(ahead_s=-5)),
}
# Where rows were when the savepoint was taken.
WRITTEN_BY = ("heap", "heap with a log", "rocksdb")
# Max parallelism, slots, and the backend of the query that goes on.
GOES_ON = ((7, 1, "rocksdb"), (7, 3, "heap"), (300, 2, "rocksdb"), (300, 5, "heap"))
WATERMARK_MS = 8_000


@dataclass
class Job:
    """An operator in some subtasks, which are given the rows of their key groups."""

    spec: Spec
    backends: StateBackends
    parallelism: int = 2
    max_parallelism: int = 128
    restored: Sequence[RestoredTask] = ()
    out: list[pa.RecordBatch] = field(default_factory=list)
    watermark_ms: int = MIN_WATERMARK_MS

    def __post_init__(self) -> None:
        self.operators = [self._opened(subtask) for subtask in range(self.parallelism)]

    def own(self, subtask: int) -> KeyGroupRange:
        return range_of(subtask, parallelism=self.parallelism, max_parallelism=self.max_parallelism)

    def _opened(self, subtask: int) -> Any:
        own, none = self.own(subtask), None
        task = self.restored[subtask] if self.restored else RestoredTask()
        operator = build_operator(self.spec)
        context: Any = TaskContext(
            TaskId(RECEIVER, subtask),
            self.parallelism,
            self.max_parallelism,
            own,
            ManualClock(),
            none,  # type: ignore[arg-type]
            none,  # type: ignore[arg-type]
            floors=task.floors,
            open_rows=lambda: self.backends.open_rows(own),
            open_runs=lambda: self.backends.open_runs(own),
        )
        operator.open(context, task.sections.get(0, []))
        if task.progress.input_watermark_ms > MIN_WATERMARK_MS:
            operator.on_watermark(task.progress.input_watermark_ms)
        return operator

    def process(self, rows: pa.RecordBatch, *, right: bool = False) -> None:
        groups = key_group_of(hash_rows(rows, sent_by(self.spec)), self.max_parallelism).tolist()
        for subtask, operator in enumerate(self.operators):
            own = self.own(subtask)
            mine = rows.filter(pa.array([group in own for group in groups]))
            (operator.process_right if right else operator.process)(mine, self.out.append)

    def give_all(self) -> None:
        for operator in self.operators:
            while isinstance(operator, StreamJoinOperator) and operator.give(7, self.out.append):
                pass

    def advance(self, at_ms: int) -> None:
        self.watermark_ms = at_ms
        for operator in self.operators:
            operator.on_watermark(at_ms)
            while operator.fire(1, self.out.append):
                pass

    def snapshot(self) -> dict[int, list[Section]]:
        return {at: operator.snapshot() for at, operator in enumerate(self.operators)}

    def store(self, folder: Path) -> str:
        folder.mkdir()
        progress = {
            TaskId(RECEIVER, at): StoredTask(input_watermark_ms=self.watermark_ms) for at in range(self.parallelism)
        }
        plan = a_plan(self.spec, self.parallelism, self.max_parallelism)
        StoredJob(plan, self.snapshot(), progress=progress).write(LocalFiles(folder))
        return str(folder)


def sent_by(spec: Spec) -> int:
    """How many of the first columns rows are sent by."""
    match spec:
        case StreamJoinSpec():
            return spec.left.key_count
        case AggregateSpec(event_time=event_time) if event_time and event_time.key is EventTimeKey.SESSION:
            return spec.key_count - 1
        case _:
            return spec.key_count


def written_away(spec: Spec) -> set[str]:
    """The files of rows that left memory; those of joins lie in none that a checkpoint refers to."""
    stays = isinstance(spec, StreamJoinSpec) or spec.key_count == 0
    return set() if stays or (isinstance(spec, AggregateSpec) and spec.mode is OutputMode.COMPLETE) else {".sst"}


def a_plan(spec: OperatorSpec, parallelism: int, max_parallelism: int) -> JobPlan:
    plan = plan_of(spec, schema=INPUT, parallelism=parallelism)
    return replace(plan, max_parallelism=max_parallelism)


def some_rows(spec: Spec, chosen: random.Random, *, first_second: int = 0) -> pa.RecordBatch:
    if not isinstance(spec, StreamJoinSpec):
        return a_batch(spec, chosen, first_second=first_second)
    rows = [[a_value(column, chosen, first_second) for column in SCHEMA] for _ in range(12)]
    columns = [pa.array(values, column.type) for values, column in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def feed(job: Job, seed: str, *, times: int, first_second: int) -> None:
    chosen = random.Random(seed)
    for at in range(times):
        rows = some_rows(job.spec, chosen, first_second=first_second)
        job.process(rows, right=isinstance(job.spec, StreamJoinSpec) and at % 2 == 1)
        job.give_all()


def table(path: str, spec: Spec) -> Counter[str]:
    """All rows that it keeps, whoever has them."""
    names = ["left", "right"] if isinstance(spec, StreamJoinSpec) else [None]
    found: Counter[str] = Counter()
    for name in names:
        options = {"path": path, "table": "state"} | ({} if name is None else {"state": name})
        for row in rows_of(**options):
            found[
                repr([name, *(plain(value) for key, value in row.items() if key not in ("key_group", "subtask"))])
            ] += 1
    return found


def plain(value: Any) -> Any:
    return sorted(value, key=repr) if isinstance(value, list) else value


def shown(job: Job) -> Counter[str]:
    """What came out."""
    return Counter(
        repr([plain(value) for value in row.values()]) for batch in job.out for row in named(batch).to_pylist()
    )


def named(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Both sides of a join have columns of the same names."""
    return pa.RecordBatch.from_arrays(batch.columns, names=[str(at) for at in range(batch.num_columns)])


def regroup(path: str, folder: Path, max_parallelism: int) -> str:
    return write(regrouped_savepoint(str(folder), find_checkpoint(path), max_parallelism=max_parallelism, now_ms=5))


def restored_job(path: str, spec: Spec, max_parallelism: int, parallelism: int, backends: StateBackends) -> Job:
    plan = a_plan(spec, parallelism, max_parallelism)
    restored = [
        restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(at)).tasks[TaskId(RECEIVER, at)]
        for at in range(parallelism)
    ]
    return Job(spec, backends, parallelism, max_parallelism, restored)


def go_on(job: Job) -> None:
    """With rows that are late, rows of keys that were there, and enough time for some to end."""
    job.give_all()
    feed(job, "more", times=4, first_second=0)
    job.advance(20_000)
    feed(job, "much more", times=4, first_second=20)
    job.advance(40_000)
    for operator in job.operators:
        operator.before_barrier(job.out.append)
