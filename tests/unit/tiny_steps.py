"""Rows on disk in tests: all that is done bit by bit, or for many only, shows with a few."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from tests.in_memory import folder_in_memory
from tidegate.operators import block_marks, compaction, log_book, logged_rows, rows_on_disk
from tidegate.state.contract import Section
from tidegate.worker.state_backends import RocksBackends


def take_tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_on_disk, "_LEAST_WRITTEN", 3)
    monkeypatch.setattr(rows_on_disk, "_LOOKED_UP", 5)
    monkeypatch.setattr(log_book, "PART_ROWS", 4)
    monkeypatch.setattr(log_book, "FILE_ROWS", 8)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 3)
    monkeypatch.setattr(log_book, "_FEW_ROWS", 4)
    monkeypatch.setattr(logged_rows, "_MOST_GONE", 6)
    monkeypatch.setattr(log_book, "_MOST_UNWRITTEN_ROWS", 20)
    monkeypatch.setattr(logged_rows, "_LOOKED_AT", 5)
    monkeypatch.setattr(logged_rows, "_FEW_PARTS", 0)
    monkeypatch.setattr(block_marks, "LEAST_SLOTS", 20)
    monkeypatch.setattr(block_marks, "_STEP_BLOCKS", 1)
    monkeypatch.setattr(block_marks, "_SAMPLE_BLOCKS", 1)
    monkeypatch.setattr(compaction, "MOST_COPIED_KEYS", 5)
    monkeypatch.setattr(compaction, "MOST_COPIED_BYTES", 64)


def run_steps(sections: Iterable[Section], most: int) -> None:
    """Up to so many of those in which a snapshot is stored."""
    for section in sections:
        if section.steps is not None:
            deque(islice(section.steps(), most), maxlen=0)


@contextmanager
def opened_backends(*, rows_memory_bytes: int) -> Iterator[RocksBackends]:
    with folder_in_memory() as folder:
        backends = RocksBackends(folder, memory_bytes=8 << 20, rows_memory_bytes=rows_memory_bytes)
        yield backends
        backends.close()
