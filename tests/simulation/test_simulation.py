"""Whole jobs under a seeded scheduler: every seed ends with exactly the expected rows and state.

`SEED=7` replays one seed and shows what happened, `SEEDS=500` plays more of them.
"""

import os
from collections import Counter

import pytest

from tidegate.testing.simulation import RunFailure, RunReport, run_seed
from tidegate.testing.simulation.steps import Step
from tidegate.testing.simulation.topologies import Topology

_SEEDS = int(os.environ.get("SEEDS", "150"))
_ONE_SEED = os.environ.get("SEED")


def play(seeds: list[int]) -> list[RunReport]:
    outcomes = [run_seed(seed) for seed in seeds]
    failures = [outcome for outcome in outcomes if isinstance(outcome, RunFailure)]
    if failures:
        replay = f"replay with  make sim SEED={failures[0].seed} STATE=heap"
        pytest.fail("\n\n".join([f"{len(failures)} of {len(seeds)} seeds failed; {replay}", *map(str, failures[:3])]))
    return [outcome for outcome in outcomes if isinstance(outcome, RunReport)]


@pytest.mark.skipif(_ONE_SEED is None, reason="SEED is not set")
def test_the_seed_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    (report,) = play([int(_ONE_SEED or 0)])
    with capsys.disabled():
        os.write(1, ("\n".join(["", *report.trace, ""])).encode())


@pytest.mark.skipif(_ONE_SEED is not None, reason="SEED asks for one seed alone")
def test_every_seed_commits_each_row_exactly_once_and_ends() -> None:
    reports = play(list(range(_SEEDS)))
    # Runs in which nothing happened would prove nothing.
    assert {report.topology for report in reports} == {topology.value for topology in Topology}
    assert sum(report.checkpoints for report in reports) > 5 * _SEEDS
    assert sum(report.starts for report in reports) > 1.5 * _SEEDS
    assert sum(report.strikes for report in reports) > 1.5 * _SEEDS
    assert sum(report.rescales for report in reports) > 0.3 * _SEEDS
    reached = Counter(step for report in reports for step in report.steps)
    assert [step.name for step in Step if not reached[step.name]] == []


@pytest.mark.skipif(_ONE_SEED is not None, reason="SEED asks for one seed alone")
@pytest.mark.parametrize("seed", [3, 11, 12, 20])
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    first, second = play([seed, seed])
    assert first == second
