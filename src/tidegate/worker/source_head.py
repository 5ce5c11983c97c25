"""A source at the head of a task: when its reader may be asked for rows, and when it counts as idle."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.connectors.contract import (
    EndOfData,
    EndOfSource,
    FollowsCheckpoints,
    NothingNow,
    Polled,
    ReadsBatches,
    Rows,
    SourceReader,
    TellsLag,
    TellsPosition,
    WrapsReader,
)
from tidegate.model.ids import CheckpointId
from tidegate.protocol.admission import SourceAdmission

_SECOND_LOOK_MS = 10.0


@dataclass(slots=True)
class SourceHead:
    """`admission`: leave to pull while checkpoints are behind. `idle_after_ms`: None for a source that never is.

    `settling_ms`: so long it holds back event time when it was idle and has rows again. Its fellows, idle too, do not
    hold it back, and may have rows of the same time that nobody has heard of yet. `is_restored`: downstream may take it
    for idle.
    """

    reader: SourceReader
    admission: SourceAdmission
    idle_after_ms: float | None = None
    settling_ms: float = 0.0
    is_restored: bool = False
    has_ended: bool = False
    is_idle: bool = False
    _retry_at_ms: float = 0.0
    _nothing_since_ms: float | None = None
    _was_looked_at_again: bool = False
    _settles_at_ms: float = 0.0
    _suspended_by: CheckpointId | None = None
    _is_paused: bool = False
    _is_behind: bool = False
    _able: SourceReader = field(init=False, repr=False)  # whoever can do more than read, see `WrapsReader`

    def __post_init__(self) -> None:
        self._able = self.reader
        while isinstance(self._able, WrapsReader):
            self._able = self._able.wrapped

    def poll(self, max_rows: int, now_ms: float) -> Polled | None:
        """None if it may not be asked now."""
        if now_ms < self._retry_at_ms or self._suspended_by is not None:
            return None
        self._is_paused = not self.admission.may_pull(now_ms)
        if self._is_paused:
            return None
        polled = self.reader.poll(max_rows)
        match polled:
            case Rows():
                if self.is_idle:
                    self._settles_at_ms = now_ms + self.settling_ms
                self._retry_at_ms, self._nothing_since_ms, self.is_idle = 0.0, None, False
            case NothingNow(retry_after_ms, is_behind):
                self._retry_at_ms = now_ms + max(1.0, retry_after_ms)
                self._is_behind = is_behind
                if is_behind:
                    self._nothing_since_ms = None
                elif self._nothing_since_ms is None:
                    self._nothing_since_ms, self._was_looked_at_again = now_ms, False
            case EndOfSource() | EndOfData():
                if now_ms < self._settles_at_ms:  # its end would tell all of its event time
                    self._retry_at_ms, self._is_behind = self._settles_at_ms, True
                    return NothingNow(self._settles_at_ms - now_ms, is_behind=True)
                self.has_ended = True
        return polled

    def becomes_idle(self, now_ms: float) -> bool:
        """Once, when it has had nothing for long: from then on it does not hold back event time."""
        if self.idle_after_ms is None or self.is_idle or self._nothing_since_ms is None:
            return False
        if now_ms - self._nothing_since_ms < self.idle_after_ms:
            return False
        if not self._was_looked_at_again:
            # A loop that stood still has not heard yet what it was sent meanwhile, perhaps the first splits.
            self._was_looked_at_again = True
            self._retry_at_ms = now_ms + _SECOND_LOOK_MS
            return False
        self.is_idle = True
        return True

    def event_time_moves_at_ms(self) -> float | None:
        """From then on, however far rows have moved it; None while it is amid a batch."""
        is_amid_batch = isinstance(self._able, ReadsBatches) and self._able.is_amid_batch()
        return None if is_amid_batch else self._settles_at_ms

    def add_splits(self, splits: Sequence[bytes], *, is_last: bool) -> None:
        self.reader.add_splits(splits)
        if is_last:
            self.reader.no_more_splits()
        self._retry_at_ms = 0.0

    def is_waiting(self, now_ms: float) -> bool:
        if self.has_ended:
            return True
        return self._retry_at_ms > 0.0 and not self._is_behind and now_ms >= self._settles_at_ms

    def next_deadline_ms(self) -> float | None:
        """When to ask again; a source that must not pull is woken by a message."""
        may_pull = self._suspended_by is None and not self._is_paused and not self.has_ended
        return self._retry_at_ms if may_pull and self._retry_at_ms else None

    # -- checkpoints

    def position(self) -> bytes | None:
        return self._able.position() if isinstance(self._able, TellsPosition) else None

    def lag_ms(self) -> float | None:
        return self.reader.lag_ms() if isinstance(self.reader, TellsLag) else None

    def on_triggered(self, checkpoint: CheckpointId, now_ms: float, *, suspends: bool) -> None:
        """`suspends`: nothing is pulled behind this barrier, unless the checkpoint is aborted."""
        if suspends:
            self._suspended_by = checkpoint
        self.admission.on_triggered(checkpoint, now_ms)
        if isinstance(self._able, FollowsCheckpoints):
            self._able.on_checkpoint_triggered(checkpoint)

    def on_completed(self, checkpoint: CheckpointId) -> None:
        self.admission.on_settled(checkpoint)
        if isinstance(self._able, FollowsCheckpoints):
            self._able.on_checkpoint_completed(checkpoint)

    def on_abort(self, checkpoint: CheckpointId) -> None:
        if self._suspended_by == checkpoint:
            self._suspended_by = None
        self.admission.on_settled(checkpoint)
        if isinstance(self._able, FollowsCheckpoints):
            self._able.on_checkpoint_aborted(checkpoint)
