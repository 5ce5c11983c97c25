"""When a source counts as idle, so that it does not hold back event time."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from tidegate.connectors.contract import NothingNow, Polled, Rows, SourceReader
from tidegate.connectors.limited import LimitedReader
from tidegate.model.ids import CheckpointId
from tidegate.protocol.admission import ActiveBackpressure, SourceAdmission
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.source_head import SourceHead

ROWS = pa.RecordBatch.from_pydict({"v": [1]})


class Splits:
    """A reader with one row for each split."""

    def __init__(self) -> None:
        self.waiting = 0

    def poll(self, max_rows: int) -> Polled:
        if not self.waiting:
            return NothingNow(1000.0)
        self.waiting -= 1
        return Rows(ROWS)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self.waiting += len(splits)

    def no_more_splits(self) -> None: ...
    def restore(self, state: bytes) -> None: ...
    def snapshot(self) -> bytes:
        return b""

    def close(self) -> None: ...


def test_a_source_that_has_had_nothing_for_long_becomes_idle_once() -> None:
    head = _head()
    head.poll(1, 0.0)
    assert not head.becomes_idle(500.0)
    head.poll(1, 1000.0)
    assert not head.becomes_idle(1000.0)
    assert head.next_deadline_ms() == 1010.0, "it is looked at again soon"
    head.poll(1, 1010.0)
    assert head.becomes_idle(1010.0)
    assert not head.becomes_idle(1020.0)


def test_a_loop_that_stood_still_hears_of_its_splits_before_its_source_becomes_idle() -> None:
    head = _head()
    head.poll(1, 0.0)
    # Another task of the slot took seven seconds; the splits came in time, and are heard of after this look.
    head.poll(1, 7000.0)
    assert not head.becomes_idle(7000.0)
    head.add_splits([b"first"], is_last=False)
    assert isinstance(head.poll(1, 7000.0), Rows)
    head.poll(1, 7001.0)
    assert not head.becomes_idle(7001.0)


def test_a_source_that_woke_is_not_done_with_its_rows_while_it_holds_back_their_event_time() -> None:
    """Whoever waits until all rows are processed waits for what their time sets off, too."""
    head = _head()
    head.settling_ms = 500.0
    for now_ms in (0.0, 1000.0, 1010.0):
        head.poll(1, now_ms)
        head.becomes_idle(now_ms)
    assert head.is_idle and head.is_waiting(1010.0)
    head.add_splits([b"first"], is_last=False)
    head.poll(1, 2000.0)
    head.poll(1, 2001.0)
    assert not head.is_waiting(2499.0) and head.is_waiting(2500.0)


def _head(reader: SourceReader | None = None) -> SourceHead:
    admission = SourceAdmission(ActiveBackpressure.OFF, interval_ms=1000.0, max_concurrent=1, now_ms=0.0)
    return SourceHead(reader or Splits(), admission, idle_after_ms=1000.0)


class Following(Splits):
    """Remembers what it was told, and tells where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int]] = []

    def on_checkpoint_triggered(self, checkpoint: CheckpointId) -> None:
        self.told.append(("triggered", checkpoint))

    def on_checkpoint_completed(self, checkpoint: CheckpointId) -> None:
        self.told.append(("completed", checkpoint))

    def on_checkpoint_aborted(self, checkpoint: CheckpointId) -> None:
        self.told.append(("aborted", checkpoint))

    def position(self) -> bytes:
        return b"here"

    def is_amid_batch(self) -> bool:
        return True


@pytest.mark.parametrize("is_limited", [False, True])
def test_a_reader_that_follows_checkpoints_hears_of_them_also_behind_a_limit(is_limited: bool) -> None:
    reader = Following()
    head = _head(LimitedReader(reader, rows_per_s=1.0, clock=ManualClock()) if is_limited else reader)
    head.on_triggered(CheckpointId(1), 0.0, suspends=False)
    head.on_completed(CheckpointId(1))
    head.on_triggered(CheckpointId(2), 0.0, suspends=False)
    head.on_abort(CheckpointId(2))
    assert reader.told == [("triggered", 1), ("completed", 1), ("triggered", 2), ("aborted", 2)]
    assert head.position() == b"here"
    assert head.event_time_moves_at_ms() is None


def test_a_plain_reader_need_not_follow_checkpoints() -> None:
    head = _head()
    head.on_triggered(CheckpointId(1), 0.0, suspends=False)
    head.on_completed(CheckpointId(1))
    head.on_abort(CheckpointId(2))
    assert head.position() is None
    assert head.event_time_moves_at_ms() == 0.0
