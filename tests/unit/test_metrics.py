"""What a query serves over HTTP, and that it is never in the way."""

import logging
import re
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tidegate.api.progress import progress_of
from tidegate.coordinator.rates import Rates
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
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.statistics import CheckpointStatistics, Owner
from tidegate.protocol.watermarks import MAX_WATERMARK_MS
from tidegate.server import page as page_module
from tidegate.server.metrics import open_metrics
from tidegate.server.page import QueryPage
from tidegate.spark.ingest import IngestProgress

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "reading-checkpoints.md"
INGESTED = [IngestProgress("totals-source-0", 71_000, 3_250.0), IngestProgress("totals-source-1", 72_000, 4_750.0)]


def view() -> JobView:
    """No two of its numbers are the same, so that none can be taken for another."""
    statistics = CheckpointStatistics()
    for duration_ms in [20.0] * 50 + [120.0] * 45 + [240.0] * 4 + [480.0]:
        statistics.on_triggered(Owner.JOB)
        statistics.on_completed(Owner.JOB, duration_ms=duration_ms, state_bytes=10, inflight_bytes=3)
    for _ in range(9):
        statistics.on_triggered(Owner.JOB)
    for _ in range(3):
        statistics.on_failed(FailureReason.EXPIRED, 600.0)
    statistics.on_failed(FailureReason.DECLINED, 600.0)
    task = TaskView(
        TaskId(VertexId(0), 1),
        name='Source[json] -> "odd"',
        is_source=True,
        rows_in=10,
        rows_out=5,
        queued_bytes=7,
        busy_ms=1500.0,
        backpressured_ms=250.0,
        paused_ms=40.0,
        watermark_ms=1_700_000_000_000,
        late_rows=2,
        bytes_in=100,
        bytes_out=50,
        window_bytes=4096,
        unstored_bytes=88,
        lag_ms=2_500.0,
        rates=Rates(busy_ms_per_s=800.0, backpressured_ms_per_s=150.0, idle_ms_per_s=50.0),
    )
    of_task = TaskCheckpointView(
        task="v0.1",
        name='Source[json] -> "odd"',
        start_delay_ms=11.0,
        alignment_ms=12.0,
        sync_ms=13.0,
        async_ms=14.0,
        state_bytes=150,
        inflight_bytes=160,
        new_inflight_bytes=165,
        processed_bytes=180,
    )
    checkpoint = CheckpointView(
        id=3,
        status="completed",
        kind="aligned",
        triggered_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_ms=130.0,
        state_bytes=400,
        new_state_bytes=300,
        inflight_bytes=200,
        new_inflight_bytes=170,
        processed_bytes=90,
        tasks=(of_task,),
    )
    failed = replace(checkpoint, id=4, status="failed", duration_ms=600.0, state_bytes=0)
    ended = replace(task, task=TaskId(VertexId(1), 1), watermark_ms=MAX_WATERMARK_MS)
    return JobView(
        state="running",
        generation=6,
        checkpoints=(failed, checkpoint),
        tasks=(task, ended),
        slot_pids=(11, 12),
        statistics=statistics.snapshot(),
    )


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """By name and task, reason, quantile or part; parsed strictly, as Prometheus does."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = sample.labels
            kinds = ("task", "reason", "quantile", "state", "kind", "name")
            by = next((labels[name] for name in kinds if name in labels), "")
            found[sample.name, by] = sample.value
    return found


def test_the_numbers_of_a_view_are_open_metrics() -> None:
    found = samples(open_metrics("totals", view()))
    of_the_job = {by_name: value for by_name, value in found.items() if not by_name[1].startswith("v")}
    assert of_the_job == {
        ("tidegate_query", "running"): 1,
        ("tidegate_query_generation", ""): 6,
        ("tidegate_query_slots", ""): 2,
        ("tidegate_query_warnings", ""): 0,
        ("tidegate_checkpoints_triggered_total", ""): 109,
        ("tidegate_checkpoints_completed_total", ""): 100,
        ("tidegate_checkpoints_failed_total", "expired"): 3,
        ("tidegate_checkpoints_failed_total", "declined"): 1,
        ("tidegate_checkpoints_in_progress", ""): 5,
        ("tidegate_checkpoint_duration_quantile_seconds", "0.5"): 0.02,
        ("tidegate_checkpoint_duration_quantile_seconds", "0.95"): 0.12,
        ("tidegate_checkpoint_duration_quantile_seconds", "0.99"): 0.24,
        ("tidegate_checkpoint_duration_quantile_seconds", "1"): 0.48,
        # Of the newest completed one, although a newer one has failed.
        ("tidegate_checkpoint_last_kind", "aligned"): 1,
        ("tidegate_checkpoint_last_id", ""): 3,
        ("tidegate_checkpoint_last_duration_seconds", ""): 0.13,
        ("tidegate_checkpoint_last_state_bytes", ""): 400,
        ("tidegate_checkpoint_last_new_state_bytes", ""): 300,
        ("tidegate_checkpoint_last_inflight_bytes", ""): 200,
        ("tidegate_checkpoint_last_new_inflight_bytes", ""): 170,
        ("tidegate_checkpoint_last_triggered_timestamp_seconds", ""): 1_767_225_600,
        ("tidegate_checkpoint_last_processed_bytes", ""): 90,
    }
    of_the_source = {name: value for (name, by), value in found.items() if by == "v0.1"}
    assert of_the_source == {
        "tidegate_task_rows_in_total": 10,
        "tidegate_task_rows_out_total": 5,
        "tidegate_task_bytes_in_total": 100,
        "tidegate_task_bytes_out_total": 50,
        "tidegate_task_busy_seconds_total": 1.5,
        "tidegate_task_backpressured_seconds_total": 0.25,
        "tidegate_task_paused_seconds_total": 0.04,
        "tidegate_task_late_rows_total": 2,
        "tidegate_task_busy_ratio": 0.8,
        "tidegate_task_backpressured_ratio": 0.15,
        "tidegate_task_idle_ratio": 0.05,
        "tidegate_task_queued_bytes": 7,
        "tidegate_task_window_bytes": 4096,
        "tidegate_task_unstored_bytes": 88,
        "tidegate_task_source_lag_seconds": 2.5,
        "tidegate_task_watermark_timestamp_seconds": 1_700_000_000,
        "tidegate_task_checkpoint_start_delay_seconds": 0.011,
        "tidegate_task_checkpoint_alignment_seconds": 0.012,
        "tidegate_task_checkpoint_sync_seconds": 0.013,
        "tidegate_task_checkpoint_async_seconds": 0.014,
        "tidegate_task_checkpoint_state_bytes": 150,
        "tidegate_task_checkpoint_inflight_bytes": 160,
        "tidegate_task_checkpoint_new_inflight_bytes": 165,
        "tidegate_task_checkpoint_processed_bytes": 180,
    }
    assert ("tidegate_task_watermark_timestamp_seconds", "v1.1") not in found


def test_rows_that_were_given_up_are_counted_by_edge() -> None:
    edge = DroppedEdgeView(edge="a => b", rows=3, size_bytes=48, unread_bytes=2)
    dropped = replace(view(), dropped=DroppedView(checkpoint=17, edges=(edge,)))
    found = samples(open_metrics("totals", dropped))
    assert found["tidegate_dropped_inflight_rows_total", ""] == 3
    assert found["tidegate_dropped_inflight_bytes_total", ""] == 50
    assert ("tidegate_dropped_inflight_rows_total", "") not in samples(open_metrics("totals", view()))


def test_from_where_a_generation_was_restored_is_told() -> None:
    restore = RestoreView(checkpoint=17, recovered_bytes=1, local_bytes=2, remote_bytes=3, damaged_copies=4)
    found = samples(open_metrics("totals", replace(view(), restore=restore)))
    names = ("checkpoint", "local_bytes", "remote_bytes", "damaged_copies")
    assert [found[f"tidegate_restore_{name}", ""] for name in names] == [17, 2, 3, 4]


def test_a_warning_and_the_share_of_memory_are_told() -> None:
    found = samples(open_metrics("totals", replace(view(), warnings=("Beware.",), heap_state_share=0.5)))
    assert (found["tidegate_query_warnings", ""], found["tidegate_heap_state_ratio", ""]) == (1, 0.5)


def test_what_spark_ingests_is_told_part_by_part() -> None:
    found = samples(open_metrics("totals", view(), INGESTED))
    assert {by: value for by, value in found.items() if by[0].startswith("tidegate_ingest")} == {
        ("tidegate_ingest_staged_bytes", "totals-source-0"): 71_000,
        ("tidegate_ingest_staged_bytes", "totals-source-1"): 72_000,
        ("tidegate_ingest_paused_seconds_total", "totals-source-0"): 3.25,
        ("tidegate_ingest_paused_seconds_total", "totals-source-1"): 4.75,
    }


def numbers(shown: Any, key: str = "", above: str = "") -> Iterator[tuple[str, float]]:
    """All that are in there, by their key, times in seconds as the metrics have them."""
    if isinstance(shown, dict):
        for inner, value in shown.items():
            yield from numbers(value, inner, key)
    elif isinstance(shown, list):
        for value in shown:
            yield from numbers(value, key, above)
    elif isinstance(shown, int | float):
        yield key, shown / 1000 if "Ms" in key or "Ms" in above else shown


def test_every_number_of_the_progress_is_in_the_metrics() -> None:
    restore = RestoreView(checkpoint=17, recovered_bytes=1, local_bytes=21, remote_bytes=22, damaged_copies=23)
    job = replace(view(), restore=restore)
    shown = progress_of(job.checkpoints[1], job, INGESTED)
    told = set(samples(open_metrics("totals", job, INGESTED)).values())
    # Processes are no numbers to follow; sums and rates of counters are made where the metrics are read.
    elsewhere = {"slot", "pid", "numInputRows", "failed"}
    missing = {
        key: number
        for key, number in numbers(shown)
        if number not in told and key not in elsewhere and not re.search("[rR]ows(In|Out|)PerSecond", key)
    }
    assert missing == {}


def test_the_guide_lists_what_is_told_and_nothing_else() -> None:
    edge = DroppedEdgeView(edge="a => b", rows=3, size_bytes=48, unread_bytes=2)
    everything = replace(
        view(),
        dropped=DroppedView(checkpoint=17, edges=(edge,)),
        restore=RestoreView(checkpoint=17, recovered_bytes=1),
        heap_state_share=0.5,
    )
    told = {name for name, _ in samples(open_metrics("totals", everything, INGESTED))}
    _, _, listed = GUIDE.read_text(encoding="utf-8").partition("\n## Metrics\n")
    assert set(re.findall(r"`(tidegate_\w+[a-z])`", listed)) == told


def test_every_number_says_which_query_it_is_of_and_a_tasks_what_it_does() -> None:
    families = list(text_string_to_metric_families(open_metrics("totals", view()).decode()))
    labels = [sample.labels for family in families for sample in family.samples]
    assert {each["query"] for each in labels} == {"totals"}
    assert {each["name"] for each in labels if "task" in each} == {'Source[json] -> "odd"'}


def test_a_query_that_has_not_begun_has_metrics_too() -> None:
    assert samples(open_metrics("q", JobView(state="starting", generation=0)))["tidegate_query", "starting"] == 1


def fetch(url: str) -> tuple[int, str, bytes]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.status, answer.headers["Content-Type"], answer.read()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_metrics_are_served_until_the_query_ends() -> None:
    page = QueryPage("totals", view, host="127.0.0.1", port=0)
    assert page.url is not None
    status, content_type, text = fetch(f"{page.url}/metrics")
    assert status == 200 and content_type.startswith("application/openmetrics-text")
    assert samples(text) == samples(open_metrics("totals", view()))
    page.close()
    assert not page._thread.is_alive()
    with pytest.raises(OSError):
        fetch(f"{page.url}/metrics")


def test_the_page_shows_what_is_ingested_for_its_query() -> None:
    page = QueryPage("totals", view, host="127.0.0.1", port=0, ingested=lambda: INGESTED)
    try:
        assert samples(fetch(f"{page.url}/metrics")[2]) == samples(open_metrics("totals", view(), INGESTED))
    finally:
        page.close()


def test_a_taken_port_makes_it_listen_on_the_next_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        page = QueryPage("q", view, host="127.0.0.1", port=port)
        assert page.url is not None and int(page.url.rsplit(":", 1)[1]) > port
        page.close()


def test_where_it_cannot_listen_it_says_so_once_and_the_query_runs_without(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        page = QueryPage("q", view, host="192.0.2.1", port=free_port())
    assert page.url is None
    assert len(caplog.messages) == 1 and "has no page" in caplog.messages[0]
    page.close()


def test_one_that_ends_at_once_leaves_neither_thread_nor_port() -> None:
    page = QueryPage("q", view, host="127.0.0.1", port=0)
    page.close()
    assert not page._thread.is_alive()
    assert page._socket is not None and page._socket.fileno() == -1


def test_a_page_that_fails_says_so_and_the_query_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(query: str, view: object, ingested: object, routes: object) -> None:
        raise RuntimeError("no such package")

    monkeypatch.setattr(page_module, "make_app", fails)
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        page = QueryPage("q", view, host="127.0.0.1", port=0)
        page._thread.join(20)
    assert caplog.messages == ["The page of query 'q' is gone: RuntimeError: no such package"]
    assert page._socket is not None and page._socket.fileno() == -1
    page.close()
