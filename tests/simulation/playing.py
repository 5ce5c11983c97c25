"""Plays the seeds of a test with a job of its own in place of the seed's."""

from collections.abc import Sequence
from dataclasses import fields, replace

from tidegate.testing.simulation.cluster import SimCluster
from tidegate.testing.simulation.scenario import scenario_of
from tidegate.testing.simulation.states import StateDice
from tidegate.testing.simulation.topologies import Shape


def play(kind: type[Shape], seeds: Sequence[int], dice: StateDice) -> None:
    restores = rescales = 0
    for seed in seeds:
        scenario = scenario_of(seed, dice)
        shape = kind(*(getattr(scenario.shape, field.name) for field in fields(Shape)))
        cluster = SimCluster(replace(scenario, shape=shape))
        try:
            cluster.play()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        restores += cluster.starts - 1
        rescales += cluster.rescales
    # Runs in which nothing happened would prove nothing.
    assert restores > len(seeds) and rescales > len(seeds) / 4
