"""What a slot needs to know to run its part of a job; travels to it once, with the job."""

from dataclasses import dataclass
from enum import Enum
from math import inf

from tidegate.plan.physical import JobPlan
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.debloat import WindowBounds
from tidegate.protocol.kinds import CheckpointStorage, Guarantee
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.worker.local_copies import LocalRecovery

# Often enough for event time to look smooth, seldom enough not to cut batches short.
WATERMARK_INTERVAL_MS = 50.0
# A source subtask without rows for so long, a slot without a file for instance, does not hold back event time.
IDLE_AFTER_MS = 1_000.0
# Below that a debloated window would be smaller than what most rows take.
LEAST_WINDOW_BYTES = 1 << 10
# Until a gate knows its rate: a slow task's first checkpoints need not wait for full windows, and a quick one asks for
# more within a fraction of a second.
START_WINDOW_BYTES = 16 << 10
# What all channels into a slot may have in flight together.
NETWORK_MEMORY_BYTES = 64 << 20
# Captures smaller than this in one slot are not worth a file of their own; the next checkpoint writes them again.
INLINE_BELOW_BYTES = 20 << 10
# What all slots together may have in a manifest without being asked for it: more slots, and it stays as short.
MANIFEST_CONTENT_BYTES = 512 << 10
# Read blocks, indexes, filters, and what is not written out yet.
STATE_MEMORY_BYTES = 128 << 20
# Rows of vectorised operators that are in use.
STATE_ROWS_MEMORY_BYTES = 512 << 20
# Up to that a vectorised operator's rows in memory are stored whole: copying them at the barrier takes a few ms, and
# where all of them change all the time a log would only add to the work.
HEAP_ROWS_WHOLE_UP_TO_BYTES = 64 << 20
# The same with a changelog: as much as a batch of changes, which a barrier may find unstored anyway.
CHANGELOG_ROWS_WHOLE_UP_TO_BYTES = 1 << 20


class HeapSnapshots(Enum):
    """What a checkpoint stores of state in memory."""

    WHOLE = "whole"
    INCREMENTAL = "incremental"  # what changed, as files; small state is stored whole all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """`debloat_target_ms`: windows follow what a gate consumes in that time; None leaves them as they are.

    `network_memory_bytes` bounds the windows of all channels into a slot together, `state_memory_bytes` what backends
    on disk have in memory for all tasks of the slot, `state_rows_memory_bytes` the rows that are in use there. `access`
    opens every location of the job. `changelog_image_interval_ms`: changes of state are stored all along, and an image
    of user state so often; None if they are stored by checkpoints.
    """

    plan: JobPlan
    checkpoint_location: str
    window_bytes: int
    state_backend: str
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    active_backpressure: ActiveBackpressure = ActiveBackpressure.OFF
    checkpoint_interval_ms: float = 10_000.0
    max_concurrent_checkpoints: int = 1
    debloat_target_ms: float | None = None
    least_window_bytes: int = LEAST_WINDOW_BYTES
    network_memory_bytes: int = NETWORK_MEMORY_BYTES
    watermark_interval_ms: float = WATERMARK_INTERVAL_MS
    idle_after_ms: float | None = IDLE_AFTER_MS
    inline_below_bytes: int = INLINE_BELOW_BYTES
    state_memory_bytes: int = STATE_MEMORY_BYTES
    local_recovery: LocalRecovery = LocalRecovery.OFF
    checkpoint_storage: CheckpointStorage = CheckpointStorage.FILES
    access: StoreAccess = FROM_ENVIRONMENT
    state_rows_memory_bytes: int = STATE_ROWS_MEMORY_BYTES
    heap_snapshots: HeapSnapshots = HeapSnapshots.INCREMENTAL
    heap_rows_whole_up_to_bytes: int = HEAP_ROWS_WHOLE_UP_TO_BYTES
    changelog_image_interval_ms: float | None = None

    def heap_whole_up_to_bytes(self) -> int | None:
        """Larger state in memory is snapshotted by what changed; None if none is."""
        match self.heap_snapshots, self.checkpoint_storage:
            case HeapSnapshots.INCREMENTAL, CheckpointStorage.FILES:
                return self.inline_below_bytes
            case _:
                return None  # without files there is nothing that a later checkpoint could refer to

    def rows_whole_up_to_bytes(self) -> float:
        """The same of a vectorised operator's rows; what changes in all others can be stored ahead of checkpoints."""
        if self.changelog_image_interval_ms is not None and self.checkpoint_storage is CheckpointStorage.FILES:
            return min(self.heap_rows_whole_up_to_bytes, CHANGELOG_ROWS_WHOLE_UP_TO_BYTES)
        return inf if self.heap_whole_up_to_bytes() is None else self.heap_rows_whole_up_to_bytes

    def in_manifest_below_bytes(self) -> int:
        """A state file up to that size is no file: captures and states of that size are in it, and little else."""
        return min(2 * self.inline_below_bytes, MANIFEST_CONTENT_BYTES // self.plan.parallelism)

    def window_bounds(self, *, gate_channels: int, slot_channels: int) -> WindowBounds:
        """Of a gate with so many of its slot's channels."""
        each_bytes = max(1, min(self.window_bytes, self.network_memory_bytes // max(1, slot_channels)))
        if self.debloat_target_ms is None:
            return WindowBounds(
                least_bytes=each_bytes,
                start_bytes=each_bytes,
                most_bytes=each_bytes,
                most_total_bytes=each_bytes * gate_channels,
            )
        total_bytes = max(gate_channels, self.network_memory_bytes * gate_channels // max(1, slot_channels))
        return WindowBounds(
            least_bytes=min(self.least_window_bytes, each_bytes),
            start_bytes=min(START_WINDOW_BYTES, each_bytes),
            most_bytes=min(self.window_bytes, total_bytes),
            most_total_bytes=total_bytes,
        )
