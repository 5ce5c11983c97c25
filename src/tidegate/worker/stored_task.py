"""What a snapshot holds of a task beside the state of its operators: how far event time has come, and for whom."""

from collections.abc import Iterable, Mapping

import msgspec

from tidegate.model.errors import Damaged
from tidegate.model.ids import ChannelId, KeyGroupRange
from tidegate.protocol.watermarks import MIN_WATERMARK_MS, ChannelWatermark


class StoredChannelWatermark(msgspec.Struct, frozen=True, array_like=True):
    channel: ChannelId
    event_time_ms: int
    is_idle: bool


class StoredTask(msgspec.Struct, frozen=True):
    """`floors`: key groups whose old owner had come further than this task has."""

    input_watermark_ms: int = MIN_WATERMARK_MS
    output_watermark_ms: int = MIN_WATERMARK_MS
    channels: list[StoredChannelWatermark] = []
    floors: list[tuple[KeyGroupRange, int]] = []

    def channel_watermarks(self) -> dict[ChannelId, ChannelWatermark]:
        return {c.channel: ChannelWatermark(c.event_time_ms, c.is_idle) for c in self.channels}


def stored_task(
    *,
    input_watermark_ms: int,
    output_watermark_ms: int,
    channels: Mapping[ChannelId, ChannelWatermark],
    floors: Iterable[tuple[KeyGroupRange, int]],
) -> StoredTask:
    return StoredTask(
        input_watermark_ms=input_watermark_ms,
        output_watermark_ms=output_watermark_ms,
        channels=[StoredChannelWatermark(id, w.event_time_ms, w.is_idle) for id, w in channels.items()],
        floors=list(floors),
    )


def encode_task(task: StoredTask) -> bytes:
    return _encode(task)


def decode_task(data: memoryview, *, name: str) -> StoredTask:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise Damaged(
            f"The progress of a task in {name} cannot be read ({error}): start from another checkpoint."
        ) from error


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(StoredTask)
