"""The golden method on real Spark: something is killed at a moment of the barrier path, and nobody can tell afterwards.

A small selection of all cases, in which every pair of choices occurs; `make golden` plays the others.
"""

from collections.abc import Iterator

import pytest

from tests.golden.cases import Case, Mode, pairwise, rescaled_every_day
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


def test_unaligned_cases_have_gone_on_with_rows_in_flight(running: Golden) -> None:
    """Not each of them for sure: a barrier may come when a source that Spark reads has just given all it had."""
    unaligned = {case: restored for case, restored in running.restored.items() if case.job.mode is Mode.UNALIGNED}
    if not unaligned:
        pytest.skip("none was played")
    with_rows = [case for case, restored in unaligned.items() if restored.rows_in_flight]
    print(f"{len(with_rows)} of {len(unaligned)} with rows in flight")  # noqa: T201
    assert len(with_rows) * 2 > len(unaligned), f"only {', '.join(map(str, with_rows)) or 'none'}"
