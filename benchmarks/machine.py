"""The machine of a run: what of it matters to figures, nothing that tells whose it is."""

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.flink.environment import FLINK_VERSION

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Machine:
    """That of one repetition; `day` and `processor` name several where repetitions stand together."""

    day: str
    processor: str
    cores: int
    used_cores: int
    system: str
    versions: str

    @classmethod
    def now(cls, *, cores: int, java_version: str | None) -> "Machine":
        packages = ", ".join(f"{name} {version(name)}" for name in ("tidegate", "pyspark", "pyarrow", "numpy"))
        java = "" if java_version is None else f", Flink {FLINK_VERSION}, Java {java_version}"
        return cls(
            day=f"{datetime.now(UTC):%Y-%m-%d}",
            processor=_processor(),
            cores=os.cpu_count() or 1,
            used_cores=cores,
            system=f"{platform.system()} {platform.machine()}",
            versions=f"Python {platform.python_version()}, {packages}{java}",
        )

    def differences(self, other: "Machine") -> list[str]:
        """Why their figures cannot stand together. A version counts where both name it: not each run has Flink.

        Another processor is none of the reasons: ratios stay within a repetition, and a repetition on one processor.
        """
        facts = [
            (f"{self.cores} cores", f"{other.cores} cores"),
            (f"{self.used_cores} cores in use", f"{other.used_cores} cores in use"),
            (self.system, other.system),
        ]
        versions, others = _by_name(self.versions), _by_name(other.versions)
        facts += [(f"{name} {versions[name]}", f"{name} {others[name]}") for name in versions if name in others]
        return [f"{ours} instead of {theirs}" for ours, theirs in facts if ours != theirs]

    @classmethod
    def together(cls, machines: Sequence["Machine"]) -> "Machine":
        """All of them, which do not differ but in their days and processors, and in whether Flink was there."""
        days = sorted({day for one in machines for day in _DAY.findall(one.day)})
        processors = list(dict.fromkeys(one.processor for one in machines))
        versions = {name: number for one in machines for name, number in _by_name(one.versions).items()}
        return replace(
            machines[0],
            day=_listed(days),
            processor=_listed(processors),
            versions=", ".join(f"{name} {number}" for name, number in versions.items()),
        )


def _listed(names: Sequence[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _by_name(versions: str) -> dict[str, str]:
    named = (one.partition(" ") for one in versions.split(", "))
    return {name: number for name, _, number in named}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
