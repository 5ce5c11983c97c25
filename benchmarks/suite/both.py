"""The same work in a mode of both systems: the variants that most benchmarks of checkpoints are made of."""

from collections.abc import Mapping

from benchmarks.benchmark import System, Variant
from benchmarks.suite.checkpoint_modes import Mode

# What it can take is far below what arrives.
SLOW_OPERATOR = {"slots": 2, "keys": 1000, "row_bytes": 200, "delay_us": 1000}


def of_tidegate(mode: Mode, work: Mapping[str, object], *, what: str = "", title: str = "") -> Variant:
    return Variant(
        name="-".join(filter(None, ("tidegate", mode.name, what))),
        title=", ".join(filter(None, (f"Tidegate, {mode.title}", title))),
        system=System.TIDEGATE,
        program="tidegate_pipeline",
        # What the work says wins over the mode.
        work={**mode.tidegate, **{name: value for name, value in work.items() if not name.startswith("flink.")}},
    )


def of_flink(mode: Mode, work: Mapping[str, object], *, what: str = "", title: str = "") -> Variant:
    return Variant(
        name="-".join(filter(None, ("flink", mode.name, what))),
        title=", ".join(filter(None, (f"Flink, {mode.title}", title))),
        system=System.FLINK,
        program="Pipeline",
        work={
            **(mode.flink or {}),
            **{name: value for name, value in work.items() if not name.startswith("tidegate.")},
        },
    )


def of_both(mode: Mode, work: Mapping[str, object], *, what: str = "", title: str = "") -> list[Variant]:
    ours = of_tidegate(mode, work, what=what, title=title)
    return [ours] if mode.flink is None else [ours, of_flink(mode, work, what=what, title=title)]
