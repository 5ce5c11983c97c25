"""What a restore would do, told before it is done."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.unit.test_matching import SCAN, lowered, named, once, summed, where
from tests.unit.test_restoring import MANIFEST, Captured, Job, rows
from tidegate.api.trial import TrialEnded, current_trial, trying
from tidegate.cli import check
from tidegate.coordinator.compatibility import NotRestored
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.inspection import StoredCheckpoint
from tidegate.coordinator.restore_trial import TrialReport, try_restore
from tidegate.model.errors import IncompatibleCheckpoint, UserError
from tidegate.model.ids import ChannelId, EdgeId, TaskId, VertexId
from tidegate.operators.described import describe_plan
from tidegate.plan.lower import fingerprint, lower
from tidegate.plan.nodes import Node, Sink, TimeMode, TransformWithState
from tidegate.protocol.retention import KeepNumber
from tidegate.state.contract import Redistribution, Section
from tidegate.storage.manifests import encode_manifest
from tidegate.storage.store import LocalFiles

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
    return try_restore(before, plan, fingerprint(plan), not_restored)


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


def test_it_estimates_the_time_from_what_it_measured(tmp_path: Path) -> None:
    before = stored(tmp_path, once(SCAN))
    said = report(before, once(SCAN)).lines[-1]
    assert said.startswith(f"To read: {before.size_bytes() / 1024:.1f} KiB, about ") and "measured here" in said


def test_rows_in_flight_are_told(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    from tidegate.plan.nodes import Deduplicate, Scan

    plan = lower(
        Deduplicate(Scan("parquet", {}, schema), (0,), None, None, schema),
        Sink("noop", {}, schema),
        parallelism=1,
        max_parallelism=16,
    )
    job = Job(LocalFiles(tmp_path), plan, channels={ChannelId(EdgeId(0), 0, 0): Captured((rows(1), rows(2)))})
    before = StoredCheckpoint(str(tmp_path), LocalFiles(tmp_path), MANIFEST, job.write())
    told = try_restore(before, plan, fingerprint(plan), NotRestored.REFUSED)
    assert "  rows in flight into v1: 2 elements, e0 -> e0" in told.lines


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
    in_rocksdb = try_restore(before, plan, fingerprint(plan), NotRestored.REFUSED, state_backend="rocksdb")
    assert in_rocksdb.refusal is None
    assert report(before, SCAN, NotRestored.DROPPED).refusal is None


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


# -- the program that is tried


def test_a_trial_ends_the_program_at_its_first_query_and_is_over_then(tmp_path: Path) -> None:
    with trying(stored(tmp_path, once(SCAN))) as trial:
        assert current_trial() is trial
        with pytest.raises(TrialEnded):
            trial.look_at(lowered(once(SCAN)), NotRestored.REFUSED, state_backend="heap")
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
