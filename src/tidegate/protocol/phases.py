"""The order in which a gate consumes what was recovered: phase by phase over all its channels, then what is new.

A restore at another parallelism may bring a source split's old rows through one channel and its new ones through
another; so all that was in flight then is one phase, and what follows comes after it. If the job is restored once more
before a phase has drained, what was new by then is the next phase. Each phase ends, on each channel, before a number.
"""

from collections.abc import Iterable

from tidegate.model.ids import ChannelId, Sequence


class RecoveryPhases:
    def __init__(self, channels: Iterable[tuple[ChannelId, Sequence, tuple[Sequence, ...], Sequence]]) -> None:
        """Each channel with the first element it holds, the ends of its earlier phases, and where new data begins."""
        given = list(channels)
        most = max((len(ends) for _, _, ends, _ in given), default=0)
        # Phases are told apart from the last one back: who has fewer has nothing in the first.
        self._ends = {
            channel: [*[first] * (most - len(ends)), *ends, new_from] for channel, first, ends, new_from in given
        }
        self._position = {channel: first for channel, first, _, _ in given}
        self._count = most + 1 if given else 0
        self._phase = 0
        self._waited_for: set[ChannelId] = set()
        self._begin_phase()

    def may_consume(self, channel: ChannelId) -> bool:
        return not self._waited_for or channel in self._waited_for

    def on_consumed(self, channel: ChannelId, position: Sequence) -> bool:
        """Everything below `position` is processed; whether others may be consumed now that could not before."""
        if not self._waited_for:
            return False
        self._position[channel] = position
        if channel not in self._waited_for or position < self._ends[channel][self._phase]:
            return False
        self._waited_for.discard(channel)
        if self._waited_for:
            return False
        self._phase += 1
        self._begin_phase()
        return True

    def left(self, channel: ChannelId) -> tuple[Sequence, ...]:
        """The ends of the phases that are not over, for a snapshot that is taken now."""
        return tuple(self._ends[channel][self._phase :]) if self._waited_for else ()

    def _begin_phase(self) -> None:
        """The next phase in which a channel still has something."""
        while self._phase < self._count:
            self._waited_for = {c for c, ends in self._ends.items() if self._position[c] < ends[self._phase]}
            if self._waited_for:
                return
            self._phase += 1


def phase_of(sequence: Sequence, ends: tuple[Sequence, ...], *, of_phases: int) -> int:
    """Which of so many phases an element belongs to, counted from the first; those without an end are in the last."""
    return of_phases - 1 - len(ends) + sum(sequence >= end for end in ends)
