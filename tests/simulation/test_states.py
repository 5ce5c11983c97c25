"""Whole jobs under a seeded scheduler wherever their state lives, and whatever of it a checkpoint stores.

In memory, whole or by what changed, in RocksDB, with a changelog or without, another at each start: the same rows and
the same state, no file too many and none too few. What slots keep on disk is real, and must be gone in the end.
"""

from collections.abc import Iterable

import pytest

from tidegate.testing.simulation import RunFailure, RunReport, run_seed
from tidegate.testing.simulation.scenario import scenario_of
from tidegate.testing.simulation.states import StateDice, StateKind
from tidegate.testing.simulation.topologies import Topology


def play(seeds: Iterable[int], dice: StateDice) -> list[RunReport]:
    outcomes = [run_seed(seed, dice=dice) for seed in seeds]
    failures = [str(outcome) for outcome in outcomes if isinstance(outcome, RunFailure)]
    assert failures == [], f"replay with  python -m tidegate.testing.simulation --state {dice.value} --seed ..."
    return [outcome for outcome in outcomes if isinstance(outcome, RunReport)]


@pytest.mark.slow
def test_every_seed_commits_each_row_exactly_once_wherever_its_state_lives() -> None:
    seeds = range(4 * len(Topology))
    reports = play(seeds, StateDice.MIXED)
    # Runs in which nothing happened would prove nothing.
    states = [scenario_of(seed, StateDice.MIXED).states for seed in seeds]
    assert {kind for state in states for kind in (*state.first, *state.later)} == set(StateKind)
    assert {report.topology for report in reports} == {topology.value for topology in Topology}
    assert sum(report.rescales for report in reports) > len(seeds) / 2
    assert sum(report.images for report in reports) > 5 * len(seeds)


@pytest.mark.slow
def test_every_topology_runs_in_rocksdb() -> None:
    reports = play(range(len(Topology)), StateDice.ROCKSDB)
    assert {report.topology for report in reports} == {topology.value for topology in Topology}
    assert sum(report.rescales for report in reports) > 5


# Each found a fault that is mended: an image of which a file was stored for a checkpoint that others overtook, an image
# whose file was stored for an older image that is gone, and one whose deadline kept the loop busy while it was stored.
@pytest.mark.parametrize("seed", [47, 185, 1])
def test_an_image_becomes_whole_whatever_becomes_of_the_checkpoints_it_is_stored_for(seed: int) -> None:
    play([seed], StateDice.MIXED)


def test_a_file_stays_that_the_next_checkpoint_may_refer_to() -> None:
    """Its last checkpoint gave way to one that was complete, and that slots had not heard of."""
    play([36], StateDice.MIXED)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_run_with_a_changelog(seed: int) -> None:
    first, second = play([seed, seed], StateDice.MIXED)
    assert first.images and first == second
