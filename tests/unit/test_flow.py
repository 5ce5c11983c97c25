"""What is in flight stays near what the receiver does within the target, whatever the rates do; played in virtual time.

Bytes are compared with rate x target, where the rate is known exactly: `1 / ms_per_row`.
"""

from collections.abc import Callable
from functools import partial

import pytest

from tests.unit.flow import ROW_BYTES, Flow
from tidegate.plan.physical import JobPlan
from tidegate.protocol.windows import MostAhead
from tidegate.worker.settings import START_WINDOW_BYTES, SlotSettings

TARGET_MS = 1000.0


def settings(
    *, window_bytes: int = 1 << 20, memory_bytes: int = 64 << 20, target_ms: float | None = TARGET_MS
) -> SlotSettings:
    return SlotSettings(
        plan=JobPlan((), (), parallelism=1, max_parallelism=1),
        checkpoint_location="",
        window_bytes=window_bytes,
        state_backend="heap",
        debloat_target_ms=target_ms,
        network_memory_bytes=memory_bytes,
    )


def full(now_ms: float) -> float:
    return 1e6


def full_now_and_then(turn: int, now_ms: float) -> float:
    """In one of four turns."""
    return 1e6 if now_ms // 2000 % 4 == turn else 0.01


def costs_ms(ms_per_row: float) -> Callable[[float], float]:
    return lambda now_ms: ms_per_row


def target_bytes(ms_per_row: float) -> float:
    return TARGET_MS / ms_per_row * ROW_BYTES


@pytest.mark.parametrize("senders", [1, 2, 5])
@pytest.mark.parametrize("ms_per_row", [0.3, 1.0, 10.0])
def test_at_a_steady_rate_the_target_is_in_flight_and_no_window_swings(ms_per_row: float, senders: int) -> None:
    flow = Flow(settings(), supplies=[full] * senders, costs=[costs_ms(ms_per_row)])
    flow.run(20_000)
    seen = flow.in_flight_bytes(0, from_ms=10_000)
    assert max(seen) < 1.25 * target_bytes(ms_per_row)
    assert min(seen) > 0.3 * target_bytes(ms_per_row)
    assert flow.direction_changes(0, from_ms=1000) <= 2
    assert flow.receivers[0].worked_ms > 0.99 * 20_000


def test_a_slow_task_does_not_begin_with_full_windows() -> None:
    flow = Flow(settings(), supplies=[full, full], costs=[costs_ms(1.0)])
    flow.run(2000)
    assert max(flow.in_flight_bytes(0, from_ms=0)) < 1.25 * target_bytes(1.0)


@pytest.mark.parametrize(("before", "after"), [(1.0, 10.0), (10.0, 1.0), (0.2, 2.0), (2.0, 0.2)])
def test_a_step_by_ten_is_followed_within_ten_seconds_and_without_swinging(before: float, after: float) -> None:
    flow = Flow(settings(), supplies=[full, full], costs=[lambda now_ms: before if now_ms < 5000 else after])
    flow.run(30_000)
    seen = flow.in_flight_bytes(0, from_ms=15_000)
    assert max(seen) < 1.25 * target_bytes(after)
    assert min(seen) > 0.3 * target_bytes(after)
    assert flow.direction_changes(0, from_ms=0) <= 4
    assert flow.receivers[0].worked_ms > 0.99 * 30_000


@pytest.mark.parametrize("senders", [1, 2, 5])
@pytest.mark.parametrize("burst_ms", [250.0, 500.0, 1000.0])
def test_bursts_of_up_to_a_second_do_not_make_windows_swing(burst_ms: float, senders: int) -> None:
    """Half of the time rows cost ten times as much."""

    def bursts(now_ms: float) -> float:
        return 0.3 if now_ms % (2 * burst_ms) < burst_ms else 3.0

    flow = Flow(settings(), supplies=[full] * senders, costs=[bursts])
    flow.run(30_000)
    on_average_ms = 2 / (1 / 0.3 + 1 / 3.0)
    seen = flow.in_flight_bytes(0, from_ms=10_000)
    assert max(seen) < 1.25 * target_bytes(on_average_ms)
    assert min(seen) > 0.3 * target_bytes(on_average_ms)
    assert flow.direction_changes(0, from_ms=1000) <= 4
    assert flow.direction_changes(0, from_ms=10_000) <= 2
    assert flow.receivers[0].worked_ms > 0.99 * 30_000


