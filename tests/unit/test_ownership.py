"""Whose a checkpoint is: what a job may remove of a foreign one, when it is stopped, and of its own crashed past."""

import logging
from contextlib import suppress
from pathlib import Path

import pytest

from tests.unit.test_durable import STATE, Committer, Place, manifest, take_savepoint
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.model.errors import DidNotHappen, StorageFailure
from tidegate.model.ids import CheckpointId, Generation
from tidegate.plan.physical import JobPlan
from tidegate.protocol.retention import KeepFor, KeepNumber, OnCancel, RestoreMode
from tidegate.storage.job_log import CheckpointClaimed, CheckpointRetired, JobLog, claimed_checkpoint
from tidegate.storage.store import LocalFiles
from tidegate.testing.faulty_store import (
    EVERY_FAULT,
    Faults,
    FaultyStore,
    Outcome,
    Result,
    ScriptedFaults,
    StoreOperation,
    no_faults,
)


@pytest.fixture
def foreign(tmp_path: Path) -> Place:
    """Another job, with two checkpoints that share a file, and a savepoint."""
    place = Place(tmp_path / "foreign")
    job = place.started()
    place.take(job, manifest(1, shared=["shared/1-g1-s0.channels", "shared/1-g1-s0.0a-1.sst"]))
    place.take(job, manifest(2, shared=["shared/1-g1-s0.0a-1.sst", "shared/2-g1-s0.0a-2.sst"]))
    take_savepoint(job, tmp_path / "savepoint", 3)
    return place


def started_from(
    place: Place,
    path: Path,
    mode: RestoreMode,
    *,
    keep: KeepNumber | KeepFor = KeepNumber(2),  # noqa: B008
    faults: Faults = no_faults,
) -> DurableJob:
    settings = DurableSettings(fingerprint=("f",), keep=keep, restore_from=str(path), restore_mode=mode)
    job = opened(place, settings, faults)
    basis = job.start_generation(at_ms=0)
    assert basis.restored_checkpoint is not None
    return job


def opened(place: Place, settings: DurableSettings, faults: Faults = no_faults) -> DurableJob:
    """`faults` strike what is elsewhere."""
    return DurableJob(
        place.store,
        place.committer,
        JobPlan((), (), parallelism=1, max_parallelism=8),
        settings,
        open_location=lambda location: FaultyStore(LocalFiles(Path(location)), faults),
        wall_ms=lambda: place.now_ms,
    )


def take(place: Place, job: DurableJob, *ids: int) -> None:
    for id in ids:
        place.take(job, manifest(id))
        job.retire(frozenset())


def below(folder: Path) -> list[str]:
    return LocalFiles(folder).list()


# -- what it was started from


@pytest.mark.parametrize("path", ["foreign/checkpoints/2-g1", "savepoint"])
def test_without_a_claim_nothing_foreign_is_ever_removed(foreign: Place, tmp_path: Path, path: str) -> None:
    before = below(foreign.folder), below(tmp_path / "savepoint")
    own = Place(tmp_path / "own")
    job = started_from(own, tmp_path / path, RestoreMode.NO_CLAIM)
    take(own, job, 10, 11, 12, 13)
    assert (below(foreign.folder), below(tmp_path / "savepoint")) == before
    assert own.logged(CheckpointClaimed) == []


def test_a_claimed_savepoint_goes_when_enough_newer_checkpoints_are_there(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    job = started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM)
    take(own, job, 10)
    assert below(tmp_path / "savepoint") == ["0.state", "manifest.json"], "two are kept, and it is the older one"
    take(own, job, 11)
    assert below(tmp_path / "savepoint") == []
    assert own.logged(CheckpointRetired) == [3]
    take(own, job, 12)
    assert own.logged(CheckpointRetired) == [3, 10], "it is retired once"


