"""What slots wrote of a savepoint that failed goes once they cannot write any more; nothing else in its folder does."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.unit.driver_by_hand import DELAY_MS, RESTARTS, SLOTS, Hand, acknowledge, failed, ready
from tests.unit.test_durable import STATE, Place, manifest
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.failed_savepoints import FailedSavepoint
from tidegate.coordinator.launch import Ended
from tidegate.coordinator.savepoints import SavepointWish
from tidegate.model.errors import StorageFailure
from tidegate.model.ids import CheckpointId, Generation
from tidegate.network.messages import Decline
from tidegate.plan.physical import JobPlan
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.protocol.retention import KeepNumber
from tidegate.storage.job_log import CheckpointCompleted, CheckpointRetired
from tidegate.storage.manifests import encode_manifest
from tidegate.storage.store import LocalFiles, Store
from tidegate.testing.faulty_store import Faults, FaultyStore, Outcome, Result, StoreOperation, no_faults

NAME = "savepoint-2-g1-5f2c9a1b"
WRITTEN = ("0.state", "shared/2-g1-s1.channels", "shared/2-g1-s0.0a-1.sst")


class Mine:
    """A job with checkpoint 1, and a user's folder into which slots have written parts of savepoint 2.

    `log_faults` strike what is written to the log, `faults` what is done in the user's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mine"
        self.place = Place(folder / "chk")
        self.log_faults: Faults = no_faults
        self.faults: Faults = no_faults
        self.job = DurableJob(
            FaultyStore(self.place.store, lambda operation, path: self.log_faults(operation, path)),
            self.place.committer,
            JobPlan((), (), parallelism=1, max_parallelism=8),
            DurableSettings(fingerprint=("f",), keep=KeepNumber(1)),
            open_location=self._open,
            wall_ms=lambda: self.place.now_ms,
        )
        self.job.start_generation(at_ms=0)
        self.take(1)
        self.write(*WRITTEN)

    def _open(self, location: str) -> Store:
        return FaultyStore(LocalFiles(Path(location)), lambda operation, path: self.faults(operation, path))

    def write(self, *paths: str) -> None:
        for path in paths:
            LocalFiles(self.folder).put(f"{NAME}/{path}", STATE)

    def fail(self, *, quiet_from: int = 3) -> None:
        self.job.on_savepoint_failed(
            FailedSavepoint(
                checkpoint=CheckpointId(2),
                generation=Generation(1),
                location=f"{self.folder}/{NAME}",
                triggered_at_ms=0,
                quiet_from=CheckpointId(quiet_from),
            )
        )

    def take(self, *ids: int) -> None:
        for id in ids:
            self.place.take(self.job, manifest(id))
            self.job.retire(frozenset(), told=CheckpointId(id))

    def complete_savepoint(self) -> None:
        self.job.complete(manifest(2, is_savepoint=True), location=f"{self.folder}/{NAME}")

    def files(self) -> list[str]:
        return LocalFiles(self.folder).list()


@pytest.fixture
def mine(tmp_path: Path) -> Mine:
    return Mine(tmp_path)


def on(operation: StoreOperation, outcome: Outcome) -> Faults:
    """All calls of one kind fail alike."""
    return lambda called, path: outcome if called is operation else Result.SUCCEEDS


def in_log(outcome: Outcome) -> Faults:
    return lambda called, path: (
        outcome if called is StoreOperation.CREATE and path.startswith("log/") else Result.SUCCEEDS
    )


def test_it_goes_with_a_checkpoint_that_was_triggered_after_slots_were_told(mine: Mine) -> None:
    mine.fail(quiet_from=4)
    mine.take(3)
    assert len(mine.files()) == len(WRITTEN), "a slot may acknowledge the third and still upload the second"
    mine.take(4)
    assert mine.files() == []
    assert mine.folder.is_dir() and list(mine.folder.iterdir()) == [], "its folder too, and not the user's"


def test_nothing_goes_that_is_not_its_own(mine: Mine) -> None:
    stranger = ["0.state.bak", "deep/manifest.json", "notes.txt", "shared/1-g1-s0.channels", "shared/2-g2-s0.channels"]
    mine.write(*stranger)
    beside = ["0.state", "savepoint-1-g1-5f2c9a1b/0.state", "savepoint-2-g1/0.state", f"{NAME}1/0.state"]
    for path in beside:
        LocalFiles(mine.folder).put(path, STATE)
    mine.fail()
    mine.take(3)
    assert mine.files() == sorted([*(f"{NAME}/{path}" for path in stranger), *beside])


