"""What a savepoint takes along of what Spark has ingested, and how another place goes on from it."""

import json
from pathlib import Path

import pytest

from tests.conformance.test_staged_source import SCHEMA, FixedFeed, rows_of, source_of, stage, staging_of
from tidegate.connectors import staged_copy
from tidegate.connectors.staged_copy import files_to_copy, is_free, lay_out, unread_by
from tidegate.connectors.staged_source import OpenStaging, Origin, StagedOffset, StagingFolder, feed_from
from tidegate.model.errors import DidNotHappen, IncompatibleCheckpoint
from tidegate.testing.source_suite import SourceRun

FILES = [[(0, 11), (20, 9)], [], [(40, 15)], [(60, 1), (70, 12)]]


def staged(path: Path) -> StagingFolder:
    folder, _ = staging_of(path)
    for batch, files in enumerate(FILES):
        stage(folder, batch, *files)
    for name in ("offsets/3", "commits/2", "sources/0/3", "offsets/.3.crc", "metadata"):
        (folder.spark_checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.spark_checkpoint / name).write_text(name)
    return folder


def copy(folder: StagingFolder, target: Path, *, first_batch: int) -> list[str]:
    found = [(file.path, file.open().read()) for file in files_to_copy(folder, first_batch=first_batch)]
    lay_out(StagingFolder(target), ((path, [content]) for path, content in found))
    return [path for path, _ in found]


def test_all_that_is_not_read_whole_is_copied_after_what_spark_has_noted_of_it(tmp_path: Path) -> None:
    paths = copy(staged(tmp_path / "a"), tmp_path / "b", first_batch=2)
    assert [path for path in paths if path.startswith("spark/")] == [
        "spark/commits/2",
        "spark/offsets/3",
        "spark/sources/0/3",
    ]
    assert [path for path in paths if path.startswith("batches/")] == ["batches/2.json", "batches/3.json"]
    assert sum(path.startswith("data/") for path in paths) == 3


def test_the_newest_marker_goes_along_although_its_rows_are_read(tmp_path: Path) -> None:
    paths = copy(staged(tmp_path / "a"), tmp_path / "b", first_batch=4)
    assert [path for path in paths if not path.startswith("spark/")] == ["batches/3.json", "origins.json"]
    assert StagingFolder(tmp_path / "b").batches() == [3]


def test_a_copy_is_another_query_to_spark_and_another_place_to_slots(tmp_path: Path) -> None:
    folder = staged(tmp_path / "a")
    copy(folder, tmp_path / "b", first_batch=0)
    other = StagingFolder(tmp_path / "b")
    assert other.id() != folder.id()
    assert list(json.loads((other.spark_checkpoint / "metadata").read_text())) == ["id"]
    assert other.knows(StagedOffset(folder.id(), 3)), "the same there as here"
    assert not other.knows(StagedOffset(folder.id(), 4)), "each has staged its own fifth batch"
    assert not folder.knows(StagedOffset(other.id(), 0))
    feed_from(other.path, FixedFeed(other.path))
    with pytest.raises(IncompatibleCheckpoint, match="or from a savepoint in a new one"):
        OpenStaging(tmp_path / "b", SCHEMA)().latest_offset(json.dumps({"staging": folder.id(), "batch": 4}))


def test_a_copy_of_a_copy_knows_all_before_it(tmp_path: Path) -> None:
    first = staged(tmp_path / "a")
    copy(first, tmp_path / "b", first_batch=3)
    second = StagingFolder(tmp_path / "b")
    stage(second, 4, (100, 5))
    copy(second, tmp_path / "c", first_batch=4)
    third = StagingFolder(tmp_path / "c")
    assert third.origins() == [Origin(first.id(), 3), Origin(second.id(), 4)]


@pytest.mark.parametrize("polls", [0, 1, 2, 4, 6, 8, 9])
def test_readers_go_on_in_a_copy_at_the_row_where_they_were(tmp_path: Path, polls: int) -> None:
    folder = staged(tmp_path / "a")
    run = SourceRun(source_of(folder.path), 2)
    assert run.polls(polls) == polls
    states = run.snapshot()
    copy(folder, tmp_path / "b", first_batch=unread_by(states).first_batch)
    feed_from(tmp_path / "b", FixedFeed(tmp_path / "b"))
    after = SourceRun(source_of(tmp_path / "b"), 2, states=states).drain()
    assert sorted([*run.rows, *after]) == rows_of((0, 11), (20, 9), (40, 15), (60, 1), (70, 12))


def test_nothing_is_copied_where_spark_was_never_asked(tmp_path: Path) -> None:
    assert list(files_to_copy(StagingFolder(tmp_path / "none"), first_batch=0)) == []
    assert unread_by([]).first_batch == 0


def test_a_copy_that_fails_midway_leaves_nothing(tmp_path: Path) -> None:
    def breaking() -> list[bytes]:
        raise DidNotHappen("the store is away")

    target = StagingFolder(tmp_path / "b")
    with pytest.raises(DidNotHappen):
        lay_out(target, ((path, breaking()) for path in ("origins.json", "spark/offsets/0")))
    assert list(tmp_path.iterdir()) == [] and is_free(target)


def test_what_was_only_prepared_is_free_and_what_has_a_batch_is_not(tmp_path: Path) -> None:
    folder, _ = staging_of(tmp_path / "a")
    assert is_free(folder)
    stage(folder, 0, (0, 3))
    assert not is_free(folder)


def test_copying_is_tried_again_a_few_times_only() -> None:
    with pytest.raises(DidNotHappen, match="changed all the time"):
        for tried in staged_copy.tries():
            assert tried < 5
