"""What a restore is said to read is what it reads, whoever captured the rows in flight, and with other slots too."""

from itertools import chain
from pathlib import Path

import pytest

from tests.unit.test_restoring import EDGES, MANIFEST, Job, _heap_sections, _one_of_each, in_flight, plan_of
from tidegate.model.ids import SlotIndex, TaskId
from tidegate.protocol.recovery import CapturedRows
from tidegate.state import heap
from tidegate.state.contract import Section
from tidegate.storage.store import LocalFiles
from tidegate.worker.restored_bytes import bytes_to_read
from tidegate.worker.restoring import restore_slot


@pytest.mark.parametrize("kind", EDGES)
@pytest.mark.parametrize(("old", "new"), [(3, 3), (1, 4), (4, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("inline_below_bytes", [0, 1 << 20])
@pytest.mark.parametrize("captured_rows", CapturedRows)
def test_it_is_what_the_slots_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    old: int,
    new: int,
    inline_below_bytes: int,
    captured_rows: CapturedRows,
) -> None:
    """Rows that are dropped are read too, to be counted."""
    monkeypatch.setattr(heap, "SECTION_TARGET_BYTES", 1)
    plan, new_plan, store = plan_of(old, EDGES[kind]), plan_of(new, EDGES[kind]), LocalFiles(tmp_path)

    def sections(task: TaskId) -> list[Section]:
        return [*_heap_sections(task, plan), *_one_of_each(task)] if task.vertex else []

    manifest = Job(store, plan, in_flight(plan), sections=sections, inline_below_bytes=inline_below_bytes).write()
    told = bytes_to_read(store, manifest, new_plan, captured_rows)
    for slot in range(new):
        restored = restore_slot(store, MANIFEST, new_plan, SlotIndex(slot), captured_rows=captured_rows)
        for task in restored.tasks.values():
            for section in chain.from_iterable(task.sections.values()):
                _ = section.data
        assert told[slot] == restored.reads.remotely


@pytest.mark.parametrize(("old", "new"), [(2, 2), (2, 4)])
def test_files_of_rows_that_senders_held_are_read_by_every_receiver(tmp_path: Path, old: int, new: int) -> None:
    plan, store = plan_of(old), LocalFiles(tmp_path)
    manifest = Job(store, plan, in_flight(plan), inline_below_bytes=0).write()
    captured = [file.length for slot in manifest.slots for file in slot.shared]
    assert len(captured) == old
    for told in bytes_to_read(store, manifest, plan_of(new)):
        assert told > sum(captured)
