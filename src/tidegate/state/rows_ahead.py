"""When rows of a vectorised operator are taken into its log between checkpoints, and stored ahead of the next one.

Looks again and again whether enough rows have changed, or some for long enough, has them taken part by part between
steps of the stream, and writes and hands over the files. Knows nothing of rows. Must never hand over a file that is not
whole, nor one that a checkpoint stores already.
"""

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from tidegate.model.clock import Clock
from tidegate.model.errors import DidNotHappen
from tidegate.state.changelog import StoresAhead
from tidegate.state.row_log import LogFile, RowLog

# How often it is looked whether enough rows have changed. Those that changed since the last look are likely to change
# again: they wait for the next one.
LOOK_MS: Final = 100.0
# After so long some are taken, however few: a file has its price, so it is ten times as long as for single changes.
WAIT_MS: Final = 1_000.0
# After so long, if they are no less than this share of what is enough, and most stay as they are: who waits less, takes
# more of those that change again.
SHORT_WAIT_MS: Final = 200.0
_SHARE_OF_ENOUGH: Final = 32
# A look in which hardly any row is found that can be taken costs as much as another one: the next comes after twice as
# long, up to this.
LONGEST_LOOK_MS: Final = 3_200.0
_HARDLY_ANY: Final = 8
# A disk that is full is written to again after so long, or by the next checkpoint.
_RETRY_AFTER_MS: Final = 1_000.0


class LoggedChanges(Protocol):
    """Rows of an operator in its log. None of these takes long."""

    def waiting_rows(self) -> int:
        """About how many have changed since they were last taken."""
        ...

    def enough_rows(self) -> int:
        """So many are worth a file."""
        ...

    def changes_again(self) -> bool:
        """Whether many of those that are taken have changed again by the next snapshot."""
        ...

    def has_many_files(self) -> bool:
        """Small ones, which taking makes into one."""
        ...

    def take_part(self) -> bool:
        """Takes some of them into the log; whether there are more to look at in this round."""
        ...

    def taken_files(self) -> list[LogFile]:
        """Those to which nothing will be added, each given once; none that was in a snapshot."""
        ...

    def looked_at(self) -> tuple[int, int]:
        """In the last round: how many rows were looked at, and how many of them taken."""
        ...


# None while there is no log, or while nothing can be taken into it.
LogNow: TypeAlias = Callable[[], LoggedChanges | None]


class RowsAhead:
    """Of one operator's log."""

    def __init__(self, log: RowLog, *, ahead: StoresAhead, clock: Clock) -> None:
        self._log = log
        self._ahead = ahead
        self._clock = clock
        self._log_now: LogNow | None = None
        now_ms = clock.monotonic_ms()
        self._pause_ms = LOOK_MS
        self._look_at_ms = now_ms + LOOK_MS
        self._taken_at_ms = now_ms
        self._waiting_rows = 0
        self._is_taking = False
        self._to_write: list[LogFile] = []
        self._snapshots = log.snapshots

    def follow(self, log_now: LogNow) -> None:
        """From now on."""
        self._log_now = log_now

    def on_time(self, now_ms: float) -> None:
        """Between steps of the stream; takes a few ms at the most."""
        if self._log_now is None:
            return
        if self._snapshots != self._log.snapshots:
            self._on_snapshot()
        if self._to_write:
            self._write_some(now_ms)
        elif self._is_taking or now_ms >= self._look_at_ms:
            changes = self._log_now()
            if changes is None:
                self._waiting_rows, self._is_taking = 0, False
                self._look_at_ms = now_ms + LOOK_MS
            elif self._is_taking:
                self._take_some(changes, now_ms)
            else:
                self._look(changes, now_ms)

    def next_deadline_ms(self) -> float | None:
        if self._log_now is None:
            return None
        return self._clock.monotonic_ms() if self._is_taking or self._to_write else self._look_at_ms

    def unstored_bytes(self) -> int:
        """Of files that are not stored; and, about, of the rows that had changed at the last look."""
        files = [file for file in self._log.files if file.row_count]
        row_bytes = sum(file.written_bytes for file in files) / max(1, sum(file.row_count for file in files))
        unstored_bytes = sum(file.written_bytes for file in files if not self._ahead.is_stored(file.name))
        return unstored_bytes + int(self._waiting_rows * row_bytes)

    def close(self) -> None:
        self._log_now, self._to_write = None, []

    def _on_snapshot(self) -> None:
        """What was taken is in it: it is stored with the checkpoint."""
        self._snapshots = self._log.snapshots
        self._to_write, self._is_taking, self._waiting_rows = [], False, 0

    def _look(self, changes: LoggedChanges, now_ms: float) -> None:
        self._look_at_ms = now_ms + self._pause_ms
        self._waiting_rows = changes.waiting_rows()
        waited_ms, enough = now_ms - self._taken_at_ms, changes.enough_rows()
        is_a_share = self._waiting_rows * _SHARE_OF_ENOUGH >= enough
        self._is_taking = (
            self._waiting_rows >= enough
            or (waited_ms >= SHORT_WAIT_MS and is_a_share and not changes.changes_again())
            or (waited_ms >= WAIT_MS and (self._waiting_rows > 0 or changes.has_many_files()))
        )

    def _take_some(self, changes: LoggedChanges, now_ms: float) -> None:
        self._is_taking = changes.take_part()
        self._to_write += changes.taken_files()
        if not self._is_taking:
            looked_at, taken = changes.looked_at()
            is_worth_it = taken * _HARDLY_ANY >= looked_at
            self._pause_ms = LOOK_MS if is_worth_it else min(2 * self._pause_ms, LONGEST_LOOK_MS)
            self._taken_at_ms = now_ms
            self._look_at_ms = now_ms + self._pause_ms
            self._waiting_rows = max(0, self._waiting_rows - taken)

    def _write_some(self, now_ms: float) -> None:
        file = self._to_write[0]
        if file not in self._log.files:
            del self._to_write[0]  # written anew with later ones meanwhile
            return
        try:
            is_written = next(file.steps(), _WRITTEN) is _WRITTEN
        except DidNotHappen:
            # It is in the log: the next checkpoint tries it again, and it is that one's failure then. On the heap the
            # next look gives up the log, with a warning.
            self._look_at_ms = now_ms + _RETRY_AFTER_MS
            self._to_write, self._is_taking = [], False
            return
        if is_written:
            del self._to_write[0]
            self._ahead.store_changes(file.local())


_WRITTEN: Final = object()
