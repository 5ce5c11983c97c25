"""Captured elements as stored data: written once, referred to by every later checkpoint that still needs them.

An element keeps its channel and sequence number for as long as it is in flight, also across a restore at the same
parallelism. Only what a completed checkpoint holds is referred to; whatever is not known is written again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from tidegate.model.elements import Batch, NumberedElement
from tidegate.model.errors import Damaged
from tidegate.model.ids import ChannelId, Sequence, TaskId
from tidegate.network.messages import StoredElement
from tidegate.storage.manifests import SharedFile
from tidegate.worker.captured import encode_element
from tidegate.worker.gate import CapturedElement

# In place of a file's number: the bytes lie beside the list, in the state file itself.
INLINE = -1
# Of all that is referred to at least this share is still needed; else the emptiest files are left behind. Not of each
# file: rows are consumed in the order in which they came, so that a file which is half empty is about to go by itself.
# Not a half: there it stands by itself when the last of a full capture is consumed, and all else has come since.
_LEAST_ALIVE = 1 / 3


class CaptureSection(msgspec.Struct, frozen=True, array_like=True):
    """One side's part of one channel; `file` of an element numbers the slot's shared files in the manifest."""

    elements: list[StoredElement]
    inline: bytes


@dataclass(frozen=True, slots=True)
class StoredAt:
    file: SharedFile
    first_row: int
    offset: int
    length: int


class KnownElements:
    """Where the newest completed checkpoint holds elements that are, or will be, in flight in this slot."""

    def __init__(self) -> None:
        self._at: dict[ChannelId, dict[Sequence, StoredAt]] = {}
        self._bytes_at_first: dict[str, int] = {}

    def replace(self, found: Iterable[tuple[ChannelId, Sequence, StoredAt]]) -> None:
        """By those of a newer checkpoint: what it does not hold may be deleted with the ones before it."""
        self._at = {}
        bytes_now: dict[str, int] = {}
        for channel, sequence, at in found:
            self._at.setdefault(channel, {})[sequence] = at
            bytes_now[at.file.path] = bytes_now.get(at.file.path, 0) + at.length
        self._bytes_at_first = {path: self._bytes_at_first.get(path, size) for path, size in bytes_now.items()}

    def find(self, channel: ChannelId, element: CapturedElement) -> StoredAt | None:
        at = self._at.get(channel, {}).get(element.sequence)
        needed_from_row = element.first_row + element.done_rows
        return at if at is not None and at.first_row <= needed_from_row else None

    def worth_keeping(self, alive_bytes: Mapping[str, int]) -> set[str]:
        """The files to refer to, given how much of each is needed: the fullest, as long as a third of them is."""
        kept: set[str] = set()
        held_bytes = needed_bytes = 0
        for path in sorted(alive_bytes, key=lambda path: alive_bytes[path] / self._bytes_at_first[path], reverse=True):
            held_bytes += self._bytes_at_first[path]
            needed_bytes += alive_bytes[path]
            if needed_bytes < held_bytes * _LEAST_ALIVE:
                break
            kept.add(path)
        return kept


@dataclass(frozen=True, slots=True)
class _New:
    """Bytes `offset` to `offset + length` of what this checkpoint writes."""

    first_row: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class CapturedChannel:
    """Which end of which channel it is says `side`, whose part of the checkpoint `task`."""

    task: TaskId
    side: str
    channel: ChannelId
    elements: tuple[CapturedElement, ...]


@dataclass(frozen=True, slots=True)
class EncodedCaptures:
    """`reused`: files of earlier checkpoints. They come first in the slot's numbers, the new file after them."""

    sections: list[tuple[CapturedChannel, CaptureSection]]
    reused: list[SharedFile]
    new_pieces: list[bytes]
    full_bytes: dict[TaskId, int]
    new_bytes: dict[TaskId, int]


