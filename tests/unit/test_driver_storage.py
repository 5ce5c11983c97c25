"""How much may be in a manifest, and what is said when it is more."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.test_durable import Place, manifest
from tests.unit.test_durable import place as place
from tidegate.model.errors import Damaged, DidNotHappen
from tidegate.model.ids import CheckpointId, Generation, KeyGroupRange, SlotIndex, TaskId, VertexId
from tidegate.network.messages import Acknowledge, Decline, SnapshotsTaken
from tidegate.protocol.kinds import CheckpointKind, CheckpointStorage
from tidegate.state.contract import LocalFile, Section
from tidegate.storage.manifests import MOST_CONTENT_BYTES, Manifest, decode_manifest, encode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.simulation.world import SimBackground
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.stored_task import StoredTask
from tidegate.worker.task_reports import TaskSnapshot

TASK = TaskId(VertexId(0), 0)
ONE = CheckpointId(1)
TOO_MUCH = "checkpoint.storage=driver keeps at most 5.0 MiB in the manifest: set checkpoint.storage to files"


def stored(folder: Path, section: Section) -> Acknowledge | Decline:
    """What a slot with this section says, having stored nothing in the store."""
    said: list[Acknowledge | Decline | SnapshotsTaken] = []
    background = SimBackground()
    snapshots = SlotSnapshots(
        slot=SlotIndex(0),
        generation=Generation(1),
        tasks=[TASK],
        store=LocalFiles(folder / "chk"),
        open_location=lambda location: LocalFiles(Path(location)),
        background=background,
        clock=ManualClock(),
        inline_below_bytes=0,
        send=said.append,
        storage=CheckpointStorage.DRIVER,
    )
    snapshots.on_trigger(ONE, savepoint=None)
    snapshot = TaskSnapshot(
        task=TASK,
        checkpoint=ONE,
        kind=CheckpointKind.ALIGNED,
        start_delay_ms=0.0,
        alignment_ms=0.0,
        sync_ms=0.0,
        sections=[(0, section)],
        source_state=None,
        progress=StoredTask(),
        prepared=None,
        state_bytes=0,
    )
    snapshots.on_snapshot(snapshot)
    snapshots.on_received(TASK, ONE, ())
    snapshots.on_held(TASK, ONE, [])
    snapshots.encode_some(float("inf"))
    while background.work_once() or background.note_once():
        pass
    assert LocalFiles(folder / "chk").list() == []
    return next(message for message in said if not isinstance(message, SnapshotsTaken))


def state_of(size_bytes: int) -> Section:
    return Section("keyed/count", KeyGroupRange(0, 4), lambda: bytes(size_bytes))


def test_what_a_slot_stores_goes_to_the_driver(tmp_path: Path) -> None:
    message = stored(tmp_path, state_of(4 << 20))
    assert isinstance(message, Acknowledge)
    assert message.content is not None and len(message.content) == message.length > 4 << 20
    assert message.shared == []


@pytest.mark.parametrize("size_bytes", [MOST_CONTENT_BYTES, 6 << 20])
def test_a_slot_declines_what_is_too_much(tmp_path: Path, size_bytes: int) -> None:
    message = stored(tmp_path, state_of(size_bytes))
    assert isinstance(message, Decline) and TOO_MUCH in message.reason


def test_files_of_state_count_as_well(tmp_path: Path) -> None:
    def files(*sizes: int) -> Section:
        made = []
        for number, size in enumerate(sizes):
            path = tmp_path / f"{number}.sst"
            path.write_bytes(bytes(size))
            made.append(LocalFile(f"{number}.sst", path, size, None))
        return Section("sst", KeyGroupRange(0, 4), lambda: b"", files=lambda: made)

    small = stored(tmp_path, files(1 << 20, 2 << 20))
    assert isinstance(small, Acknowledge) and small.length > 3 << 20 and small.shared == []
    large = stored(tmp_path, files(3 << 20, 3 << 20))
    assert isinstance(large, Decline) and TOO_MUCH in large.reason


def with_content(checkpoint: int, *contents: bytes) -> Manifest:
    made = manifest(checkpoint)
    slots = [msgspec.structs.replace(made.slots[0], slot=SlotIndex(at), content=c) for at, c in enumerate(contents)]
    return msgspec.structs.replace(made, slots=slots)


def test_slots_that_are_small_may_be_too_much_together(place: Place) -> None:
    job = place.started()
    with pytest.raises(DidNotHappen, match=TOO_MUCH):
        job.complete(with_content(1, bytes(3 << 20), bytes(3 << 20)))
    assert place.files() == []
    job.complete(with_content(2, bytes(2 << 20), bytes(2 << 20)))
    assert place.files() == ["checkpoints/2-g1/manifest.json"]


def test_a_manifest_is_all_that_is_checked(place: Place) -> None:
    job = place.started()
    job.complete(with_content(1, b"what a slot stored"))
    assert place.open().start_generation(at_ms=1).restored_checkpoint == 1
    path = place.folder / "checkpoints/1-g1/manifest.json"
    path.write_bytes(path.read_bytes().replace(b"d2hhdCBh", b"d2hhdCBi"))
    with pytest.raises(Damaged, match="manifest.json cannot be used: its checksum is wrong"):
        place.open().check_compatible()


def test_content_comes_back_as_it_was() -> None:
    made = with_content(1, bytes(range(256)))
    assert decode_manifest(encode_manifest(made), name="m") == made
