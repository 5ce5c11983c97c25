"""Messages of an epoch: stored with its checkpoint, handed over in order, told apart even when they are equal."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from tidegate.connectors import messages_sink
from tidegate.connectors.messages_sink import MESSAGE_SCHEMA, MessagesSink
from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import CheckpointId, Generation
from tidegate.testing.sink_suite import FIRST, SECOND, permit, prepare


class Taken:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, list[bytes]]] = []

    def commit(self, messages: Sequence[bytes], batch_id: CheckpointId) -> None:
        self.calls.append(("commit", batch_id, list(messages)))

    def abort(self, batch_id: CheckpointId) -> None:
        self.calls.append(("abort", batch_id, []))


def messages(*texts: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(list(texts), pa.binary())], schema=MESSAGE_SCHEMA)


@pytest.fixture
def taken() -> Taken:
    taken = Taken()
    messages_sink.take_messages("chk", taken)
    return taken


def test_equal_messages_of_two_tasks_and_epochs_are_all_committed(taken: Taken) -> None:
    sink = MessagesSink("chk")
    writers = [sink.writer(task=task, generation=Generation(1)) for task in (FIRST, SECOND)]
    committer = sink.committer()
    committables: list[list[bytes]] = []
    for checkpoint in (1, 2):
        for writer in writers:
            writer.write(messages(b"done"))
        committables.append([data for writer in writers for data in prepare(writer, checkpoint)])
        committer.commit(committables[-1], permit(checkpoint))
    assert taken.calls == [("commit", 1, [b"done", b"done"]), ("commit", 2, [b"done", b"done"])]
    assert len({data for epoch in committables for data in epoch}) == 4


def test_an_epoch_without_messages_is_not_committed(taken: Taken) -> None:
    sink = MessagesSink("chk")
    sink.committer().commit(prepare(sink.writer(task=FIRST, generation=Generation(1)), 1), permit(1))
    assert taken.calls == []


def test_an_epoch_that_will_be_committed_is_not_aborted(taken: Taken) -> None:
    """Its commit failed, or never began: it is in the log, and the next start commits it under the same id."""
    sink = MessagesSink("chk")
    writer, committer = sink.writer(task=FIRST, generation=Generation(1)), sink.committer()
    committer.commit([], permit(6))
    writer.write(messages(b"seven"))
    committer.discard_uncommitted(prepare(writer, 7), Generation(2))
    assert taken.calls == []


def test_what_came_after_the_newest_commit_is_aborted(taken: Taken) -> None:
    committer = MessagesSink("chk").committer()
    committer.discard_uncommitted([], Generation(1))
    committer.commit([], permit(4))
    committer.discard_uncommitted([], Generation(2))
    assert taken.calls == [("abort", 5, [])]


def test_messages_that_nobody_takes_are_not_dropped_silently(taken: Taken) -> None:
    messages_sink.take_no_more("chk")
    writer = MessagesSink("chk").writer(task=FIRST, generation=Generation(1))
    writer.write(messages(b"done"))
    with pytest.raises(ProtocolViolation):
        MessagesSink("chk").committer().commit(prepare(writer, 1), permit(1))
