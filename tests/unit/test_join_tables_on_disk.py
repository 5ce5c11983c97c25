"""The rows of joins in a log, as tables and in written savepoints: the same as those that are snapshotted whole."""

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.stored_checkpoint import RECEIVER, StoredJob, plan_of
from tests.unit.test_checkpoint_tables import INPUT, Code, process, rows_of, stateful
from tests.unit.test_joins_on_disk import Job, kept, logged
from tests.unit.test_rows_from_disk import key_groups_of
from tests.unit.test_stream_join import join, side
from tests.unit.test_written_savepoints import write
from tests.unit.tiny_steps import take_tiny_steps
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import rewritten_savepoint
from tidegate.model.errors import Damaged
from tidegate.model.ids import SlotIndex, TaskId, range_of
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext
from tidegate.plan.nodes import JoinType
from tidegate.state.contract import Section
from tidegate.storage.store import LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.restoring import restore_slot
from tidegate.worker.state_backends import RocksBackends

SPEC = join(JoinType.FULL_OUTER, left=side(ahead_s=-5), right=side(ahead_s=-5))


@pytest.fixture(autouse=True)
def tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiny_steps(monkeypatch)


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocksBackends]:
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    opened = RocksBackends(local, memory_bytes=8 << 20)
    yield opened
    opened.close()


def store(sections: list[list[Section]], folder: Path) -> None:
    folder.mkdir()
    plan = plan_of(SPEC, schema=INPUT, parallelism=len(sections))
    StoredJob(plan, dict(enumerate(sections))).write(LocalFiles(folder))


def table_of(folder: Path, state: str) -> Counter[Any]:
    rows = rows_of(path=str(folder), table="state", state=state, operator="v1.op0")
    return Counter(tuple(repr(value) for value in row.values()) for row in rows)


def fed(job: Job, chosen: random.Random, *, second: int) -> None:
    for own in (0, 1, 0):
        job.rows(own, [(f"k{chosen.randint(0, 120)}", second + chosen.randint(1, 9), at) for at in range(15)])


def test_rows_in_a_log_are_the_table_that_rows_in_memory_are(tmp_path: Path, backends: RocksBackends) -> None:
    job, chosen = Job(SPEC, backends), random.Random(3)
    job.restore(job.snapshot(), 2, from_heap=False)
    for checkpoint in range(4):
        fed(job, chosen, second=4 * checkpoint)
        job.advance(4 * checkpoint - 2)
        taken = job.snapshot()
        store([whole for whole, _ in taken], tmp_path / f"heap-{checkpoint}")
        store([on_disk for _, on_disk in taken], tmp_path / f"rocksdb-{checkpoint}")
        for state in ("left", "right"):
            expected = table_of(tmp_path / f"heap-{checkpoint}", state)
            assert table_of(tmp_path / f"rocksdb-{checkpoint}", state) == expected
            assert len({row[3] for row in expected}) == 2, "some have met a partner and some have not"


def stored_with_user_state(job: Job, folder: Path) -> None:
    """A checkpoint of the join, and behind it of an operator with states of user code."""
    folder.mkdir()
    users: dict[int, list[Section]] = {}
    code: Any = Code()
    for subtask, (whole, _) in enumerate(job.pairs):
        own = whole.key_groups
        operator = build_operator(stateful())
        task = TaskId(RECEIVER, subtask)
        operator.open(
            TaskContext(task, 2, 128, own, ManualClock(), code, partial(job.backends.open, own)),
            [],
        )
        key = next(letter for letter in "abcdefgh" if int(key_groups_of(letter)[0]) in own)
        process(operator, pa.record_batch([pa.array([key]), pa.array([7], pa.int64())], schema=INPUT))
        users[subtask] = operator.snapshot()
    joined = {at: on_disk for at, (_, on_disk) in enumerate(job.snapshot())}
    StoredJob(plan_of(SPEC, stateful(), schema=INPUT, parallelism=2), joined, users).write(LocalFiles(folder))


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_join_goes_on_from_an_edited_savepoint(parallelism: int, tmp_path: Path, backends: RocksBackends) -> None:
    job, chosen = Job(SPEC, backends), random.Random(5)
    job.restore(job.snapshot(), 2, from_heap=False)
    fed(job, chosen, second=0)
    job.snapshot()
    fed(job, chosen, second=2)
    stored_with_user_state(job, tmp_path / "before")
    before = {state: table_of(tmp_path / "before", state) for state in ("left", "right")}
    base = find_checkpoint(str(tmp_path / "before"))
    target = rewritten_savepoint(
        str(tmp_path / "edited"), base, operator="v1.op1", state="count", max_parallelism=None, now_ms=5
    )
    path = write(target, ("a", 99, None))
    assert {state: table_of(Path(path), state) for state in ("left", "right")} == before
    # Files of the savepoint are its own.
    shutil.rmtree(tmp_path / "before")
    plan = plan_of(SPEC, stateful(), schema=INPUT, parallelism=parallelism)
    found: Counter[Any] = Counter()
    for at in range(parallelism):
        slot = restore_slot(LocalFiles(Path(path)), "manifest.json", plan, SlotIndex(at))
        own = range_of(at, parallelism=parallelism, max_parallelism=128)
        sections = slot.tasks[TaskId(RECEIVER, at)].sections.get(0, [])
        found += kept(logged(backends, sections, spec=SPEC, key_groups=own))
    assert found == sum((kept(whole) for whole, _ in job.pairs), Counter())


def test_a_damaged_file_of_rows_is_named(tmp_path: Path, backends: RocksBackends) -> None:
    job = Job(SPEC, backends)
    fed(job, random.Random(1), second=0)
    store([on_disk for _, on_disk in job.snapshot()], tmp_path / "saved")
    for file in (tmp_path / "saved" / "shared").glob("*.rows"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged, match=r"shared/1-g1-s\d.*\.rows"):
        table_of(tmp_path / "saved", "left")
