"""Senders and one gate in any interleaving: lanes for data, for messages and from the coordinator, and what passes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from random import Random

from tidegate.model.ids import ChannelId, CheckpointId, EdgeId, Sequence
from tidegate.protocol.barriers import Cut
from tidegate.protocol.cuts import ChannelCuts, SendCut
from tidegate.protocol.kinds import CheckpointKind

ALIGNED, UNALIGNED = CheckpointKind.ALIGNED, CheckpointKind.UNALIGNED


class Sender:
    """A source at the far end of a channel, with lanes for data, for messages and from the coordinator."""

    def __init__(self, channel: ChannelId) -> None:
        self.channel = channel
        self.cuts = ChannelCuts(first_unsent=Sequence(0))
        self.sealed = self.sent = 0
        self.epoch = 0
        self.has_finished = False
        self.orders: list[tuple[str, int, float | None]] = []
        self.data: list[tuple[int, int]] = []
        self.messages: list[tuple[str, int, Cut | None, float | None]] = []
        self.barriers: dict[int, int] = {}
        self.held: dict[int, range] = {}

    def send(self) -> None:
        if self.sent < self.sealed:
            self.data.append((self.sent, self.epoch))
            self.sent += 1
            self._perform(self.cuts.on_sent(Sequence(self.sent)))

    def obey(self, now_ms: float) -> None:
        if not self.orders:
            return
        order, checkpoint, switch_after_ms = self.orders.pop(0)
        if order == "abort":
            self.cuts.on_abort(CheckpointId(checkpoint))
        elif not self.has_finished:
            self.barriers[checkpoint] = self.sealed
            before = Sequence(self.sealed)
            self.messages.append(("barrier", checkpoint, Cut(before, before), switch_after_ms))
            kind = UNALIGNED if switch_after_ms == 0 else ALIGNED
            switch_at_ms = None if switch_after_ms is None else now_ms + switch_after_ms
            id = CheckpointId(checkpoint)
            self._perform(self.cuts.on_snapshot(id, kind, before=before, switch_at_ms=switch_at_ms))

    def on_time(self, now_ms: float) -> None:
        self._perform(self.cuts.on_time(now_ms))

    def _perform(self, sends: list[SendCut]) -> None:
        for send in sends:
            self.held[send.checkpoint] = range(send.cut.held_from, send.cut.before)
            self.messages.append(("cut", send.checkpoint, send.cut, None))
            self.epoch = max(self.epoch, send.checkpoint)


class Exchange(ABC):
    """Events happen one by one; a subclass puts the receiver under test at the near end."""

    def __init__(self, count: int) -> None:
        self.senders = [Sender(ChannelId(EdgeId(0), sender, 0)) for sender in range(count)]
        self.orders: list[tuple[str, int, float | None]] = []
        self.now_ms = 0.0
        self.triggered: list[int] = []
        self.aborted: set[int] = set()
        self.closed: list[int] = []

    @abstractmethod
    def arrive(self, channel: ChannelId, sequence: Sequence, epoch: CheckpointId) -> None: ...
    @abstractmethod
    def barrier(
        self, channel: ChannelId, id: CheckpointId, before: Sequence, switch_after_ms: float | None
    ) -> None: ...
    @abstractmethod
    def cut(self, channel: ChannelId, id: CheckpointId, cut: Cut) -> None: ...
    @abstractmethod
    def finished(self, channel: ChannelId) -> None: ...
    @abstractmethod
    def trigger(self, id: CheckpointId, switch_after_ms: float | None) -> None: ...
    @abstractmethod
    def abort(self, id: CheckpointId) -> None: ...
    @abstractmethod
    def consume(self, channel: ChannelId) -> None: ...
    @abstractmethod
    def consumed(self, channel: ChannelId) -> int: ...
    @abstractmethod
    def pass_time(self) -> None: ...

    def act(self, event: str, number: int) -> None:
        sender = self.senders[number % len(self.senders)]
        match event:
            case "seal" if not sender.has_finished:
                sender.sealed += 1
            case "send":
                sender.send()
            case "obey":
                sender.obey(self.now_ms)
            case "deliver data" if sender.data:
                sequence, epoch = sender.data.pop(0)
                self.arrive(sender.channel, Sequence(sequence), CheckpointId(epoch))
            case "deliver message" if sender.messages:
                self._deliver(sender.channel, *sender.messages.pop(0))
            case "consume":
                self.consume(sender.channel)
            case "time":
                self.now_ms += number
                for each in self.senders:
                    each.on_time(self.now_ms)
                self.pass_time()
            case "trigger" if len(self.triggered) < 3:
                checkpoint = len(self.triggered) + 1
                self.triggered.append(checkpoint)
                self._order("trigger", checkpoint, (None, 0.0, 20.0)[number % 3])
            case "abort" if self.triggered and self.triggered[-1] not in self.aborted | set(self.closed):
                self.aborted.add(self.triggered[-1])
                self._order("abort", self.triggered[-1], None)
            case "gate obeys" if self.orders:
                order, checkpoint, switch_after_ms = self.orders.pop(0)
                if order == "abort":
                    self.abort(CheckpointId(checkpoint))
                else:
                    self.trigger(CheckpointId(checkpoint), switch_after_ms)
            case "finish" if not sender.has_finished and self.consumed(sender.channel) == sender.sealed:
                sender.has_finished = True
                sender.messages.append(("finished", 0, None, None))

    def drain(self) -> None:
        """Everything that is under way comes to its end; no timeout helps."""
        for _ in range(200):
            for number in range(len(self.senders)):
                for event in ("obey", "send", "deliver data", "deliver message", "consume", "gate obeys"):
                    self.act(event, number)

    def whole(self) -> list[int]:
        """The checkpoints that nobody aborted."""
        return [checkpoint for checkpoint in self.triggered if checkpoint not in self.aborted]

    def before(self, sender: Sender, checkpoint: int) -> int:
        """Where the barrier stands; the end of a finished channel counts as its barrier."""
        if checkpoint in sender.barriers:
            return sender.barriers[checkpoint]
        assert sender.has_finished
        return sender.sealed

    def _order(self, order: str, checkpoint: int, switch_after_ms: float | None) -> None:
        for orders in (self.orders, *(sender.orders for sender in self.senders)):
            orders.append((order, checkpoint, switch_after_ms))

    def _deliver(
        self, channel: ChannelId, message: str, checkpoint: int, cut: Cut | None, switch_after_ms: float | None
    ) -> None:
        if cut is None:
            self.finished(channel)
        elif message == "cut":
            self.cut(channel, CheckpointId(checkpoint), cut)
        else:
            self.barrier(channel, CheckpointId(checkpoint), cut.before, switch_after_ms)


_EVENTS = ["seal", "send", "obey", "deliver data", "deliver message", "consume", "time", "gate obeys"]


def history(seed: int) -> Iterator[tuple[str, int]]:
    """Up to three triggers among other events, some of which are rare or frequent in one history and not in another."""
    random = Random(seed)
    weights = [random.choice((0.2, 1.0, 5.0)) for _ in _EVENTS]
    for event in random.choices(_EVENTS, weights, k=random.randrange(20, 200)):
        yield event, random.randrange(12)
        match random.random():
            case chance if chance < 0.05:
                yield "trigger", random.randrange(3)
            case chance if chance < 0.06:
                yield "abort", 0
            case chance if chance < 0.07:
                yield "finish", random.randrange(12)
