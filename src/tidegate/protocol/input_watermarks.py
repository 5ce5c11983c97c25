"""Event time at a gate whose inputs wait for one another: the lowest of what each input has come to.

Within an input an idle channel holds nothing back. A whole input does, idle or ended: its next rows are matched with
what is kept of the other, which must never be let go on the word of that other alone. An input without event time
holds nothing back.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.model.ids import ChannelId, EdgeId
from tidegate.protocol.watermarks import (
    MIN_WATERMARK_MS,
    Advance,
    BecomeActive,
    BecomeIdle,
    ChannelWatermark,
    GateWatermarks,
    WatermarkAction,
)

# In place of an input's number: its rows have passed no watermark.
NO_EVENT_TIME: Final = -1


class InputWatermarks:
    """As `GateWatermarks`, for several of them."""

    def __init__(
        self,
        channels: Iterable[ChannelId],
        inputs: Mapping[EdgeId, int],
        *,
        restored: Mapping[ChannelId, ChannelWatermark] = {},
        current_ms: int = MIN_WATERMARK_MS,
        event_time_of: Mapping[EdgeId, EdgeId] = {},
    ) -> None:
        """`inputs`: which input each edge feeds, or `NO_EVENT_TIME`; one at least has event time."""
        all_channels = list(channels)
        self._inputs: dict[int, GateWatermarks] = {}
        for number in sorted(set(inputs.values())):
            own = [channel for channel in all_channels if inputs[channel.edge] == number]
            stored = {channel: restored[channel] for channel in own if channel in restored}
            self._inputs[number] = GateWatermarks(
                own, restored=stored, current_ms=current_ms, event_time_of=event_time_of
            )
        self._input_of = inputs
        self._current_ms = current_ms
        self._is_idle = self._are_all_idle()

    def on_watermark(self, channel: ChannelId, event_time_ms: int) -> list[WatermarkAction]:
        self._of(channel).on_watermark(channel, event_time_ms)
        return self._settle()

    def on_rows(self, channel: ChannelId) -> tuple[WatermarkAction, ...]:
        """Called for every slice, so the usual answer costs one look."""
        return tuple(self._settle()) if self._of(channel).on_rows(channel) else ()

    def on_idle(self, channel: ChannelId) -> list[WatermarkAction]:
        self._of(channel).on_idle(channel)
        return self._settle()

    def on_end(self, channel: ChannelId) -> list[WatermarkAction]:
        self._of(channel).on_end(channel)
        return self._settle()

    @property
    def current_ms(self) -> int:
        return self._current_ms

    @property
    def is_idle(self) -> bool:
        """What downstream was told last."""
        return self._is_idle

    def snapshot(self) -> dict[ChannelId, ChannelWatermark]:
        return {channel: stored for each in self._inputs.values() for channel, stored in each.snapshot().items()}

    def _of(self, channel: ChannelId) -> GateWatermarks:
        return self._inputs[self._input_of[channel.edge]]

    def _are_all_idle(self) -> bool:
        live = [each for each in self._inputs.values() if each.is_live]
        return bool(live) and all(each.is_idle for each in live)

    def _settle(self) -> list[WatermarkAction]:
        actions: list[WatermarkAction] = []
        is_idle = self._are_all_idle()
        if is_idle != self._is_idle:
            self._is_idle = is_idle
            actions.append(BecomeIdle() if is_idle else BecomeActive())
        lowest_ms = min(each.current_ms for number, each in self._inputs.items() if number != NO_EVENT_TIME)
        if lowest_ms > self._current_ms:
            self._current_ms = lowest_ms
            actions.append(Advance(lowest_ms))
        return actions
