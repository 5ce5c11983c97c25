"""What a restore would do, told before it is done."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.unit.test_durable import Committer
from tests.unit.test_matching import SCAN, lowered, named, once, summed, where
from tests.unit.test_restoring import MANIFEST, Captured, Job, rows
from tidegate.api.trial import TrialEnded, current_trial, trying
from tidegate.cli import check
from tidegate.connectors.contract import SinkCommitter
from tidegate.connectors.registry import open_sink
from tidegate.coordinator import checkpoint_files, inspection, restore_trial
from tidegate.coordinator.compatibility import NotRestored
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.inspection import StoredCheckpoint, open_path
from tidegate.coordinator.restore_trial import TrialReport, try_restore
from tidegate.model.errors import Damaged, IncompatibleCheckpoint, UserError
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, TaskId, VertexId, range_of
from tidegate.operators.described import describe_plan
from tidegate.plan.lower import fingerprint, lower
from tidegate.plan.nodes import (
    DeclaredState,
    Deduplicate,
    Node,
    Scan,
    Sink,
    StateShape,
    TimeMode,
    TransformWithState,
)
from tidegate.plan.physical import JobPlan
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.retention import KeepNumber, RestoreMode
from tidegate.state.contract import Redistribution, Section
from tidegate.storage.job_log import CheckpointCompleted, Committed, JobLog
from tidegate.storage.manifests import Manifest, SharedFile, TaskCommittables, encode_manifest
from tidegate.storage.store import LocalFiles
from tidegate.testing.sink_suite import FIRST, make_rows, prepare
from tidegate.testing.sink_suite import SCHEMA as WRITTEN
from tidegate.worker.restored_bytes import bytes_to_read

STATE = Section("x", None, lambda: b"state", Redistribution.UNION)


def stored(folder: Path, root: Node) -> StoredCheckpoint:
    """With a section of every vertex but the first, which has positions."""
    job = Job(
        LocalFiles(folder),
        lowered(root),
        sections=lambda task: [STATE] if task.vertex else [],
        sources={TaskId(VertexId(0), subtask): b"here" for subtask in (0, 1)},
    )
    return StoredCheckpoint(str(folder), LocalFiles(folder), MANIFEST, job.write())


def report(
    before: StoredCheckpoint, root: Node, not_restored: NotRestored = NotRestored.REFUSED, *, slots: int = 2
) -> TrialReport:
    plan = lower(root, Sink("noop", {}, root.schema), parallelism=slots, max_parallelism=16)
    return try_restore(before, plan, settings_of(plan, not_restored=not_restored))


def settings_of(plan: JobPlan, **options: Any) -> DurableSettings:
    return DurableSettings(fingerprint=tuple(fingerprint(plan)), keep=KeepNumber(5), **options)


def test_it_says_operator_by_operator_what_goes_where(tmp_path: Path) -> None:
    told = report(
        stored(tmp_path, named(once(SCAN), "orders")), summed(where(named(once(where(SCAN)), "orders"))), slots=3
    )
    assert told.refusal is None
    assert told.lines[0].endswith("2 slots; the query has 3") and told.lines[1] == "It can be restored."
    assert "  Source#1 (Source): v0 source -> v0 source, 2 -> 3 subtasks" in told.lines
    assert "  'orders' (Deduplicate): v1 op0 -> v1 op0, 2 -> 3 subtasks" in told.lines
    assert "    subtask 0: key groups 0 to 5, of subtask 0" in told.lines
    assert "    subtask 1: key groups 6 to 10, of subtasks 0 to 1" in told.lines
    assert "  Aggregate#1 (Aggregate, v2 op0): new, starts empty" in told.lines


def test_it_says_what_would_be_dropped_and_refuses_that_unless_it_may(tmp_path: Path) -> None:
    before = stored(tmp_path, named(once(SCAN), "orders"))
    told = report(before, SCAN)
    assert told.refusal is not None and "'orders'" in told.refusal and told.lines[-1].endswith(told.refusal)
    told = report(before, SCAN, NotRestored.DROPPED)
    assert told.refusal is None and "  'orders' (Deduplicate, v1 op0): dropped" in told.lines


def captured(folder: Path, *, in_files: bool = False) -> tuple[StoredCheckpoint, JobPlan]:
    """With two elements in flight."""
    schema = pa.schema([("v", pa.int64())])
    plan = lower(
        Deduplicate(Scan("parquet", {}, schema), (0,), None, None, schema),
        Sink("noop", {}, schema),
        parallelism=1,
        max_parallelism=16,
    )
    channels = {ChannelId(EdgeId(0), 0, 0): Captured((rows(1), rows(2)))}
    job = Job(LocalFiles(folder), plan, channels=channels, inline_below_bytes=0 if in_files else 20 << 10)
    return StoredCheckpoint(str(folder), LocalFiles(folder), MANIFEST, job.write()), plan


def test_rows_in_flight_are_told(tmp_path: Path) -> None:
    before, plan = captured(tmp_path)
    told = try_restore(before, plan, settings_of(plan))
    assert "  rows in flight into v1: 2 elements, e0 -> e0" in told.lines
    told = try_restore(before, plan, settings_of(plan, without_captured_rows=CheckpointId(1)))
    assert "  rows in flight into v1: 2 elements, dropped" in told.lines


# -- how long it takes


def with_table_files(before: StoredCheckpoint, *sizes: int) -> StoredCheckpoint:
    """By slot, one beside its state file, which is in the manifest."""
    slots = []
    for file, size in zip(before.manifest.slots, sizes, strict=True):
        table = SharedFile(f"shared/1-g1-s{file.slot}.0a1b-7.sst", size, zlib.crc32(b"x" * size))
        before.store.put(table.path, b"x" * size)
        slots.append(msgspec.structs.replace(file, content=before.store.read(file.path), shared=[table]))
    manifest = msgspec.structs.replace(before.manifest, slots=slots)
    before.store.put(MANIFEST, encode_manifest(manifest))
    return replace(before, manifest=manifest)


def in_table_files(folder: Path, *sizes: int) -> StoredCheckpoint:
    """Of a deduplication with all its state in them."""

    def sections(task: TaskId) -> list[Section]:
        own = range_of(task.subtask, parallelism=len(sizes), max_parallelism=16)
        return [Section("sst", own, lambda: b"", files=list)] if task.vertex else []

    job = Job(LocalFiles(folder), lowered(once(SCAN)), sections=sections)
    return with_table_files(StoredCheckpoint(str(folder), LocalFiles(folder), MANIFEST, job.write()), *sizes)


def test_slots_read_side_by_side_the_files_of_those_whose_keys_they_get(tmp_path: Path) -> None:
    before = in_table_files(tmp_path, 1000, 3000)

    def by_slot(slots: int) -> list[int]:
        plan = lower(once(SCAN), Sink("noop", {}, SCAN.schema), parallelism=slots, max_parallelism=16)
        return bytes_to_read(before.store, before.manifest, plan)

    assert by_slot(2) == [1000, 3000]
    assert by_slot(1) == [4000]
    assert by_slot(3) == [1000, 4000, 3000], "the one in the middle takes of both"
    assert by_slot(4) == [1000, 1000, 3000, 3000]


def test_the_time_is_that_of_the_slot_that_reads_the_most_and_it_says_what_is_not_in_it(tmp_path: Path) -> None:
    before = in_table_files(tmp_path, 1000, 3000)

    def said(slots: int) -> str:
        plan = lower(once(SCAN), Sink("noop", {}, SCAN.schema), parallelism=slots, max_parallelism=16)
        rate = restore_trial.ReadRate(read_bytes=4000, took_ms=4000)
        return restore_trial._time(before, plan, settings_of(plan), rate)

    assert said(2) == (
        "To read: 3.9 KiB by 2 slots side by side, at most 2.9 KiB by one slot: about 3.00 s at the rate of one reader "
        "here (1000 B a second, on 3.9 KiB of it), or 4.00 s if all of them share that rate. Not in it: starting the "
        "slots, making state of what they read, and reading again what came after the checkpoint."
    )
    assert said(1).startswith("To read: 3.9 KiB by one slot: about 4.00 s at the rate of one reader here (1000 B")
    assert "share" not in said(1)


def test_it_is_measured_on_the_checkpoints_own_files(tmp_path: Path) -> None:
    before = stored(tmp_path, once(SCAN))
    said = report(before, once(SCAN)).lines[-1]
    assert said.startswith("To read: ") and f"on {before.size_bytes() / 1024:.1f} KiB of it" in said


def test_state_of_rocksdb_is_refused_on_the_heap_unless_nobody_takes_it_over(tmp_path: Path) -> None:
    job = Job(
        LocalFiles(tmp_path),
        lowered(named(once(SCAN), "orders")),
        sections=lambda task: [Section("sst", None, lambda: b"state", Redistribution.UNION)] if task.vertex else [],
        state_backend="rocksdb",
    )
    before = StoredCheckpoint(str(tmp_path), LocalFiles(tmp_path), MANIFEST, job.write())
    told = report(before, named(once(SCAN), "orders"))
    assert told.refusal is not None and "set state.backend to rocksdb" in told.refusal
    plan = lowered(named(once(SCAN), "orders"))
    in_rocksdb = try_restore(before, plan, settings_of(plan, state_backend="rocksdb"))
    assert in_rocksdb.refusal is None
    assert report(before, SCAN, NotRestored.DROPPED).refusal is None


# -- states of user code


def keeping(*names: str, deleted: tuple[str, ...] = ()) -> Node:
    states = tuple(DeclaredState(name, StateShape.VALUE, pa.schema([("n", pa.int64())])) for name in names)
    return TransformWithState(SCAN, 1, b"p", SCAN.schema, states=states, deleted=deleted)


def test_states_that_came_or_went_are_told(tmp_path: Path) -> None:
    before = stored_timed(tmp_path, keeping("count", "seen", "old"))
    told = report(before, keeping("count", "best", deleted=("old", "never was")))
    assert told.refusal is None
    assert [line for line in told.lines if line.startswith("    state ")] == [
        "    state 'seen': not declared any more; it stays stored, and is there again if it is declared again",
        "    state 'old': dropped, since the query deletes it",
        "    state 'best': new, starts empty",
    ]
    assert not [line for line in report(before, keeping("count", "seen", "old")).lines if "    state " in line]


def test_a_savepoint_whose_output_is_not_out_is_refused_as_the_start_refuses_it(tmp_path: Path) -> None:
    folder = tmp_path / "savepoints" / "savepoint-1-g1"
    found = stored_timed(folder, summed(SCAN))
    task = TaskId(VertexId(1), 0)
    told = msgspec.structs.replace(found.manifest, committables=[TaskCommittables(task, [b"rows"])])
    found.store.put(MANIFEST, encode_manifest(told))
    job_log = JobLog(LocalFiles(tmp_path), driver="d")
    job_log.start_generation(parallelism=2, at_ms=0)
    done = CheckpointCompleted(
        checkpoint=told.checkpoint, generation=told.generation, manifest=MANIFEST, location=str(folder)
    )
    job_log.append(done)
    assert "is not committed yet" in (report(replace(found, manifest=told), summed(SCAN)).refusal or "")
    job_log.append(Committed(checkpoint=told.checkpoint))
    assert report(replace(found, manifest=told), summed(SCAN)).refusal is None


# -- timers


def processing(mode: TimeMode) -> Node:
    return TransformWithState(SCAN, 1, b"p", SCAN.schema, mode)


def stored_timed(folder: Path, root: Node, *, has_state: bool = True) -> StoredCheckpoint:
    """With what a checkpoint says of its plan."""
    store, plan = LocalFiles(folder), lowered(root)
    job = Job(store, plan, sections=lambda task: [STATE] if has_state and task.vertex else [])
    manifest = msgspec.structs.replace(job.write(), plan=describe_plan(plan))
    store.put(MANIFEST, encode_manifest(manifest))
    return StoredCheckpoint(str(folder), store, MANIFEST, manifest)


def check_start(folder: Path, saved: Path, root: Node) -> None:
    """What `start()` does before anything else, with the option restore.from."""
    plan = lowered(root)
    settings = DurableSettings(fingerprint=tuple(fingerprint(plan)), keep=KeepNumber(1), restore_from=str(saved))
    no_sink: Any = None
    job = DurableJob(
        LocalFiles(folder),
        no_sink,
        plan,
        settings,
        open_location=lambda location: LocalFiles(Path(location)),
        wall_ms=lambda: 0,
    )
    job.check_compatible()


@pytest.mark.parametrize(("name", "said"), [("alarms", "'alarms'"), (None, "TransformWithState#1")])
def test_another_time_mode_is_refused_before_anything_starts(tmp_path: Path, name: str | None, said: str) -> None:
    old, new = processing(TimeMode.EVENT_TIME), processing(TimeMode.PROCESSING_TIME)
    if name is not None:
        old, new = named(old, name), named(new, name)
    saved = tmp_path / "saved"
    before = stored_timed(saved, old)
    expected = (
        f"Checkpoint 1 has {said} in time mode EventTime, and the query has it in ProcessingTime, in which timers "
        "from before would never fire: set it to EventTime, or use a new checkpointLocation."
    )
    assert report(before, new).refusal == expected
    with pytest.raises(IncompatibleCheckpoint) as caught:
        check_start(tmp_path / "chk", saved, new)
    assert str(caught.value) == expected
    assert report(before, old).refusal is None
    check_start(tmp_path / "chk", saved, old)


def test_an_operator_that_has_nothing_stored_goes_on_in_any_time_mode(tmp_path: Path) -> None:
    before = stored_timed(tmp_path, processing(TimeMode.EVENT_TIME), has_state=False)
    assert report(before, processing(TimeMode.NONE)).refusal is None


def test_a_processor_without_timers_may_get_some(tmp_path: Path) -> None:
    before = stored_timed(tmp_path, processing(TimeMode.NONE))
    assert report(before, processing(TimeMode.EVENT_TIME)).refusal is None


# -- damage


def test_a_changed_byte_in_what_it_reads_refuses(tmp_path: Path) -> None:
    before = stored(tmp_path, once(SCAN))
    file = tmp_path / before.manifest.slots[0].path
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    told = report(before, once(SCAN))
    assert told.refusal is not None and before.manifest.slots[0].path in told.refusal


def test_damaged_files_refuse_too(tmp_path: Path) -> None:
    before = stored(tmp_path, once(SCAN))
    (tmp_path / before.manifest.slots[1].path).unlink()
    told = report(before, once(SCAN))
    assert told.refusal is not None and before.manifest.slots[1].path in told.refusal


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if checkpoints were so large that neither a start nor the measuring reads all of one."""
    monkeypatch.setattr(checkpoint_files, "_READ_TO_CHECK_BYTES", 0)
    monkeypatch.setattr(restore_trial, "_MEASURED_BYTES", 1)
    monkeypatch.setattr(inspection, "_PIECE_BYTES", 64)