def test_folders_that_uploads_left_empty_go_too(mine: Mine) -> None:
    for path in WRITTEN:
        (mine.folder / NAME / path).unlink()
    assert (mine.folder / NAME / "shared").is_dir()
    mine.fail()
    mine.take(3)
    assert not (mine.folder / NAME).exists()


def test_when_the_job_ends_it_goes_without_a_later_checkpoint(mine: Mine) -> None:
    mine.fail()
    mine.job.clean_up(Generation(1))
    assert mine.files() == []


def test_an_upload_that_came_later_still_is_found_when_the_job_ends(mine: Mine) -> None:
    mine.fail()
    mine.take(3)
    mine.write("1.state")
    mine.take(4)
    assert mine.files() == [f"{NAME}/1.state"], "not looked for at every checkpoint"
    mine.job.clean_up(Generation(1))
    assert mine.files() == []


# -- it had come as far as its manifest


@pytest.mark.parametrize("outcome", [Result.FAILS, Result.FAILS_WITH_TIMEOUT])
def test_one_whose_entry_could_not_be_written_goes_with_its_manifest(mine: Mine, outcome: Result) -> None:
    mine.log_faults = in_log(outcome)
    with pytest.raises(StorageFailure):
        mine.complete_savepoint()
    mine.log_faults = no_faults
    assert f"{NAME}/manifest.json" in mine.files()
    mine.fail()
    mine.take(3)
    assert mine.files() == []
    assert mine.place.logged(CheckpointCompleted) == [1, 3]


def test_one_whose_entry_is_in_the_log_after_all_stays(mine: Mine) -> None:
    happened = iter([Result.SUCCEEDS_BUT_TIMES_OUT])
    mine.log_faults = lambda called, path: (
        next(happened, Result.FAILS_WITH_TIMEOUT) if called is StoreOperation.CREATE else Result.SUCCEEDS
    )
    with pytest.raises(StorageFailure):
        mine.complete_savepoint()
    mine.log_faults = no_faults
    before = mine.files()
    mine.fail()
    mine.take(3)
    mine.job.clean_up(Generation(1))
    assert mine.place.logged(CheckpointCompleted) == [1, 2, 3]
    assert mine.files() == before and f"{NAME}/manifest.json" in before


def test_as_long_as_nothing_came_behind_its_entry_one_with_a_manifest_stays(mine: Mine) -> None:
    mine.log_faults = in_log(Result.FAILS_WITH_TIMEOUT)
    with pytest.raises(StorageFailure):
        mine.complete_savepoint()
    mine.log_faults = no_faults
    before = mine.files()
    mine.fail()
    mine.job.clean_up(Generation(1))
    assert mine.files() == before, "the entry may still come into the log"


def test_a_savepoint_that_was_there_before_stays(mine: Mine) -> None:
    other = msgspec.structs.replace(manifest(2, is_savepoint=True), triggered_at_ms=7)
    LocalFiles(mine.folder).put(f"{NAME}/manifest.json", encode_manifest(other))
    with pytest.raises(StorageFailure, match="There is a savepoint in"):
        mine.complete_savepoint()
    found = mine.files()
    mine.fail()
    mine.take(3)
    mine.job.clean_up(Generation(1))
    assert mine.files() == found


# -- it cannot be removed


@pytest.mark.parametrize("operation", [StoreOperation.DELETE, StoreOperation.LIST, StoreOperation.READ])
def test_what_cannot_be_removed_holds_nothing_up_and_is_tried_again(
    mine: Mine, operation: StoreOperation, caplog: pytest.LogCaptureFixture
) -> None:
    mine.faults = on(operation, Result.FAILS)
    mine.fail()
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        mine.take(3)
    assert NAME in caplog.text and "the next checkpoint tries again" in caplog.text
    assert mine.place.logged(CheckpointRetired) == [1], "the job's own are retired all the same"
    mine.faults = no_faults
    mine.take(4)
    assert mine.files() == []


