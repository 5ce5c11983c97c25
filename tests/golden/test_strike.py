"""A strike: at its moment, when there is something to restore, once."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.golden.cases import Beside, Victim
from tests.golden.strike import Kill, Restored, Strike, Stumble, Watch, look_at_restored
from tests.unit.stored_checkpoint import Captured, StoredJob, plan_of
from tidegate.model.elements import Batch
from tidegate.model.ids import ChannelId, EdgeId
from tidegate.plan.physical import DeduplicateSpec
from tidegate.storage.store import LocalFiles
from tidegate.testing import Step


@pytest.fixture
def victim() -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def strike(job: Path, pid: int, *blows: Kill | Stumble) -> Strike:
    made = Strike(job=job, blows=blows, driver_pid=pid, slot=0)
    made.folder.mkdir(parents=True)
    return made


def let_it_run(job: Path) -> None:
    """Two checkpoints, and rows that are published."""
    for checkpoint in ("1-g1", "2-g1"):
        (job / "chk" / "checkpoints" / checkpoint).mkdir(parents=True)
        (job / "chk" / "checkpoints" / checkpoint / "manifest.json").touch()
    (job / "out" / "_tidegate").mkdir(parents=True)
    (job / "out" / "part-1.parquet").touch()


def test_the_victim_is_gone_when_the_moment_has_passed(tmp_path: Path, victim: "subprocess.Popen[bytes]") -> None:
    let_it_run(tmp_path)
    watch = Watch(strike(tmp_path, victim.pid, Kill(Victim.DRIVER, Step.LOGGED, 0)), slot=None)
    watch.at(Step.UPLOADED)
    assert victim.poll() is None
    watch.at(Step.LOGGED)
    assert victim.wait(0) == -9
    said = (tmp_path / "strike" / "blow-0").read_text()
    assert said == f"the driver killed driver {victim.pid} at LOGGED: {Step.LOGGED.value}"


def test_nothing_is_struck_before_there_is_something_to_restore(
    tmp_path: Path, victim: "subprocess.Popen[bytes]"
) -> None:
    watch = Watch(strike(tmp_path, victim.pid, Kill(Victim.DRIVER, Step.LOGGED, 0)), slot=None)
    watch.at(Step.LOGGED)
    assert victim.poll() is None
    let_it_run(tmp_path)
    (tmp_path / "out" / "part-1.parquet").unlink()
    watch.at(Step.LOGGED)
    assert victim.poll() is None


def test_a_blow_is_struck_once_by_whoever_comes_first(tmp_path: Path, victim: "subprocess.Popen[bytes]") -> None:
    let_it_run(tmp_path)
    made = strike(tmp_path, victim.pid, Kill(Victim.DRIVER, Step.SNAPSHOT_TAKEN, 1))
    one, other = Watch(made, slot=0), Watch(made, slot=1)
    one.at(Step.SNAPSHOT_TAKEN)
    other.at(Step.SNAPSHOT_TAKEN)
    assert victim.poll() is None, "it was to pass by once, in each process"
    other.at(Step.SNAPSHOT_TAKEN)
    assert victim.wait(0) == -9
    # A second kill would not find the process.
    one.at(Step.SNAPSHOT_TAKEN)
    assert made.last_mark.read_text().startswith("slot 1 killed driver")


def test_a_kill_while_it_restores_waits_until_it_has_stumbled(
    tmp_path: Path, victim: "subprocess.Popen[bytes]"
) -> None:
    let_it_run(tmp_path)
    blows = Stumble(Step.SNAPSHOT_TAKEN), Kill(Victim.DRIVER, Beside.STATE_READ, 0)
    watch = Watch(strike(tmp_path, victim.pid, *blows), slot=0)
    watch.at(Beside.STATE_READ)
    assert victim.poll() is None
    with pytest.raises(RuntimeError, match="stumbled"):
        watch.at(Step.SNAPSHOT_TAKEN)
    watch.at(Step.SNAPSHOT_TAKEN)
    watch.at(Beside.STATE_READ)
    assert victim.wait(0) == -9


def test_rows_in_flight_are_counted_in_what_is_restored(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    rows = Batch(pa.record_batch([pa.array([1, 2, 3], pa.int64())], schema=schema))
    plan = plan_of(DeduplicateSpec(1, None, None, schema), schema=schema)
    captured = {ChannelId(EdgeId(0), 0, 0): Captured((rows, rows), row=1, held=1)}
    StoredJob(plan, channels=captured).write(LocalFiles(tmp_path))
    assert look_at_restored(tmp_path, "manifest.json") == Restored(1, 5, [".channels"])
    StoredJob(plan, channels={ChannelId(EdgeId(0), 0, 0): Captured(())}).write(LocalFiles(tmp_path))
    assert look_at_restored(tmp_path, "manifest.json") == Restored(1, 0, [])