@pytest.mark.parametrize("damage", ["missing", "shorter", "longer"])
@pytest.mark.usefixtures("large")
def test_every_file_is_there_and_as_long_as_it_was_also_those_that_are_not_read(tmp_path: Path, damage: str) -> None:
    before = with_table_files(stored(tmp_path, once(SCAN)), 1000, 1000)
    assert report(before, once(SCAN)).refusal is None
    table = tmp_path / before.manifest.slots[1].shared[0].path
    data = table.read_bytes()
    table.unlink() if damage == "missing" else table.write_bytes(data[:-1] if damage == "shorter" else data + b"x")
    refusal = report(before, once(SCAN)).refusal
    with pytest.raises(Damaged) as caught:
        check_start(tmp_path / "chk", tmp_path, once(SCAN))
    assert refusal == str(caught.value) and table.name in refusal


def test_files_of_rows_in_flight_are_not_needed_if_these_are_dropped(tmp_path: Path) -> None:
    before, plan = captured(tmp_path, in_files=True)
    (channels,) = (tmp_path / "shared").glob("*.channels")
    channels.unlink()
    told = try_restore(before, plan, settings_of(plan))
    assert told.refusal is not None and channels.name in told.refusal
    assert try_restore(before, plan, settings_of(plan, without_captured_rows=CheckpointId(1))).refusal is None
    told = try_restore(before, plan, settings_of(plan, without_captured_rows=CheckpointId(2)))
    assert told.refusal is not None