def test_a_place_that_is_away_for_long_is_not_asked_at_every_checkpoint(
    mine: Mine, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def away(called: StoreOperation, path: str) -> Outcome:
        asked.append(path)
        return Result.FAILS

    mine.faults = away
    mine.fail()
    mine.take(3, 4, 5, 6, 7)
    assert len(asked) == 3
    mine.faults = on(StoreOperation.DELETE, Result.FAILS)
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        mine.job.clean_up(Generation(1))
    assert "remove it by hand" in caplog.text and f"{mine.folder}/{NAME}" in caplog.text


# -- as the driver has it


class OnDisk(Hand):
    """Savepoints are in a folder, as slots would write them."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        super().__init__(**options)  # type: ignore[arg-type]

    def durable_job(self) -> DurableJob:
        return DurableJob(
            self.store,
            self.committer,
            self.spec.slot_settings.plan,
            DurableSettings(fingerprint=self.spec.fingerprint, keep=self.spec.keep),
            open_location=lambda location: LocalFiles(self.folder / location),
            wall_ms=self.clock.wall_ms,
        )

    def begin_savepoint(self) -> SavepointWish:
        """Slot 0 has written its part, and slot 1 some of its own."""
        wish = SavepointWish("mine", SavepointAlignment.ALIGNED, Afterwards.GO_ON)
        self.driver.ask_for_savepoint(wish)
        mine = LocalFiles(self.folder / "mine" / "savepoint-1-g1")
        mine.put("0.state", STATE)
        mine.put("shared/1-g1-s1.channels", STATE)
        self.say(SLOTS[0], acknowledge(1))
        return wish

    def checkpoint(self, id: int, generation: int = 1) -> None:
        self.pass_ms(self.spec.checkpoints.interval_ms)
        self.all_say(acknowledge(id, generation))
        self.store_all()

    def left(self) -> list[str]:
        self.store_all()
        return LocalFiles(self.folder).list()


def expires(job: OnDisk) -> None:
    job.pass_ms(job.spec.checkpoints.timeout_ms)


def is_declined(job: OnDisk) -> None:
    job.say(SLOTS[1], Decline(Generation(1), CheckpointId(1), "the disk is full"))


@pytest.fixture
def job(tmp_path: Path) -> OnDisk:
    # Else a checkpoint is due in the moment in which a savepoint expires.
    made = OnDisk(
        tmp_path, change=lambda spec: replace(spec, checkpoints=replace(spec.checkpoints, timeout_ms=10_000.0))
    )
    made.run()
    return made


@pytest.mark.parametrize("fails", [expires, is_declined])
def test_a_savepoint_that_fails_leaves_nothing_behind(job: OnDisk, fails: Callable[[OnDisk], None]) -> None:
    wish = job.begin_savepoint()
    fails(job)
    assert wish.answer.exception(0) is not None
    assert len(job.left()) == 2, "slots may still write"
    job.checkpoint(2)
    assert job.left() == []


def test_a_checkpoint_that_was_triggered_before_it_failed_says_nothing_of_its_uploads(tmp_path: Path) -> None:
    job = OnDisk(
        tmp_path, change=lambda spec: replace(spec, checkpoints=replace(spec.checkpoints, timeout_ms=1_000_000.0))
    )
    job.run()
    job.begin_savepoint()
    job.pass_ms(job.spec.checkpoints.interval_ms)
    is_declined(job)
    job.all_say(acknowledge(2))
    assert len(job.left()) == 2 and job.committer.committed == [2]
    job.checkpoint(3)
    assert job.left() == []


def test_a_savepoint_that_ends_with_its_generation_goes_in_the_next(tmp_path: Path) -> None:
    job = OnDisk(tmp_path, restart=RESTARTS)
    job.run()
    job.begin_savepoint()
    job.say(SLOTS[0], failed(1))
    job.pass_ms(DELAY_MS)
    assert len(job.left()) == 2
    job.all_say(ready(2))
    job.checkpoint(2, generation=2)
    assert job.left() == []


def test_a_savepoint_that_ends_with_the_job_goes_with_it(job: OnDisk) -> None:
    job.begin_savepoint()
    job.stop()
    assert len(job.left()) == 2
    job.exit(Ended())
    assert job.left() == []


def test_a_savepoint_that_is_stored_as_the_job_ends_stays(job: OnDisk) -> None:
    job.begin_savepoint()
    job.say(SLOTS[1], acknowledge(1))
    job.stop()
    job.exit(Ended())
    assert "mine/savepoint-1-g1/manifest.json" in job.left()
    assert len(job.left()) == 3
