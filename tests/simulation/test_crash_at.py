"""A crash at each named step of the barrier path: the job starts again, and every row is committed exactly once."""

from dataclasses import replace

import pytest

from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.retention import KeepNumber
from tidegate.testing import CrashAt, Scenario, SimCluster, Step, scenario_of
from tidegate.testing.simulation.incarnation import NetworkSettings

_MODES = {"aligned": None, "unaligned": 0.0}


def scenario(switch_after_ms: float | None) -> Scenario:
    """A small job that crashes for no other reason. Now and then a checkpoint is aborted, which is a step, too."""
    plain = scenario_of(0)
    return replace(
        plain,
        shape=replace(plain.shape, first=replace(plain.shape.first, splits=4, rows_per_split=30)),
        slots=2,
        rescales=False,
        runs=1,
        strikes=0,
        switch_after_ms=switch_after_ms,
        checkpoints=CheckpointSettings(
            interval_ms=5.0, timeout_ms=500.0, min_pause_ms=0.0, max_concurrent=2, tolerable_failures=1_000
        ),
        keep=KeepNumber(1),
        inline_below_bytes=0,
        window_bytes=400,
        network=NetworkSettings(capacity=1, has_plain_local_link=False, writes_in_pieces=False, most_rows_per_slice=2),
        tick_ms=6.0,
        abort_rate=0.001,
        stall_rate=0.0,
        savepoint_rate=0.0,
        store_flaky_rate=0.0,
        sink_flaky_rate=0.0,
        leaves_zombies=False,
    )


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("step", list(Step), ids=lambda step: step.name)
def test_a_crash_loses_and_doubles_nothing(step: Step, mode: str) -> None:
    cluster = SimCluster(scenario(_MODES[mode]), crash=CrashAt(step, times=2))
    cluster.play()
    assert cluster.crashes == 1, f"the job ended before {step.name} was reached"