# -- a location


@dataclass
class Located:
    """A location with checkpoints 1 to 3 of a query, each with files of its own; all that they gave is committed."""

    folder: Path
    sink: Sink
    committer: SinkCommitter
    output: Sequence[Sequence[bytes]]

    def __post_init__(self) -> None:
        written = Job(LocalFiles(self.folder), self.plan, sections=lambda task: [STATE] if task.vertex else []).write()
        job = self.job()
        job.start_generation(at_ms=0)
        for number, committables in enumerate(self.output, 1):
            job.complete(self.taken(written, number, committables))
            job.commit(CheckpointId(number), self.taken(written, number, committables))

    @property
    def plan(self) -> JobPlan:
        return lower(once(SCAN), self.sink, parallelism=2, max_parallelism=16)

    def taken(self, written: Manifest, number: int, committables: Sequence[bytes]) -> Manifest:
        slots = []
        for file in written.slots:
            path = f"checkpoints/{number}-g1/{file.slot}.state"
            LocalFiles(self.folder).put(path, (self.folder / file.path).read_bytes())
            slots.append(msgspec.structs.replace(file, path=path))
        prepared = [TaskCommittables(FIRST, list(committables))] if committables else []
        return msgspec.structs.replace(
            written, checkpoint=CheckpointId(number), slots=slots, committables=prepared, plan=describe_plan(self.plan)
        )

    def job(self, **options: Any) -> DurableJob:
        return DurableJob(
            LocalFiles(self.folder),
            self.committer,
            self.plan,
            settings_of(self.plan, **options),
            open_location=lambda location: LocalFiles(Path(location)),
            wall_ms=lambda: 0,
        )

    def state_file(self, number: int) -> Path:
        return self.folder / "checkpoints" / f"{number}-g1" / "1.state"

    def told(self, **options: Any) -> TrialReport:
        """And nothing is changed; what a start would refuse is refused, in the same words."""
        before = {path: path.read_bytes() for path in self.folder.parent.rglob("*") if path.is_file()}
        told = try_restore(open_path(str(self.folder)), self.plan, settings_of(self.plan, **options))
        assert {path: path.read_bytes() for path in self.folder.parent.rglob("*") if path.is_file()} == before
        assert told.refusal == self.refusal_of_a_start(**options)
        return told

    def refusal_of_a_start(self, **options: Any) -> str | None:
        try:
            self.job(**options).check_compatible()
        except (Damaged, UserError) as refusal:
            return str(refusal)
        return None

    def started_from(self, **options: Any) -> int | None:
        return self.job(**options).start_generation(at_ms=1).restored_checkpoint


