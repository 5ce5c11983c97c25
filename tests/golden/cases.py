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

SLOTS = 2
# With which a job is restored.
RESCALED = (1, 2, 3, 4, 8)


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


class Backend(Enum):
    HEAP = "heap"
    ROCKSDB = "rocksdb"
    HEAP_CHANGELOG = "heapChangelog"
    ROCKSDB_CHANGELOG = "rocksdbChangelog"

    @property
    def has_changelog(self) -> bool:
        return self in (Backend.HEAP_CHANGELOG, Backend.ROCKSDB_CHANGELOG)

    def options(self) -> dict[str, str]:
        # So short that there are several images in a case.
        changelog = {"state.changelog": "true", "state.changelog.materializeInterval": "500ms"}
        match self:
            case Backend.HEAP:
                return {"state.backend": "heap"}
            case Backend.ROCKSDB:
                # So little that groups, keys and rows of joins are mostly on disk.
                return {"state.backend": "rocksdb", "state.rocksdb.rowMemory": "4KiB"}
            case Backend.HEAP_CHANGELOG:
                return {"state.backend": "heap", **changelog}
            case Backend.ROCKSDB_CHANGELOG:
                return {"state.backend": "rocksdb", **changelog}


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
    backend: Backend


@dataclass(frozen=True, slots=True)
class Case:
    """`slots`: with which a driver goes on after another that was killed; all begin with `SLOTS`."""

    place: Place
    victim: Victim
    moment: Moment
    job: Job
    slots: int = SLOTS

    def __str__(self) -> str:
        job = self.job
        choices = (job.mode, job.source, job.sink, job.operator, job.backend)
        names = (self.place.value, self.victim.value, self.moment.name, *(str(choice.value) for choice in choices))
        return "-".join((*names, str(self.slots)))


def parse_case(text: str) -> Case:
    place, victim, moment, mode, source, sink, operator, backend, slots = text.split("-")
    job = Job(Mode(mode), Source(source), Sink(sink), Operator(operator), Backend(backend))
    return Case(Place(place), Victim(victim), _NAMED[moment], job, int(slots))


def full_product() -> list[Case]:
    """Every case there is: executors are processes of their own on a cluster only."""
    return [
        Case(place, victim, moment, Job(*choices), slots)
        for place, victim in itertools.product(Place, Victim)
        if _is_possible(place, victim)
        for moment in PHASE_OF
        for choices in itertools.product(Mode, Source, Sink, Operator, Backend)
        for slots in (RESCALED if (place, victim) == (Place.LOCAL, Victim.DRIVER) else (SLOTS,))
    ]


def rescaled() -> list[Case]:
    """A killed driver's job goes on with every number of slots, on every backend, aligned and unaligned.

    What else there is takes turns; a restore begins where storing, or committing, was cut short.
    """
    moments = itertools.cycle([*MOMENTS[Phase.STORING], *MOMENTS[Phase.COMMITTING]])
    sources, sinks, operators = itertools.cycle(Source), itertools.cycle(Sink), list(Operator)
    found = []
    every = itertools.product(Backend, (Mode.ALIGNED, Mode.UNALIGNED), RESCALED)
    for number, (backend, mode, slots) in enumerate(every):
        # One further in each round: not the same operator for the same slots.
        operator = operators[(number + number // len(RESCALED)) % len(operators)]
        job = Job(mode, next(sources), next(sinks), operator, backend)
        found.append(Case(Place.LOCAL, Victim.DRIVER, next(moments), job, slots))
    return found


# A few of them: each backend goes on with more slots or with fewer, those with a changelog in both modes, and every
# operator, source and sink has its turn. With as many slots as before, the small selection has cases enough.
_EVERY_DAY = (
    (Backend.HEAP, Mode.UNALIGNED, 3),
    (Backend.ROCKSDB, Mode.ALIGNED, 8),
    (Backend.HEAP_CHANGELOG, Mode.UNALIGNED, 1),
    (Backend.HEAP_CHANGELOG, Mode.ALIGNED, 4),
    (Backend.ROCKSDB_CHANGELOG, Mode.ALIGNED, 4),
    (Backend.ROCKSDB_CHANGELOG, Mode.UNALIGNED, 4),
)


def rescaled_every_day() -> list[Case]:
    return [case for case in rescaled() if (case.job.backend, case.job.mode, case.slots) in _EVERY_DAY]


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
    backend: Backend


Pair: TypeAlias = frozenset[Enum]
# Greedy choices depend on the order; the shortest of a few attempts is good enough, and the same every time.
_ATTEMPTS = 3


def pairwise(seed: int = 0) -> list[Case]:
    """Few cases in which every possible pair of choices occurs; the moments of a phase take turns."""
    turns = {phase: itertools.cycle(MOMENTS[phase]) for phase in Phase}
    rows = min((_covering(random.Random(f"{seed} {attempt}")) for attempt in range(_ATTEMPTS)), key=len)
    return [
        Case(
            row.place,
            row.victim,
            next(turns[row.phase]),
            Job(row.mode, row.source, row.sink, row.operator, row.backend),
        )
        for row in sorted(rows, key=_order)
    ]


def _order(row: _Row) -> tuple[int, int]:
    """Those who share a driver together, and those who cost one last."""
    return list(Place).index(row.place), list(Victim).index(row.victim)


def pairs_of(case: Case) -> set[Pair]:
    job = case.job
    phase = PHASE_OF[case.moment]
    return _pairs(_Row(case.place, case.victim, phase, job.mode, job.source, job.sink, job.operator, job.backend))


def possible_pairs() -> set[Pair]:
    return {pair for case in full_product() for pair in pairs_of(case)}


def _covering(chance: random.Random) -> list[_Row]:
    """Greedy: always the row with the most pairs that are missing. Pairs are bits, so that counting them is quick."""
    rows = [
        _Row(*choices)
        for choices in itertools.product(Place, Victim, Phase, Mode, Source, Sink, Operator, Backend)
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
