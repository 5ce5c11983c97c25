"""Captured elements as bytes: the frames they would be on the wire, one section per channel and side."""

import pyarrow as pa

from tidegate.model.elements import Batch, EndOfInput, Idle, NumberedElement, Watermark
from tidegate.model.errors import Damaged
from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
from tidegate.network.frames import (
    DataFrame,
    DataHeader,
    DataParser,
    FrameKind,
    decode_watermark,
    encode_data_header,
    encode_watermark,
)

# Which end of the channel stored it; restore delivers the receiver's part first.
RECEIVED = "received"
HELD = "held"


def section_name(side: str, channel: ChannelId) -> str:
    return f"{side}:{channel.edge}:{channel.sender}:{channel.receiver}"


def parse_section_name(name: str) -> tuple[str, ChannelId]:
    side, edge, sender, receiver = name.split(":")
    return side, ChannelId(EdgeId(int(edge)), int(sender), int(receiver))


def to_frame(element: NumberedElement) -> tuple[FrameKind, "pa.Buffer | bytes"]:
    match element:
        case Batch(rows):
            return FrameKind.BATCH, rows.serialize()
        case Watermark(event_time_ms):
            return FrameKind.WATERMARK, encode_watermark(event_time_ms)
        case EndOfInput():
            return FrameKind.END, b""
        case Idle():
            return FrameKind.IDLE, b""


def from_frame(frame: DataFrame, schema: pa.Schema) -> NumberedElement:
    match frame.header.kind:
        case FrameKind.BATCH:
            return Batch(pa.ipc.read_record_batch(frame.payload, schema))
        case FrameKind.WATERMARK:
            return Watermark(decode_watermark(frame.payload))
        case FrameKind.END:
            return EndOfInput()
        case FrameKind.IDLE:
            return Idle()


def encode_element(sequence: Sequence, element: NumberedElement) -> bytes:
    kind, payload = to_frame(element)
    data = bytes(payload)
    return encode_data_header(DataHeader(kind, 0, sequence, CheckpointId(0)), len(data)) + data


def decode_element(data: memoryview, schema: pa.Schema, *, name: str) -> tuple[Sequence, NumberedElement]:
    parser = DataParser()
    frames = parser.feed(data)
    if len(frames) != 1 or not parser.between_frames:
        raise Damaged(f"Captured data {name!r} is not one whole element: start from another checkpoint.")
    return frames[0].header.sequence, from_frame(frames[0], schema)
