"""What a seed stands for: a job, its settings, its pace and its faults."""

from dataclasses import dataclass
from random import Random

from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.retention import KeepFor, KeepNumber
from tidegate.testing.simulation.connectors import SimSource
from tidegate.testing.simulation.incarnation import NetworkSettings
from tidegate.testing.simulation.states import StateDice, StateScenario, states_of
from tidegate.testing.simulation.topologies import Shape, Topology

MOST_SLOTS = 4
_KEEPING_ORDER = frozenset({Topology.ONE_SHUFFLE, Topology.TWO_SHUFFLES, Topology.CONNECTED, Topology.BROADCAST})
# What could go wrong with the order of rows, or with a late row for a window that has fired, needs one restore after
# another, most of them at another parallelism.
OFTEN_RESTORED = _KEEPING_ORDER | {Topology.LATE, Topology.WAITING, Topology.WAITING_WINDOWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Rates are per turn of the scheduler, or per write for the store's and the sink's.

    `strikes`: how often something is made to go wrong. `runs`: a job that ends and is started again finds new splits.
    """

    seed: int
    shape: Shape
    slots: int
    rescales: bool
    runs: int
    switch_after_ms: float | None
    checkpoints: CheckpointSettings
    keep: KeepNumber | KeepFor
    active_backpressure: ActiveBackpressure
    debloat_target_ms: float | None
    inline_below_bytes: int
    window_bytes: int
    network: NetworkSettings
    tick_ms: float
    strikes: int
    abort_rate: float
    stall_rate: float
    savepoint_rate: float
    store_flaky_rate: float
    sink_flaky_rate: float
    leaves_zombies: bool
    cost_switch_rate: float
    states: StateScenario


def scenario_of(seed: int, dice: StateDice = StateDice.HEAP) -> Scenario:
    random = Random(f"scenario:{seed}")
    # In turn, so that a few seeds already show every job.
    topology = list(Topology)[seed % len(Topology)]
    strikes = random.choice([0, 2, 3, 5])
    if topology in OFTEN_RESTORED:
        strikes = 5
    return Scenario(
        seed=seed,
        shape=_shape(seed, topology, random),
        slots=random.choice([1, 2, 2, 3, 3]),
        # Rows that wait are dealt to any task at another parallelism: only else do they keep their order.
        rescales=(random.random() < 0.7 or topology in _KEEPING_ORDER) and topology is not Topology.WAITING,
        runs=random.choice([1, 1, 1, 2]) if topology is not Topology.LATE else 1,
        switch_after_ms=random.choice([None, 0.0, 0.0, random.uniform(1, 25)]),
        checkpoints=CheckpointSettings(
            interval_ms=random.choice([5.0, 20.0, 60.0]),
            timeout_ms=500.0,
            min_pause_ms=random.choice([0.0, 0.0, 10.0]),
            max_concurrent=random.randint(1, 3),
            tolerable_failures=random.choice([0, 2, 1_000_000, 1_000_000]),
        ),
        keep=_keep(random),
        active_backpressure=random.choice(list(ActiveBackpressure)),
        debloat_target_ms=random.choice([None, 5.0, 50.0]),
        inline_below_bytes=random.choice([0, 0, 600, 1 << 20]),
        window_bytes=random.choice([1, 100, 400, 1500, 1 << 20]),
        network=NetworkSettings(
            capacity=random.choice([1, 1, 2, 5]),
            has_plain_local_link=random.random() < 0.3,
            writes_in_pieces=random.random() < 0.25,
            most_rows_per_slice=random.choice([1, 2, 5, 12]),
        ),
        tick_ms=random.choice([2.0, 6.0, 15.0]),
        strikes=strikes,
        abort_rate=random.choice([0.0, 0.0, 0.0003, 0.001]),
        stall_rate=random.choice([0.0, 0.0, 0.0003]),
        savepoint_rate=random.choice([0.0, 0.0, 0.0005]),
        store_flaky_rate=random.choice([0.0, 0.0, 0.02, 0.08]),
        sink_flaky_rate=random.choice([0.0, 0.0, 0.1]),
        leaves_zombies=random.random() < 0.5,
        cost_switch_rate=random.choice([0.0, 0.0, 0.05]),
        states=states_of(seed, dice),
    )


def _keep(random: Random) -> KeepNumber | KeepFor:
    return KeepFor(60) if random.random() < 0.2 else KeepNumber(random.randint(1, 3))


def _shape(seed: int, topology: Topology, random: Random) -> Shape:
    # With few rows the sources end while most of them are still in flight, end marks among them.
    rows = random.choice([random.randint(1, 5), random.randint(8, 30), random.randint(8, 30)])
    first = SimSource(
        seed=seed,
        name="first",
        splits=random.randint(2, 6),
        rows_per_split=rows,
        keys=random.choice([1, 3, 8, 20]),
        skew=random.choice([1.0, 1.0, 3.0]),
        most_rows_per_poll=random.randint(1, 4),
        available=0,
        splits_per_look=random.choice([2, 100, 100]),
    )
    second = SimSource(
        seed=seed,
        name="second",
        # Rules come from one split; beside a union, one source may end long before the other.
        splits=1 if topology is Topology.BROADCAST else random.randint(1, 4),
        # So many rules that some subtasks have applied more of them than others when a checkpoint is taken.
        rows_per_split=random.choice([15, 40, 80] if topology is Topology.BROADCAST else [1, 4, 20]),
        keys=first.keys,
        skew=1.0,
        most_rows_per_poll=random.randint(1, 3),
        available=0,
    )
    if topology is Topology.LATE:
        first = SimSource(
            seed=seed,
            name="first",
            splits=1,
            rows_per_split=random.randint(30, 80),
            keys=random.choice([1, 3, 8]),
            skew=1.0,
            most_rows_per_poll=random.randint(1, 4),
            available=0,
            late_every=random.randint(7, 9),
        )
    narrow, holds_rows_back = random.choice([1, 2, 3]), random.random() < 0.3
    return Shape(topology, first, second, narrow, holds_rows_back, capacity=random.choice([1, 2, 5, 20]))
