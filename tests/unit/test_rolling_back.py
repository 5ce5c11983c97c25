"""What a file sink takes back of the epochs behind a checkpoint, and when it says that it cannot."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tidegate.connectors.contract import RollsBack
from tidegate.connectors.file_committer import FileCommitter
from tidegate.connectors.registry import open_sink
from tidegate.model.ids import CheckpointId, Generation
from tidegate.plan.nodes import Sink
from tidegate.storage.job_log import (
    CheckpointCompleted,
    CheckpointSkipped,
    Entry,
    RolledBack,
    skipped_checkpoints,
    to_roll_back,
)
from tidegate.testing.sink_suite import FIRST, SCHEMA, make_rows, permit, prepare

TWO = CheckpointId(2)


class Written:
    """Four epochs of five rows each, committed; `ids` is what a reader sees."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder = folder
        sink = open_sink(Sink("parquet", {"path": str(folder), "checkpointLocation": "chk"} | options, SCHEMA))
        sink.prepare_location()
        committer = sink.committer()
        assert isinstance(committer, FileCommitter) and isinstance(committer, RollsBack)
        self.committer = committer
        self.epochs: dict[int, list[bytes]] = {}
        writer = sink.writer(task=FIRST, generation=Generation(1))
        for checkpoint in (1, 2, 3, 4):
            writer.write(make_rows(checkpoint * 10, 5))
            self.epochs[checkpoint] = list(prepare(writer, checkpoint))
            committer.commit(self.epochs[checkpoint], permit(checkpoint))

    def later(self) -> list[bytes]:
        """Of checkpoints 3 and 4, which carry what 2 had prepared as well."""
        return [*self.epochs[2], *self.epochs[3], *self.epochs[4]]

    def ids(self) -> list[int]:
        files = [path for path in self.folder.rglob("*.parquet") if "_tidegate" not in path.parts]
        return sorted(id for path in files for id in pq.ParquetFile(path).read(["id"]).column(0).to_pylist())


def epochs(*checkpoints: int) -> list[int]:
    return [id for checkpoint in checkpoints for id in range(checkpoint * 10, checkpoint * 10 + 5)]


@pytest.mark.parametrize("options", [{}, {"partitionBy": "text"}])
def test_what_came_behind_the_checkpoint_goes_and_nothing_else(tmp_path: Path, options: dict[str, str]) -> None:
    written = Written(tmp_path, **options)
    other = Written(tmp_path, **options, checkpointLocation="another query")
    assert written.committer.why_not_back(written.later(), to=TWO) is None
    for _ in range(2):
        written.committer.roll_back(written.later(), to=TWO)
        assert written.ids() == sorted([*epochs(1, 2), *epochs(1, 2, 3, 4)])
    assert other.committer.why_not_back(other.later(), to=TWO) is None


def test_a_file_that_is_gone_has_been_read(tmp_path: Path) -> None:
    written = Written(tmp_path)
    gone = next(tmp_path.glob("part-00000003-*"))
    gone.unlink()
    assert written.committer.why_not_back(written.later(), to=TWO) == (
        f"{gone} is gone, and whoever took it away may have read its rows"
    )


def test_what_is_held_back_to_be_merged_goes_too(tmp_path: Path) -> None:
    written = Written(tmp_path, **{"sink.compact": "1GiB", "sink.compact.epochs": "9"})
    assert written.ids() == []
    assert written.committer.why_not_back(written.later(), to=TWO) is None
    written.committer.roll_back(written.later(), to=TWO)
    written.committer.publish_held()
    assert written.ids() == epochs(1, 2)


def test_a_merged_file_goes_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    written = Written(tmp_path, **{"sink.compact": "1GiB", "sink.compact.epochs": "2"})
    assert [path.name[:25] for path in sorted(tmp_path.glob("part-*"))] == [
        "part-00000001-to-00000002",
        "part-00000003-to-00000004",
    ]
    assert written.committer.why_not_back(written.later(), to=TWO) is None
    merged = next(tmp_path.glob("part-00000003-to-*"))
    assert written.committer.why_not_back([*written.epochs[4]], to=CheckpointId(3)) == (
        f"{merged} has rows of checkpoint 3 and before in it as well"
    )
    merged.rename(tmp_path / "taken")
    assert "is gone" in (written.committer.why_not_back(written.later(), to=TWO) or "")
    (tmp_path / "taken").rename(merged)
    written.committer.roll_back(written.later(), to=TWO)
    assert written.ids() == epochs(1, 2)


def test_the_log_says_what_is_still_to_be_taken_back() -> None:
    completed = [
        CheckpointCompleted(checkpoint=CheckpointId(id), generation=Generation(1), manifest="") for id in (1, 2, 3, 4)
    ]
    log: list[Entry] = [
        *completed,
        CheckpointSkipped(checkpoint=CheckpointId(3), rolls_back_to=TWO),
        CheckpointSkipped(checkpoint=CheckpointId(4), rolls_back_to=TWO),
        RolledBack(checkpoint=CheckpointId(3)),
    ]
    assert skipped_checkpoints(log) == completed[2:]
    assert to_roll_back(log) == [(completed[3], TWO)]
    assert to_roll_back([*completed, CheckpointSkipped(checkpoint=CheckpointId(4))]) == []
