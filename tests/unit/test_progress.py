"""What `lastProgress` says of a query."""

from dataclasses import replace
from datetime import UTC, datetime

from tidegate.api.progress import progress_of
from tidegate.coordinator.views import (
    CheckpointView,
    DroppedEdgeView,
    DroppedView,
    JobView,
    RestoreView,
    TaskCheckpointView,
    TaskView,
)
from tidegate.model.ids import TaskId, VertexId
from tidegate.protocol.statistics import CheckpointStatistics
from tidegate.protocol.watermarks import MAX_WATERMARK_MS
from tidegate.spark.ingest import IngestProgress


def task(vertex: int, *, paused_ms: float = 0.0, watermark_ms: int | None = None) -> TaskView:
    return TaskView(
        TaskId(VertexId(vertex), 0),
        name=f"task {vertex}",
        is_source=vertex == 0,
        rows_in=10 * (vertex + 1),
        rows_out=5,
        queued_bytes=7,
        busy_ms=1.0,
        backpressured_ms=2.0,
        paused_ms=paused_ms,
        watermark_ms=watermark_ms,
    )


def job(*tasks: TaskView) -> JobView:
    return JobView(state="running", generation=2, tasks=tasks, slot_pids=(11, 12))


def test_rows_are_those_of_the_sources_with_the_time_for_which_they_paused() -> None:
    progress = progress_of(None, job(task(0, paused_ms=1234.56), task(1)))
    assert progress["numInputRows"] == 10
    assert progress["sources"] == [{"description": "task 0", "task": "v0.0", "numInputRows": 10, "pausedMs": 1235}]
    assert (progress["batchId"], progress["timestamp"], progress["durationMs"]) == (None, None, {})
    assert progress["slots"] == [{"slot": 0, "pid": 11}, {"slot": 1, "pid": 12}]


def test_a_checkpoint_is_the_batch() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    view = CheckpointView(id=7, status="completed", kind="aligned", triggered_at=at, duration_ms=12.5)
    progress = progress_of(view, job(task(0)))
    assert (progress["batchId"], progress["timestamp"]) == (7, "2026-01-02T03:04:05+00:00")
    assert progress["durationMs"] == {"checkpoint": 12.5}


def test_all_that_is_known_of_the_checkpoint_is_shown_with_the_part_of_each_task() -> None:
    part = TaskCheckpointView("v1.0", 1.04, 2.06, 3.0, 4.0, 50, 60, 70, 80, "Aggregate(count(*))")
    view = CheckpointView(
        id=7,
        status="completed",
        kind="switched",
        triggered_at=datetime(2026, 1, 2, tzinfo=UTC),
        duration_ms=12.5,
        state_bytes=500,
        new_state_bytes=400,
        inflight_bytes=300,
        new_inflight_bytes=200,
        processed_bytes=100,
        tasks=(part,),
    )
    assert progress_of(view, job(task(0)))["tidegate"]["checkpoint"] == {
        "kind": "switched",
        "stateBytes": 500,
        "newStateBytes": 400,
        "inflightBytes": 300,
        "newInflightBytes": 200,
        "processedBytes": 100,
        "tasks": [
            {
                "task": "v1.0",
                "name": "Aggregate(count(*))",
                "startDelayMs": 1.0,
                "alignmentMs": 2.1,
                "syncMs": 3.0,
                "asyncMs": 4.0,
                "stateBytes": 50,
                "inflightBytes": 60,
                "newInflightBytes": 70,
                "processedBytes": 80,
            }
        ],
    }
    assert progress_of(None, job(task(0)))["tidegate"]["checkpoint"] is None


def test_the_newest_failure_is_shown_with_its_reason() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    failed = [
        CheckpointView(
            id=number, status="failed", kind="aligned", triggered_at=at, duration_ms=600.0, failure_reason=reason
        )
        for number, reason in ((9, "expired: slot 1"), (8, "declined: no room"))
    ]
    done = CheckpointView(id=10, status="completed", kind="aligned", triggered_at=at, duration_ms=12.5)
    counted = replace(job(task(0)), statistics=CheckpointStatistics().snapshot())
    shown = [progress_of(done, replace(counted, checkpoints=(done, *more))) for more in (failed, [])]
    assert [one["tidegate"]["checkpoints"]["lastFailure"] for one in shown] == ["checkpoint 9: expired: slot 1", None]


def test_a_watermark_is_shown_where_it_is_known_as_spark_writes_it() -> None:
    tasks = (
        task(0),
        task(1, watermark_ms=1_700_000_000_123),
        task(2, watermark_ms=-1),
        task(3, watermark_ms=MAX_WATERMARK_MS),
    )
    shown = [t.get("watermark") for t in progress_of(None, job(*tasks))["tasks"]]
    assert shown == [None, "2023-11-14T22:13:20.123Z", "1969-12-31T23:59:59.999Z", "end"]
    assert "watermark" not in progress_of(None, job(task(0)))["tasks"][0]


def test_late_rows_are_summed_up_over_the_tasks_of_a_stateful_step() -> None:
    counts = [replace(task(1), late_rows=rows, state_operator="Aggregate(count(*))") for rows in (3, 4)]
    shown = progress_of(None, job(task(0), *counts))["stateOperators"]
    assert shown == [{"operatorName": "Aggregate(count(*))", "numRowsDroppedByWatermark": 7}]


def test_rows_that_were_given_up_are_shown_with_the_edges_they_were_on() -> None:
    assert "droppedInFlight" not in progress_of(None, job(task(0)))["tidegate"]
    edges = (
        DroppedEdgeView(edge="a => b", rows=3, size_bytes=48),
        DroppedEdgeView(edge="b => c", rows=4, size_bytes=20, unread_bytes=7),
    )
    view = replace(job(task(0)), dropped=DroppedView(checkpoint=17, edges=edges))
    assert progress_of(None, view)["tidegate"]["droppedInFlight"] == {
        "checkpoint": 17,
        "rows": 7,
        "bytes": 68,
        "edges": [
            {"edge": "a => b", "rows": 3, "bytes": 48, "unreadBytes": 0},
            {"edge": "b => c", "rows": 4, "bytes": 20, "unreadBytes": 7},
        ],
    }


def test_it_says_from_where_the_generation_was_restored() -> None:
    assert "restore" not in progress_of(None, job(task(0)))["tidegate"]
    restore = RestoreView(checkpoint=17, recovered_bytes=1, local_bytes=2, remote_bytes=3, damaged_copies=4)
    assert progress_of(None, replace(job(task(0)), restore=restore))["tidegate"]["restore"] == {
        "checkpoint": 17,
        "localBytes": 2,
        "remoteBytes": 3,
        "damagedCopies": 4,
    }


def test_warnings_are_shown_once_there_are_any() -> None:
    assert "warnings" not in progress_of(None, job(task(0)))["tidegate"]
    assert progress_of(None, replace(job(task(0)), warnings=("Beware.",)))["tidegate"]["warnings"] == ["Beware."]


def test_what_spark_ingests_is_shown_where_it_does() -> None:
    assert "ingest" not in progress_of(None, job(task(0)))
    shown = progress_of(None, job(task(0)), [IngestProgress("q-source-0", 4096, 1234.56)])["ingest"]
    assert shown == [{"name": "q-source-0", "stagedBytes": 4096, "pausedMs": 1235}]
