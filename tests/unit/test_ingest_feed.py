"""When a batch that Spark has ready may be staged: Spark's callback waits in a thread of its own, as here."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from tidegate.connectors.staged_source import StagingFolder
from tidegate.model.ids import CheckpointId
from tidegate.protocol.admission import ActiveBackpressure, SourceAdmission
from tidegate.spark.ingest import QueryFeed, Unstaged
from tidegate.testing.manual_clock import ManualClock

ONE, TWO = CheckpointId(1), CheckpointId(2)
INTERVAL_MS = 1000.0


class Waiting:
    """Spark's callback before it writes a batch."""

    def __init__(self, feed: QueryFeed) -> None:
        self.is_let_through = threading.Event()
        self.is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(feed,), daemon=True)
        self._thread.start()

    def _wait(self, feed: QueryFeed) -> None:
        try:
            feed._wait_for_room()
            self.is_let_through.set()
        except Unstaged:
            self.is_stopped.set()


def make(tmp_path: Path, mode: ActiveBackpressure) -> tuple[QueryFeed, ManualClock]:
    clock = ManualClock()
    admission = SourceAdmission(mode, interval_ms=INTERVAL_MS, max_concurrent=1, now_ms=0.0)
    folder = StagingFolder(tmp_path)
    no_frame = cast(Any, None)  # it is not started
    feed = QueryFeed(
        no_frame, folder, name="in", available_now=False, most_staged_bytes=1000, admission=admission, clock=clock
    )
    return feed, clock


@pytest.mark.parametrize(
    ("mode", "event"),
    [
        (ActiveBackpressure.ON, QueryFeed.on_reached_all),
        (ActiveBackpressure.ON, QueryFeed.on_settled),
        (ActiveBackpressure.STRICT, QueryFeed.on_settled),
    ],
)
def test_spark_waits_for_a_checkpoint_that_is_an_interval_late_and_no_longer(
    tmp_path: Path, mode: ActiveBackpressure, event: Any
) -> None:
    feed, clock = make(tmp_path, mode)
    feed.on_triggered(ONE)
    clock.advance(INTERVAL_MS - 1)
    assert Waiting(feed).is_let_through.wait(10)
    clock.advance(1)
    batch = Waiting(feed)
    assert not batch.is_let_through.wait(0.1)
    clock.advance(500)
    event(feed, ONE)
    assert batch.is_let_through.wait(10)
    assert feed.progress().paused_ms == 500


def test_strict_waits_on_when_the_barrier_has_only_reached_every_task(tmp_path: Path) -> None:
    feed, clock = make(tmp_path, ActiveBackpressure.STRICT)
    feed.on_triggered(ONE)
    clock.advance(INTERVAL_MS)
    batch = Waiting(feed)
    feed.on_reached_all(ONE)
    assert not batch.is_let_through.wait(0.1)
    feed.stop()
    assert batch.is_stopped.wait(10)


def test_without_active_backpressure_no_checkpoint_is_waited_for(tmp_path: Path) -> None:
    feed, clock = make(tmp_path, ActiveBackpressure.OFF)
    feed.on_triggered(ONE)
    clock.advance(100 * INTERVAL_MS)
    assert Waiting(feed).is_let_through.wait(10)
