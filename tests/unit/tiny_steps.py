"""Rows on disk in tests: all that is done bit by bit, or for many only, shows with a few."""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from math import inf
from typing import Any

import pytest

from tests.in_memory import folder_in_memory
from tidegate.model.ids import KeyGroupRange
from tidegate.operators import (
    block_marks,
    compaction,
    evicted_rows,
    log_book,
    logged_rows,
    logged_sessions,
    parts,
    rows_on_disk,
    sessions_on_disk,
)
from tidegate.operators.accumulators import chains, grouped_entries
from tidegate.state.contract import Section
from tidegate.state.row_store import RowStore, RunStore
from tidegate.worker.state_backends import HeapBackends, RocksBackends, StateBackends


def take_tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_on_disk, "_LEAST_WRITTEN", 3)
    monkeypatch.setattr(rows_on_disk, "_PUT_AT_ONCE", 2)
    monkeypatch.setattr(rows_on_disk, "_LOOKED_UP", 5)
    monkeypatch.setattr(sessions_on_disk, "_LEAST_WRITTEN", 3)
    monkeypatch.setattr(sessions_on_disk, "_AT_ONCE", 2)
    monkeypatch.setattr(log_book, "PART_ROWS", 4)
    monkeypatch.setattr(log_book, "FILE_ROWS", 8)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 3)
    monkeypatch.setattr(log_book, "_FEW_ROWS", 4)
    monkeypatch.setattr(log_book, "AHEAD", log_book.Rule(stored_per_live=2, small_files=2))
    monkeypatch.setattr(log_book, "AT_BARRIER_AFTER_AHEAD", log_book.Rule(stored_per_live=3, small_files=4))
    monkeypatch.setattr(logged_rows, "_MOST_GONE", 6)
    monkeypatch.setattr(log_book, "_MOST_UNWRITTEN_ROWS", 20)
    monkeypatch.setattr(logged_rows, "_LOOKED_AT", 5)
    monkeypatch.setattr(logged_rows, "_MARKED", 2)
    monkeypatch.setattr(logged_sessions, "_LOOKED_AT", 5)
    monkeypatch.setattr(logged_rows, "_FEW_PARTS", 0)
    monkeypatch.setattr(block_marks, "LEAST_SLOTS", 20)
    monkeypatch.setattr(block_marks, "_STEP_BLOCKS", 1)
    monkeypatch.setattr(block_marks, "_SAMPLE_BLOCKS", 1)
    monkeypatch.setattr(parts, "PART_BYTES", 200)
    monkeypatch.setattr(evicted_rows, "READ_BYTES", 300)
    monkeypatch.setattr(evicted_rows, "_FIRST_READ", 2)
    monkeypatch.setattr(evicted_rows, "_MOST_READ", 5)
    monkeypatch.setattr(chains, "_LEAST_ROOM", 1)
    monkeypatch.setattr(chains, "_MOST_ROOM", 3)
    monkeypatch.setattr(grouped_entries, "_FEW_ENTRIES", 2)
    monkeypatch.setattr(grouped_entries, "MOST_COPIED", 3)
    monkeypatch.setattr(compaction, "MOST_COPIED_KEYS", 5)
    monkeypatch.setattr(compaction, "MOST_COPIED_BYTES", 64)


def run_steps(sections: Iterable[Section], most: int) -> None:
    """Up to so many of those in which a snapshot is stored."""
    for section in sections:
        if section.steps is not None:
            deque(islice(section.steps(), most), maxlen=0)


def take_ahead(operator: Any, most: int) -> None:
    """Up to so many parts of what changed, as between checkpoints with a changelog; whole files are written."""
    for _ in range(most):
        if (log := operator._log_now()) is None:
            return
        log.take_part()
        for file in log.taken_files():
            deque(file.steps(), maxlen=0)


class InTurn:
    """Each operator that is opened gets another backend: what one of them has stored, the next one reads."""

    def __init__(self, backends: Iterable[StateBackends]) -> None:
        self._backends = list(backends)
        self._turns = cycle(self._backends)

    def open_rows(self, key_groups: KeyGroupRange) -> RowStore:
        return next(self._turns).open_rows(key_groups)

    def open_runs(self, key_groups: KeyGroupRange) -> RunStore:
        return next(self._turns).open_runs(key_groups)

    def close(self) -> None:
        for backends in self._backends:
            backends.close()


@contextmanager
def opened_backends(*, rows_memory_bytes: int | None) -> Iterator[RocksBackends | InTurn]:
    """None: one after the other, with all rows in memory: in logs always, when there are some, or never."""
    with folder_in_memory() as folder:
        backends: RocksBackends | InTurn
        if rows_memory_bytes is not None:
            backends = RocksBackends(folder, memory_bytes=8 << 20, rows_memory_bytes=rows_memory_bytes)
        else:
            rocks = RocksBackends(folder, memory_bytes=8 << 20, rows_memory_bytes=1 << 30)
            up_to_bytes = (0, 1000, 3000, inf)
            backends = InTurn([*(HeapBackends(folder, rows_whole_up_to_bytes=each) for each in up_to_bytes), rocks])
        yield backends
        backends.close()
