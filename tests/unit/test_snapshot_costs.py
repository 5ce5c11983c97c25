"""What a slot tells of its part of a checkpoint for those who ask why: what encoding took, how fast the store is."""

from pathlib import Path

import pytest

from tests.unit.test_snapshotting import ONE, SINK, SOURCE, TWO, Slot
from tidegate.network.messages import Acknowledge
from tidegate.protocol.kinds import CheckpointStorage
from tidegate.protocol.switching import UNKNOWN_SPEED, StorageSpeed
from tidegate.storage.store import Data, LocalFiles


def test_what_encoding_took_of_the_loop_is_told_without_what_the_stream_did_in_between(tmp_path: Path) -> None:
    slot = Slot(LocalFiles(tmp_path))

    def encode() -> bytes:
        slot.clock.advance(7.0)
        return b"state"

    slot.trigger(ONE)
    for task in (SOURCE, SINK):
        slot.snapshot(task, ONE, encoder=encode)
    slot.close(ONE)
    while slot.snapshots.has_work():
        slot.snapshots.encode_some(0.0)
        slot.clock.advance(100.0)
    slot.upload()
    (ack,) = slot.said
    assert isinstance(ack, Acknowledge) and ack.standing is not None
    assert ack.standing.encoded_for_ms == 7.0


@pytest.mark.parametrize("storage", CheckpointStorage)
def test_how_fast_the_store_is_is_told_of_the_last_upload_also_where_the_manifest_takes_the_state(
    tmp_path: Path, storage: CheckpointStorage
) -> None:
    class Slow(LocalFiles):
        def put(self, path: str, data: Data) -> None:
            slot.clock.advance(30.0)
            super().put(path, data)

    slot = Slot(Slow(tmp_path), in_manifest_below_bytes=1 << 20, storage=storage)
    for checkpoint in (ONE, TWO):
        slot.take(checkpoint)
        slot.upload()
    first, second = slot.said
    assert isinstance(first, Acknowledge) and first.standing is not None
    assert isinstance(second, Acknowledge) and second.standing is not None and second.content is not None
    if storage is CheckpointStorage.DRIVER:
        assert second.standing.storage == UNKNOWN_SPEED, "the slot stored nothing"
    else:
        assert second.standing.stored_bytes == 0
        assert first.standing.storage == second.standing.storage == StorageSpeed(first.length, 30.0)
