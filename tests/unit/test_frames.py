"""Frames survive any chunking of the stream, and bytes that are no frames are refused."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import CheckpointId, Sequence
from tidegate.network.frames import (
    DATA_HEADER_BYTES,
    MAX_CONTROL_BYTES,
    MAX_DATA_BYTES,
    READ_AHEAD_BYTES,
    ControlParser,
    DataFrame,
    DataHeader,
    DataParser,
    FrameKind,
    decode_watermark,
    encode_control_header,
    encode_data_header,
    encode_watermark,
)


def batch_header(sequence: int = 0) -> DataHeader:
    return DataHeader(FrameKind.BATCH, channel=1, sequence=Sequence(sequence), epoch=CheckpointId(0))


def encoded(header: DataHeader, payload: bytes) -> bytes:
    return encode_data_header(header, len(payload)) + payload


def chunks(stream: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    return [*pieces, stream]


def plain(frames: list[DataFrame]) -> list[tuple[DataHeader, bytes]]:
    return [(frame.header, frame.payload.to_pybytes()) for frame in frames]


u64 = st.integers(0, 2**64 - 1)
payload_sizes = st.one_of(st.integers(0, 70), st.integers(READ_AHEAD_BYTES - 70, 2 * READ_AHEAD_BYTES + 70))
batches = st.builds(lambda size, fill: bytes([fill]) * size, payload_sizes, st.integers(0, 255))
data_frames = st.one_of(
    st.tuples(st.just(FrameKind.BATCH), batches),
    st.tuples(st.just(FrameKind.WATERMARK), st.integers(-(2**63), 2**63 - 1).map(encode_watermark)),
    st.tuples(st.just(FrameKind.END), st.just(b"")),
).flatmap(
    lambda frame: st.tuples(
        st.builds(DataHeader, st.just(frame[0]), st.integers(0, 2**32 - 1), u64, u64), st.just(frame[1])
    )
)
cuts = st.lists(st.one_of(st.integers(0, 64), st.integers(0, 3 * READ_AHEAD_BYTES)), max_size=30)


@settings(deadline=None)
@given(st.lists(data_frames, max_size=12), cuts)
def test_any_chunking_of_a_data_stream_gives_the_same_frames(frames: list[tuple[DataHeader, bytes]], sizes: list[int]):
    parser = DataParser()
    stream = b"".join(encoded(header, payload) for header, payload in frames)
    parsed = [frame for chunk in chunks(stream, sizes) for frame in parser.feed(chunk)]
    assert plain(parsed) == frames
    assert parser.between_frames


@settings(deadline=None)
@given(st.lists(data_frames, max_size=8), st.lists(st.integers(1, 2 * READ_AHEAD_BYTES), min_size=1, max_size=10))
def test_any_scattered_read_of_a_data_stream_gives_the_same_frames(
    frames: list[tuple[DataHeader, bytes]], reads: list[int]
):
    parser = DataParser()
    rest = b"".join(encoded(header, payload) for header, payload in frames)
    parsed: list[DataFrame] = []
    turn = 0
    while rest:
        limit, turn = reads[turn % len(reads)], turn + 1
        count = 0
        for target in parser.targets():
            piece = rest[: min(len(target), limit - count)]
            target[: len(piece)] = piece
            rest = rest[len(piece) :]
            count += len(piece)
        parsed += parser.filled(count)
    assert plain(parsed) == frames


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=20), st.lists(st.integers(0, 200), max_size=30))
def test_any_chunking_of_a_control_stream_gives_the_same_payloads(payloads: list[bytes], sizes: list[int]):
    parser = ControlParser()
    stream = b"".join(encode_control_header(len(payload)) + payload for payload in payloads)
    parsed = [payload for chunk in chunks(stream, sizes) for payload in parser.feed(chunk)]
    assert parsed == payloads
    assert parser.between_frames


def test_a_record_batch_is_read_in_place_from_its_aligned_payload():
    batch = pa.record_batch({"user": pa.array(range(50_000)), "name": pa.array(["x"] * 50_000)})
    message = batch.serialize()
    (frame,) = DataParser().feed(encode_data_header(batch_header(), message.size) + message.to_pybytes())
    assert frame.payload.address % 64 == 0
    assert frame.payload.size == message.size
    assert pa.ipc.read_record_batch(frame.payload, batch.schema).equals(batch)


@pytest.mark.parametrize("event_time_ms", [-(2**63), -1, 0, 1_700_000_000_000, 2**63 - 1])
def test_a_watermark_keeps_its_time(event_time_ms: int):
    assert decode_watermark(encode_watermark(event_time_ms)) == event_time_ms


def test_a_started_frame_is_not_between_frames():
    control, data = ControlParser(), DataParser()
    control.feed(encode_control_header(10) + b"part")
    data.feed(encoded(batch_header(), b"payload")[:-1])
    assert not control.between_frames
    assert not data.between_frames
    assert plain(data.feed(b"d")) == [(batch_header(), b"payload")]
    assert data.between_frames


def test_a_control_frame_longer_than_the_maximum_is_refused_by_both_sides():
    with pytest.raises(ProtocolViolation, match="longer than"):
        encode_control_header(MAX_CONTROL_BYTES + 1)
    assert len(encode_control_header(MAX_CONTROL_BYTES)) == 4
    with pytest.raises(ProtocolViolation, match="longer than"):
        ControlParser().feed((MAX_CONTROL_BYTES + 1).to_bytes(4, "little"))


def test_a_batch_longer_than_the_maximum_is_refused_by_both_sides_before_anything_is_allocated():
    with pytest.raises(ProtocolViolation, match="BATCH"):
        encode_data_header(batch_header(), MAX_DATA_BYTES + 1)
    forged = encode_data_header(batch_header(), 0)[:-8] + (MAX_DATA_BYTES + 1).to_bytes(8, "little")
    before_bytes = pa.total_allocated_bytes()
    with pytest.raises(ProtocolViolation, match="BATCH"):
        DataParser().feed(forged)
    assert pa.total_allocated_bytes() == before_bytes


@pytest.mark.parametrize(("kind", "size"), [(FrameKind.WATERMARK, 7), (FrameKind.WATERMARK, 0), (FrameKind.END, 1)])
def test_a_payload_that_does_not_fit_its_kind_is_refused_by_both_sides(kind: FrameKind, size: int):
    header = DataHeader(kind, channel=0, sequence=Sequence(0), epoch=CheckpointId(0))
    with pytest.raises(ProtocolViolation, match=kind.name):
        encode_data_header(header, size)
    right = encode_data_header(header, 8 if kind is FrameKind.WATERMARK else 0)
    with pytest.raises(ProtocolViolation, match=kind.name):
        DataParser().feed(right[:-8] + size.to_bytes(8, "little"))


@pytest.mark.parametrize("position", [0, 1])
def test_bytes_that_are_no_frame_are_refused(position: int):
    stream = bytearray(encoded(batch_header(), b""))
    stream[position] ^= 0x40
    with pytest.raises(ProtocolViolation, match="no frame"):
        DataParser().feed(bytes(stream))
    assert len(stream) == DATA_HEADER_BYTES
