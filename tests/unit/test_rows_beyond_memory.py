"""Groups and keys that do not fit into memory do not have to when they are restored, nor when they end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.unit import test_groups_on_disk as groups
from tests.unit.test_heap_rows_by_changes import Running, in_memory
from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import KeyGroupRange
from tidegate.operators import aggregate, deduplicate, logged_rows
from tidegate.operators.evicted_rows import Ends, EvictedRows
from tidegate.plan.key_groups import hash_rows
from tidegate.state.contract import ROW_LOG_SECTION
from tidegate.state.stepwise_file import Pieces, StepwiseFile
from tidegate.testing.state_suite import restored_from
from tidegate.worker.state_backends import HeapBackends, RocksBackends

ALL = KeyGroupRange(0, 8)
MANY = 20_000
# Room for some two thousand of any.
MEMORY_BYTES = 1 << 19
A_THIRD = MANY // 3


@pytest.fixture
def backends(tmp_path: Path) -> Iterator[RocksBackends]:
    opened = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=MEMORY_BYTES)
    yield opened
    opened.close()


def filled(running: Running) -> Running:
    for start in range(0, MANY, 500):
        running.process(range(start, start + 500))
    return running


@pytest.mark.parametrize("name", ["windows", "timed keys"])
def test_rows_that_end_are_not_all_in_memory_at_once(
    name: str, backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "LEAST_FIRED_GROUPS", 500)
    monkeypatch.setattr(aggregate, "EMIT_BATCH_ROWS", 500)
    monkeypatch.setattr(deduplicate, "MOST_FOUND", 500)
    for module, few in ((aggregate, "_FEW_GROUPS"), (deduplicate, "_FEW_KEYS")):
        monkeypatch.setattr(module, few, 1_000)
    operator = filled(Running(name, backends)).operator
    assert operator.index.count < A_THIRD
    operator.on_watermark(60_000)
    counts, out = [], []
    while operator.fire(500, out.append):
        counts.append(operator.index.count)
    assert max(counts) < A_THIRD
    assert operator.index.count < 2_000
    if name == "windows":
        assert sum(rows.num_rows for rows in out) == MANY


@pytest.mark.parametrize("name", ["groups", "windows", "keys", "timed keys"])
def test_a_restore_from_memory_keeps_no_more_there_than_there_is_room_for(
    name: str, backends: RocksBackends, tmp_path: Path
) -> None:
    heap = HeapBackends(tmp_path)
    stored = filled(Running(name, heap)).stored()
    heap.close()
    running = Running(name, backends, stored)
    assert running.operator.index.count < A_THIRD
    passed: list[Any] = []
    for start in range(0, MANY, 500):
        running.operator.process(running._rows(range(start, start + 500)), passed.append)
    if "keys" in name:
        assert passed == [], "all were seen before"
    else:
        running.operator.on_watermark(60_000)
        running.operator.before_barrier(passed.append)
        while running.operator.fire(1 << 16, passed.append):
            pass
        counted = pa.Table.from_batches(passed).column(running.operator._spec.key_count)
        assert np.unique(counted.to_numpy(), return_counts=True)[1].max() >= MANY
        assert counted.to_numpy().max() == 2


def test_a_restore_from_several_logs_keeps_no_more_in_memory_than_there_is_room_for(tmp_path: Path) -> None:
    spec = groups.SPECS["update"]
    opened = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=1 << 30)
    halves = [groups.Subtask(spec, KeyGroupRange(first, first + 2), opened) for first in (0, 2, 4, 6)]
    for half in halves:
        half.process(groups.numbered(spec, range(MANY)))
        half.settle()
    taken = [half.snapshot() for half in halves]
    whole, logged = ([section for each in taken for section in restored_from(each[at])] for at in (0, 1))
    one = groups.Subtask(spec, ALL, groups.replace_memory(opened, 4 * MEMORY_BYTES), (whole, logged))
    assert one.operators[0].index.count == MANY
    assert one.operators[1].index.count < A_THIRD
    one.process(groups.numbered(spec, range(MANY)))
    in_memory_rows, on_disk_rows = (groups._newest(groups._rows_of(out), spec.key_count) for out in one.settle())
    assert on_disk_rows == in_memory_rows and len(on_disk_rows) == MANY
    opened.close()


def test_finding_that_nothing_is_due_reads_one_entry_of_each_key_group(
    backends: RocksBackends, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("end", pa.int64()), ("n", pa.int64())])
    rows = EvictedRows(
        backends.open(ALL),
        schema,
        key_count=2,
        max_parallelism=8,
        ends=Ends(lambda keys: keys[0].to_numpy().astype(np.int64), is_in_key=True),
        restored=[],
    )
    ends = np.repeat([10, 20], 4_000)
    columns = [pa.array(ends), pa.array(np.arange(8_000))]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    rows.put(columns, hash_rows(batch, 2), most_seen_bytes=0)
    read: list[int] = []
    entries_from = rows._state.entries_from

    def counted(*args: Any, **kwargs: Any) -> Any:
        found = entries_from(*args, **kwargs)
        read.append(len(found))
        return found

    monkeypatch.setattr(rows._state, "entries_from", counted)
    # As after a restore, when it is not known what ends first.
    rows._first_ends_us[:] = np.iinfo(np.int64).min
    assert rows.due(np.full(8, 5), range(8), 1 << 16) is None
    assert sum(read) == 8
    assert rows.due(np.full(8, 5), range(8), 1 << 16) is None
    assert sum(read) == 8, "and only once"
    found = rows.due(np.full(8, 10), range(8), 1 << 16)
    assert found is not None and found.column("end").to_pylist() == [10] * 4_000
    assert sum(read) == 8 + 4_000
    assert rows.due(np.full(8, 10), range(8), 100) is not None, "they stay until they are deleted"


def test_keys_that_end_while_the_disk_is_full_end_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heap = HeapBackends(tmp_path, rows_whole_up_to_bytes=1_000)
    running = filled(Running("timed keys", heap))
    running.stored()
    monkeypatch.setattr(logged_rows, "_MOST_GONE", 100)

    def full(file: StepwiseFile, pieces: Pieces | None) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StepwiseFile, "_write", full)
        running.operator.on_watermark(60_000)
        while running.operator.fire(500, lambda rows: None):
            pass
    stored = running.stored()
    assert {section.name for section in stored}.isdisjoint({ROW_LOG_SECTION}), "whole from then on"
    assert in_memory("timed keys", stored, tmp_path) == []
    heap.close()


@pytest.mark.parametrize("name", ["groups", "keys"])
def test_a_disk_that_is_full_costs_one_checkpoint_on_rocksdb_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = RocksBackends(tmp_path, memory_bytes=8 << 20, rows_memory_bytes=1 << 30)
    heap = HeapBackends(tmp_path)
    running, whole = filled(Running(name, opened)), filled(Running(name, heap))

    def full(file: StepwiseFile, pieces: Pieces | None) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StepwiseFile, "_write", full)
        for _ in range(2):
            with pytest.raises(DidNotHappen, match="No space left"):
                running.stored()
    for each in (running, whole):
        each.process(range(MANY - 100, MANY + 100))
    assert in_memory(name, running.stored(), tmp_path) == in_memory(name, whole.stored(), tmp_path)
    opened.close()
    heap.close()
