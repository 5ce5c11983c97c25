"""The golden method on real Spark: something is killed at a moment of the barrier path, and nobody can tell afterwards.

A small selection of all cases, in which every pair of choices occurs; `make golden` plays the others.
"""

from collections.abc import Iterator

import pytest

from tests.golden.cases import Case, pairwise, rescaled_every_day
from tests.golden.running import Golden, golden

# The first case pays for the cluster or the driver that the others share.
pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

SEED = 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Golden]:
    with golden(tmp_path_factory.mktemp("golden")) as started:
        yield started


@pytest.mark.parametrize("case", [*pairwise(SEED), *rescaled_every_day()], ids=str)
def test_whatever_is_killed_the_committed_rows_are_those_of_an_undisturbed_run(running: Golden, case: Case) -> None:
    print(f"replay with make golden CASE={case} SEED={SEED}")  # noqa: T201 - pytest shows it when the test fails
    print(running.play(case, SEED))  # noqa: T201
