"""Captured elements are written once; later checkpoints refer to them, and only to what a completed one holds."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.model.elements import Batch
from tidegate.model.errors import Damaged
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Generation, Sequence, SlotIndex, TaskId, VertexId
from tidegate.network.messages import (
    Acknowledge,
    CheckpointDone,
    Decline,
    SnapshotsTaken,
    StoredChannel,
    StoredElement,
)
from tidegate.protocol.barriers import Cut
from tidegate.protocol.channel_ranges import ReceiverRange
from tidegate.protocol.kinds import CheckpointKind
from tidegate.state.contract import Section
from tidegate.storage.manifests import SharedFile
from tidegate.storage.store import LocalFiles, Store
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.simulation.world import SimBackground
from tidegate.worker.captured import HELD, RECEIVED, decode_element
from tidegate.worker.channel_state import (
    INLINE,
    CapturedChannel,
    CaptureWriter,
    EncodedCaptures,
    KnownElements,
    StoredAt,
    decode_section,
    encode_section,
    referable,
)
from tidegate.worker.gate import CapturedElement, ReceivedCapture
from tidegate.worker.output import HeldCapture, Sealed
from tidegate.worker.snapshotting import SlotSnapshots
from tidegate.worker.stored_ahead import StoredAhead
from tidegate.worker.stored_task import StoredTask
from tidegate.worker.task_reports import TaskSnapshot

SCHEMA = pa.schema([("v", pa.int64())])
TASK = TaskId(VertexId(1), 0)
CHANNEL = ChannelId(EdgeId(0), 0, 0)
OTHER = ChannelId(EdgeId(0), 1, 0)
GENERATION = Generation(1)
FILE = SharedFile("shared/1-g1-s0.channels", 1000, 0)


def rows(*values: int) -> Batch:
    return Batch(pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA))


def element(sequence: int, *values: int, first_row: int = 0, done_rows: int = 0) -> CapturedElement:
    return CapturedElement(Sequence(sequence), rows(*(values or (sequence,))), first_row, done_rows)


def captured(*elements: CapturedElement, channel: ChannelId = CHANNEL, side: str = RECEIVED) -> CapturedChannel:
    return CapturedChannel(TASK, side, channel, elements)


def encode(
    captures: Iterable[CapturedChannel], known: KnownElements | None, *, inline_below_bytes: int = 0
) -> EncodedCaptures:
    writer = CaptureWriter(list(captures), known=known, inline_below_bytes=inline_below_bytes)
    for _ in writer.encode():
        pass
    return writer.finish()


def known_of(*stored: tuple[int, int, int], file: SharedFile = FILE) -> KnownElements:
    """Elements of the channel by number, first row and length."""
    known = KnownElements()
    known.replace(
        (CHANNEL, Sequence(sequence), StoredAt(file, first_row, 10 * sequence, length))
        for sequence, first_row, length in stored
    )
    return known


def places(encoded: EncodedCaptures) -> list[tuple[int, int]]:
    """Each element's number, and the file it lies in."""
    return [(stored.sequence, stored.file) for _, section in encoded.sections for stored in section.elements]


# -- one checkpoint


def test_new_elements_lie_in_one_new_file_behind_those_that_are_referred_to() -> None:
    encoded = encode([captured(element(1), element(2))], known_of((1, 0, 50)))
    assert places(encoded) == [(1, 0), (2, 1)]
    assert encoded.reused == [FILE]
    (piece,) = encoded.new_pieces
    assert encoded.new_bytes == {TASK: len(piece)}
    assert encoded.full_bytes == {TASK: len(piece) + 50}
    sequence, found = decode_element(memoryview(piece), SCHEMA, name="x")
    assert (sequence, found) == (2, rows(2))


def test_what_is_small_lies_beside_the_list_and_needs_no_file() -> None:
    encoded = encode([captured(element(1)), captured(element(5), channel=OTHER)], known_of(), inline_below_bytes=1000)
    assert places(encoded) == [(1, INLINE), (5, INLINE)]
    assert (encoded.new_pieces, encoded.reused) == ([], [])
    for capture, section in encoded.sections:
        (stored,) = decode_section(memoryview(encode_section(section)), name="x").elements
        piece = memoryview(section.inline)[stored.offset : stored.offset + stored.length]
        assert decode_element(piece, SCHEMA, name="x")[0] == capture.elements[0].sequence


