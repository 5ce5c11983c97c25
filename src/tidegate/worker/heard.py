"""What the coordinator has said to a slot and the slot has not acted on: in order, but for aborts.

An abort counts from the moment it is here. A slot that was held up for long, by a snapshot for instance, would else
begin checkpoint after checkpoint that is over already, each as long as the one before, and never catch up.
"""

from collections import deque
from dataclasses import dataclass

from tidegate.network.messages import AbortCheckpoint, BarrierEverywhere, Deploy, ToSlot, TriggerCheckpoint


@dataclass(frozen=True, slots=True)
class Over:
    """`unbegun`: the word that should have begun it here; whoever is asked what the slot did meanwhile needs it."""

    abort: AbortCheckpoint
    unbegun: TriggerCheckpoint | None = None


class Heard:
    def __init__(self) -> None:
        self._waiting: deque[ToSlot] = deque()

    def add(self, message: ToSlot) -> Over | None:
        """Gives an abort back, to be acted on at once: what was to begin that checkpoint is dropped."""
        # One of a generation that is still to begin has its place behind that.
        if not isinstance(message, AbortCheckpoint) or any(isinstance(each, Deploy) for each in self._waiting):
            self._waiting.append(message)
            return None
        begins = [each for each in self._waiting if _begins(message, each)]
        self._waiting = deque(each for each in self._waiting if each not in begins)
        return Over(message, next((each for each in begins if isinstance(each, TriggerCheckpoint)), None))

    def next(self) -> ToSlot | None:
        return self._waiting.popleft() if self._waiting else None

    def is_any(self) -> bool:
        return bool(self._waiting)

    def clear(self) -> None:
        self._waiting.clear()


def _begins(abort: AbortCheckpoint, message: ToSlot) -> bool:
    match message:
        case TriggerCheckpoint(generation=generation, checkpoint=checkpoint):
            return (generation, checkpoint) == (abort.generation, abort.checkpoint)
        case BarrierEverywhere(generation=generation, checkpoint=checkpoint):
            return (generation, checkpoint) == (abort.generation, abort.checkpoint)
        case _:
            return False
