"""A checkpoint that was passed over because it is damaged: what of it stays, and when it goes like any other."""

from pathlib import Path

import pytest

from tests.unit.test_durable import NOTHING_PENDING, SHARED_1, SHARED_2, Place, manifest, take_savepoint
from tests.unit.test_durable import place as place
from tidegate.coordinator import durable
from tidegate.model.errors import Damaged
from tidegate.model.ids import CheckpointId, Generation, TaskId
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.retention import KeepNumber
from tidegate.storage.job_log import CheckpointRetired, CheckpointSkipped
from tidegate.storage.manifests import Manifest
from tidegate.storage.store import LocalFiles


def test_a_passed_over_checkpoint_takes_no_place_of_another_and_waits_for_what_is_committed(place: Place) -> None:
    job = place.started(keep=KeepNumber(2))
    place.take(job, manifest(1))
    place.take(job, manifest(2, has_committables=False))
    (place.folder / "checkpoints" / "2-g1" / "0.state").unlink()
    again = place.open(keep=KeepNumber(2))
    again.start_generation(at_ms=1)
    place.take(again, manifest(3, generation=2))
    again.complete(manifest(4, generation=2))
    again.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == [1], "the fourth is not committed yet"
    again.commit(CheckpointId(4), manifest(4, generation=2))
    for _ in range(2):
        again.retire(NOTHING_PENDING)
        assert place.logged(CheckpointRetired) == [1, 2], "it is retired once"


def test_what_is_left_of_one_that_is_retired_is_found_by_the_next_driver(place: Place) -> None:
    job = place.started(keep=KeepNumber(1))
    place.take(job, manifest(1))
    place.take(job, manifest(2, has_committables=False, shared=[SHARED_2]))
    left = {path: place.store.read(path) for path in ("checkpoints/2-g1/0.state", SHARED_2)}
    (place.folder / "checkpoints" / "2-g1" / "manifest.json").unlink()
    again = place.open(keep=KeepNumber(1))
    again.start_generation(at_ms=1)
    place.take(again, manifest(3, generation=2))
    again.retire(NOTHING_PENDING)
    for path, data in left.items():
        place.store.put(path, data)  # as if it had been killed before it came to them
    place.open().start_generation(at_ms=2)
    assert {Path(path).parent.name for path in place.files()} == {"3-g2"}


def test_what_crashed_drivers_left_is_looked_for_also_if_damage_is_found_as_late_as_that(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = place.started()
    for checkpoint in (1, 2):
        place.take(job, manifest(checkpoint, has_committables=False))
    looked: list[int] = []

    def read(store: object, stored: Manifest, *_: object) -> dict[TaskId, bytes]:
        if stored.checkpoint == 2:
            raise Damaged("a section of it is damaged: restore it")
        return {}

    monkeypatch.setattr(durable, "read_source_states", read)
    monkeypatch.setattr(durable, "find_orphans", lambda *_, before_ms: looked.append(before_ms) or [])
    again = place.open()
    assert again.start_generation(at_ms=5).restored_checkpoint == 1
    again.start_generation(at_ms=6)
    assert looked == [5], "once for each driver"


def test_a_passed_over_savepoint_is_the_users_however_old_it_is(place: Place) -> None:
    job = place.started(keep=KeepNumber(1))
    place.take(job, manifest(1))
    folder = place.folder / "savepoints" / "savepoint-2-g1"
    take_savepoint(job, folder, 2)
    (folder / "manifest.json").unlink()
    again = place.open(keep=KeepNumber(1), rollback=SinkRollback.DUPLICATES_ALLOWED)
    assert again.start_generation(at_ms=1).restored_checkpoint == 1
    for checkpoint in (3, 4, 5):
        place.take(again, manifest(checkpoint, generation=2))
        again.retire(NOTHING_PENDING)
    assert (place.logged(CheckpointSkipped), place.logged(CheckpointRetired)) == ([2], [1, 3, 4])
    place.open().start_generation(at_ms=1 << 60)
    assert LocalFiles(folder).list() == ["0.state"], "its manifest may come back"


@pytest.mark.parametrize("damaged", ["0.state", "manifest.json"])
def test_shared_files_of_a_passed_over_checkpoint_stay_as_long_as_it_does(place: Place, damaged: str) -> None:
    job = place.started()
    place.take(job, manifest(1))
    place.take(job, manifest(2, has_committables=False, shared=[SHARED_1, SHARED_2]))
    (place.folder / "checkpoints" / "2-g1" / damaged).unlink()
    again = place.open(keep=KeepNumber(2))
    assert again.start_generation(at_ms=1).restored_checkpoint == 1
    place.take(again, manifest(3, generation=2))
    again.retire(NOTHING_PENDING)
    again.clean_up(Generation(2))
    assert place.store.list("shared") == [SHARED_1, SHARED_2]
    place.take(again, manifest(4, generation=2))
    again.retire(NOTHING_PENDING)
    assert place.store.list("shared") == []


def test_shared_files_of_a_checkpoint_that_the_same_driver_had_completed_go_with_it_too(place: Place) -> None:
    job = place.started(keep=KeepNumber(1))
    place.take(job, manifest(1))
    place.take(job, manifest(2, has_committables=False, shared=[SHARED_2]))
    job.note_damage(CheckpointId(2), "a slot could not read it")
    assert job.start_generation(at_ms=1).restored_checkpoint == 1
    place.take(job, manifest(3, generation=2))
    job.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == [1, 2]
    assert place.store.list("shared") == []


def test_shared_files_stay_as_long_as_a_retained_manifest_that_cannot_be_read_may_name_them(place: Place) -> None:
    job = place.started()
    place.take(job, manifest(1, shared=[SHARED_1]))
    place.take(job, manifest(2, shared=[SHARED_2]))
    (place.folder / "checkpoints" / "1-g1" / "manifest.json").write_bytes(b"damaged")
    again = place.open(keep=KeepNumber(2))
    assert again.start_generation(at_ms=1).restored_checkpoint == 2
    for _ in range(2):
        again.retire(NOTHING_PENDING)
        assert place.store.list("shared") == [SHARED_1, SHARED_2]
    place.take(again, manifest(3, generation=2))
    again.retire(NOTHING_PENDING)
    assert place.store.list("shared") == [SHARED_2]
