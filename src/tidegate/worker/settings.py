"""What a slot needs to know to run its part of a job; travels to it once, with the job."""

from dataclasses import dataclass

from tidegate.plan.physical import JobPlan
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.kinds import Guarantee

# Often enough for event time to look smooth, seldom enough not to cut batches short.
WATERMARK_INTERVAL_MS = 50.0
# A source subtask without rows for so long, a slot without a file for instance, does not hold back event time.
IDLE_AFTER_MS = 1_000.0
# A debloated window still holds some batches, so that a frame's fixed cost does not become the bottleneck.
LEAST_WINDOW_BYTES = 16 << 10
# Captures smaller than this in one slot are not worth a file of their own; the next checkpoint writes them again.
INLINE_BELOW_BYTES = 20 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """`debloat_target_ms`: windows follow what a gate consumes in that time; None leaves them as they are."""

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
    watermark_interval_ms: float = WATERMARK_INTERVAL_MS
    idle_after_ms: float | None = IDLE_AFTER_MS
    inline_below_bytes: int = INLINE_BELOW_BYTES
