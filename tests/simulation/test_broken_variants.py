"""The simulation can fail: each of these faults, put into production code, is found by a seed, most within a thousand.

A variant is named after the rule it breaks. `found_at` is a seed that shows it: it is played first, so that this is
quick, and if it shows nothing any more (another scenario, another order of turns) all seeds are played.
"""

import os

import pytest

from tests.simulation import broken_changes, broken_recoveries, broken_streams, broken_waiting
from tests.simulation.broken_variant import Patch, Variant, variants_of
from tidegate.testing.simulation import RunFailure, run_seed
from tidegate.testing.simulation.states import StateDice

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SEED" in os.environ, reason="SEED asks for one seed alone"),
]

VARIANTS = {
    StateDice.HEAP: [*variants_of(broken_streams), *variants_of(broken_recoveries), *variants_of(broken_waiting)],
    StateDice.MIXED: variants_of(broken_changes),
}
_MOST_SEEDS = 1000
# A variant that does not fit the production code any more fails as well, and shows nothing.
_DOES_NOT_FIT = ("TypeError:", "AttributeError:", "NameError:")


@pytest.mark.parametrize(
    ("broken", "dice"),
    [
        pytest.param(broken, dice, id=broken.apply.__name__)
        for dice, variants in VARIANTS.items()
        for broken in variants
    ],
)
def test_a_variant_is_found_that(broken: Variant, dice: StateDice, monkeypatch: Patch) -> None:
    broken.apply(monkeypatch)
    seeds = dict.fromkeys([broken.found_at, *range(_MOST_SEEDS)])
    found = next((run for seed in seeds if isinstance(run := run_seed(seed, dice=dice), RunFailure)), None)
    assert found is not None, f"no seed up to {_MOST_SEEDS} shows it"
    assert not any(sign in found.reason for sign in _DOES_NOT_FIT), f"the variant must be adapted: {found.reason}"
