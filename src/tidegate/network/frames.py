"""The bytes of every frame between processes, and the parsers that find frames in a stream of them.

Owns the formats and nothing else: it must never touch a socket, nor look into a payload beyond its length.

    control frame   u32 length | payload
    data frame      u8 magic | u8 kind | 2 zero bytes | u32 channel | u64 sequence | u64 epoch | u64 length | payload

All numbers are little-endian.
"""

import enum
import struct
from dataclasses import dataclass

import pyarrow as pa

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import CheckpointId, Sequence

# Large enough for a plan or a list of captures; a longer length is a lost frame boundary, not a message.
MAX_CONTROL_BYTES = 64 << 20
# A batch is a slice of rows; a longer length would make the receiver allocate on a bad word alone.
MAX_DATA_BYTES = 1 << 30
# Holds several small frames per system call, yet is little to copy in front of a large payload.
READ_AHEAD_BYTES = 16 << 10

_CONTROL_HEADER = struct.Struct("<I")
_DATA_HEADER = struct.Struct("<BBxxIQQQ")
_WATERMARK = struct.Struct("<q")
_DATA_MAGIC = 0x7D
DATA_HEADER_BYTES = _DATA_HEADER.size


class FrameKind(enum.IntEnum):
    BATCH = 1
    WATERMARK = 2
    END = 3
    IDLE = 4


@dataclass(frozen=True, slots=True)
class DataHeader:
    kind: FrameKind
    channel: int
    """Index of the channel among those the two slots agreed on."""
    sequence: Sequence
    epoch: CheckpointId
    """Newest checkpoint whose barrier the sender put before this element; 0 if none."""


@dataclass(frozen=True, slots=True)
class DataFrame:
    header: DataHeader
    payload: pa.Buffer


def encode_control_header(payload_bytes: int) -> bytes:
    """What goes before a control payload of that many bytes."""
    _check_control_length(payload_bytes)
    return _CONTROL_HEADER.pack(payload_bytes)


def encode_data_header(header: DataHeader, payload_bytes: int) -> bytes:
    """What goes before a data payload of that many bytes."""
    _check_data_length(header.kind, payload_bytes)
    return _DATA_HEADER.pack(_DATA_MAGIC, header.kind, header.channel, header.sequence, header.epoch, payload_bytes)


def encode_watermark(event_time_ms: int) -> bytes:
    return _WATERMARK.pack(event_time_ms)


def decode_watermark(payload: pa.Buffer | bytes) -> int:
    event_time_ms: int = _WATERMARK.unpack(payload)[0]
    return event_time_ms


class ControlParser:
    """Finds control frames in a stream cut anywhere."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def between_frames(self) -> bool:
        return not self._pending

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        self._pending += data
        payloads = []
        start = 0
        while len(self._pending) - start >= _CONTROL_HEADER.size:
            (length,) = _CONTROL_HEADER.unpack_from(self._pending, start)
            _check_control_length(length)
            first = start + _CONTROL_HEADER.size
            if len(self._pending) < first + length:
                break
            payloads.append(bytes(memoryview(self._pending)[first : first + length]))
            start = first + length
        del self._pending[:start]
        return payloads


class DataParser:
    """Finds data frames, and says where the next bytes of the stream are to be written.

    A payload is received straight into a buffer of its exact size, so that Arrow reads it in place; only what was
    read ahead together with its header is copied. While a payload is incomplete, nothing is read ahead.
    """

    def __init__(self) -> None:
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._start = 0
        self._end = 0
        self._header: DataHeader | None = None
        self._payload = _EMPTY
        self._missing = memoryview(b"")

    @property
    def between_frames(self) -> bool:
        return self._header is None and self._start == self._end

    def targets(self) -> list[memoryview]:
        """Where to write the bytes that come next, in this order."""
        self._move_rest_to_front()
        free = self._ahead[self._end :]
        return [self._missing, free] if len(self._missing) else [free]

    def filled(self, count_bytes: int) -> list[DataFrame]:
        """The frames completed by that many bytes, written to the targets just given."""
        into_payload = min(count_bytes, len(self._missing))
        self._missing = self._missing[into_payload:]
        self._end += count_bytes - into_payload
        frames: list[DataFrame] = []
        while (frame := self._next_frame()) is not None:
            frames.append(frame)
        return frames

    def feed(self, data: bytes | memoryview) -> list[DataFrame]:
        """As if the bytes had been read from a socket."""
        rest = memoryview(data)
        frames: list[DataFrame] = []
        while rest:
            target = self.targets()[0]
            count = min(len(rest), len(target))
            target[:count] = rest[:count]
            rest = rest[count:]
            frames += self.filled(count)
        return frames

    def _next_frame(self) -> DataFrame | None:
        if self._header is None:
            if self._end - self._start < DATA_HEADER_BYTES:
                return None
            self._begin_frame()
        self._fill_from_ahead()
        if self._header is None or len(self._missing):
            return None
        frame = DataFrame(header=self._header, payload=self._payload)
        self._header = None
        self._payload = _EMPTY
        return frame

    def _begin_frame(self) -> None:
        magic, kind, channel, sequence, epoch, length = _DATA_HEADER.unpack_from(self._ahead, self._start)
        if magic != _DATA_MAGIC or kind not in _KINDS:
            raise ProtocolViolation(
                f"A data connection carries bytes that are no frame (magic {magic:#x}, kind {kind}): "
                "run the same Tidegate version in all slots."
            )
        header = DataHeader(_KINDS[kind], channel, Sequence(sequence), CheckpointId(epoch))
        _check_data_length(header.kind, length)
        self._start += DATA_HEADER_BYTES
        self._header = header
        if length:
            self._payload = pa.allocate_buffer(length)
            self._missing = memoryview(self._payload).cast("B")

    def _fill_from_ahead(self) -> None:
        count = min(len(self._missing), self._end - self._start)
        if count:
            self._missing[:count] = self._ahead[self._start : self._start + count]
            self._missing = self._missing[count:]
            self._start += count

    def _move_rest_to_front(self) -> None:
        if self._start:
            rest = bytes(self._ahead[self._start : self._end])
            self._ahead[: len(rest)] = rest
            self._start, self._end = 0, len(rest)


_EMPTY = pa.py_buffer(b"")
_KINDS = {int(kind): kind for kind in FrameKind}


def _check_control_length(length_bytes: int) -> None:
    if length_bytes > MAX_CONTROL_BYTES:
        raise ProtocolViolation(
            f"A control frame of {length_bytes} bytes is longer than the {MAX_CONTROL_BYTES} bytes allowed: "
            "run the same Tidegate version in driver and slots, or make the query smaller."
        )


def _check_data_length(kind: FrameKind, length_bytes: int) -> None:
    match kind:
        case FrameKind.BATCH:
            fits = length_bytes <= MAX_DATA_BYTES
        case FrameKind.WATERMARK:
            fits = length_bytes == _WATERMARK.size
        case FrameKind.END | FrameKind.IDLE:
            fits = length_bytes == 0
    if not fits:
        raise ProtocolViolation(
            f"A data frame of kind {kind.name} cannot have {length_bytes} bytes: a batch has at most "
            f"{MAX_DATA_BYTES}, a watermark {_WATERMARK.size}, a mark none; send fewer rows at once."
        )
