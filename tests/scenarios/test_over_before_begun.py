"""A checkpoint that expired while a slot was held up is not begun there any more: by no trigger and no barrier."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.scenarios.staged_jobs import GROUPS, UNALIGNED, Stage, playing
from tidegate.plan.nodes import OutputMode, Sink

TIMEOUT_MS = 300.0


def test_a_slot_whose_snapshots_take_longer_than_the_timeout_does_not_fall_behind_its_checkpoints(
    tmp_path: Path,
) -> None:
    begun: Counter[int] = Counter()

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun[threading.get_ident()] += 1
            time.sleep(TIMEOUT_MS * 4 / 1000)
            yield batch

    def newest_of(stage: Stage) -> int | None:
        expired = [facts.checkpoint for facts in stage.coordinator.checkpoint_facts() if facts.failure == "expired"]
        return max(expired) if len(expired) >= 12 else None

    with playing(tmp_path) as start:
        stage = start(
            function=slow,
            groups_into=Sink("noop", {}, GROUPS, OutputMode.COMPLETE),
            switch_after_ms=UNALIGNED,
            interval_ms=100.0,
            timeout_ms=TIMEOUT_MS,
        )
        newest = stage.until(lambda: newest_of(stage))
    assert max(begun.values()) <= newest / 2, f"{begun} of {newest}"