def test_what_is_large_enough_gets_a_file() -> None:
    large = element(1, *range(1000))
    assert encode([captured(large)], known_of(), inline_below_bytes=1000).new_pieces != []
    assert encode([captured(large)], known_of(), inline_below_bytes=100_000).new_pieces == []


def test_a_savepoint_refers_to_nothing_and_needs_no_file_however_large_it_is() -> None:
    encoded = encode([captured(element(1, *range(1000)))], None)
    assert places(encoded) == [(1, INLINE)]
    assert (encoded.new_pieces, encoded.reused) == ([], [])


def test_a_half_done_batch_is_referred_to_as_long_as_the_file_has_the_rows_that_are_left() -> None:
    assert places(encode([captured(element(1, 1, 2, 3, done_rows=2))], known_of((1, 0, 50)))) == [(1, 0)]
    again = element(1, 3, 4, first_row=2, done_rows=1)
    assert places(encode([captured(again)], known_of((1, 2, 50)))) == [(1, 0)]
    assert places(encode([captured(element(1, 1, 2, 3))], known_of((1, 2, 50)))) == [(1, 0)]
    ((_, section),) = encode([captured(element(1, 1, 2, 3))], known_of((1, 2, 50))).sections
    assert section.elements[0].first_row == 0, "written anew, because the file lacks its first rows"


def test_the_rest_of_a_half_done_batch_is_what_is_written() -> None:
    encoded = encode([captured(element(1, 30, 40, 50, first_row=3, done_rows=1))], known_of())
    ((_, section),) = encoded.sections
    assert section.elements[0].first_row == 4
    assert decode_element(memoryview(encoded.new_pieces[0]), SCHEMA, name="x")[1] == rows(40, 50)


def test_a_file_of_which_less_than_a_third_is_alive_is_left_behind() -> None:
    known = known_of((1, 0, 50), (2, 0, 50), (3, 0, 50), (4, 0, 50))
    assert places(encode([captured(element(3), element(4))], known)) == [(3, 0), (4, 0)]
    encoded = encode([captured(element(4))], known)
    assert (places(encoded), encoded.reused) == ([(4, 0)], [])
    assert len(encoded.new_pieces) == 1


def test_an_emptying_file_is_kept_while_a_third_of_all_that_is_referred_to_is_needed() -> None:
    """Else a queue that moves on file by file would be written again and again."""
    newer = SharedFile("shared/newer", 100, 0)
    known = KnownElements()
    old = [(CHANNEL, Sequence(s), StoredAt(FILE, 0, 50 * s, 50)) for s in range(4)]
    new = [(CHANNEL, Sequence(s), StoredAt(newer, 0, 50 * s, 50)) for s in (4, 5)]
    known.replace([*old, *new])
    encoded = encode([captured(element(3), element(4), element(5))], known)
    assert encoded.new_pieces == []
    assert {file.path for file in encoded.reused} == {FILE.path, newer.path}
    encoded = encode([captured(element(3))], known)
    assert encoded.reused == [], "50 of 200 bytes: what is needed of it is written again"
    assert len(encoded.new_pieces) == 1


def test_a_queue_that_moves_on_steadily_is_never_written_again() -> None:
    """Not even the rest of the first capture. Of ten one is consumed per checkpoint, three come with every third."""
    file_of = dict.fromkeys(range(10), FILE)
    known = KnownElements()
    for checkpoint in range(1, 25):
        stored = {s: file for s, file in file_of.items() if s >= checkpoint - 1}
        known.replace((CHANNEL, Sequence(s), StoredAt(file, 0, 50 * s, 50)) for s, file in stored.items())
        in_flight = range(checkpoint, checkpoint + 10 - checkpoint % 3)
        encoded = encode([captured(*map(element, in_flight))], known)
        new = [s for s in in_flight if s not in file_of]
        assert len(encoded.new_pieces) == len(new), f"checkpoint {checkpoint} writes what is new and nothing else"
        file_of |= dict.fromkeys(new, SharedFile(f"shared/{checkpoint}", 50 * len(new), 0))


