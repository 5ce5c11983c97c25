"""What is durable, in which order, and what may go: manifest, log entry, commit; damage; retention; savepoints."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.model.errors import (
    Damaged,
    DidNotHappen,
    IncompatibleCheckpoint,
    MayHaveHappened,
    StorageFailure,
    Superseded,
)
from tidegate.model.ids import CheckpointId, Generation, SlotIndex, TaskId, VertexId
from tidegate.plan.physical import JobPlan
from tidegate.protocol.commit import CommitPermit
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.retention import KeepFor, KeepNumber
from tidegate.storage.job_log import CheckpointCompleted, CheckpointRetired, CheckpointSkipped, Committed, Entry, JobLog
from tidegate.storage.manifests import Manifest, SharedFile, SlotFile, TaskCommittables
from tidegate.storage.store import LocalFiles
from tidegate.testing.faulty_store import Faults, FaultyStore, Result, ScriptedFaults, StoreOperation

STATE = b"what a slot stored"
NOTHING_PENDING: frozenset[CheckpointId] = frozenset()


@dataclass
class Committer:
    """Notes what it commits; the next `failures` calls fail."""

    failures: int = 0
    committed: list[tuple[int, list[bytes]]] = field(default_factory=list)
    before: Callable[[], None] | None = None  # called once, as the next commit begins

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()
        if self.failures:
            self.failures -= 1
            raise DidNotHappen("the sink is away")
        self.committed.append((permit.checkpoint, list(committables)))

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        return


class HoldingCommitter(Committer):
    def publish_held(self) -> None:
        raise AssertionError("another driver's to publish")


@dataclass
class Place:
    """A checkpoint location, and the time in it."""

    folder: Path
    now_ms: int = 0
    committer: Committer = field(default_factory=Committer)
    run: str = ""
    faults: Faults | None = None  # of the job's own store

    @property
    def store(self) -> LocalFiles:
        return LocalFiles(self.folder)

    def open(
        self,
        *,
        keep: KeepNumber | KeepFor = KeepNumber(2),  # noqa: B008 - frozen
        rollback: SinkRollback = SinkRollback.NONE,
        restore_from: str | None = None,
        fingerprint: tuple[str, ...] = ("f",),
        parallelism: int = 1,
        max_parallelism: int = 8,
    ) -> DurableJob:
        return DurableJob(
            self.store if self.faults is None else FaultyStore(self.store, self.faults),
            self.committer,
            JobPlan((), (), parallelism=parallelism, max_parallelism=max_parallelism),
            DurableSettings(
                fingerprint=fingerprint, keep=keep, rollback=rollback, restore_from=restore_from, run=self.run
            ),
            open_location=lambda location: LocalFiles(Path(location)),
            wall_ms=lambda: self.now_ms,
        )

    def started(self, *, keep: KeepNumber | KeepFor = KeepNumber(2)) -> DurableJob:  # noqa: B008 - frozen
        job = self.open(keep=keep)
        job.start_generation(at_ms=0)
        return job

    def take(self, job: DurableJob, stored: Manifest) -> None:
        """What the coordinator does once all slots have acknowledged; the slots' files are there by then."""
        for file in stored.slots:
            self.store.put(file.path, STATE)
            for shared in file.shared:
                self.store.put(shared.path, STATE)
        job.complete(stored)
        job.commit(stored.checkpoint, stored)

    def files(self) -> list[str]:
        """All but the log."""
        return [path for path in self.store.list() if not path.startswith("log/")]

    def logged(self, kind: type[Entry]) -> list[int]:
        entries = JobLog(self.store, driver="check").read()
        return [e.checkpoint for e in entries if isinstance(e, kind)]  # type: ignore[union-attr]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "chk")


