"""A run of the benchmark: what its process says is understood, and nothing of it is left behind."""

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.runs import FOLDER, Results, RunFailed, check, measure


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import json, os, subprocess, sys, time\n{code}", FOLDER]


def test_a_run_gives_what_its_process_measured() -> None:
    said = """
print("some library's chatter")
print(json.dumps({"event": "measuring"}), flush=True)
print(json.dumps({"event": "measured", "rows": 12, "seconds": 3.0, "checkpoints_ms": [5, 7]}), flush=True)
"""
    run = measure(python(said), cores=1, timeout_s=60)

    assert (run.rows, run.seconds, run.checkpoints_ms) == (12, 3.0, (5, 7))


def test_a_check_gives_the_results() -> None:
    said = 'print(json.dumps({"event": "checked", "groups": 1, "rows": 2, "total": 3, "digest": 4}))'

    assert check(python(said), cores=1, timeout_s=60) == Results(1, 2, 3, 4)


def test_a_failed_run_says_what_its_process_said_last() -> None:
    with pytest.raises(RunFailed, match="ended with 3: no memory is left"):
        measure(python('print("no memory is left", file=sys.stderr); sys.exit(3)'), cores=1, timeout_s=60)


def test_a_run_that_takes_too_long_is_ended() -> None:
    with pytest.raises(RunFailed, match="took too long"):
        measure(python("time.sleep(600)"), cores=1, timeout_s=0.5)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a run's processes in /proc")
def test_what_a_run_started_and_wrote_goes_with_it(tmp_path: Path) -> None:
    note = tmp_path / "note"
    said = f"""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
open({str(note)!r}, "w").write(f"{{child.pid}} {{sys.argv[1]}}")
print(json.dumps({{"event": "checked", "groups": 1, "rows": 2, "total": 3, "digest": 4}}))
"""
    check(python(said), cores=1, timeout_s=60)

    pid, folder = note.read_text().split()
    deadline = time.monotonic() + 10
    while _is_running(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(int(pid))
    assert not os.path.exists(folder)


def _is_running(pid: int) -> bool:
    try:
        return "(python" in (stat := Path(f"/proc/{pid}/stat").read_text()) and ") Z" not in stat
    except FileNotFoundError:
        return False
