"""`why` of jobs whose snapshots take long: a slow function is given all groups of an aggregation at the barrier."""

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.scenarios.staged_jobs import (
    ALIGNED,
    GROUPS,
    KEYS,
    LONG_MS,
    UNALIGNED,
    Staged,
    has_failed,
    is_held_up,
    playing,
)
from tidegate.connectors import staged_sink
from tidegate.model.ids import CheckpointId
from tidegate.plan.nodes import GroupRows, OutputMode, Sink
from tidegate.protocol.culprits import BigSynchronousPart, root_of
from tidegate.protocol.why import WhyReport, why

# All groups of a slot together take a little longer than what counts as held up.
GROUP_S = LONG_MS * 1.5 / 1000 / (KEYS / 2)


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Staged]:
    with playing(tmp_path) as start:
        yield start


def test_a_slow_function_behind_a_complete_result_is_a_big_synchronous_part(staged: Staged) -> None:
    """All groups go through it at the barrier, and nothing can be left for later."""
    report = staged(function=slow_groups, groups_into=Sink("noop", {}, GROUPS, OutputMode.COMPLETE)).first(is_held_up)
    check_slow_groups(report)


def test_a_slow_function_in_front_of_foreach_batch_is_a_big_synchronous_part(staged: Staged, tmp_path: Path) -> None:
    """In update mode: it gets each group that changed once per epoch."""
    options = {"checkpointLocation": str(tmp_path / "chk")}
    sink = Sink("foreachBatch", options, GROUPS, OutputMode.UPDATE, GroupRows.ONCE_PER_EPOCH)
    folder = staged_sink.from_node(sink).folder
    epochs: list[CheckpointId] = []
    staged_sink.call_for_epochs(folder, lambda files, epoch: epochs.append(epoch))
    try:
        check_slow_groups(staged(function=slow_groups, groups_into=sink).first(is_held_up))
        assert epochs
    finally:
        staged_sink.call_no_more(folder)


def slow_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(batch.num_rows * GROUP_S)
        yield batch


def check_slow_groups(report: WhyReport) -> None:
    assert isinstance(report.culprit, BigSynchronousPart), report
    assert report.culprit.where.what.startswith("v1.") and "MapInArrow" in report.culprit.where.name
    assert report.culprit.duration_ms > LONG_MS / 2
    assert report.cost_to_stream.sync_ms > LONG_MS / 2
    assert "aggregation" in report.advice[0], report


@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED], ids=["aligned", "unaligned"])
def test_one_that_expired_in_a_big_synchronous_part_says_so_once_the_slot_has_told(
    staged: Staged, switch_after_ms: float | None
) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(LONG_MS * 2 / 1000)
            yield batch

    stage = staged(
        function=slow,
        groups_into=Sink("noop", {}, GROUPS, OutputMode.COMPLETE),
        switch_after_ms=switch_after_ms,
        timeout_ms=LONG_MS,
    )

    def told() -> WhyReport | None:
        """Of one that was begun everywhere: a slot begins none that is over when it gets to it."""
        reports = (why(facts) for facts in stage.coordinator.checkpoint_facts() if has_failed("expired")(facts))
        return next((report for report in reports if is_big(report)), None)

    def is_big(report: WhyReport) -> bool:
        culprit = root_of(report.culprit)
        is_told = isinstance(culprit, BigSynchronousPart) and culprit.where.what.startswith("v1.")
        return is_told and culprit.duration_ms > LONG_MS

    stage.until(told)