def located(folder: Path, *, output: Sequence[Sequence[bytes]] = ((), (), ())) -> Located:
    return Located(folder / "chk", Sink("noop", {}, SCAN.schema), Committer(), output)


def located_with_files(folder: Path, **options: str) -> Located:
    """With a sink that can take back what it has committed."""
    options = {"path": str(folder / "out"), **options}
    opened = open_sink(Sink("parquet", {**options, "checkpointLocation": str(folder / "chk")}, WRITTEN))
    opened.prepare_location()
    writer = opened.writer(task=FIRST, generation=Generation(1))
    output = []
    for number in (1, 2, 3):
        writer.write(make_rows(number * 10, 5))
        output.append(list(prepare(writer, number)))
    return Located(folder / "chk", Sink("parquet", options, WRITTEN), opened.committer(), output)


def test_of_a_location_the_newest_checkpoint_is_tried(tmp_path: Path) -> None:
    told = located(tmp_path).told()
    assert told.lines[0].startswith("Checkpoint 3 of generation 1 at ") and told.lines[1] == "It can be restored."
    assert not [line for line in told.lines if "goes back" in line]


def test_behind_a_damaged_one_the_query_goes_back_if_nothing_comes_out_twice(tmp_path: Path) -> None:
    place = located(tmp_path)
    place.state_file(3).unlink()
    told = place.told()
    assert told.lines[0].startswith("Checkpoint 2 of generation 1 at ") and told.lines[1] == "It can be restored."
    assert told.lines[2] == (
        "The query goes back to it, and what came after it is read again, because of damage: "
        f"{place.state_file(3)} is missing."
    )
    assert place.started_from() == 2


