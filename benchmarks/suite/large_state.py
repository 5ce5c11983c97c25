"""What the benchmarks of large states share: a state that is filled, then changes by a little with each checkpoint."""

import statistics
from collections.abc import Mapping

from benchmarks.benchmark import Measurements, System, Variant
from benchmarks.plots import Bars
from benchmarks.processes import Observation
from benchmarks.suite.figures import CHECKPOINT_TIMES
from benchmarks.tables import Column, Value, checkpoint_ms, completed, figure, median_of, most_workers_bytes

VALUE_BYTES = 1000
# Values of a function, one for each key; and groups of an aggregation, which are much smaller and so many more.
USER: Mapping[str, object] = {"kind": "user", "value_bytes": VALUE_BYTES}
TOTALS: Mapping[str, object] = {"kind": "totals"}
ROCKSDB: Mapping[str, object] = {"tidegate.state.backend": "rocksdb"}

_WARM_UP_S = 10.0
_STEADY: Mapping[str, object] = {"slots": 2, "interval_ms": 2000, "measure_s": 40, "warm_up_s": _WARM_UP_S}
# The state is filled before the warm-up: only the time that is left to the run knows of it.
_FILLING_S_PER_MB = 0.05
# Of groups, of which there are 31,000 to a MB, once they do not fit into memory.
FILLING_GROUPS_S_PER_MB = 0.25
_MB = 1e-6


def of_large_state(
    name: str,
    title: str,
    *,
    state_mb: int,
    work: Mapping[str, object],
    filling_s_per_mb: float = _FILLING_S_PER_MB,
) -> Variant:
    return Variant(
        name=name,
        title=title,
        system=System.TIDEGATE,
        program="tidegate_large_state",
        work={**_STEADY, **work, "state_mb": state_mb},
        filling_s=state_mb * filling_s_per_mb,
    )


def stored_bytes(run: Observation) -> float | None:
    """In the mean: what merging rewrites comes with some checkpoints and not with others."""
    written = [one.new_state_bytes for one in completed(run)]
    return statistics.mean(written) if written else None


def sync_ms(percent: int) -> Value:
    def value(run: Observation) -> float | None:
        lasted = sorted(one.sync_ms for one in completed(run))
        return lasted[max(0, -(-len(lasted) * percent // 100) - 1)] if lasted else None

    return value


COLUMNS = (
    *CHECKPOINT_TIMES,
    Column("synchronous p95, ms", sync_ms(95), digits=1),
    Column("stored per checkpoint, MB", stored_bytes, digits=1, scale=_MB),
    Column("savepoint, ms", figure("full_ms")),
    Column("savepoint, MB", figure("full_bytes"), scale=_MB),
    Column("most memory of the workers, MB", most_workers_bytes, scale=_MB),
)


def plots(measured: Measurements, title: str) -> list[Bars]:
    values = {
        one.variant.title.replace(", ", ",\n"): {"Tidegate": median_of(one.runs, checkpoint_ms(50))}
        for one in measured.values()
    }
    return [Bars(title=title, unit="ms", values=values)] if values else []
