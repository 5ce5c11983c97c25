"""When everything that was there at the call of `processAllAvailable` is processed and committed."""

import threading
from typing import cast

from tidegate.coordinator.draining import Draining
from tidegate.coordinator.splits import Splits
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.messages import Progress

ONE = SlotIndex(0)


class Listed:
    """A source of which everything is handed out; every look is a round."""

    rounds = 0
    assigned = 0

    def look_now(self) -> None: ...

    def are_complete(self) -> bool:
        return False


class Asked:
    """A job of one slot, as the coordinator's loop sees it."""

    def __init__(self) -> None:
        self.draining = Draining()
        self.done = threading.Event()
        self.listed = Listed()
        self.draining.ask(self.done)

    def says(self, *, is_idle: bool) -> bool:
        """The slot's next report; whether a checkpoint is wanted then."""
        self.listed.rounds += 1
        progress = Progress(generation=Generation(1), tasks=[], splits_received=0, is_idle=is_idle)
        self.draining.on_progress(ONE, progress)
        return self.draining.wants_checkpoint({ONE: progress}, cast(Splits, self.listed), slots=1)

    def reports_until_a_checkpoint_is_wanted(self) -> int:
        return next(number for number in range(1, 10) if self.says(is_idle=True))

    def commit(self, checkpoint: int, *, inflight_bytes: int = 0) -> bool:
        """Whether the caller goes on."""
        self.draining.on_committed(CheckpointId(checkpoint), inflight_bytes=inflight_bytes)
        return self.done.is_set()


def test_a_checkpoint_is_wanted_when_nothing_moved_for_two_reports() -> None:
    asked = Asked()
    assert not any(asked.says(is_idle=False) for _ in range(5))
    assert asked.reports_until_a_checkpoint_is_wanted() == 2


def test_only_a_checkpoint_from_then_on_counts() -> None:
    asked = Asked()
    asked.reports_until_a_checkpoint_is_wanted()
    asked.draining.checkpoint_from = CheckpointId(7)
    assert not asked.commit(6)
    assert asked.commit(7)


def test_one_with_rows_in_flight_is_followed_by_another_one() -> None:
    """They came out of a function at the barrier, which passed them: only the next epoch has them."""
    asked = Asked()
    asked.reports_until_a_checkpoint_is_wanted()
    asked.draining.checkpoint_from = CheckpointId(7)
    assert not asked.commit(7, inflight_bytes=100)
    assert not asked.commit(8), "nothing was asked for yet"
    assert asked.reports_until_a_checkpoint_is_wanted() == 3
    asked.draining.checkpoint_from = CheckpointId(9)
    assert asked.commit(9)