def test_rows_that_are_out_refuse_unless_the_query_accepts_duplicates(tmp_path: Path) -> None:
    place = located(tmp_path, output=[[b"one"], [b"two"], [b"three"]])
    place.state_file(3).unlink()
    told = place.told()
    assert told.refusal is not None and "Going back to checkpoint 2 would write rows again" in told.refusal
    assert told.lines == (
        f"Location {place.folder} with checkpoint 3 as its newest; the query has 2 slots",
        f"It cannot be restored: {told.refusal}",
    )
    told = place.told(rollback=SinkRollback.DUPLICATES_ALLOWED)
    assert "may come out twice, because the sink cannot take back what it committed" in told.lines[2]
    assert place.started_from(rollback=SinkRollback.DUPLICATES_ALLOWED) == 2


def test_a_sink_of_files_takes_back_what_it_has_unless_somebody_took_it(tmp_path: Path) -> None:
    place = located_with_files(tmp_path)
    place.state_file(3).unlink()
    told = place.told()
    assert told.refusal is None and "; what was committed since is taken back, because of damage" in told.lines[2]
    (file,) = (tmp_path / "out").glob("part-00000003-*")
    file.unlink()
    told = place.told()
    assert told.refusal is not None and f"{file} is gone" in told.refusal


def test_what_a_sink_of_files_holds_back_is_found_as_that_of_the_location(tmp_path: Path) -> None:
    place = located_with_files(tmp_path, **{"sink.compact": "1GiB", "sink.compact.epochs": "9"})
    assert not [*(tmp_path / "out").glob("part-*")]
    place.state_file(3).unlink()
    assert "; what was committed since is taken back" in place.told().lines[2]