def test_of_a_claimed_checkpoint_only_goes_what_no_other_one_names(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    job = started_from(own, foreign.folder / "checkpoints" / "2-g1", RestoreMode.CLAIM, keep=KeepNumber(1))
    before = below(foreign.folder)
    take(own, job, 10, 11)
    gone = {"checkpoints/2-g1/manifest.json", "checkpoints/2-g1/0.state", "shared/2-g1-s0.0a-2.sst"}
    assert set(before) - set(below(foreign.folder)) == gone, "the other checkpoint names the first table too"


def test_shared_files_stay_if_a_manifest_beside_the_claimed_one_cannot_be_read(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    job = started_from(own, foreign.folder / "checkpoints" / "2-g1", RestoreMode.CLAIM, keep=KeepNumber(1))
    foreign.store.put("checkpoints/1-g1/manifest.json", b"damaged")
    take(own, job, 10, 11)
    assert len(foreign.store.list("shared")) == 3


# Its manifest, its state, and the table that no other one names.
CLAIMED_FILES = 3


@pytest.mark.parametrize("outcome", EVERY_FAULT)
@pytest.mark.parametrize("failing", range(CLAIMED_FILES))
def test_a_removal_that_was_cut_short_is_finished_with_the_next_checkpoint(
    foreign: Place, tmp_path: Path, failing: int, outcome: Outcome
) -> None:
    own = Place(tmp_path / "own")
    script = ScriptedFaults([*[Result.SUCCEEDS] * failing, outcome], operations=[StoreOperation.DELETE])
    job = started_from(
        own, foreign.folder / "checkpoints" / "2-g1", RestoreMode.CLAIM, keep=KeepNumber(1), faults=script
    )
    before = below(foreign.folder)
    own.take(job, manifest(10))
    with pytest.raises(StorageFailure):
        job.retire(frozenset(), told=CheckpointId(10))
    assert own.logged(CheckpointRetired) == [], "else nobody would try again"
    own.take(job, manifest(11))
    job.retire(frozenset(), told=CheckpointId(11))
    assert len(set(before) - set(below(foreign.folder))) == CLAIMED_FILES
    assert own.logged(CheckpointRetired) == [10, 2]
    assert script.left == ()


def test_a_driver_that_is_killed_in_between_leaves_it_to_the_next_one(foreign: Place, tmp_path: Path) -> None:
    own, path = Place(tmp_path / "own"), foreign.folder / "checkpoints" / "2-g1"
    before = below(foreign.folder)
    script = ScriptedFaults([Result.SUCCEEDS, Result.FAILS], operations=[StoreOperation.DELETE])
    job = started_from(own, path, RestoreMode.CLAIM, keep=KeepNumber(1), faults=script)
    own.take(job, manifest(10))
    with pytest.raises(StorageFailure):
        job.retire(frozenset(), told=CheckpointId(10))
    again = started_from(own, path, RestoreMode.CLAIM, keep=KeepNumber(1))
    own.take(again, manifest(11))
    again.retire(frozenset(), told=CheckpointId(11))
    assert len(set(before) - set(below(foreign.folder))) == CLAIMED_FILES


def test_a_place_that_is_away_for_long_is_not_asked_at_every_checkpoint_and_keeps_nothing_else_from_going(
    foreign: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, path = Place(tmp_path / "own"), foreign.folder / "checkpoints" / "2-g1"
    before = below(foreign.folder)
    script = ScriptedFaults([Result.FAILS] * 10, operations=[StoreOperation.DELETE])
    job = started_from(own, path, RestoreMode.CLAIM, keep=KeepNumber(1), faults=script)
    for checkpoint in (10, 11, 12, 13, 14):
        own.take(job, manifest(checkpoint))
        with suppress(StorageFailure), caplog.at_level(logging.WARNING, logger="tidegate"):
            job.retire(frozenset(), told=CheckpointId(checkpoint))
    assert len(script.left) == 10 - 3
    assert own.logged(CheckpointRetired) == [10, 11, 12, 13]
    assert f"{foreign.folder} is left to the next start" in caplog.text
    assert below(foreign.folder) == before


def test_a_stopped_query_that_cannot_remove_what_it_claimed_still_removes_its_own(
    foreign: Place, tmp_path: Path
) -> None:
    own = Place(tmp_path / "own")
    settings = DurableSettings(
        fingerprint=("f",), keep=KeepNumber(5), restore_from=str(tmp_path / "savepoint"),
        restore_mode=RestoreMode.CLAIM, on_cancel=OnCancel.DELETE,
    )  # fmt: skip
    faults = ScriptedFaults([Result.FAILS], operations=[StoreOperation.DELETE])
    job = opened(own, settings, faults)
    job.start_generation(at_ms=0)
    take(own, job, 10)
    job.on_cancelled()
    job.clean_up(Generation(1))
    assert own.files() == [] and own.logged(CheckpointRetired) == [10]
    assert claimed_checkpoint(JobLog(own.store, driver="reading").read()) is not None
    job = opened(own, settings)
    assert job.start_generation(at_ms=1).restored_checkpoint == 3, "it is still there, and still claimed"
    job.on_cancelled()
    assert below(tmp_path / "savepoint") == []


def test_a_claim_is_made_once_and_restored_again_until_the_first_own_checkpoint(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    for _ in range(2):
        started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM)
    assert own.logged(CheckpointClaimed) == [3]
    assert own.committer.committed == [], "what it had to commit is not this job's"


def test_a_claimed_savepoint_that_its_owner_removed_is_no_failure(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    job = started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM, keep=KeepNumber(1))
    for name in ("manifest.json", "0.state"):
        (tmp_path / "savepoint" / name).unlink()
    take(own, job, 10, 11)
    assert own.logged(CheckpointRetired) == [3, 10]


def test_a_claim_counts_though_the_location_has_once_retired_the_same_id(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    job = cancelled(own, OnCancel.DELETE)
    take(own, job, 3)
    job.on_cancelled()
    job.clean_up(Generation(1))
    assert own.logged(CheckpointRetired) == [1, 2, 3]
    for _ in range(2):
        job = started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM, keep=KeepNumber(1))
    assert own.logged(CheckpointClaimed) == [3], "made once, not at every start"
    take(own, job, 10)
    assert below(tmp_path / "savepoint") == []


def test_of_two_claims_the_job_owns_the_one_that_it_is_started_from(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    started_from(own, foreign.folder / "checkpoints" / "2-g1", RestoreMode.CLAIM)
    before = below(foreign.folder)
    job = started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM, keep=KeepNumber(1))
    take(own, job, 10)
    assert below(tmp_path / "savepoint") == []
    assert below(foreign.folder) == before, "it was never used"


def without_options(place: Place) -> DurableJob:
    job = opened(place, DurableSettings(fingerprint=("f",), keep=KeepNumber(1)))
    assert job.start_generation(at_ms=1).restored_checkpoint is None
    return job


def test_a_claim_is_let_go_by_a_start_that_makes_none(foreign: Place, tmp_path: Path) -> None:
    path, own = tmp_path / "savepoint", Place(tmp_path / "own")
    before = below(path)
    started_from(own, path, RestoreMode.CLAIM)
    job = started_from(own, path, RestoreMode.NO_CLAIM, keep=KeepNumber(1))
    take(own, job, 10, 11)
    assert below(path) == before, "no_claim never removes it"


def test_a_claimed_savepoint_whose_state_is_in_no_checkpoint_is_kept_by_a_start_without_it(
    foreign: Place, tmp_path: Path
) -> None:
    path, own = tmp_path / "savepoint", Place(tmp_path / "own")
    before = below(path)
    started_from(own, path, RestoreMode.CLAIM)
    take(own, without_options(own), 10, 11)
    assert below(path) == before, "it is all there is of its state"


def test_a_claim_that_a_checkpoint_stands_on_goes_on_without_the_option(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    take(own, started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM), 10)
    job = opened(own, DurableSettings(fingerprint=("f",), keep=KeepNumber(2)))
    assert job.start_generation(at_ms=1).restored_checkpoint == 10
    take(own, job, 11)
    assert below(tmp_path / "savepoint") == []


def test_a_claim_that_was_let_go_can_be_made_again(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM)
    started_from(own, tmp_path / "savepoint", RestoreMode.NO_CLAIM)
    job = started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM, keep=KeepNumber(1))
    take(own, job, 10)
    assert below(tmp_path / "savepoint") == []


def test_the_id_of_a_claimed_one_is_not_given_again(foreign: Place, tmp_path: Path) -> None:
    """What retires the one would retire the other."""
    own = Place(tmp_path / "own")
    started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM)
    job = opened(own, DurableSettings(fingerprint=("f",), keep=KeepNumber(2)))
    first = job.start_generation(at_ms=1).next_checkpoint
    take(own, job, first, first + 1, first + 2)
    assert own.open().start_generation(at_ms=2).restored_checkpoint == first + 2


# -- when the query is stopped


def cancelled(place: Place, on_cancel: OnCancel, **options: object) -> DurableJob:
    job = opened(place, DurableSettings(fingerprint=("f",), keep=KeepNumber(5), on_cancel=on_cancel))
    job.start_generation(at_ms=0)
    take(place, job, 1, 2)
    return job


def test_a_stopped_query_keeps_its_checkpoints(tmp_path: Path) -> None:
    place = Place(tmp_path / "chk")
    job = cancelled(place, OnCancel.RETAIN)
    before = place.files()
    job.on_cancelled()
    job.clean_up(Generation(1))
    assert place.files() == before


def test_or_removes_them_but_neither_savepoints_nor_what_is_not_committed(tmp_path: Path) -> None:
    place = Place(tmp_path / "chk")
    job = cancelled(place, OnCancel.DELETE)
    savepoint = take_savepoint(job, place.folder / "savepoints" / "savepoint-3-g1", 3)
    open_one = manifest(4)
    for file in open_one.slots:
        place.store.put(file.path, STATE)
    job.complete(open_one)
    job.on_cancelled()
    job.clean_up(Generation(1))
    assert {Path(path).parent.name for path in place.files()} == {"savepoint-3-g1", "4-g1"}
    assert Path(savepoint, "manifest.json").exists()
    assert place.logged(CheckpointRetired) == [1, 2]


def test_and_what_was_passed_over_because_it_was_damaged(tmp_path: Path) -> None:
    place = Place(tmp_path / "chk")
    job = cancelled(place, OnCancel.DELETE)
    place.take(job, manifest(3, has_committables=False, shared=["shared/3-g1-s0.channels"]))
    (place.folder / "checkpoints" / "3-g1" / "manifest.json").unlink()
    again = opened(place, DurableSettings(fingerprint=("f",), keep=KeepNumber(5), on_cancel=OnCancel.DELETE))
    assert again.start_generation(at_ms=1).restored_checkpoint == 2
    again.on_cancelled()
    again.clean_up(Generation(2))
    assert place.files() == [] and place.logged(CheckpointRetired) == [1, 2, 3]


def test_the_next_start_begins_anew(tmp_path: Path) -> None:
    place = Place(tmp_path / "chk")
    job = cancelled(place, OnCancel.DELETE)
    job.on_cancelled()
    job.clean_up(Generation(1))
    basis = place.open().start_generation(at_ms=1)
    assert (basis.restored_checkpoint, basis.next_checkpoint) == (None, CheckpointId(3)), "ids are never used again"


# -- what crashed generations left


def test_a_new_driver_removes_what_the_one_before_left(tmp_path: Path) -> None:
    place = Place(tmp_path / "chk", run="5f2c9a1b")
    take(place, place.started(), 1)
    needed = place.files()
    for path in ("checkpoints/2-g1/0.state", "shared/2-g1-s0.0a-1.sst", "savepoints/savepoint-3-g1-5f2c9a1b/0.state"):
        place.store.put(path, STATE)
    place.run = "00c0ffee"
    job = place.open()
    job.check_compatible()
    assert len(place.files()) == len(needed) + 3, "looking removes nothing"
    basis = job.start_generation(at_ms=5)
    assert place.files() == needed
    assert basis.next_checkpoint == 4, "not the id of one that was begun"


@pytest.mark.parametrize(
    "left", ["checkpoints/7-g1/0.state", "shared/7-g1-s0.0a-1.sst", "savepoints/savepoint-7-g1-5f2c9a1b/0.state"]
)
def test_an_id_is_not_given_again_whatever_its_checkpoint_has_left(tmp_path: Path, left: str) -> None:
    place = Place(tmp_path / "chk")
    take(place, place.started(), 1)
    place.store.put(left, STATE)
    assert place.open().start_generation(at_ms=5).next_checkpoint == 8


# Two kinds of names: another query's, and one from before runs were in them, which may be anybody's.
@pytest.mark.parametrize("name", ["savepoint-3-g1-00c0ffee", "savepoint-3-g1"])
def test_a_savepoint_that_another_query_is_taking_below_this_location_is_left_alone(tmp_path: Path, name: str) -> None:
    place = Place(tmp_path / "chk", run="5f2c9a1b")
    take(place, place.started(), 1)
    path = f"savepoints/{name}/0.state"
    place.store.put(path, STATE)
    for _ in range(3):
        place.open().start_generation(at_ms=3_600_000)
    assert path in place.files()


def test_what_an_earlier_run_left_of_a_savepoint_goes_though_its_entries_are_in_a_summary(tmp_path: Path) -> None:
    place = Place(tmp_path / "chk", run="5f2c9a1b")
    take(place, place.started(), 1)
    place.run = "00c0ffee"
    take(place, place.started(), 2, 3, 4)
    place.store.put("savepoints/savepoint-2-g1-5f2c9a1b/0.state", STATE)
    log = JobLog(place.store, driver="shortening")
    log.read()
    log.shorten(from_entries=1)
    place.run = "0ddba11"
    place.open().start_generation(at_ms=5)
    assert place.store.list("savepoints") == []


def test_a_start_goes_on_if_they_cannot_be_removed(tmp_path: Path) -> None:
    class Stubborn(LocalFiles):
        def delete(self, path: str) -> None:
            raise DidNotHappen(f"{path} could not be deleted.")

    place = Place(tmp_path / "chk")
    take(place, place.started(), 1)
    place.store.put("checkpoints/2-g1/0.state", STATE)
    job = DurableJob(
        Stubborn(place.folder),
        Committer(),
        JobPlan((), (), parallelism=1, max_parallelism=8),
        DurableSettings(fingerprint=("f",), keep=KeepNumber(2)),
        open_location=lambda location: LocalFiles(Path(location)),
        wall_ms=lambda: 0,
    )
    assert job.start_generation(at_ms=5).restored_checkpoint == 1
    assert len(JobLog(place.store, driver="x").read()) == 4


def test_a_claim_outlives_the_entries_that_a_summary_takes_the_place_of(foreign: Place, tmp_path: Path) -> None:
    own = Place(tmp_path / "own")
    job = started_from(own, tmp_path / "savepoint", RestoreMode.CLAIM)
    take(own, job, 10)
    log = JobLog(own.store, driver="shortening")
    log.read()
    log.shorten(from_entries=1)
    claimed = claimed_checkpoint(JobLog(own.store, driver="reading").read())
    assert claimed is not None and claimed.checkpoint == 3
