"""What Spark has staged as a source: what every source promises, and what a staging folder promises."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors import staged_source
from tidegate.connectors.contract import Source
from tidegate.connectors.range_source import RangeReader, RangeSource
from tidegate.connectors.registry import open_source
from tidegate.connectors.staged_source import OpenStaging, StagingFolder
from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.plan.nodes import Scan
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.source_suite import SourceRun, SourceSuite

SCHEMA = pa.schema([("v", pa.int64()), ("v", pa.string())])


class FixedFeed:
    """All that will be staged is staged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.covered: list[int] = []
        self.is_paused = False
        self.ended = True

    def keep_going(self) -> None:
        StagingFolder(self.path).prepare()
        self.is_paused = False

    def pause(self) -> None:
        self.is_paused = True

    def has_ended(self) -> bool:
        return self.ended

    def on_covered(self, batch: int) -> None:
        self.covered.append(batch)


def stage(folder: StagingFolder, batch: int, *files: tuple[int, int]) -> None:
    data = folder.new_data_folder(batch)
    data.mkdir()
    for first, rows in files:
        values = list(range(first, first + rows))
        pq.write_table(pa.table({"c0": values, "c1": [str(v) for v in values]}), data / f"part-{first}.parquet")
    (data / "_SUCCESS").touch()
    folder.publish(batch, data, SCHEMA.names)


def staging_of(path: Path) -> tuple[StagingFolder, FixedFeed]:
    folder, feed = StagingFolder(path), FixedFeed(path)
    folder.prepare()
    staged_source.feed_from(path, feed)
    return folder, feed


def source_of(path: Path) -> Source:
    return open_source(Scan("staged", {"path": str(path)}, SCHEMA))


def rows_of(*ranges: tuple[int, int]) -> list[tuple[Any, ...]]:
    return [(i, str(i)) for first, rows in ranges for i in range(first, first + rows)]


class TestStagedSource(SourceSuite):
    def make_source(self, folder: Path) -> Source:
        staging, _ = staging_of(folder)
        for batch, files in enumerate([[(0, 11), (20, 9)], [], [(40, 15)], [(60, 1), (70, 12)]]):
            if not staging.has(batch):
                stage(staging, batch, *files)
        return source_of(folder)

    def expected_rows(self) -> list[tuple[Any, ...]]:
        return rows_of((0, 11), (20, 9), (40, 15), (60, 1), (70, 12))


def test_of_two_attempts_at_a_batch_the_first_that_is_published_counts(tmp_path: Path) -> None:
    folder, _ = staging_of(tmp_path)
    stage(folder, 0, (0, 3))
    stage(folder, 0, (100, 3))
    assert sorted(SourceRun(source_of(tmp_path), 1).drain()) == rows_of((0, 3))
    folder.remove_unpublished()
    assert len(list((tmp_path / "data").iterdir())) == 1


def test_a_driver_that_starts_leaves_what_another_one_may_still_publish(tmp_path: Path) -> None:
    folder, _ = staging_of(tmp_path)
    stage(folder, 0, (0, 3))
    in_work = folder.new_data_folder(1)
    in_work.mkdir()
    pq.write_table(pa.table({"c0": [3], "c1": ["3"]}), in_work / "part.parquet")
    folder.remove_unpublished()
    folder.publish(1, in_work, SCHEMA.names)
    assert sorted(SourceRun(source_of(tmp_path), 1).drain()) == rows_of((0, 4))


def test_rows_of_other_columns_are_refused_and_not_read_as_these(tmp_path: Path) -> None:
    stage_one_row(tmp_path, "price", "_common_expr_17")
    assert read_as(tmp_path, "price", "_common_expr_20") == [(3, 4)], "Catalyst's own names differ from start to start"
    with pytest.raises(IncompatibleCheckpoint, match="the columns price, _common_expr_17, which are not read yet"):
        read_as(tmp_path, "amount", "price")


def test_random_columns_are_found_again_although_each_start_draws_another_seed(tmp_path: Path) -> None:
    stage_one_row(tmp_path, "rand(-158884697681280011)", "randn(7)")
    assert read_as(tmp_path, "rand(12)", "randn(-8)") == [(3, 4)]
    with pytest.raises(IncompatibleCheckpoint, match="which are not read yet"):
        read_as(tmp_path, "randn(12)", "rand(-8)")


