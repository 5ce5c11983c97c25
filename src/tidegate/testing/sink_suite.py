"""What every sink must do. Subclass `SinkSuite` in a test module, give it a sink, and let pytest collect it."""

import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.connectors.contract import Sink, SinkWriter
from tidegate.model.ids import CheckpointId, Generation, TaskId, VertexId
from tidegate.protocol.commit import CommitPermit, permit_logged

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
FIRST, SECOND = TaskId(VertexId(1), 0), TaskId(VertexId(1), 1)
_GENERATION = Generation(1)


def make_rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([f"row {i}" for i in ids], pa.string())], schema=SCHEMA
    )


def expected(*ranges: tuple[int, int]) -> Counter[tuple[Any, ...]]:
    return Counter((i, f"row {i}") for first, count in ranges for i in range(first, first + count))


def permit(checkpoint: int) -> CommitPermit:
    return permit_logged(CheckpointId(checkpoint))


def prepare(writer: SinkWriter, checkpoint: int) -> Sequence[bytes]:
    prepared = writer.prepare(CheckpointId(checkpoint))
    prepared.make_durable()
    return prepared.committables


class SinkSuite:
    """The sink takes rows of `SCHEMA`."""

    def make_sink(self, folder: Path) -> Sink:
        """The same place for the same folder; `folder` is fresh for each test."""
        raise NotImplementedError

    def visible_rows(self, folder: Path) -> list[tuple[Any, ...]]:
        """What a user of the sink's output sees."""
        raise NotImplementedError

    def open(self, folder: Path) -> Sink:
        sink = self.make_sink(folder)
        sink.prepare_location()
        return sink

    def visible(self, folder: Path) -> Counter[tuple[Any, ...]]:
        return Counter(self.visible_rows(folder))

    def test_nothing_is_visible_before_the_commit_and_everything_after(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        assert self.visible(tmp_path) == expected()
        writer.write(make_rows(0, 5))
        writer.write(make_rows(5, 3))
        assert self.visible(tmp_path) == expected()
        committables = prepare(writer, 1)
        assert self.visible(tmp_path) == expected()
        sink.committer().commit(committables, permit(1))
        assert self.visible(tmp_path) == expected((0, 8))

    def test_committing_again_changes_nothing(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        writer.write(make_rows(0, 5))
        committables = prepare(writer, 1)
        committer = sink.committer()
        committer.commit(committables, permit(1))
        committer.commit(committables, permit(1))
        self.make_sink(tmp_path).committer().commit(committables, permit(1))
        assert self.visible(tmp_path) == expected((0, 5))

    def test_a_half_done_commit_is_completed_by_repeating_it(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        committables: list[bytes] = []
        for first, task in [(0, FIRST), (10, SECOND)]:
            writer = sink.writer(task=task, generation=_GENERATION)
            writer.write(make_rows(first, 5))
            committables += prepare(writer, 1)
        sink.committer().commit(committables[:1], permit(1))
        sink.committer().commit(committables, permit(1))
        assert self.visible(tmp_path) == expected((0, 5), (10, 5))

    def test_each_epoch_has_its_own_committables(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        writer.write(make_rows(0, 5))
        first = prepare(writer, 1)
        writer.write(make_rows(5, 5))
        second = prepare(writer, 2)
        assert not set(first) & set(second)
        committer = sink.committer()
        committer.commit(first, permit(1))
        assert self.visible(tmp_path) == expected((0, 5))
        committer.commit(second, permit(2))
        assert self.visible(tmp_path) == expected((0, 10))

    def test_what_is_written_after_prepare_belongs_to_the_next_epoch(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        writer.write(make_rows(0, 5))
        prepared = writer.prepare(CheckpointId(1))
        writer.write(make_rows(5, 5))
        prepared.make_durable()
        sink.committer().commit(prepared.committables, permit(1))
        assert self.visible(tmp_path) == expected((0, 5))
        sink.committer().commit(prepare(writer, 2), permit(2))
        assert self.visible(tmp_path) == expected((0, 10))

    def test_an_epoch_whose_checkpoint_failed_is_committed_with_the_next(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        writer.write(make_rows(0, 5))
        of_failed = prepare(writer, 1)
        writer.write(make_rows(5, 5))
        sink.committer().commit([*of_failed, *prepare(writer, 2)], permit(2))
        assert self.visible(tmp_path) == expected((0, 10))

    def test_an_empty_epoch_commits_nothing(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        writer.write(make_rows(0, 0))
        sink.committer().commit(prepare(writer, 1), permit(1))
        assert self.visible(tmp_path) == expected()

    def test_closing_drops_what_was_not_prepared_and_keeps_what_was(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        writer.write(make_rows(0, 5))
        committables = prepare(writer, 1)
        writer.write(make_rows(5, 5))
        writer.close()
        sink.committer().commit(committables, permit(1))
        assert self.visible(tmp_path) == expected((0, 5))

    def test_discarding_keeps_what_must_be_kept(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        for checkpoint, first in [(1, 0), (2, 5), (3, 10)]:
            writer.write(make_rows(first, 5))
            committables = prepare(writer, checkpoint)
            if checkpoint == 1:
                sink.committer().commit(committables, permit(1))
            if checkpoint == 2:
                kept = committables
        writer.write(make_rows(15, 5))
        committer = sink.committer()
        committer.discard_uncommitted(kept, Generation(2))
        committer.discard_uncommitted(kept, Generation(2))
        assert self.visible(tmp_path) == expected((0, 5))
        committer.commit(kept, permit(2))
        assert self.visible(tmp_path) == expected((0, 10))

    def test_discarding_leaves_the_own_generation_alone(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=Generation(2))
        writer.write(make_rows(0, 5))
        sink.committer().discard_uncommitted([], Generation(2))
        sink.committer().commit(prepare(writer, 1), permit(1))
        assert self.visible(tmp_path) == expected((0, 5))

    def test_two_generations_that_replay_the_same_epoch_do_not_mix(self, tmp_path: Path) -> None:
        sink = self.open(tmp_path)
        zombie = sink.writer(task=FIRST, generation=Generation(1))
        zombie.write(make_rows(0, 5))
        sink.committer().discard_uncommitted([], Generation(2))
        writer = sink.writer(task=FIRST, generation=Generation(2))
        writer.write(make_rows(0, 5))
        sink.committer().commit(prepare(writer, 1), permit(1))
        assert self.visible(tmp_path) == expected((0, 5))

    def test_another_query_with_the_same_ids_replaces_nothing(self, tmp_path: Path) -> None:
        for first in (0, 5):
            sink = self.open(tmp_path)
            writer = sink.writer(task=FIRST, generation=_GENERATION)
            writer.write(make_rows(first, 5))
            sink.committer().commit(prepare(writer, 1), permit(1))
        assert self.visible(tmp_path) == expected((0, 10))

    def test_making_durable_may_be_repeated_also_once_it_is_committed(self, tmp_path: Path) -> None:
        """With two checkpoints at once the later one has the epoch too, until the earlier one is committed."""
        sink = self.open(tmp_path)
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        writer.write(make_rows(0, 5))
        prepared = writer.prepare(CheckpointId(1))
        prepared.make_durable()
        prepared.make_durable()
        sink.committer().commit(prepared.committables, permit(1))
        prepared.make_durable()
        assert self.visible(tmp_path) == expected((0, 5))

    def test_a_sink_travels_to_the_tasks(self, tmp_path: Path) -> None:
        sink: Sink = pickle.loads(pickle.dumps(self.open(tmp_path)))
        writer = sink.writer(task=FIRST, generation=_GENERATION)
        writer.write(make_rows(0, 5))
        sink.committer().commit(prepare(writer, 1), permit(1))
        assert self.visible(tmp_path) == expected((0, 5))