def manifest(
    checkpoint: int,
    generation: int = 1,
    *,
    has_committables: bool = True,
    is_savepoint: bool = False,
    shared: Sequence[str] = (),
    has_state: bool = True,
) -> Manifest:
    folder = "" if is_savepoint else f"checkpoints/{checkpoint}-g{generation}/"
    files = [SharedFile(path, len(STATE), zlib.crc32(STATE)) for path in shared]
    state = SlotFile(SlotIndex(0), f"{folder}0.state", len(STATE), zlib.crc32(STATE), files)
    output = TaskCommittables(TaskId(VertexId(1), 0), [b"epoch %d" % checkpoint])
    return Manifest(
        checkpoint=CheckpointId(checkpoint),
        generation=Generation(generation),
        kind="aligned",
        is_savepoint=is_savepoint,
        triggered_at_ms=0,
        duration_ms=1.0,
        plan_fingerprint=["f"],
        state_backend="heap",
        parallelism=1,
        max_parallelism=8,
        vertex_parallelism=[],
        slots=[state] if has_state else [],
        committables=[output] if has_committables else [],
    )


def take_savepoint(job: DurableJob, folder: Path, checkpoint: int) -> str:
    """As the slots and the coordinator do: all of it in a folder of its own."""
    stored = manifest(checkpoint, is_savepoint=True)
    LocalFiles(folder).put("0.state", STATE)
    path = job.complete(stored, location=str(folder))
    job.commit(stored.checkpoint, stored)
    return path


# -- in the log's order


def test_a_checkpoint_is_committed_and_the_log_says_so(place: Place) -> None:
    job = place.started()
    job.complete(manifest(1))
    job.commit(CheckpointId(1), manifest(1))
    assert place.committer.committed == [(1, [b"epoch 1"])]
    assert place.logged(Committed) == [1]


def test_a_commit_that_failed_is_done_before_the_next_one(place: Place) -> None:
    place.committer.failures = 1
    job = place.started()
    job.complete(manifest(1))
    with pytest.raises(DidNotHappen):
        job.commit(CheckpointId(1), manifest(1))
    job.complete(manifest(2))
    job.commit(CheckpointId(2), manifest(2))
    assert place.committer.committed == [(1, [b"epoch 1"]), (2, [b"epoch 2"])]
    assert place.logged(Committed) == [1, 2]


def followed_by(first: Manifest, second: Manifest) -> Manifest:
    """A slot prepared its part of the second before it heard that the first was complete: so it has both outputs."""
    return msgspec.structs.replace(second, committables=[*first.committables, *second.committables])


def test_an_epoch_whose_commit_is_recorded_unheard_is_not_given_out_again_with_the_next_one(place: Place) -> None:
    listing = ScriptedFaults([], operations=[StoreOperation.LIST])
    place.faults = lambda operation, path: listing(operation, path)
    job = place.started()
    first, second = manifest(1), followed_by(manifest(1), manifest(2))
    job.complete(first)
    job.complete(second)

    def its_entry_is_written_and_nobody_hears() -> None:
        nonlocal listing
        listing = ScriptedFaults([Result.FAILS], operations=[StoreOperation.LIST])

    place.committer.before = its_entry_is_written_and_nobody_hears
    with pytest.raises(MayHaveHappened):
        job.commit(CheckpointId(1), first)
    assert place.logged(Committed) == [1]
    job.commit(CheckpointId(2), second)
    assert place.committer.committed == [(1, [b"epoch 1"]), (2, [b"epoch 2"])]


def test_an_epoch_whose_commit_could_not_be_recorded_is_recorded_without_being_given_out_again(place: Place) -> None:
    creating = ScriptedFaults([], operations=[StoreOperation.CREATE])
    place.faults = lambda operation, path: creating(operation, path)
    job = place.started()
    job.complete(manifest(1))
    job.complete(manifest(2))

    def nothing_can_be_written() -> None:
        nonlocal creating
        creating = ScriptedFaults([Result.FAILS], operations=[StoreOperation.CREATE])

    place.committer.before = nothing_can_be_written
    with pytest.raises(DidNotHappen):
        job.commit(CheckpointId(1), manifest(1))
    assert place.logged(Committed) == []
    job.commit(CheckpointId(2), manifest(2))
    assert place.committer.committed == [(1, [b"epoch 1"]), (2, [b"epoch 2"])]
    assert place.logged(Committed) == [1, 2]


