"""What a slot needs to know to run its part of a job; travels to it once, with the job."""

from dataclasses import dataclass

from tidegate.plan.physical import JobPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """`switch_after_ms`: None stays aligned, 0 is unaligned at once, more switches after that time."""

    plan: JobPlan
    checkpoint_location: str
    switch_after_ms: float | None
    window_bytes: int
    state_backend: str