def test_how_much_of_a_file_is_alive_is_measured_from_when_it_was_first_known() -> None:
    known = known_of((1, 0, 50), (2, 0, 50), (3, 0, 50), (4, 0, 50))
    for alive in ([3, 4], [4]):
        known.replace((CHANNEL, Sequence(s), StoredAt(FILE, 0, 10 * s, 50)) for s in alive)
    assert encode([captured(element(4))], known).reused == []


def test_what_lies_in_a_state_file_cannot_be_referred_to() -> None:
    stored = [StoredElement(Sequence(1), 0, INLINE, 0, 9), StoredElement(Sequence(2), 3, 0, 9, 8)]
    assert list(referable(CHANNEL, stored, [FILE])) == [(CHANNEL, 2, StoredAt(FILE, 3, 9, 8))]


def test_a_section_that_cannot_be_read_is_damage_and_is_named() -> None:
    with pytest.raises(Damaged, match="'received:0:0:0' cannot be read"):
        decode_section(memoryview(b"\xc1"), name="received:0:0:0")


# -- checkpoint by checkpoint


class Slot:
    """A slot with one task, which has `CHANNEL` from this slot or another in its gate, and sends on `OTHER`."""

    def __init__(self, store: Store, *, inline_below_bytes: int = 0) -> None:
        self.said: list[Acknowledge] = []
        self.background = SimBackground()
        self.clock = ManualClock()
        self.ahead = StoredAhead(
            slot=SlotIndex(0), generation=GENERATION, store=store, background=self.background, clock=self.clock
        )
        self.snapshots = SlotSnapshots(
            slot=SlotIndex(0),
            generation=GENERATION,
            tasks=[TASK],
            store=store,
            open_location=lambda location: LocalFiles(Path(location)),
            background=self.background,
            clock=self.clock,
            inline_below_bytes=inline_below_bytes,
            send=self._hear,
            ahead=self.ahead,
        )

    def _hear(self, message: Acknowledge | Decline | SnapshotsTaken) -> None:
        if isinstance(message, Acknowledge):
            self.said.append(message)

    def take(
        self,
        checkpoint: int,
        *received: CapturedElement,
        held: Iterable[int] = (),
        savepoint: str | None = None,
        sections: Iterable[Section] = (),
    ) -> Acknowledge:
        self.begin(checkpoint, *received, held=held, savepoint=savepoint, sections=sections)
        self.snapshots.encode_some(float("inf"))
        self.work()
        return self.said[-1]

    def work(self) -> None:
        """All that waits for a thread."""
        while self.background.work_once() or self.background.note_once():
            pass

    def begin(
        self,
        checkpoint: int,
        *received: CapturedElement,
        held: Iterable[int] = (),
        savepoint: str | None = None,
        sections: Iterable[Section] = (),
    ) -> None:
        """Up to where everything can be encoded."""
        id = CheckpointId(checkpoint)
        self.snapshots.on_trigger(id, savepoint=savepoint)
        of_operator = [(0, section) for section in sections]
        self.snapshots.on_snapshot(
            TaskSnapshot(TASK, id, CheckpointKind.UNALIGNED, 0.0, 0.0, 0.0, of_operator, None, StoredTask(), None, 0)
        )
        captures = []
        if received:
            before = Sequence(received[-1].sequence + 1)
            row = received[0].first_row + received[0].done_rows
            position = ReceiverRange(
                channel=CHANNEL, first=received[0].sequence, row=row, held_from=before, before=before
            )
            captures.append(ReceivedCapture(position, received))
        self.snapshots.on_received(TASK, id, tuple(captures))
        sealed = tuple(Sealed(Sequence(number), rows(number), 0) for number in held)
        cut = Cut(sealed[0].sequence, Sequence(sealed[-1].sequence + 1)) if sealed else None
        self.snapshots.on_held(TASK, id, [] if cut is None else [HeldCapture(OTHER, cut, sealed)])

    def done(self, checkpoint: int, files: Iterable[SharedFile] = (), held: Iterable[StoredChannel] = ()) -> None:
        self.snapshots.on_done(CheckpointDone(GENERATION, CheckpointId(checkpoint), list(files), list(held)))


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(LocalFiles(tmp_path))


