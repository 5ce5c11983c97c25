"""What the sections of several benchmarks show in the same way."""

from collections.abc import Sequence

from benchmarks.benchmark import Measurements
from benchmarks.tables import (
    Column,
    Target,
    checkpoint_ms,
    figures_table,
    rows_per_cpu_s,
    rows_per_s,
)

RATES = (
    Column("M rows/s", rows_per_s, digits=2, scale=1e-6),
    Column("M rows per CPU second", rows_per_cpu_s, digits=2, scale=1e-6),
)
CHECKPOINT_TIMES = (Column("checkpoint p50, ms", checkpoint_ms(50)), Column("longest, ms", checkpoint_ms(100)))


def by_variant(measured: Measurements, columns: Sequence[Column]) -> list[str]:
    """A table with a row for each variant."""
    return figures_table("variant", [(one.variant.title, one.runs) for one in measured.values()], columns)


def below_table(targets: Sequence[Target]) -> list[str]:
    return ["", *(target.line() for target in targets)]