@pytest.mark.parametrize("senders", [1, 2, 5])
def test_input_that_comes_in_bursts_does_not_make_windows_swing(senders: int) -> None:
    """In half of each second twice as much as the receiver can do, in the other half almost nothing."""

    def supply(now_ms: float) -> float:
        return (2.0 if now_ms % 1000 < 500 else 0.01) / senders

    flow = Flow(settings(), supplies=[supply] * senders, costs=[costs_ms(1.0)])
    flow.run(30_000)
    assert max(flow.in_flight_bytes(0, from_ms=10_000)) < 1.25 * target_bytes(1.0)
    assert max(flow.in_flight_bytes(0, from_ms=10_000)) > 0.3 * target_bytes(1.0)
    assert flow.direction_changes(0, from_ms=1000) <= 4
    assert flow.direction_changes(0, from_ms=10_000) <= 2
    assert flow.receivers[0].worked_ms > 0.98 * 30_000


def test_a_fast_and_a_slow_channel_share_the_target_and_the_slow_one_keeps_a_slice() -> None:
    flow = Flow(settings(), supplies=[full, lambda now_ms: 0.05], costs=[costs_ms(1.0)])
    flow.run(20_000)
    assert max(flow.in_flight_bytes(0, from_ms=10_000)) < 1.25 * target_bytes(1.0)
    fast, slow = (flow.channels[s, 0].window_bytes for s in range(2))
    assert fast > 5 * slow
    assert slow >= 5 * ROW_BYTES
    assert flow.senders[1].sent_rows > 0.95 * 0.05 * 20_000, "nothing of the slow channel waits behind the fast one"


def test_a_hot_receiver_is_not_flooded_because_the_others_have_room() -> None:
    flow = Flow(settings(), supplies=[full, full], costs=[costs_ms(1.0), costs_ms(0.01)], shares=(0.9, 0.1))
    flow.run(20_000)
    assert max(flow.in_flight_bytes(0, from_ms=5000)) < 1.25 * target_bytes(1.0)
    assert flow.receivers[0].worked_ms > 0.99 * 20_000


def test_after_a_pause_a_burst_is_worked_off_at_full_speed() -> None:
    def supply(now_ms: float) -> float:
        return 0.01 if now_ms < 10_000 else 1e6

    flow = Flow(settings(), supplies=[supply, supply], costs=[costs_ms(0.05)])
    flow.run(10_000)
    worked_ms = flow.receivers[0].worked_ms
    flow.run(11_000)
    assert flow.receivers[0].worked_ms - worked_ms > 950
    flow.run(20_000)
    assert flow.receivers[0].worked_ms - worked_ms > 0.99 * 10_000


def test_at_a_peak_the_receiver_works_all_the_time_and_the_target_is_in_flight() -> None:
    """A third of what the receiver can do, then ten times as much for ten seconds, then as before."""

    def supply(now_ms: float) -> float:
        return 1.5 if 5000 <= now_ms < 15_000 else 0.15

    flow = Flow(settings(), supplies=[supply, supply], costs=[costs_ms(1.0)])
    flow.run(5000)
    worked_ms = flow.receivers[0].worked_ms
    assert worked_ms == pytest.approx(0.3 * 5000, rel=0.05)
    flow.run(15_000)
    assert flow.receivers[0].worked_ms - worked_ms > 0.98 * 10_000
    assert max(flow.in_flight_bytes(0, from_ms=5000)) < 1.25 * target_bytes(1.0)
    flow.run(60_000)
    assert sum(sender.waiting_rows for sender in flow.senders) < 10, "worked off"


@pytest.mark.parametrize(
    ("switch_after_ms", "target_ms", "is_active", "at_most_ms"),
    [
        pytest.param(None, None, False, 2200.0, id="aligned"),
        pytest.param(None, None, True, 2200.0, id="aligned, active backpressure"),
        pytest.param(None, TARGET_MS, False, 1250.0, id="aligned, debloated"),
        pytest.param(0.0, None, False, 50.0, id="unaligned"),
        pytest.param(0.0, TARGET_MS, False, 50.0, id="unaligned, debloated"),
        pytest.param(1000.0, None, False, 1050.0, id="switching"),
        pytest.param(1000.0, TARGET_MS, True, 1050.0, id="switching, debloated, active backpressure"),
    ],
)
def test_at_a_peak_with_checkpoints_the_receiver_works_all_the_time_in_every_mode(
    switch_after_ms: float | None, target_ms: float | None, is_active: bool, at_most_ms: float
) -> None:
    """As above, with a checkpoint every two seconds; two windows hold almost two seconds of work."""

    def supply(now_ms: float) -> float:
        return 1.5 if 5000 <= now_ms < 25_000 else 0.15

    flow = Flow(
        settings(window_bytes=200_000, target_ms=target_ms),
        supplies=[supply, supply],
        costs=[costs_ms(1.0)],
        ahead=MostAhead(2000.0, unknown_bytes=START_WINDOW_BYTES) if is_active else None,
        interval_ms=2000.0,
        switch_after_ms=switch_after_ms,
    )
    flow.run(6000)
    worked_ms = flow.receivers[0].worked_ms
    flow.run(25_000)
    assert flow.receivers[0].worked_ms - worked_ms > 0.98 * 19_000
    assert max(flow.lasted_ms) < at_most_ms, flow.lasted_ms
    # Each began when it was due, or once the one before was over.
    assert len(flow.lasted_ms) > 25_000 / max(2000.0, at_most_ms) - 2
    assert flow.under_way is None or flow.now_ms - flow.under_way[1] < at_most_ms