def file_of(checkpoint: int) -> str:
    return f"shared/{checkpoint}-g1-s0.channels"


def files(ack: Acknowledge) -> list[str]:
    return [file.path for file in ack.shared]


def new_bytes(ack: Acknowledge) -> int:
    return sum(part.new_inflight_bytes for part in ack.parts)


def test_what_is_still_in_flight_is_written_once_and_referred_to_later(slot: Slot) -> None:
    first = slot.take(1, element(1), element(2), element(3))
    assert files(first) == [file_of(1)]
    slot.done(1)
    second = slot.take(2, element(2), element(3), element(4))
    assert files(second) == [file_of(1), file_of(2)]
    assert new_bytes(second) == new_bytes(first) // 3
    slot.done(2)
    third = slot.take(3, element(2), element(3), element(4))
    assert (files(third), new_bytes(third)) == ([file_of(1), file_of(2)], 0)
    assert sum(part.inflight_bytes for part in third.parts) == new_bytes(first)


def test_nothing_refers_to_a_checkpoint_that_is_not_known_to_be_complete(slot: Slot) -> None:
    slot.take(1, element(1))
    assert files(slot.take(2, element(1))) == [file_of(2)]


def test_nothing_refers_to_the_file_of_an_aborted_checkpoint(slot: Slot) -> None:
    slot.take(1, element(1))
    slot.done(1)
    slot.take(2, element(1), element(2))
    slot.snapshots.on_abort(CheckpointId(2))
    assert files(slot.take(3, element(1), element(2))) == [file_of(1), file_of(3)]


def test_what_the_newest_checkpoint_no_longer_holds_is_not_referred_to(slot: Slot) -> None:
    slot.take(1, element(1))
    slot.done(1)
    slot.take(2)
    slot.done(2)
    assert files(slot.take(3, element(1))) == [file_of(3)]


def test_what_is_held_here_is_told_to_the_coordinator_and_referred_to_while_it_is_held(slot: Slot) -> None:
    first = slot.take(1, held=[7, 8])
    (told,) = first.held_elements
    assert (told.channel, [stored.sequence for stored in told.elements]) == (OTHER, [7, 8])
    slot.done(1)
    second = slot.take(2, held=[8])
    assert (files(second), new_bytes(second)) == ([file_of(1)], 0)


def test_what_a_sender_elsewhere_stored_is_referred_to_once_the_completion_tells_of_it(slot: Slot) -> None:
    theirs = SharedFile("shared/1-g1-s4.channels", 500, 0)
    stored = [StoredElement(Sequence(number), 0, 0, 100 * number, 100) for number in (1, 2)]
    slot.take(1)
    slot.done(1, [theirs], [StoredChannel(CHANNEL, stored)])
    second = slot.take(2, element(1), element(2))
    assert (files(second), new_bytes(second)) == ([theirs.path], 0)


def test_a_savepoint_neither_refers_nor_is_referred_to(slot: Slot, tmp_path: Path) -> None:
    slot.take(1, element(1))
    slot.done(1)
    savepoint = slot.take(2, element(1), savepoint=str(tmp_path / "savepoint"))
    assert files(savepoint) == []
    assert new_bytes(savepoint) > 0
    slot.done(2)
    assert "savepoint" not in "".join(files(slot.take(3, element(1))))


def test_memory_does_not_grow_with_the_number_of_checkpoints(slot: Slot) -> None:
    for checkpoint in range(1, 30):
        slot.take(checkpoint, element(checkpoint), element(checkpoint + 1), held=[checkpoint])
        if checkpoint % 3:
            slot.done(checkpoint)
        else:
            slot.snapshots.on_abort(CheckpointId(checkpoint))
    assert len(slot.snapshots._acknowledged) <= 1
    assert sum(len(elements) for elements in slot.snapshots.known._at.values()) <= 3
    assert len(slot.snapshots.known._bytes_at_first) <= 3


def test_both_sides_of_a_channel_are_sections_of_their_own() -> None:
    encoded = encode([captured(element(1)), captured(element(2), side=HELD)], known_of())
    assert [(capture.side, section.elements[0].sequence) for capture, section in encoded.sections] == [
        (RECEIVED, 1),
        (HELD, 2),
    ]
