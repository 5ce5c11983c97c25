"""What a benchmark has measured so far, as JSON below `results/`: written, read back, and added to.

Runs that were not measured alike are refused: their ratios would say nothing.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Measured, Size, Variant
from benchmarks.machine import Machine
from benchmarks.processes import Checkpoint, Memory, Observation
from benchmarks.tables import Run


class CannotAdd(Exception):
    """What is stored was not measured as this run would be; the text says in what, and what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """`work` and `runs` by the variant's name; `machines` by repetition."""

    name: str
    size: Size
    machines: tuple[Machine, ...]
    work: Mapping[str, Mapping[str, str]]
    runs: Mapping[str, tuple[Run, ...]]


def stored_at(page: Path, name: str) -> Path:
    return page.parent / "results" / f"{name}.json"


def written(measured: Sequence[Measured], size: Size, machines: Sequence[Machine]) -> str:
    variants = [
        {
            "name": one.variant.name,
            "system": one.variant.system.value,
            "work": _work(one.variant),
            "runs": [_raw(run) for run in one.runs],
        }
        for one in measured
    ]
    content = {"size": size.value, "machines": [dataclasses.asdict(one) for one in machines], "variants": variants}
    # One line for each run: to be read by programs, and small enough to keep.
    return re.sub(r'"runs": \[|\}, (?=\{"rows")', lambda found: found[0] + "\n", json.dumps(_rounded(content))) + "\n"


def read(path: Path) -> Stored | None:
    """None where nothing was measured yet."""
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    variants = content["variants"]
    return Stored(
        path.stem,
        Size(content["size"]),
        tuple(Machine(**one) for one in content["machines"]),
        work={one["name"]: one["work"] for one in variants},
        runs={one["name"]: tuple(_run(run) for run in one["runs"]) for one in variants},
    )


def check_alike(stored: Stored, variants: Sequence[Variant], *, size: Size, machine: Machine) -> None:
    """`variants` are all that the benchmark has today, also those that do not run now."""
    if stored.size is not size:
        raise _cannot_add(stored, f"the stored runs are of the {stored.size.value} form, these of the {size.value} one")
    if differences := machine.differences(Machine.together(stored.machines)):
        raise _cannot_add(stored, f"this machine has {', '.join(differences)}")
    today = {one.name: _work(one) for one in variants}
    for name, work in stored.work.items():
        if name not in today:
            raise _cannot_add(stored, f"the stored variant {name!r} is none of today's")
        if work != today[name]:
            raise _cannot_add(stored, f"the work of the stored variant {name!r} is not today's")


def added(
    stored: Stored, variants: Sequence[Variant], measured: Sequence[Measured], machine: Machine
) -> tuple[list[Measured], list[Machine]]:
    """All variants that ever ran, in the order of `variants`, with the runs of now behind those that are stored.

    Each repetition goes where none of its variants has a run: those that took turns stay together, and a variant that
    runs alone fills in what it missed, if on the same processor. The machines are by repetition, as those stored.
    """
    runs = {name: dict(enumerate(of_one)) for name, of_one in stored.runs.items()}
    machines = list(stored.machines)
    new = {one.variant.name: one.runs for one in measured}
    for repetition in range(max((len(of_one) for of_one in new.values()), default=0)):
        place = next(
            at
            for at in count()
            if all(runs.get(name, {}).get(at) is None for name in new)
            and (at == len(machines) or machines[at].processor == machine.processor)
        )
        machines[place:] = [Machine.together([*machines[place : place + 1], machine]), *machines[place + 1 :]]
        for name, of_one in new.items():
            runs.setdefault(name, {})[place] = of_one[repetition]
    return [Measured(one, _in_order(runs[one.name])) for one in variants if runs.get(one.name)], machines


def _in_order(runs: Mapping[int, Run]) -> tuple[Run, ...]:
    return tuple(runs.get(place) for place in range(max(runs) + 1))


def _cannot_add(stored: Stored, why: str) -> CannotAdd:
    return CannotAdd(f"Nothing can be added to {stored.name!r}, since {why}: run it without --add to measure it anew.")


def _work(variant: Variant) -> dict[str, str]:
    return {name: str(value) for name, value in variant.work.items()}


def _raw(run: Run) -> dict[str, Any] | None:
    match run:
        case Observation():
            return dataclasses.asdict(run)
        case str():
            return {"failed": run}
        case None:
            return None


def _run(raw: dict[str, Any] | None) -> Run:
    if raw is None:
        return None
    if "failed" in raw:
        return str(raw["failed"])
    return Observation(**{
        **raw,
        "checkpoints": tuple(Checkpoint(**one) for one in raw["checkpoints"]),
        "samples": tuple(raw["samples"]),
        "memory": tuple(Memory(**one) for one in raw["memory"]),
    })  # fmt: skip


def _rounded(value: object) -> object:
    """Three digits behind the point are more than any figure deserves."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {name: _rounded(one) for name, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case _:
            return value
