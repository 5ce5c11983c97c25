"""The cases of the golden method: what is killed, where, at which moment, and what the job is made of.

Owns the closed list of choices, the full product, and the small selection for every day. Knows nothing of Spark.
"""

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeAlias

from tidegate.testing import Step


class Place(Enum):
    LOCAL = "local"
    CLUSTER = "cluster"


class Victim(Enum):
    WORKER = "worker"
    EXECUTOR = "executor"
    DRIVER = "driver"


class Mode(Enum):
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    AUTO = "auto"


class Source(Enum):
    NATIVE = "native"
    PYTHON = "python"
    SPARK = "spark"


class Sink(Enum):
    PARQUET = "parquet"
    FOREACH_BATCH = "foreachBatch"


class Operator(Enum):
    AGGREGATION = "aggregation"
    JOIN = "join"
    WINDOW = "window"
    DEDUP = "dedup"
    TIMERS = "timers"


class Beside(Enum):
    """Moments that are no steps of a checkpoint: in the middle of a commit, and while a generation is restored."""

    HALF_PUBLISHED = "the sink has published a part of the epoch"
    GENERATION_LOGGED = "the new generation is in the log, nothing is settled"
    BASIS_CHOSEN = "the driver knows what to restore, the slots do not"
    STATE_READ = "a slot has read its state, its tasks are not built"
    SLOT_READY = "a slot's tasks are built and not told to run"


Moment: TypeAlias = Step | Beside


class Phase(Enum):
    BARRIER = "barrier"
    STORING = "storing"
    COMMITTING = "committing"
    RESTORING = "restoring"


MOMENTS: dict[Phase, tuple[Moment, ...]] = {
    Phase.BARRIER: (
        Step.TRIGGER_DECIDED, Step.TRIGGER_TOLD, Step.TRIGGER_HEARD, Step.BARRIER_FORWARDED, Step.BARRIER_HEARD,
        Step.CUT_HEARD, Step.SNAPSHOT_TAKEN, Step.CAPTURE_CLOSED, Step.OUTPUTS_DECIDED,
    ),
    Phase.STORING: (
        Step.ENCODED, Step.UPLOADED, Step.ACKNOWLEDGED, Step.ALL_ACKNOWLEDGED, Step.MANIFEST_WRITTEN,
    ),
    Phase.COMMITTING: (
        Step.LOGGED, Step.DONE_TOLD, Step.COMMIT_BEGINS, Beside.HALF_PUBLISHED, Step.SINKS_COMMITTED,
        Step.COMMIT_RECORDED, Step.DONE_HEARD, Step.RETIRED,
    ),
    Phase.RESTORING: (Beside.GENERATION_LOGGED, Beside.BASIS_CHOSEN, Beside.STATE_READ, Beside.SLOT_READY),
}  # fmt: skip
PHASE_OF = {moment: phase for phase, moments in MOMENTS.items() for moment in moments}
_NAMED: dict[str, Moment] = {moment.name: moment for moment in PHASE_OF}


@dataclass(frozen=True, slots=True)
class Job:
    mode: Mode
    source: Source
    sink: Sink
    operator: Operator


@dataclass(frozen=True, slots=True)
class Case:
    place: Place
    victim: Victim
    moment: Moment
    job: Job

    def __str__(self) -> str:
        job = self.job
        parts = (self.place, self.victim, self.moment.name, job.mode, job.source, job.sink, job.operator)
        return "-".join(part if isinstance(part, str) else str(part.value) for part in parts)


def parse_case(text: str) -> Case:
    place, victim, moment, mode, source, sink, operator = text.split("-")
    job = Job(Mode(mode), Source(source), Sink(sink), Operator(operator))
    return Case(Place(place), Victim(victim), _NAMED[moment], job)


def full_product() -> list[Case]:
    """Every case there is: executors are processes of their own on a cluster only."""
    return [
        Case(place, victim, moment, Job(mode, source, sink, operator))
        for place, victim in itertools.product(Place, Victim)
        if _is_possible(place, victim)
        for moment in PHASE_OF
        for mode, source, sink, operator in itertools.product(Mode, Source, Sink, Operator)
    ]


def shuffled(cases: Iterable[Case], seed: int) -> list[Case]:
    found = list(cases)
    random.Random(seed).shuffle(found)
    return found


# -- the small selection


@dataclass(frozen=True, slots=True)
class _Row:
    """A case before its moment is chosen: a phase has several, and each is to have its turn."""

    place: Place
    victim: Victim
    phase: Phase
    mode: Mode
    source: Source
    sink: Sink
    operator: Operator


Pair: TypeAlias = frozenset[Enum]
# Greedy choices depend on the order; the shortest of a few attempts is good enough, and the same every time.
_ATTEMPTS = 3


def pairwise(seed: int = 0) -> list[Case]:
    """Few cases in which every possible pair of choices occurs; the moments of a phase take turns."""
    turns = {phase: itertools.cycle(MOMENTS[phase]) for phase in Phase}
    rows = min((_covering(random.Random(f"{seed} {attempt}")) for attempt in range(_ATTEMPTS)), key=len)
    return [
        Case(row.place, row.victim, next(turns[row.phase]), Job(row.mode, row.source, row.sink, row.operator))
        for row in sorted(rows, key=_order)
    ]


def _order(row: _Row) -> tuple[int, int]:
    """Those who share a driver together, and those who cost one last."""
    return list(Place).index(row.place), list(Victim).index(row.victim)


def pairs_of(case: Case) -> set[Pair]:
    job = case.job
    row = _Row(case.place, case.victim, PHASE_OF[case.moment], job.mode, job.source, job.sink, job.operator)
    return _pairs(row)


def possible_pairs() -> set[Pair]:
    return {pair for case in full_product() for pair in pairs_of(case)}


def _covering(chance: random.Random) -> list[_Row]:
    """Greedy: always the row with the most pairs that are missing. Pairs are bits, so that counting them is quick."""
    rows = [
        _Row(*choices)
        for choices in itertools.product(Place, Victim, Phase, Mode, Source, Sink, Operator)
        if _is_possible(choices[0], choices[1])
    ]
    chance.shuffle(rows)
    bit_of: dict[Pair, int] = {}
    pairs = [sum(1 << bit_of.setdefault(pair, len(bit_of)) for pair in _pairs(row)) for row in rows]
    missing = (1 << len(bit_of)) - 1
    chosen: list[_Row] = []
    while missing:
        best = max(range(len(rows)), key=lambda at: (pairs[at] & missing).bit_count())
        chosen.append(rows[best])
        missing &= ~pairs[best]
    return chosen


def _pairs(row: _Row) -> set[Pair]:
    choices: list[Any] = [getattr(row, field.name) for field in fields(row)]
    return {frozenset(pair) for pair in itertools.combinations(choices, 2)}


def _is_possible(place: Place, victim: Victim) -> bool:
    return victim is not Victim.EXECUTOR or place is Place.CLUSTER