def test_a_savepoint_that_was_moved_is_passed_over(tmp_path: Path) -> None:
    place = located(tmp_path)
    newest = open_path(str(place.folder / "checkpoints" / "3-g1"))
    assert isinstance(newest, StoredCheckpoint)
    files = [msgspec.structs.replace(file, path=f"{file.slot}.state") for file in newest.manifest.slots]
    for file in files:
        LocalFiles(tmp_path / "mine").put(file.path, (tmp_path / "chk/checkpoints/3-g1" / file.path).read_bytes())
    savepoint = msgspec.structs.replace(newest.manifest, checkpoint=CheckpointId(4), is_savepoint=True, slots=files)
    job = place.job()
    job.start_generation(at_ms=0)
    job.complete(savepoint, location=str(tmp_path / "mine"))
    job.commit(CheckpointId(4), savepoint)
    assert place.told().lines[0].startswith(f"Savepoint 4 of generation 1 at {tmp_path / 'mine'}, ")
    (tmp_path / "mine").rename(tmp_path / "elsewhere")
    told = place.told()
    assert told.lines[0].startswith("Checkpoint 3 of generation 1 at ")
    assert f"because of damage: {tmp_path / 'mine' / 'manifest.json'} is missing." in told.lines[2]
    assert not (tmp_path / "mine").exists()
    assert place.started_from() == 3


def test_damage_that_slots_would_find_is_gone_back_behind_as_they_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "_READ_TO_CHECK_BYTES", 0)
    place = located(tmp_path)
    first = place.state_file(3).with_name("0.state")
    data = bytearray(first.read_bytes())
    data[3] ^= 1
    first.write_bytes(data)
    told = try_restore(open_path(str(place.folder)), place.plan, settings_of(place.plan))
    assert told.refusal is None and told.lines[0].startswith("Checkpoint 2 of generation 1 at ")
    assert f"because of damage: State file {first} is damaged" in told.lines[2]


def test_what_does_not_fit_is_refused_at_a_location_too(tmp_path: Path) -> None:
    place = located(tmp_path)
    place.sink = Sink("memory", {"queryName": "q"}, SCAN.schema)
    told = place.told()
    assert told.refusal is not None and "belongs to a query with" in told.refusal
    place.sink = Sink("noop", {}, SCAN.schema)
    assert "names checkpoint 7, but the query starts from checkpoint 3" in (
        place.told(without_captured_rows=CheckpointId(7)).refusal or ""
    )


def test_a_location_without_checkpoints_is_told_before_the_program_runs(tmp_path: Path) -> None:
    place = located(tmp_path, output=())
    program = tmp_path / "program.py"
    program.write_text("raise AssertionError('it was run')\n")
    with pytest.raises(UserError, match="has no complete checkpoint yet"):
        check.run(str(place.folder), str(program))


# -- the program that is tried


def test_a_trial_ends_the_program_at_its_first_query_and_is_over_then(tmp_path: Path) -> None:
    with trying(stored(tmp_path, once(SCAN))) as trial:
        assert current_trial() is trial
        with pytest.raises(TrialEnded):
            trial.look_at(
                lowered(once(SCAN)),
                NotRestored.REFUSED,
                state_backend="heap",
                rollback=SinkRollback.NONE,
                restore_mode=RestoreMode.NO_CLAIM,
                without_captured_rows=None,
            )
        assert trial.report is not None and trial.report.refusal is None
    assert current_trial() is None


def test_a_program_that_starts_no_query_is_told_so(tmp_path: Path) -> None:
    before = stored(tmp_path / "chk", once(SCAN))
    program = tmp_path / "program.py"
    program.write_text("import sys\nassert __name__ == '__main__' and sys.argv == [__file__]\n")
    with pytest.raises(UserError, match="has ended without"):
        check.run(before.root, str(program))
    with pytest.raises(UserError, match="There is no file"):
        check.run(before.root, str(tmp_path / "none.py"))