def slow(now_ms: float) -> float:
    """Two fifths of what a receiver can do at 1 ms per row."""
    return 0.4


NEVER_SWITCHING = pytest.mark.parametrize(
    "switch_after_ms", [pytest.param(None, id="aligned"), pytest.param(10_000.0, id="switching")]
)


@NEVER_SWITCHING
@pytest.mark.parametrize("supplies", [[full, full], [full, slow]], ids=["equal", "unequal"])
def test_the_stream_is_as_fast_while_one_checkpoint_after_another_expires(
    supplies: list[Callable[[float], float]], switch_after_ms: float | None
) -> None:
    """Full windows hold a second of work each, and each checkpoint is given up before that."""

    def played(interval_ms: float | None) -> Flow:
        flow = Flow(
            settings(window_bytes=200_000, target_ms=None),
            supplies=supplies,
            costs=[costs_ms(1.0)],
            interval_ms=interval_ms,
            timeout_ms=700.0,
            switch_after_ms=switch_after_ms,
        )
        flow.run(12_000)
        return flow

    expiring, undisturbed = played(750.0), played(None)
    assert len(expiring.expired) >= 15 and not expiring.lasted_ms
    assert expiring.receivers[0].rows > 0.995 * undisturbed.receivers[0].rows
    for sender, alone in zip(expiring.senders, undisturbed.senders, strict=True):
        assert sender.sent_rows > 0.95 * alone.sent_rows, "neither waits for the other"
    assert not expiring.receivers[0].taken_part, "no snapshot is taken for one that is given up"


@NEVER_SWITCHING
def test_as_soon_as_a_checkpoint_has_expired_the_receiver_works_as_before(switch_after_ms: float | None) -> None:
    """The slow sender's barriers never come: the fast one waits for them from about a second on, for two more."""
    flow = Flow(
        settings(window_bytes=200_000, target_ms=None),
        supplies=[full, slow],
        costs=[costs_ms(1.0)],
        interval_ms=4000.0,
        timeout_ms=3000.0,
        switch_after_ms=switch_after_ms,
        silent=frozenset({1}),
    )

    def worked_ms(*, from_ms: float, until_ms: float) -> float:
        flow.run(from_ms)
        before_ms = flow.receivers[0].worked_ms
        flow.run(until_ms)
        return flow.receivers[0].worked_ms - before_ms

    for began_ms in range(0, 12_000, 4000):
        assert worked_ms(from_ms=began_ms + 2000, until_ms=began_ms + 3000) < 0.5 * 1000, "else nothing was held up"
        assert worked_ms(from_ms=began_ms + 3020, until_ms=began_ms + 4000) > 0.98 * 980
    assert len(flow.expired) == 3


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.8, 0.2)])
def test_sources_with_active_backpressure_lay_an_intervals_work_into_large_windows(shares: tuple[float, ...]) -> None:
    """Windows would hold 50 seconds of work; an interval is 2."""
    flow = Flow(
        settings(window_bytes=5 << 20, target_ms=None),
        supplies=[full, full],
        costs=[costs_ms(1.0)] * len(shares),
        shares=shares,
        ahead=MostAhead(2000.0, unknown_bytes=START_WINDOW_BYTES),
    )
    flow.run(20_000)
    assert max(flow.in_flight_bytes(0, from_ms=0)) < 1.5 * 2 * target_bytes(1.0)
    assert min(flow.in_flight_bytes(0, from_ms=5000)) > 0.4 * 2 * target_bytes(1.0)
    assert flow.receivers[0].worked_ms > 0.98 * 20_000


@pytest.mark.parametrize("target_ms", [TARGET_MS, None])
def test_the_windows_of_a_slot_never_add_up_to_more_than_its_network_memory(target_ms: float | None) -> None:
    memory_bytes, senders = 1 << 20, 40
    supplies: list[Callable[[float], float]] = [
        full if s % 4 == 0 else partial(full_now_and_then, s % 4) for s in range(senders)
    ]
    flow = Flow(settings(memory_bytes=memory_bytes, target_ms=target_ms), supplies=supplies, costs=[costs_ms(0.01)])
    flow.run(4000)
    assert max(flow.windows[0]) <= memory_bytes
    assert max(flow.in_flight_bytes(0, from_ms=0)) < 1.6 * memory_bytes
    assert flow.receivers[0].worked_ms > 0.9 * 4000
