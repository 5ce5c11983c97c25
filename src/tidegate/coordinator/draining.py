"""`processAllAvailable`: when is everything that was there at the call processed and committed?

A job is drained when every slot was idle in two reports in a row with the same counts: between the first and the
second nothing moved anywhere, so nothing was on its way either. Then a checkpoint makes it durable: one that has no
rows in flight, since a function that is called once in an epoch may give its last rows at the barrier, and an unaligned
one passes them. A source that withholds splits is waited for; if it does so until a commit, a checkpoint is asked for
that only makes room, and all begins again.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.coordinator.splits import Splits
from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.network.messages import Progress


@dataclass(slots=True)
class Draining:
    checkpoint_from: CheckpointId | None = None
    _waiting: list[threading.Event] = field(default_factory=list)
    _rounds_wanted: int | None = None
    _only_makes_room: bool = False
    _quiet: dict[SlotIndex, int] = field(default_factory=dict)
    _last: dict[SlotIndex, Progress] = field(default_factory=dict)

    def ask(self, done: threading.Event) -> None:
        self._waiting.append(done)
        self.begin_again()

    def withdraw(self, done: threading.Event) -> None:
        """Who asked waits no longer, as after a Ctrl-C: for nobody no checkpoint is asked for."""
        if done in self._waiting:
            self._waiting.remove(done)
        if not self._waiting:
            self._only_makes_room = False
            self.begin_again()

    def begin_again(self) -> None:
        """Also for a new generation, which has gone back: what was drained before may not be any more."""
        self._rounds_wanted = None
        self._await_quiet()

    def on_progress(self, slot: SlotIndex, progress: Progress) -> None:
        if not self._waiting:
            return
        unchanged = progress.is_idle and _counts(self._last.get(slot)) == _counts(progress)
        self._quiet[slot] = self._quiet.get(slot, 0) + 1 if unchanged else 0
        if not unchanged:
            self._quiet.clear()  # what moved here may have gone to a slot that was quiet before
        self._last[slot] = progress

    def wants_checkpoint(self, progress: Mapping[SlotIndex, Progress], splits: Splits, *, slots: int) -> bool:
        if not self._waiting or self.checkpoint_from is not None:
            return False
        if self._rounds_wanted is None:
            # Two: one round may be under way with a listing from before the call.
            self._rounds_wanted = splits.rounds + 2
            splits.look_now()
        all_read = sum(report.splits_received for report in progress.values()) == splits.assigned
        all_quiet = len(self._quiet) == slots and all(rounds >= 2 for rounds in self._quiet.values())
        if not (all_read and all_quiet):
            return False
        all_given = splits.have_given_all(since_round=self._rounds_wanted)
        self._only_makes_room = not all_given and splits.rounds >= self._rounds_wanted and splits.wait_for_commit()
        return all_given or self._only_makes_room

    def on_committed(self, checkpoint: CheckpointId, *, inflight_bytes: int) -> None:
        if self.checkpoint_from is None or checkpoint < self.checkpoint_from:
            return
        if self._only_makes_room:
            self.begin_again()  # sources have to look again first
        elif inflight_bytes:
            self._await_quiet()
        else:
            self.release_all()

    def _await_quiet(self) -> None:
        self._quiet.clear()
        self._last.clear()
        self.checkpoint_from = None

    def release_all(self) -> None:
        for done in self._waiting:
            done.set()
        self._waiting.clear()
        self.checkpoint_from = None


def _counts(progress: Progress | None) -> "list[tuple[int, int]] | None":
    return None if progress is None else [(task.rows_in, task.rows_out) for task in progress.tasks]
