"""How what slots say becomes the facts of a checkpoint, on one time line, and how they are stored."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.coordinator.facts import Heard, JobFacts, StoringTimes, as_completed, checkpoint_facts
from tidegate.coordinator.failure_notes import FailureNotes
from tidegate.coordinator.rates import TaskRates
from tidegate.coordinator.slot_clocks import SlotClocks
from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, SlotIndex, TaskId, VertexId
from tidegate.network.messages import (
    Acknowledge,
    BarrierSeen,
    LongStep,
    Progress,
    SlotStanding,
    TaskPart,
    TaskProgress,
    TaskStanding,
)
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Scan, Sink, TransformWithState
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoint_facts import CheckpointFacts, CommitFacts, Configured, Outcome
from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.kinds import Guarantee
from tidegate.protocol.switching import StorageSpeed
from tidegate.storage.manifests import Manifest, decode_manifest, encode_manifest
from tidegate.storage.statistics import FAILED_KEPT, put_failed, read_failed
from tidegate.storage.store import LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.simulation.world import SimBackground

SCHEMA = pa.schema([("k", pa.int64())])
PLAN = lower(
    TransformWithState(Scan("rate", {}, SCHEMA), 1, b"", SCHEMA),
    Sink("noop", {}, SCHEMA),
    parallelism=2,
    max_parallelism=8,
)
JOB = JobFacts(
    PLAN,
    Generation(3),
    CheckpointSettings(interval_ms=1_000, timeout_ms=5_000, min_pause_ms=0, max_concurrent=1, tolerable_failures=0),
    Configured(
        guarantee=Guarantee.EXACTLY_ONCE,
        switch_after_ms=1_000.0,
        debloat_target_ms=None,
        active_backpressure=ActiveBackpressure.STRICT,
    ),
)
ONE, TWO = SlotIndex(0), SlotIndex(1)
SOURCE, KEYED = TaskId(VertexId(0), 0), TaskId(VertexId(1), 0)
CHANNEL = ChannelId(EdgeId(0), 1, 0)
# The first slot's clock runs so far ahead of the driver's, on which the checkpoint was triggered at 1000.
AHEAD_MS = 50_000.0


def clocks() -> SlotClocks:
    made = SlotClocks()
    made.on_word(ONE, said_at_ms=900.0 + AHEAD_MS, now_ms=900.0)
    return made


def standing() -> SlotStanding:
    return SlotStanding(
        checkpoint=CheckpointId(7),
        triggered_at_ms=AHEAD_MS + 1_010.0,
        tasks=[
            TaskStanding(SOURCE, kind="aligned", snapshot_at_ms=AHEAD_MS + 1_010.0, sync_ms=2.0),
            TaskStanding(
                KEYED,
                first=BarrierSeen(CHANNEL, AHEAD_MS + 1_020.0),
                last=BarrierSeen(CHANNEL, AHEAD_MS + 1_020.0),
                missing=[ChannelId(EdgeId(0), 0, 0)],
                queued_bytes=64,
            ),
        ],
        long_steps=[
            LongStep(KEYED, AHEAD_MS + 1_005.0, 200.0, 1),
            LongStep(SOURCE, AHEAD_MS + 995.0, 90.0, 5),
        ],
        storage=StorageSpeed(4_096, 30.0),
        encoded_for_ms=12.0,
    )


def heard(**changes: Any) -> Heard:
    made = Heard(
        checkpoint=7,
        is_savepoint=False,
        kind="aligned",
        triggered_at_ms=1_000.0,
        triggered_wall_ms=1_700_000_000_000,
        acknowledged={},
        acknowledged_at_ms={},
        standings={ONE: standing()},
        last_words_ms={ONE: 1_900.0},
    )
    return replace(made, **changes)


def failed(checkpoint: int = 7, **changes: Any) -> CheckpointFacts:
    made = checkpoint_facts(
        JOB, heard(), clocks(), outcome=Outcome.FAILED, duration_ms=2_000.0, failure="expired", detail=None
    )
    return replace(made, checkpoint=checkpoint, **changes)


def test_times_of_a_slot_are_put_onto_the_drivers_line() -> None:
    facts = failed()
    source, keyed = facts.task(SOURCE), facts.task(KEYED)
    assert source is not None and keyed is not None
    assert (source.snapshot_ms, source.is_source, source.name) == (10.0, True, "Source[rate]")
    assert keyed.first is not None
    assert (keyed.first.at_ms, keyed.first.sender) == (20.0, TaskId(VertexId(0), 1))
    assert keyed.missing == (TaskId(VertexId(0), 0),)
    slot = facts.slot(0)
    assert slot is not None
    assert (slot.triggered_ms, slot.last_word_ms) == (10.0, 900.0)
    assert (slot.storage, slot.encoded_for_ms) == (StorageSpeed(4_096, 30.0), 12.0), "which are no times of a clock"


def test_a_step_counts_if_it_ended_after_the_trigger() -> None:
    slot = failed().slot(0)
    assert slot is not None
    assert [(step.task, step.started_ms, step.ended_ms) for step in slot.long_steps] == [(KEYED, -195.0, 5.0)]


def test_tasks_of_a_slot_that_said_nothing_are_there_without_a_snapshot() -> None:
    silent = failed().tasks_of(1)
    assert [(str(task.task), task.snapshot_ms) for task in silent] == [("v0.1", None), ("v1.1", None)]


def test_what_came_after_the_end_does_not_count() -> None:
    late = checkpoint_facts(JOB, heard(), clocks(), outcome=Outcome.FAILED, duration_ms=15.0, failure="expired")
    keyed = late.task(KEYED)
    assert keyed is not None and keyed.first is None


def test_a_finished_task_holds_up_nobody() -> None:
    only_keyed = SlotStanding(checkpoint=CheckpointId(7), triggered_at_ms=AHEAD_MS, tasks=standing().tasks[1:])
    found = checkpoint_facts(
        JOB, heard(standings={ONE: only_keyed}), clocks(), outcome=Outcome.IN_PROGRESS, duration_ms=2_000.0
    )
    source = found.task(SOURCE)
    assert source is not None and source.snapshot_ms == 0.0


def test_facts_are_part_of_the_manifest_and_come_back() -> None:
    part = TaskPart(KEYED, "aligned", 1.0, 2.0, 3.0, 4.0, 100, 20, 10, [])
    ack = Acknowledge(Generation(3), CheckpointId(7), "p", 1, 2, [part], [], [], standing=standing(), now_ms=1.0)
    before = StoringTimes(CheckpointId(6), 900.0, 910.0, committing_at_ms=930.0, ended_at_ms=1_800.0)
    facts = checkpoint_facts(
        JOB,
        heard(
            acknowledged={ONE: ack},
            acknowledged_at_ms={ONE: 1_500.0},
            storing=StoringTimes(CheckpointId(7), 1_600.0, 1_900.0),
            before=(before,),
        ),
        clocks(),
        outcome=Outcome.COMPLETED,
        duration_ms=600.0,
    )
    keyed = facts.task(KEYED)
    assert keyed is not None and (keyed.state_bytes, keyed.inflight_bytes, keyed.async_ms) == (100, 20, 4.0)
    assert (facts.completing_ms, facts.writing_ms, facts.configured) == (600.0, 900.0, JOB.configured)
    assert facts.commits_before == (CommitFacts(checkpoint=6, started_ms=-70.0, ended_ms=800.0, written_ms=20.0),)
    manifest = Manifest(
        checkpoint=CheckpointId(7),
        generation=Generation(3),
        kind="aligned",
        is_savepoint=False,
        triggered_at_ms=0,
        duration_ms=1.0,
        plan_fingerprint=[],
        parallelism=2,
        max_parallelism=8,
        vertex_parallelism=[2, 2],
        slots=[],
        statistics=facts,
    )
    assert decode_manifest(encode_manifest(manifest), name="m").statistics == facts
    done = as_completed(facts, duration_ms=650.0)
    assert (done.completing_ms, done.duration_ms) == (600.0, 650.0)


# -- clocks and rates


def test_the_quickest_message_tells_most_about_a_clock() -> None:
    made = clocks()
    made.on_word(ONE, said_at_ms=2_000.0 + AHEAD_MS, now_ms=2_500.0)
    assert made.in_driver_time_ms(ONE, AHEAD_MS + 10.0) == pytest.approx(10.0, abs=0.1)
    made.on_word(ONE, said_at_ms=3_000.0 + AHEAD_MS, now_ms=2_999.0)
    assert made.in_driver_time_ms(ONE, AHEAD_MS + 10.0) == 9.0
    assert made.last_word_ms(ONE) == 2_999.0
    assert made.in_driver_time_ms(TWO, 1.0) is None


def test_rates_are_of_the_last_second_or_so_and_add_up() -> None:
    rates = TaskRates()
    for at_s in range(3):
        busy_ms, waited_ms = 600.0 * at_s, 300.0 * at_s
        task = TaskProgress(KEYED, 50 * at_s, 10 * at_s, 0, busy_ms, waited_ms, bytes_in=400 * at_s)
        rates.on_progress(ONE, Progress(Generation(1), False, 0, [task], now_ms=1_000.0 * at_s))
    found = rates.of(KEYED)
    assert (found.busy_ms_per_s, found.backpressured_ms_per_s, found.idle_ms_per_s) == (600.0, 300.0, 100.0)
    assert (found.rows_in_per_s, found.rows_out_per_s, found.bytes_in_per_s) == (50.0, 10.0, 400.0)
    assert rates.of(SOURCE).busy_ms_per_s == 0.0


# -- failed ones in storage


def test_failed_ones_of_earlier_runs_stay_and_the_newest_are_kept(tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    assert read_failed(store) == []
    put_failed(store, [failed(1, generation=1, triggered_at_ms=1)])
    put_failed(store, [failed(id, triggered_at_ms=10 + id) for id in range(2, 2 + FAILED_KEPT)])
    kept = [facts.checkpoint for facts in read_failed(store)]
    assert kept == list(range(2, 2 + FAILED_KEPT))
    put_failed(store, [failed(5, triggered_at_ms=15, detail="known later")])
    assert [facts.detail for facts in read_failed(store) if facts.checkpoint == 5] == ["known later"]


def test_a_file_that_cannot_be_read_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "statistics").mkdir()
    (tmp_path / "statistics" / "failed.json").write_text("half of")
    store = LocalFiles(tmp_path)
    put_failed(store, [failed(3)])
    assert [facts.checkpoint for facts in read_failed(store)] == [3]


def test_failures_are_noted_seldom_behind_the_loop_and_once_more_at_the_end(tmp_path: Path) -> None:
    store, background, clock = LocalFiles(tmp_path), SimBackground(), ManualClock()
    notes = FailureNotes(store, background, clock)
    notes.look((failed(2), failed(1)))
    assert read_failed(store) == [] and background.work_once()
    assert {facts.checkpoint for facts in read_failed(store)} == {1, 2}
    notes.look((failed(3), failed(2), failed(1)))
    assert not background.has_work(), "it wrote just now"
    clock.advance(10_000.0)
    notes.look((failed(2), failed(1)))
    assert not background.has_work(), "nothing is new"
    notes.look((failed(4, failure="job_stopped"), failed(3), failed(2), failed(1)))
    assert background.work_once()
    notes.finish((failed(5), failed(3), failed(2), failed(1)))
    assert {facts.checkpoint for facts in read_failed(store)} == {1, 2, 3, 5}


def test_notes_that_cannot_be_written_fail_nothing_and_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class Full(LocalFiles):
        def put(self, path: str, data: object) -> None:
            raise DidNotHappen("the disk is full")

    background = SimBackground()
    caplog.set_level(logging.WARNING, logger="tidegate")  # which simulations before this test may have silenced
    notes = FailureNotes(Full(Path("/nowhere")), background, ManualClock())
    notes.look((failed(1),))
    assert background.work_once() and background.note_once()
    notes.finish((failed(2),))
    assert [message for message in caplog.messages if "the disk is full" in message] == caplog.messages
    assert len(caplog.messages) == 1
