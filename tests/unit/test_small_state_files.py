"""What a slot stores in files and what in the manifest, and what it learns by that about the speed of storage."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.test_snapshotting import (
    CHANNEL,
    ONE,
    PLAN,
    SINK,
    SOURCE,
    THREE,
    TWO,
    Slot,
    received,
    rows,
    write_manifest,
)
from tidegate.connectors.contract import Prepared
from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.network.messages import Acknowledge
from tidegate.plan.physical import JobPlan
from tidegate.protocol.switching import UNKNOWN_SPEED, StorageSpeed
from tidegate.storage.store import Data, LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.restoring import restore_slot
from tidegate.worker.settings import SlotSettings


@dataclass(frozen=True, slots=True)
class SlowFiles(LocalFiles):
    """Takes 10 ms for each file."""

    clock: ManualClock

    def put(self, path: str, data: Data) -> None:
        self.clock.advance(10.0)
        LocalFiles.put(self, path, data)


def test_the_speed_of_storage_counts_all_that_was_stored_and_nothing_but_storing(tmp_path: Path) -> None:
    clock = ManualClock()
    slot = Slot(SlowFiles(tmp_path, clock), clock=clock)
    assert slot.snapshots.storage_speed() == UNKNOWN_SPEED
    slot.take(ONE)
    slot.upload()
    slot.trigger(TWO)
    slot.snapshot(SOURCE, TWO)
    slot.snapshot(SINK, TWO, Prepared([], lambda: slot.clock.advance(1000.0)))
    slot.close(TWO, [received([(4, rows(*range(20_000)))], held_from=5, before=5)])
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    ack = slot.said[1]
    assert isinstance(ack, Acknowledge)
    (channels,) = ack.shared
    assert slot.snapshots.storage_speed() == StorageSpeed(ack.length + channels.length, 20.0)


def taken(slot: Slot, checkpoint: CheckpointId, captured_rows: int = 1) -> Acknowledge:
    slot.trigger(checkpoint)
    slot.snapshot(SOURCE, checkpoint)
    slot.snapshot(SINK, checkpoint)
    slot.close(checkpoint, [received([(4, rows(*range(captured_rows)))], held_from=5, before=5)])
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    (*_, ack) = slot.said
    assert isinstance(ack, Acknowledge)
    return ack


def test_a_small_state_file_goes_into_the_manifest_once_the_speed_of_storage_is_known(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SlowFiles(tmp_path, clock)
    slot = Slot(store, clock=clock, in_manifest_below_bytes=20 << 10)
    first, second = taken(slot, ONE), taken(slot, TWO)
    assert (first.content, store.list()) == (None, ["checkpoints/1-g3/0.state"])
    assert second.content is not None and len(second.content) == second.length
    assert slot.snapshots.storage_speed() == StorageSpeed(first.length, 10.0), "nothing was stored, nothing measured"
    store.put(first.path, b"of another checkpoint")
    restore = restore_slot(store, write_manifest(store, second), PLAN, SlotIndex(0))
    assert restore.recovered[CHANNEL].elements[0].element == rows(0)


def test_storage_is_measured_again_after_a_while_by_a_file(tmp_path: Path) -> None:
    clock = ManualClock()
    slot = Slot(SlowFiles(tmp_path, clock), clock=clock, in_manifest_below_bytes=20 << 10)
    taken(slot, ONE)
    clock.advance(59_000.0)
    assert taken(slot, TWO).content is not None
    clock.advance(1_000.0)
    assert taken(slot, THREE).content is None


def test_large_captures_and_large_states_are_files(tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    slot = Slot(store, in_manifest_below_bytes=20 << 10)
    taken(slot, ONE)
    captured = taken(slot, TWO, captured_rows=5_000)
    assert captured.content is not None and [file.path for file in captured.shared] == ["shared/2-g3-s0.channels"]
    small = Slot(store, in_manifest_below_bytes=100)
    taken(small, ONE)
    assert taken(small, TWO).content is None


def test_a_savepoint_has_the_same_files_whatever_its_size(tmp_path: Path) -> None:
    savepoints = LocalFiles(tmp_path / "saved")
    slot = Slot(LocalFiles(tmp_path / "chk"), savepoints=savepoints, in_manifest_below_bytes=20 << 10)
    taken(slot, ONE)
    slot.trigger(TWO, savepoint="saved")
    slot.snapshot(SOURCE, TWO)
    slot.snapshot(SINK, TWO)
    slot.close(TWO)
    slot.snapshots.encode_some(float("inf"))
    slot.upload()
    assert savepoints.list() == ["0.state"]


@pytest.mark.parametrize(("slots", "below_bytes"), [(1, 40 << 10), (13, 40329), (2000, 262)])
def test_manifests_stay_short_with_many_slots(slots: int, below_bytes: int) -> None:
    plan = JobPlan((), (), parallelism=slots, max_parallelism=4096)
    settings = SlotSettings(plan=plan, checkpoint_location="", window_bytes=1, state_backend="heap")
    assert settings.in_manifest_below_bytes() == below_bytes
