"""The programs that benchmarks run: each ends by itself and says what it saw. How fast it was is no matter here."""

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.flink import environment
from benchmarks.processes import FOLDER, observe

SECONDS = {"warm_up_s": 0, "measure_s": 1.2, "interval_ms": 200, "slots": 2}
SLOWLY = {"keys": 100, "row_bytes": 200, "delay_us": 1000}
TOTALS = {"key_type": "long", "keys": 100}
FLINK_IS_HERE = (environment.ROOT / ".bench" / "flink" / ".installed").exists() and shutil.which("javac") is not None


def test_a_checkpoint_benchmark_of_ours_tells_rows_checkpoints_and_what_memory_cost() -> None:
    work = {**SECONDS, **SLOWLY, "measure_s": 2, "tidegate.checkpoint.unaligned": "true"}
    named = [f"{name}={value}" for name, value in {**work, "folder": FOLDER}.items()]

    seen = observe(
        [sys.executable, "-m", "benchmarks.systems.tidegate_pipeline", *named],
        cores=2,
        timeout_s=120,
        extra_environment={"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
    )

    assert seen.rows > 0 and seen.figures["pulled"] > 0 and seen.figures["arrow_bytes"] > 0
    assert any(one.status == "completed" and one.kind == "unaligned" for one in seen.checkpoints)
    assert seen.samples and seen.memory[0].workers_bytes > 0


@pytest.mark.skipif(not FLINK_IS_HERE, reason="make bench installs Flink")
@pytest.mark.parametrize(
    ("job", "work"),
    [
        ("Pipeline", SLOWLY),
        ("Pipeline", {**SLOWLY, "rows_per_second": 500}),
        ("KeyedTotals", TOTALS),
        ("SqlTotals", TOTALS),
    ],
)
def test_each_job_of_flink_compiles_runs_and_tells(job: str, work: dict[str, object]) -> None:
    seen = observe(environment.prepare().command(job, {**SECONDS, **work}, folder=FOLDER), cores=2, timeout_s=120)

    assert seen.rows > 0
    assert all(one.status != "failed" for one in seen.checkpoints)
