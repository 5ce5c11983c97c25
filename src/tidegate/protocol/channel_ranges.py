"""The two sides of every captured channel must meet: what one stored ends where the other begins."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.model.ids import ChannelId, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverRange:
    """The receiver stores from row `row` of element `first` up to `held_from`; `before` is where the barrier stands.

    `phases`: where parts of it end that were recovered themselves and come before the rest; see `phases`.
    """

    channel: ChannelId
    first: Sequence
    row: int
    held_from: Sequence
    before: Sequence
    phases: tuple[Sequence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderRange:
    channel: ChannelId
    held_from: Sequence
    before: Sequence


def find_gap(receivers: Iterable[ReceiverRange], senders: Iterable[SenderRange]) -> str | None:
    """One sentence about the first channel whose sides do not meet, or None. Channels captured empty are left out."""
    received = {r.channel: r for r in receivers}
    sent = {s.channel: s for s in senders}
    for channel, sender in sent.items():
        if sender.held_from < sender.before and channel not in received:
            stored = f"[{sender.held_from}, {sender.before})"
            return f"Channel {channel}: the sender stored {stored}, the receiver knows of no cut."
    for channel, receiver in received.items():
        if receiver.first > receiver.held_from:
            return f"Channel {channel}: element {receiver.held_from} is stored by the sender but was processed already."
        matching = sent.get(channel)
        if receiver.held_from < receiver.before and matching is None:
            return f"Channel {channel}: nobody stored [{receiver.held_from}, {receiver.before})."
        if matching is not None and (matching.held_from, matching.before) != (receiver.held_from, receiver.before):
            return (
                f"Channel {channel}: the sender cut at [{matching.held_from}, {matching.before}), "
                f"the receiver at [{receiver.held_from}, {receiver.before})."
            )
    return None
