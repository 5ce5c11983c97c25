"""Profiles are options like any others; advice is given for what is allowed but likely not meant."""

import pytest

import tidegate as tg
from tidegate.api.advice import advice
from tidegate.api.options import QueryOptions, read_options, split_options
from tidegate.protocol.kinds import Guarantee
from tidegate.protocol.retention import KeepFor


def read(given: dict[str, str]) -> QueryOptions:
    own, sink = split_options(given)
    assert sink == {}
    return read_options(own, {})


def test_production_is_two_minutes_exactly_once_one_at_a_time_kept_for_an_hour() -> None:
    options = read({**tg.profiles.production})
    assert options.checkpoints.interval_ms == 120_000
    assert options.checkpoints.max_concurrent == 1
    assert options.guarantee is Guarantee.EXACTLY_ONCE
    assert options.keep == KeepFor(3_600_000)
    assert advice(options) == []


def test_a_profile_cannot_be_changed_for_others() -> None:
    with pytest.raises(TypeError):
        tg.profiles.production["checkpoint.interval"] = "1s"  # type: ignore[index]  # its type says so already


@pytest.mark.parametrize(
    ("backpressure", "concurrent", "is_warned"),
    [("false", "1", True), ("false", "28", True), ("false", "29", False), ("true", "1", False), ("strict", "1", False)],
)
def test_too_few_concurrent_checkpoints_without_active_backpressure_are_warned_of(
    backpressure: str, concurrent: str, is_warned: bool
) -> None:
    found = advice(
        read(
            {
                "checkpoint.interval": "10s",
                "checkpoint.timeout": "5m",
                "checkpoint.maxConcurrent": concurrent,
                "source.activeBackpressure": backpressure,
            }
        )
    )
    assert bool(found) is is_warned
    assert all("source.activeBackpressure" in sentence for sentence in found)