@pytest.mark.parametrize(
    ("staged", "now"),
    [
        ("price_2023", "price_2024"),
        ("(price + 1)", "(price + 2)"),
        ("_extract_q1", "_extract_q2"),  # a field's name, after Catalyst's own word
        ("pythonUDF0", "pythonUDF1"),  # counted within a query, so another number is another function
        ("_common_expr_1_eur", "_common_expr_2_eur"),
    ],
)
def test_rows_of_columns_that_differ_in_a_number_alone_are_not_read_as_each_other(
    tmp_path: Path, staged: str, now: str
) -> None:
    stage_one_row(tmp_path, "id", staged)
    assert read_as(tmp_path, "id", staged) == [(3, 4)]
    with pytest.raises(IncompatibleCheckpoint, match="which are not read yet"):
        read_as(tmp_path, "id", now)


def stage_one_row(path: Path, *names: str) -> None:
    folder, _ = staging_of(path)
    data = folder.new_data_folder(0)
    data.mkdir()
    pq.write_table(pa.table({"c0": [3], "c1": [4]}), data / "part.parquet")
    folder.publish(0, data, names)


def read_as(path: Path, *names: str) -> list[tuple[Any, ...]]:
    schema = pa.schema([(name, pa.int64()) for name in names])
    return SourceRun(open_source(Scan("staged", {"path": str(path)}, schema)), 1).drain()


def test_a_batch_without_a_marker_does_not_exist(tmp_path: Path) -> None:
    folder, _ = staging_of(tmp_path)
    folder.new_data_folder(0).mkdir()
    assert SourceRun(source_of(tmp_path), 1).drain() == []


def test_the_feed_makes_the_folder_when_it_is_first_asked(tmp_path: Path) -> None:
    staged_source.feed_from(tmp_path / "new", FixedFeed(tmp_path / "new"))
    assert SourceRun(source_of(tmp_path / "new"), 1).drain() == []


def test_with_available_now_the_source_ends_only_after_its_feed(tmp_path: Path) -> None:
    folder, feed = staging_of(tmp_path)
    feed.ended = False
    run = SourceRun(source_of(tmp_path), 1)
    run.discover()
    assert not run.enumerator.is_complete()
    stage(folder, 0, (0, 3))
    feed.ended = True
    assert sorted(run.drain()) == rows_of((0, 3))


def test_what_is_released_goes_but_the_newest_batch_stays_known(tmp_path: Path) -> None:
    folder, feed = staging_of(tmp_path)
    for batch in range(4):
        stage(folder, batch, (10 * batch, 5))
    stream = OpenStaging(tmp_path, SCHEMA)()
    offsets = [stream.initial_offset()]
    for _ in range(4):
        offsets.append(stream.latest_offset(offsets[-1]))
    stream.commit(offsets[2])
    assert feed.covered == [1]
    stream.release(offsets[2])
    assert folder.batches() == [2, 3] and len(list((tmp_path / "data").iterdir())) == 2
    stream.release(offsets[4])
    assert folder.batches() == [3] and list((tmp_path / "data").iterdir()) == []
    assert stream.latest_offset(offsets[4]) == offsets[4]
    with pytest.raises(Damaged, match="The batches 0 to 2 that Spark has staged"):
        stream.latest_offset(offsets[0])


def test_offsets_of_another_staging_folder_are_refused(tmp_path: Path) -> None:
    staging_of(tmp_path / "one")
    staging_of(tmp_path / "two")
    foreign = OpenStaging(tmp_path / "one", SCHEMA)().initial_offset()
    with pytest.raises(IncompatibleCheckpoint, match="in its own checkpointLocation, or from a savepoint"):
        OpenStaging(tmp_path / "two", SCHEMA)().latest_offset(foreign)


def test_the_feed_pauses_while_nobody_reads(tmp_path: Path) -> None:
    _, feed = staging_of(tmp_path)
    stream = OpenStaging(tmp_path, SCHEMA)()
    stream.stop()
    assert feed.is_paused
    stream.latest_offset(stream.initial_offset())
    assert not feed.is_paused


def test_the_lag_counts_from_when_a_batch_was_staged_however_late_it_is_found(tmp_path: Path) -> None:
    folder, _ = staging_of(tmp_path)
    clock = ManualClock()
    for batch, age_s in enumerate((60, 20)):
        stage(folder, batch, (10 * batch, 5))
        staged_s = clock.wall_ms() // 1000 - age_s
        os.utime(tmp_path / "batches" / f"{batch}.json", (staged_s, staged_s))
    source = source_of(tmp_path)
    assert isinstance(source, RangeSource)
    run = SourceRun(dataclasses.replace(source, clock=clock), 1)
    run.discover()
    (reader,) = run.readers
    assert isinstance(reader, RangeReader)
    assert reader.lag_ms() == 60_000.0
    while len(run.rows) < 6:
        run.poll(0, 1)
    assert reader.lag_ms() == 20_000.0
    run.drain()
    assert reader.lag_ms() == 0.0
    run.close()