def test_a_new_generation_first_commits_what_the_old_one_left(place: Place) -> None:
    old = place.started()
    old.complete(manifest(1, has_state=False))
    old.complete(manifest(2, has_state=False))
    basis = place.open().start_generation(at_ms=1)
    assert place.committer.committed == [(1, [b"epoch 1"]), (2, [b"epoch 2"])]
    assert (basis.generation, basis.restored_checkpoint, basis.next_checkpoint) == (2, 2, 3)


# -- another driver has taken over


def test_who_was_superseded_commits_nothing_of_what_the_new_driver_has_committed(place: Place) -> None:
    old = place.started()
    old.complete(manifest(1, has_state=False))
    place.open().start_generation(at_ms=1)
    with pytest.raises(Superseded, match="Another driver"):
        old.commit(CheckpointId(1), manifest(1, has_state=False))
    assert place.committer.committed == [(1, [b"epoch 1"])], "once, by the new one"


def test_a_commit_that_failed_because_another_driver_was_quicker_says_so(place: Place) -> None:
    old = place.started()
    old.complete(manifest(1, has_state=False))

    def stand_still() -> None:
        place.open().start_generation(at_ms=1)
        place.committer.failures = 1

    place.committer.before = stand_still
    with pytest.raises(Superseded, match="Another driver"):
        old.commit(CheckpointId(1), manifest(1, has_state=False))


def test_who_was_superseded_removes_nothing_when_it_ends(place: Place) -> None:
    place.committer = HoldingCommitter()
    old = place.started()
    place.take(old, manifest(1))
    place.open().start_generation(at_ms=1)
    place.store.put("checkpoints/2-g1/0.state", STATE)
    for end in (lambda: old.retire(NOTHING_PENDING), old.publish_held, lambda: old.clean_up(Generation(1))):
        with pytest.raises(Superseded):
            end()
    assert "checkpoints/2-g1/0.state" in place.files()


def test_a_sink_that_holds_nothing_back_asks_for_no_store_at_the_end(place: Place) -> None:
    is_there = True
    place.faults = lambda operation, path: Result.SUCCEEDS if is_there else Result.FAILS
    job = place.started()
    is_there = False
    job.publish_held()


# -- damage


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_a_changed_byte(data: bytes) -> bytes:
    return data.replace(b'"duration_ms": 1.0', b'"duration_ms": 9.0')


def of_another_version(data: bytes) -> bytes:
    return data.replace(b'{"version": 2', b'{"version": 99')


@dataclass(frozen=True)
class Damage:
    """What happens to a file of a checkpoint's folder, and what the refusal says of it. `change` None: it is gone."""

    file: str
    change: Callable[[bytes], bytes] | None
    said: str

    def strike(self, place: Place, checkpoint: int) -> None:
        path = place.folder / "checkpoints" / f"{checkpoint}-g1" / self.file
        if self.change is None:
            path.unlink()
        else:
            before = path.read_bytes()
            path.write_bytes(self.change(before))
            assert path.read_bytes() != before, "nothing was damaged"


