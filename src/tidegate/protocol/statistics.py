"""The checkpoints of a job in numbers: how many, how they ended, and how long and large the last completed ones were.

Counts go over the life of the job; sums up only the newest, so that it shows how the job is now and stays small.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from tidegate.protocol.checkpoints import FailureReason

# Close to three hours at the default interval, and enough for a 99th percentile to mean something.
SUMMED_UP = 1000


class Owner(Enum):
    JOB = "job"
    USER = "user"  # a savepoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Percentiles by nearest rank: each is a value that was seen."""

    min: float
    mean: float
    max: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastFailure:
    reason: FailureReason
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsView:
    """`triggered`, `completed` and `failed` include savepoints; `failed` lacks what was refused before it started."""

    triggered: int
    completed: int
    failed: int
    in_progress: int
    triggered_savepoints: int
    completed_savepoints: int
    by_reason: Mapping[FailureReason, int]  # refused ones too
    duration_ms: Summary | None  # None until one has completed, here and below
    state_bytes: Summary | None
    inflight_bytes: Summary | None
    last_failure: LastFailure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Completed:
    duration_ms: float
    state_bytes: int
    inflight_bytes: int


class CheckpointStatistics:
    def __init__(self) -> None:
        self._triggered: Counter[Owner] = Counter()
        self._completed: Counter[Owner] = Counter()
        self._by_reason: Counter[FailureReason] = Counter()
        self._newest: deque[_Completed] = deque(maxlen=SUMMED_UP)
        self._last_failure: LastFailure | None = None
        # Kept until something changes: it is asked for far more often than checkpoints end.
        self._view: StatisticsView | None = None

    def on_triggered(self, owner: Owner) -> None:
        self._view = None
        self._triggered[owner] += 1

    def on_completed(self, owner: Owner, *, duration_ms: float, state_bytes: int, inflight_bytes: int) -> None:
        self._view = None
        self._completed[owner] += 1
        self._newest.append(_Completed(duration_ms=duration_ms, state_bytes=state_bytes, inflight_bytes=inflight_bytes))

    def on_failed(self, reason: FailureReason, duration_ms: float) -> None:
        assert not reason.is_pre_flight, "what never started is refused"
        self._view = None
        self._by_reason[reason] += 1
        self._last_failure = LastFailure(reason=reason, duration_ms=duration_ms)

    def on_refused(self, reason: FailureReason) -> None:
        assert reason.is_pre_flight, "what has started fails"
        self._view = None
        self._by_reason[reason] += 1

    def snapshot(self) -> StatisticsView:
        if self._view is None:
            self._view = self._summed_up()
        return self._view

    def _summed_up(self) -> StatisticsView:
        triggered, completed = self._triggered.total(), self._completed.total()
        failed = sum(count for reason, count in self._by_reason.items() if not reason.is_pre_flight)
        return StatisticsView(
            triggered=triggered,
            completed=completed,
            failed=failed,
            in_progress=triggered - completed - failed,
            triggered_savepoints=self._triggered[Owner.USER],
            completed_savepoints=self._completed[Owner.USER],
            by_reason=dict(self._by_reason),
            duration_ms=_summary(one.duration_ms for one in self._newest),
            state_bytes=_summary(one.state_bytes for one in self._newest),
            inflight_bytes=_summary(one.inflight_bytes for one in self._newest),
            last_failure=self._last_failure,
        )


def _summary(values: Iterable[float]) -> Summary | None:
    ordered = sorted(values)
    if not ordered:
        return None
    return Summary(
        min=ordered[0],
        mean=sum(ordered) / len(ordered),
        max=ordered[-1],
        p50=_percentile(ordered, 50),
        p95=_percentile(ordered, 95),
        p99=_percentile(ordered, 99),
    )


def _percentile(ordered: list[float], percent: int) -> float:
    """The least value that at least so many percent do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[rank - 1]
