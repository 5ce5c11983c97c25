"""Plays seeds and says what came of them."""

from dataclasses import dataclass

from tidegate.testing.simulation.cluster import SimCluster
from tidegate.testing.simulation.scenario import Scenario, scenario_of
from tidegate.testing.simulation.states import StateDice


@dataclass(frozen=True, slots=True)
class RunReport:
    seed: int
    topology: str
    turns: int
    checkpoints: int
    starts: int
    strikes: int
    rescales: int
    images: int
    steps: frozenset[str]
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What went wrong, and the last that happened before."""

    seed: int
    reason: str
    scenario: Scenario
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}: {self.reason}", f"  {self.scenario}", *(f"  {t}" for t in self.trace)])


def run_seed(seed: int, *, dice: StateDice = StateDice.HEAP) -> RunReport | RunFailure:
    """The whole life of one job. The same seed gives the same run."""
    cluster = SimCluster(scenario_of(seed, dice))
    try:
        cluster.play()
    except Exception as error:  # whatever production code raises is a finding, with the seed that replays it
        return RunFailure(seed, f"{type(error).__name__}: {error}", cluster.scenario, tuple(cluster.world.trace))
    return RunReport(
        seed=seed,
        topology=cluster.scenario.shape.topology.value,
        turns=cluster.turns,
        checkpoints=cluster.checkpoints,
        starts=cluster.starts,
        strikes=cluster.strikes,
        rescales=cluster.rescales,
        images=cluster.taken.images,
        steps=frozenset(step.name for step in cluster.watch.reached),
        trace=tuple(cluster.world.trace),
    )
