"""What a benchmark is: a name, the variants it runs, each system on the same work, and what is reported of them.

Knows neither how processes run nor how pages are written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

from benchmarks.processes import Observation
from benchmarks.tables import Run, Section

Failure: TypeAlias = str


class Size(Enum):
    FULL = "full"
    QUICK = "quick"


class System(Enum):
    TIDEGATE = "tidegate"
    FLINK = "flink"
    PYFLINK = "pyflink"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One system in one setting. `program` is its module or class; `work` are the program's arguments.

    `filling_s`: what the program takes before its warm-up, about. `files_in`: where it writes, if not to the disk that
    temporary files are on.
    """

    name: str
    title: str
    system: System
    program: str
    work: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=dict)
    filling_s: float = 0.0
    files_in: Path | None = None

    @property
    def expected_s(self) -> float:
        """What it takes when nothing disturbs it, to start and to stop included."""
        stated_s = float(str(self.work.get("warm_up_s", 0))) + float(str(self.work.get("measure_s", 60)))
        return self.filling_s + stated_s + 12.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of one variant, by repetition: what was seen, why there is nothing, or None where it did not run."""

    variant: Variant
    runs: tuple[Run, ...]

    def seen(self) -> list[Observation]:
        return [run for run in self.runs if isinstance(run, Observation)]

    def failures(self) -> list[Failure]:
        return [run for run in self.runs if isinstance(run, str)]

    @property
    def repetitions(self) -> int:
        return sum(run is not None for run in self.runs)


Measurements: TypeAlias = Mapping[str, Measured]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """`repetitions` per size; `check` makes sure, before anything is measured, that the systems find the same."""

    name: str
    title: str
    about: Sequence[str]
    variants: Callable[[Size], Sequence[Variant]]
    section: Callable[[Measurements], Section]
    repetitions: Mapping[Size, int] = field(default_factory=lambda: {Size.FULL: 3, Size.QUICK: 1})
    check: "Callable[[Sequence[Variant], Callable[[Variant], list[str]]], None] | None" = None
