"""What a query serves over HTTP, and that it is never in the way."""

import logging
import socket
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tidegate.coordinator.rates import Rates
from tidegate.coordinator.views import CheckpointView, JobView, TaskView
from tidegate.model.ids import TaskId, VertexId
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.statistics import CheckpointStatistics, Owner
from tidegate.protocol.watermarks import MAX_WATERMARK_MS
from tidegate.server.metrics import open_metrics
from tidegate.server.page import QueryPage


def view() -> JobView:
    statistics = CheckpointStatistics()
    statistics.on_triggered(Owner.JOB)
    statistics.on_completed(Owner.JOB, duration_ms=120.0, state_bytes=10, inflight_bytes=3)
    statistics.on_triggered(Owner.JOB)
    statistics.on_failed(FailureReason.EXPIRED, 600.0)
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
        lag_ms=2_500.0,
        rates=Rates(busy_ms_per_s=800.0, backpressured_ms_per_s=150.0, idle_ms_per_s=50.0),
    )
    checkpoint = CheckpointView(
        id=3,
        status="completed",
        kind="aligned",
        triggered_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_ms=120.0,
        inflight_bytes=3,
    )
    ended = replace(task, task=TaskId(VertexId(1), 1), watermark_ms=MAX_WATERMARK_MS)
    return JobView(
        state="running",
        generation=2,
        checkpoints=(checkpoint,),
        tasks=(task, ended),
        slot_pids=(11, 12),
        statistics=statistics.snapshot(),
    )


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """By name and task, reason or quantile; parsed strictly, as Prometheus does."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = sample.labels
            by = labels.get("task") or labels.get("reason") or labels.get("quantile") or labels.get("state") or ""
            found[sample.name, by] = sample.value
    return found


def test_the_numbers_of_a_view_are_open_metrics() -> None:
    found = samples(open_metrics("totals", view()))
    assert found["tidegate_query", "running"] == 1
    assert found["tidegate_checkpoints_completed_total", ""] == 1
    assert found["tidegate_checkpoints_failed_total", "expired"] == 1
    assert found["tidegate_checkpoint_duration_quantile_seconds", "0.95"] == 0.12
    assert found["tidegate_checkpoint_last_inflight_bytes", ""] == 3
    assert found["tidegate_task_rows_in_total", "v0.1"] == 10
    assert found["tidegate_task_bytes_out_total", "v0.1"] == 50
    assert found["tidegate_task_busy_seconds_total", "v0.1"] == 1.5
    assert found["tidegate_task_paused_seconds_total", "v0.1"] == 0.04
    assert found["tidegate_task_backpressured_ratio", "v0.1"] == 0.15
    assert found["tidegate_task_window_bytes", "v0.1"] == 4096
    assert found["tidegate_task_source_lag_seconds", "v0.1"] == 2.5
    assert found["tidegate_task_watermark_timestamp_seconds", "v0.1"] == 1_700_000_000
    assert ("tidegate_task_watermark_timestamp_seconds", "v1.1") not in found


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


def test_one_that_ends_at_once_leaves_no_thread() -> None:
    page = QueryPage("q", view, host="127.0.0.1", port=0)
    page.close()
    assert not page._thread.is_alive()