class CaptureWriter:
    """The captures of one slot for one checkpoint, encoded channel by channel between steps of the stream.

    `known` is None for a savepoint, which must not depend on any other file.
    """

    def __init__(
        self, captures: list[CapturedChannel], *, known: KnownElements | None, inline_below_bytes: int
    ) -> None:
        self._captures = captures
        self._known = known
        self._inline_below_bytes = inline_below_bytes
        self._pieces: list[bytes] = []
        self._new_bytes = 0
        self._placed: list[list[tuple[Sequence, StoredAt | _New]]] = []

    def encode(self) -> Iterator[None]:
        reused = self._files_worth_keeping()
        for capture in self._captures:
            placed: list[tuple[Sequence, StoredAt | _New]] = []
            for element in capture.elements:
                at = self._find(capture.channel, element)
                if at is not None and at.file.path in reused:
                    placed.append((element.sequence, at))
                else:
                    placed.append((element.sequence, self._write(element)))
            self._placed.append(placed)
            yield

    def finish(self) -> EncodedCaptures:
        is_inline = self._known is None or self._new_bytes < self._inline_below_bytes
        reused = {at.file.path: at.file for placed in self._placed for _, at in placed if isinstance(at, StoredAt)}
        numbers = {path: number for number, path in enumerate(reused)}
        # Joined only if it is small, or a savepoint's: the stream stands still meanwhile.
        data = memoryview(b"".join(self._pieces) if is_inline else b"")
        encoded = EncodedCaptures([], list(reused.values()), [] if is_inline else self._pieces, {}, {})
        for capture, placed in zip(self._captures, self._placed, strict=True):
            elements: list[StoredElement] = []
            inline = bytearray()
            for sequence, at in placed:
                match at:
                    case StoredAt(file, first_row, offset, length):
                        elements.append(StoredElement(sequence, first_row, numbers[file.path], offset, length))
                    case _New(first_row, offset, length):
                        if is_inline:
                            elements.append(StoredElement(sequence, first_row, INLINE, len(inline), length))
                            inline += data[offset : offset + length]
                        else:
                            elements.append(StoredElement(sequence, first_row, len(reused), offset, length))
                        encoded.new_bytes[capture.task] = encoded.new_bytes.get(capture.task, 0) + length
                encoded.full_bytes[capture.task] = encoded.full_bytes.get(capture.task, 0) + at.length
            encoded.sections.append((capture, CaptureSection(elements, bytes(inline))))
        return encoded

    def _write(self, element: CapturedElement) -> _New:
        data = encode_element(element.sequence, _rest_of(element))
        self._pieces.append(data)
        new = _New(element.first_row + element.done_rows, self._new_bytes, len(data))
        self._new_bytes += len(data)
        return new

    def _find(self, channel: ChannelId, element: CapturedElement) -> StoredAt | None:
        return None if self._known is None else self._known.find(channel, element)

    def _files_worth_keeping(self) -> set[str]:
        alive_bytes: dict[str, int] = {}
        for capture in self._captures:
            for element in capture.elements:
                if (at := self._find(capture.channel, element)) is not None:
                    alive_bytes[at.file.path] = alive_bytes.get(at.file.path, 0) + at.length
        return set() if self._known is None else self._known.worth_keeping(alive_bytes)


def _rest_of(element: CapturedElement) -> NumberedElement:
    if element.done_rows and isinstance(element.element, Batch):
        return Batch(element.element.rows.slice(element.done_rows))
    return element.element


def referable(
    channel: ChannelId, elements: Iterable[StoredElement], files: list[SharedFile]
) -> Iterator[tuple[ChannelId, Sequence, StoredAt]]:
    """What a later checkpoint may refer to: all that does not lie in a state file, which goes with its checkpoint."""
    for element in elements:
        if element.file != INLINE:
            at = StoredAt(files[element.file], element.first_row, element.offset, element.length)
            yield channel, element.sequence, at


def encode_section(section: CaptureSection) -> bytes:
    return _encode(section)


def decode_section(data: memoryview, *, name: str) -> CaptureSection:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise Damaged(f"Captured data {name!r} cannot be read ({error}): start from another checkpoint.") from error


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(CaptureSection)