DAMAGES = [
    pytest.param(Damage("manifest.json", truncated, "truncated"), id="truncated manifest"),
    pytest.param(Damage("manifest.json", with_a_changed_byte, "checksum"), id="manifest with a wrong checksum"),
    pytest.param(Damage("manifest.json", of_another_version, "version 99"), id="manifest of another version"),
    pytest.param(Damage("manifest.json", None, "missing"), id="no manifest"),
    pytest.param(Damage("0.state", None, "missing"), id="no state file"),
    pytest.param(Damage("0.state", truncated, "9 bytes where the manifest says 18"), id="state file too short"),
    pytest.param(Damage("0.state", lambda data: data + b"!", "19 bytes"), id="state file too long"),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_whose_output_is_out_is_refused_by_its_file_and_nothing_is_deleted(
    place: Place, damage: Damage
) -> None:
    job = place.started()
    place.take(job, manifest(1))
    place.take(job, manifest(2))
    damage.strike(place, 2)
    files, log = place.files(), place.store.list("log")
    with pytest.raises(Damaged) as caught:
        place.open().check_compatible()
    sentence = str(caught.value)
    assert f"checkpoints/2-g1/{damage.file}" in sentence and damage.said in sentence
    assert sentence.endswith(".") and sentence.count(". ") == 0 and "\n" not in sentence
    assert "restore.allowDuplicates" in sentence
    assert (place.files(), place.store.list("log")) == (files, log), "only looked at"
    with pytest.raises(Damaged, match=f"2-g1/{damage.file}"):
        place.open().start_generation(at_ms=1)
    assert place.files() == files
    assert place.logged(CheckpointSkipped) == place.logged(CheckpointRetired) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_without_output_is_passed_over_and_stays_until_as_many_newer_ones_are_there_as_are_kept(
    place: Place, damage: Damage
) -> None:
    job = place.started()
    place.take(job, manifest(1))
    place.take(job, manifest(2, has_committables=False))
    damage.strike(place, 2)
    files = place.files()
    next_job = place.open(keep=KeepNumber(2))
    next_job.check_compatible()
    basis = next_job.start_generation(at_ms=1)
    assert (basis.restored_checkpoint, basis.next_checkpoint) == (1, 3)
    assert place.files() == files
    assert place.logged(CheckpointSkipped) == [2]
    place.take(next_job, manifest(3, generation=2))
    next_job.retire(NOTHING_PENDING)
    next_job.clean_up(Generation(2))
    assert place.files() == [*files, "checkpoints/3-g2/0.state", "checkpoints/3-g2/manifest.json"]
    place.take(next_job, manifest(4, generation=2))
    next_job.retire(NOTHING_PENDING)
    assert {Path(path).parent.name for path in place.files()} == {"3-g2", "4-g2"}
    assert place.logged(CheckpointRetired) == [1, 2]
    assert place.open().start_generation(at_ms=2).restored_checkpoint == 4


def test_a_passed_over_checkpoint_is_not_taken_up_again_when_its_file_is_back(place: Place) -> None:
    job = place.started()
    place.take(job, manifest(1))
    place.take(job, manifest(2, has_committables=False))
    state = place.folder / "checkpoints" / "2-g1" / "0.state"
    state.unlink()
    place.open().start_generation(at_ms=1)
    state.write_bytes(STATE)
    assert place.open().start_generation(at_ms=2).restored_checkpoint == 1


def test_who_accepts_duplicates_goes_back_past_a_damaged_checkpoint(place: Place) -> None:
    job = place.started()
    place.take(job, manifest(1))
    place.take(job, manifest(2))
    (place.folder / "checkpoints" / "2-g1" / "0.state").unlink()
    again = place.open(rollback=SinkRollback.DUPLICATES_ALLOWED)
    again.check_compatible()
    assert again.start_generation(at_ms=1).restored_checkpoint == 1


def test_damage_in_an_older_committed_checkpoint_does_not_matter(place: Place) -> None:
    job = place.started()
    place.take(job, manifest(1))
    place.take(job, manifest(2))
    (place.folder / "checkpoints" / "1-g1" / "0.state").unlink()
    assert place.open().start_generation(at_ms=1).restored_checkpoint == 2


# -- what fits


def test_another_parallelism_fits_and_other_key_groups_or_plans_do_not(place: Place) -> None:
    place.take(place.started(), manifest(1))
    files = place.files()
    assert place.open(parallelism=5).start_generation(at_ms=1).restored_checkpoint == 1
    with pytest.raises(IncompatibleCheckpoint, match=r"maxParallelism 8 and the query 16.*'maxParallelism', 8.*=16"):
        place.open(max_parallelism=16).check_compatible()
    with pytest.raises(IncompatibleCheckpoint, match="it has 'f' where the query has 'g'"):
        place.open(fingerprint=("g",)).check_compatible()
    with pytest.raises(IncompatibleCheckpoint, match="a query with 1 parts and this one has 2"):
        place.open(fingerprint=("f", "g")).check_compatible()
    assert place.files() == files


# -- what may go


def test_an_uncommitted_checkpoint_is_not_retired(place: Place) -> None:
    job = place.started(keep=KeepNumber(1))
    for checkpoint in (1, 2, 3):
        job.complete(manifest(checkpoint))
    job.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == []
    job.commit(CheckpointId(3), manifest(3))
    job.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == [1, 2]
    assert place.logged(CheckpointCompleted) == [1, 2, 3]
    assert place.store.list("checkpoints") == ["checkpoints/3-g1/manifest.json"]


def test_a_checkpoint_that_completes_while_the_job_ends_leaves_no_one_too_many(place: Place) -> None:
    job = place.started(keep=KeepNumber(2))
    for checkpoint in (1, 2, 3):
        place.take(job, manifest(checkpoint))
    job.clean_up(Generation(1))
    assert place.logged(CheckpointRetired) == [1]
    assert {path.split("/")[1] for path in place.store.list("checkpoints")} == {"2-g1", "3-g1"}


def test_checkpoints_are_kept_for_a_time_and_the_newest_for_ever(place: Place) -> None:
    job = place.started(keep=KeepFor(1_000))
    for checkpoint, at_ms in ((1, 0), (2, 600), (3, 1_000)):
        place.now_ms = at_ms
        place.take(job, manifest(checkpoint))
        job.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == []
    place.now_ms = 1_001
    job.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == [1]
    place.now_ms = 1_000_000
    job.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == [1, 2]
    assert place.files() == ["checkpoints/3-g1/0.state", "checkpoints/3-g1/manifest.json"]


def test_a_savepoint_is_never_retired_and_takes_no_place_of_a_checkpoint(place: Place, tmp_path: Path) -> None:
    job = place.started(keep=KeepNumber(2))
    path = take_savepoint(job, tmp_path / "mine" / "savepoint-1-g1", 1)
    for checkpoint in (2, 3, 4):
        place.take(job, manifest(checkpoint))
        job.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == [2]
    assert path == str(tmp_path / "mine" / "savepoint-1-g1")
    assert LocalFiles(Path(path)).list() == ["0.state", "manifest.json"]


def test_a_savepoint_whose_folder_is_taken_is_refused_and_the_one_there_stays(place: Place, tmp_path: Path) -> None:
    job = place.started()
    path = take_savepoint(job, tmp_path / "mine", 1)
    before = (tmp_path / "mine" / "manifest.json").read_bytes()
    with pytest.raises(StorageFailure, match="There is a savepoint in"):
        take_savepoint(job, tmp_path / "mine", 2)
    assert (Path(path) / "manifest.json").read_bytes() == before


def test_a_savepoint_that_its_owner_removed_does_not_keep_old_checkpoints_alive(place: Place, tmp_path: Path) -> None:
    job = place.started()
    path = take_savepoint(job, tmp_path / "mine", 1)
    place.take(job, manifest(2))
    for file in Path(path).iterdir():
        file.unlink()
    again = place.open(keep=KeepNumber(1))
    assert again.start_generation(at_ms=1).restored_checkpoint == 2
    place.take(again, manifest(3, generation=2))
    again.retire(NOTHING_PENDING)
    again.clean_up(Generation(2))
    assert place.files() == ["checkpoints/3-g2/0.state", "checkpoints/3-g2/manifest.json"]


def test_a_savepoint_that_its_owner_removed_does_not_stop_the_commit_of_what_followed(
    place: Place, tmp_path: Path
) -> None:
    job = place.started()
    path = take_savepoint(job, tmp_path / "mine", 1)
    job.complete(manifest(2, has_state=False))
    (Path(path) / "manifest.json").unlink()
    assert place.open().start_generation(at_ms=1).restored_checkpoint == 2
    assert place.committer.committed == [(1, [b"epoch 1"]), (2, [b"epoch 2"])]


SHARED_1, SHARED_2, SHARED_3 = (f"shared/{at}-g1-s0.channels" for at in (1, 2, 3))


def test_a_shared_file_lives_as_long_as_a_retained_manifest_names_it(place: Place) -> None:
    job = place.started(keep=KeepNumber(1))
    place.take(job, manifest(1, shared=[SHARED_1]))
    place.take(job, manifest(2, shared=[SHARED_1, SHARED_2]))
    job.retire(NOTHING_PENDING)
    assert place.logged(CheckpointRetired) == [1]
    assert place.store.list("shared") == [SHARED_1, SHARED_2]
    place.take(job, manifest(3, shared=[SHARED_2]))
    job.retire(NOTHING_PENDING)
    assert place.store.list("shared") == [SHARED_2]


def test_a_file_that_was_stored_for_what_became_a_savepoint_goes(place: Place, tmp_path: Path) -> None:
    job = place.started()
    # Slots store ahead of a barrier, and do not know yet what it will be for.
    place.store.put(SHARED_1, STATE)
    stored = manifest(1, is_savepoint=True, shared=[SHARED_1])
    LocalFiles(tmp_path / "mine").put("0.state", STATE)
    LocalFiles(tmp_path / "mine").put(SHARED_1, STATE)
    job.complete(stored, location=str(tmp_path / "mine"))
    place.take(job, manifest(2, shared=[SHARED_2]))
    place.take(job, manifest(3, shared=[SHARED_2]))
    job.retire(NOTHING_PENDING)
    assert place.store.list("shared") == [SHARED_2]
    assert LocalFiles(tmp_path / "mine").list("shared") == [SHARED_1], "the savepoint has its own"


def test_a_shared_file_waits_for_the_checkpoints_under_way_that_may_refer_to_it(place: Place) -> None:
    job = place.started(keep=KeepNumber(1))
    place.take(job, manifest(1, shared=[SHARED_1]))
    job.retire(frozenset({CheckpointId(3)}))
    place.take(job, manifest(2))
    job.retire(frozenset({CheckpointId(3)}))
    assert place.logged(CheckpointRetired) == [1]
    assert place.store.list("shared") == [SHARED_1]
    job.retire(NOTHING_PENDING)  # it was aborted
    assert place.store.list("shared") == []


def test_a_checkpoint_that_slots_were_not_told_of_takes_no_others_place(place: Place) -> None:
    """The third is triggered by then, and may refer to what they know of: the first."""
    job = place.started(keep=KeepNumber(1))
    place.take(job, manifest(1, shared=[SHARED_1]))
    place.take(job, manifest(2))
    job.retire(frozenset({CheckpointId(2)}), told=CheckpointId(1))
    assert place.logged(CheckpointRetired) == []
    job.retire(frozenset({CheckpointId(3)}), told=CheckpointId(2))
    assert place.logged(CheckpointRetired) == [1]
    assert place.store.list("shared") == [SHARED_1]
    place.take(job, manifest(3, shared=[SHARED_1]))
    job.retire(NOTHING_PENDING, told=CheckpointId(3))
    assert place.store.list("shared") == [SHARED_1]


def test_a_new_driver_keeps_the_shared_files_of_the_checkpoints_it_finds(place: Place) -> None:
    place.take(place.started(), manifest(1, shared=[SHARED_1]))
    again = place.open(keep=KeepNumber(2))
    again.start_generation(at_ms=1)
    place.take(again, manifest(2, generation=2))
    again.retire(NOTHING_PENDING)
    assert place.store.list("shared") == [SHARED_1]
    again.clean_up(Generation(2))
    assert place.store.list("shared") == [SHARED_1]
