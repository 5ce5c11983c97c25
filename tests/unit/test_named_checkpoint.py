"""`restore.from`: a savepoint, or another job's checkpoint, and what of them is refused."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.test_durable import STATE, Place, manifest, take_savepoint
from tests.unit.test_durable import place as place
from tidegate.coordinator.durable import GenerationBasis
from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.model.ids import CheckpointId
from tidegate.storage.store import LocalFiles


@pytest.fixture
def savepoint(tmp_path: Path) -> str:
    """Of another job, as its owner finds it."""
    return take_savepoint(Place(tmp_path / "other").started(), tmp_path / "mine" / "savepoint-7-g1", 7)


def started_from(place: Place, path: str) -> GenerationBasis:
    job = place.open(restore_from=path)
    job.check_compatible()
    return job.start_generation(at_ms=0)


def test_a_new_job_starts_from_a_savepoint(place: Place, savepoint: str) -> None:
    basis = started_from(place, savepoint)
    assert (basis.restore_location, basis.restore_manifest) == (savepoint, "manifest.json")
    assert (basis.restored_checkpoint, basis.next_checkpoint) == (7, 8)
    assert place.committer.committed == [], "its output was the other job's to commit"


def test_a_savepoint_that_was_moved_is_still_whole(place: Place, savepoint: str, tmp_path: Path) -> None:
    moved = Path(savepoint).rename(tmp_path / "moved")
    assert started_from(place, str(moved)).restore_location == str(moved)


@pytest.mark.parametrize("written", ["checkpoints/1-g1", "checkpoints/1-g1/", "checkpoints/1-g1/manifest.json"])
def test_a_new_job_starts_from_another_jobs_checkpoint(place: Place, tmp_path: Path, written: str) -> None:
    other = Place(tmp_path / "other")
    other.take(other.started(), manifest(1))
    basis = started_from(place, f"{other.folder}/{written}")
    assert (basis.restore_location, basis.restore_manifest) == (str(other.folder), "checkpoints/1-g1/manifest.json")


def test_another_jobs_checkpoint_whose_output_is_not_out_is_refused(place: Place, tmp_path: Path) -> None:
    """Nobody would ever commit it: this job goes on behind it, and the other one may never start again."""
    other = Place(tmp_path / "other")
    job = other.started()
    other.take(job, manifest(1))
    job.complete(manifest(2, has_state=False))
    starting = place.open(restore_from=f"{other.folder}/checkpoints/2-g1")
    with pytest.raises(
        IncompatibleCheckpoint, match="Checkpoint 2 of .* is not committed yet.*start that one once more, where"
    ):
        starting.check_compatible()
    with pytest.raises(IncompatibleCheckpoint):
        starting.start_generation(at_ms=0)
    other.open().start_generation(at_ms=1)
    starting.check_compatible()


def test_a_savepoint_whose_output_is_not_out_is_refused_while_it_lies_with_its_query(tmp_path: Path) -> None:
    other, starting = Place(tmp_path / "other"), Place(tmp_path / "new")
    job = other.started()
    folder = other.folder / "savepoints" / "savepoint-7-g1"
    LocalFiles(folder).put("0.state", STATE)
    job.complete(manifest(7, is_savepoint=True), location=str(folder))
    with pytest.raises(IncompatibleCheckpoint, match="Checkpoint 7 of .* is not committed yet"):
        starting.open(restore_from=str(folder)).check_compatible()
    job.commit(CheckpointId(7), manifest(7, is_savepoint=True))
    starting.open(restore_from=str(folder)).check_compatible()


def test_a_savepoint_whose_output_is_not_out_is_refused_wherever_it_was_written_to(tmp_path: Path) -> None:
    other, starting = Place(tmp_path / "other"), Place(tmp_path / "new")
    job, folder = other.started(), tmp_path / "backups" / "mine"
    LocalFiles(folder).put("0.state", STATE)
    told = msgspec.structs.replace(manifest(7, is_savepoint=True), job=str(other.folder))
    job.complete(told, location=str(folder))
    moved = folder.rename(tmp_path / "moved")
    with pytest.raises(IncompatibleCheckpoint, match="Checkpoint 7 of .* is not committed yet"):
        starting.open(restore_from=str(moved)).check_compatible()
    job.commit(CheckpointId(7), told)
    starting.open(restore_from=str(moved)).check_compatible()
    other.folder.rename(tmp_path / "gone")
    starting.open(restore_from=str(moved)).check_compatible()
    assert not other.folder.exists(), "looking makes nothing"


def test_a_copy_whose_log_is_not_whole_is_taken_as_it_is(place: Place, tmp_path: Path) -> None:
    """It was made while its query wrote to it."""
    other = Place(tmp_path / "other")
    other.take(other.started(), manifest(1))
    sorted((other.folder / "log").iterdir())[1].unlink()
    assert started_from(place, f"{other.folder}/checkpoints/1-g1").restored_checkpoint == 1


def test_a_jobs_own_checkpoint_comes_first(place: Place, savepoint: str) -> None:
    place.take(place.started(), manifest(1))
    basis = started_from(place, savepoint)
    assert (basis.restore_location, basis.restored_checkpoint) == (None, 1)


def test_a_start_from_nowhere_or_from_what_does_not_fit_is_refused_before_the_log_is_touched(
    place: Place, savepoint: str, tmp_path: Path
) -> None:
    nowhere = "'restore.from' is .*/nowhere', but there is no checkpoint.*nowhere/manifest.json is missing. Name one in"
    with pytest.raises(Damaged, match=nowhere):
        place.open(restore_from=str(tmp_path / "nowhere")).check_compatible()
    with pytest.raises(IncompatibleCheckpoint, match="Savepoint 7 has maxParallelism 8 and the query 16"):
        place.open(restore_from=savepoint, max_parallelism=16).check_compatible()
    with pytest.raises(IncompatibleCheckpoint, match="it has 'f' where the query has 'g'"):
        place.open(restore_from=savepoint, fingerprint=("g",)).check_compatible()
    (Path(savepoint) / "0.state").unlink()
    with pytest.raises(Damaged, match=r"0\.state"):
        place.open(restore_from=savepoint).check_compatible()
    assert place.store.list() == []
