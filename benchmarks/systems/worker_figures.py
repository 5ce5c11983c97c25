"""What a Python worker did for memory: bytes that Arrow allocated, what the collector went over, and how long it took.

Runs inside a worker, started by the benchmark's own function, so that the product needs no hook for it.
"""

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

_WRITE_EVERY_S = 0.25
_of_process: "dict[int, WorkerFigures]" = {}


class WorkerFigures:
    """Writes its figures to a file of its process, again and again."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / f"worker-{os.getpid()}.json"
        self._next_s = 0.0
        self._collecting_since_s = 0.0
        self._gc_ms = 0.0
        self._gc_runs = 0
        self._gc_objects = 0
        gc.callbacks.append(self._on_collection)

    @classmethod
    def of_process(cls, folder: str) -> "WorkerFigures":
        """One for all subtasks that share a process."""
        if os.getpid() not in _of_process:
            _of_process[os.getpid()] = cls(folder)
        return _of_process[os.getpid()]

    def is_due(self) -> bool:
        """True each quarter of a second, when the figures were written."""
        if (now_s := time.monotonic()) < self._next_s:
            return False
        self._next_s = now_s + _WRITE_EVERY_S
        pool = pa.default_memory_pool()
        figures = {
            "arrow_bytes": pool.total_bytes_allocated(),
            "arrow_allocations": pool.num_allocations(),
            "gc_ms": self._gc_ms,
            "gc_runs": self._gc_runs,
            "gc_objects": self._gc_objects,
        }
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps(figures))
        unfinished.rename(self._path)
        return True

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_since_s = time.perf_counter()
            return
        self._gc_ms += (time.perf_counter() - self._collecting_since_s) * 1000
        self._gc_runs += 1
        self._gc_objects += info["collected"]


def read_figures(folder: str) -> dict[str, float]:
    """The sums over all workers so far."""
    sums: dict[str, float] = {}
    for path in Path(folder).glob("worker-*.json"):
        for name, value in json.loads(path.read_text()).items():
            sums[name] = sums.get(name, 0) + value
    return sums
