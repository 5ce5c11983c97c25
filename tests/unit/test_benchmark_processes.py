"""A run of the benchmark: what its process says is understood, and nothing of it is left behind."""

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.processes import FOLDER, Checkpoint, Results, RunFailed, check, observe

WORK_S = 0.2
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds a run's processes in /proc")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", f"import json, os, subprocess, sys, time\n{code}", FOLDER]


def test_a_run_gives_what_its_process_measured() -> None:
    checkpoint = {"id": 1, "status": "completed", "kind": "aligned", "at_s": 0.5, "ms": 5.0}
    checkpoint |= {"inflight_bytes": 0, "new_inflight_bytes": 0, "state_bytes": 9}
    said = f"""
print("some library's chatter")
print(json.dumps({{"event": "measuring"}}), flush=True)
print(json.dumps({{"event": "sample", "at_s": 1.0, "rows": 5}}), flush=True)
measured = {{"event": "measured", "rows": 12, "seconds": 3.0, "checkpoints": [{checkpoint}], "paused_ms": 7}}
print(json.dumps(measured), flush=True)
"""
    seen = observe(python(said), cores=1, timeout_s=60)

    assert (seen.rows, seen.seconds, seen.figures["paused_ms"]) == (12, 3.0, 7)
    assert seen.samples == ({"at_s": 1.0, "rows": 5},)
    assert seen.checkpoints == (Checkpoint(1, "completed", "aligned", 0.5, 5.0, 0, 0, 9),)


def test_a_run_has_its_folder_where_it_is_told_and_it_goes_with_the_run(tmp_path: Path) -> None:
    said = f"""
is_below = os.environ["TMPDIR"] == sys.argv[1] and sys.argv[1].startswith({str(tmp_path)!r})
print(json.dumps({{"event": "measured", "rows": int(is_below), "seconds": 1.0, "checkpoints": []}}), flush=True)
"""
    assert observe(python(said), cores=1, timeout_s=60, files_in=tmp_path).rows == 1
    assert list(tmp_path.iterdir()) == []


@needs_proc
def test_processor_time_is_that_of_all_processes_of_the_run_between_its_two_words() -> None:
    """Two others work before the first word and one after it; all are of the run, and stay till its end."""
    said = f"""
def working():
    code = "import time\\nwhile time.process_time() < {WORK_S}: pass\\nprint(flush=True); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout.readline()
working()
working()
print(json.dumps({{"event": "measuring"}}), flush=True)
time.sleep(1)  # till the one who measures has looked
working()
print(json.dumps({{"event": "measured", "rows": 1, "seconds": 1.0, "checkpoints": []}}), flush=True)
"""
    run = observe(python(said), cores=1, timeout_s=60)

    assert run.cpu_s is not None and 0.9 * WORK_S <= run.cpu_s < 1.8 * WORK_S


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin a process to cores")
def test_a_run_has_so_many_cores_whatever_the_machine_has() -> None:
    said = """
cores = len(os.sched_getaffinity(0))
print(json.dumps({"event": "checked", "groups": cores, "rows": 0, "total": 0, "digest": 0}))
"""
    assert check(python(said), cores=1, timeout_s=60).groups == 1


def test_a_check_gives_the_results() -> None:
    said = 'print(json.dumps({"event": "checked", "groups": 1, "rows": 2, "total": 3, "digest": 4}))'

    assert check(python(said), cores=1, timeout_s=60) == Results(1, 2, 3, 4)


def test_a_failed_run_says_what_its_process_said_last() -> None:
    with pytest.raises(RunFailed, match="ended with 3: no memory is left"):
        observe(python('print("no memory is left", file=sys.stderr); sys.exit(3)'), cores=1, timeout_s=60)


def test_of_a_failed_run_s_trace_the_error_is_kept_and_not_what_follows_it() -> None:
    said = """
trace = ["  at some.Place", "pkg.Refused: no Error", "plan.Exception: again", *["+- Node"] * 9]
print(*trace, sep=chr(10), file=sys.stderr)
sys.exit(3)
"""
    with pytest.raises(RunFailed, match="ended with 3: plan.Exception: again"):
        observe(python(said), cores=1, timeout_s=60)


def test_a_run_that_takes_too_long_is_ended() -> None:
    with pytest.raises(RunFailed, match="took too long"):
        observe(python("time.sleep(600)"), cores=1, timeout_s=0.5)


@needs_proc
def test_what_a_run_started_and_wrote_goes_with_it(tmp_path: Path) -> None:
    note = tmp_path / "note"
    said = f"""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
import tempfile
open({str(note)!r}, "w").write(f"{{child.pid}} {{sys.argv[1]}} {{tempfile.gettempdir()}}")
print(json.dumps({{"event": "checked", "groups": 1, "rows": 2, "total": 3, "digest": 4}}))
"""
    check(python(said), cores=1, timeout_s=60)

    pid, folder, folder_for_scratch = note.read_text().split()
    deadline = time.monotonic() + 10
    while _is_running(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(int(pid))
    assert folder_for_scratch == folder
    assert not os.path.exists(folder)


def _is_running(pid: int) -> bool:
    try:
        return "(python" in (stat := Path(f"/proc/{pid}/stat").read_text()) and ") Z" not in stat
    except FileNotFoundError:
        return False
