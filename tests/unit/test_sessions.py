"""Which sessions rows join: as one by one in plain Python, and without a look at those that they do not touch."""

from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.operators.ordered_slots import OrderedSlots
from tidegate.operators.sessions import Joined, Sessions

Window = tuple[int, int]
MOST_SLOTS = 5_000
# For one place among 3,000: twice as often as they can be halved, and at the first and the last.
LOOKS = 2 * 12 + 2


class Held:
    """Sessions with what an aggregation keeps beside them: their ends, and which are there."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.ends_us: npt.NDArray[np.int64] = np.zeros(MOST_SLOTS, dtype=np.int64)
        self.live: npt.NDArray[np.bool_] = np.zeros(MOST_SLOTS, dtype=np.bool_)

    def join(self, rows: list[tuple[int, Window]]) -> Joined:
        keys = np.array([key for key, _ in rows])
        starts, ends = (np.array([window[at] for _, window in rows]) for at in (0, 1))
        joined = self.sessions.join(keys, starts, ends, ends_us=self.ends_us, live=self.live)
        self.ends_us[joined.slots] = joined.ends_us
        self.live[joined.slots] = True
        self.live[joined.absorbed] = False
        self.sessions.free(joined.absorbed)
        for (key, (start, end)), slot in zip(rows, joined.slot_of_row.tolist(), strict=True):
            assert self.live[slot] and self.sessions.keys.used[slot] == key
            assert self.sessions.starts_us.used[slot] <= start and end <= self.ends_us[slot]
        return joined

    def end(self, until_us: int, among: int) -> None:
        """Those that have ended by then are over; not all at once, and not in their order."""
        is_meant = np.arange(MOST_SLOTS) % among == 0
        self.live &= (self.ends_us > until_us) | ~is_meant

    def compact(self, part: int) -> None:
        """As when those that are over are left behind, so many at a time."""
        slots = np.flatnonzero(self.live)
        old, self.sessions = self.sessions, Sessions()
        self.sessions.reserve(session_count=len(slots), key_count=4)
        for at in range(0, len(slots), part):
            some = slots[at : at + part]
            self.sessions.add_closed_up(old.keys.used[some], old.starts_us.used[some])
        ends_us, self.ends_us = self.ends_us[slots], np.zeros(MOST_SLOTS, dtype=np.int64)
        self.ends_us[: len(slots)], self.live = ends_us, np.arange(MOST_SLOTS) < len(slots)

    def restore(self, part: int) -> None:
        """As from a log, of which the newest is read first."""
        windows = [(key, window) for key, windows in self.windows().items() for window in windows]
        self.sessions, self.live = Sessions(), np.zeros(MOST_SLOTS, dtype=np.bool_)
        for stop in range(len(windows), 0, -part):
            assert len(self.join(windows[max(0, stop - part) : stop]).absorbed) == 0

    def windows(self) -> dict[int, list[Window]]:
        found: dict[int, list[Window]] = {}
        for slot in np.flatnonzero(self.live).tolist():
            window = int(self.sessions.starts_us.used[slot]), int(self.ends_us[slot])
            found.setdefault(int(self.sessions.keys.used[slot]), []).append(window)
        slots = self.sessions.of_keys(np.array(sorted(found), dtype=np.int64), self.live)
        assert sorted(slots.tolist()) == np.flatnonzero(self.live).tolist(), "each is found by its key"
        return {key: sorted(windows) for key, windows in found.items()}


def merged(windows: list[Window]) -> list[Window]:
    result: list[Window] = []
    for start, end in sorted(windows):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((start, end))
    return result


WINDOWS = st.builds(lambda start, length: (start, start + length), st.integers(0, 60), st.integers(1, 6))
STEPS = st.one_of(
    st.tuples(st.just("join"), st.lists(st.tuples(st.integers(0, 3), WINDOWS), min_size=1, max_size=8)),
    st.tuples(st.just("end"), st.tuples(st.integers(0, 60), st.sampled_from([1, 1, 2, 3]))),
    st.tuples(st.just("compact"), st.integers(1, 20)),
    st.tuples(st.just("restore"), st.integers(1, 20)),
)


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=20))
def test_what_touches_becomes_one_whatever_order_it_comes_in(steps: list[tuple[str, Any]]) -> None:
    check(steps)


@pytest.mark.parametrize("seed", range(20))
def test_what_touches_becomes_one_while_time_goes_on(seed: int) -> None:
    """As above, with more sessions, of which many end close to rows that come."""
    random, steps = Random(seed), list[tuple[str, Any]]()
    for now in range(100):
        match random.choices(["join", "end", "compact", "restore"], [20, 10, 1, 1])[0]:
            case "join":
                starts = [now + random.randrange(-20, 40) for _ in range(random.randrange(1, 12))]
                windows = [(start, start + random.randrange(1, 7)) for start in starts]
                steps.append(("join", [(random.randrange(4), window) for window in windows]))
            case "end":
                steps.append(("end", (now - random.randrange(10), random.choice([1, 2, 3]))))
            case kind:
                steps.append((kind, random.randrange(1, 20)))
    check(steps)


def check(steps: list[tuple[str, Any]]) -> None:
    """Against windows that are put together one by one."""
    held, expected, over_us = Held(), dict[int, list[Window]](), 0
    for kind, what in steps:
        match kind:
            case "join":
                # Rows whose windows are over are late, and never come here.
                rows = [(key, window) for key, window in what if window[1] > over_us]
                if rows:
                    held.join(rows)
                for key, window in rows:
                    expected[key] = merged([*expected.get(key, []), window])
            case "end":
                over_us = max(over_us, what[0])
                held.end(over_us, what[1])
                left = held.windows()
                for key, windows in expected.items():
                    assert {one for one in windows if one[1] > over_us} <= set(left.get(key, [])) <= set(windows)
                expected = left
            case "compact":
                held.compact(what)
            case "restore":
                held.restore(what)
        assert held.windows() == {key: windows for key, windows in expected.items() if windows}


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sessions were looked at, or moved, each time."""
    counts: list[int] = []
    at, rest_of = OrderedSlots.at, OrderedSlots._rest_of

    def counted_at(self: OrderedSlots, keys: Any, places: Any) -> Any:
        counts.append(len(keys))
        return at(self, keys, places)

    def counted_rest(self: OrderedSlots, keys: Any, start: Any) -> Any:
        rest = rest_of(self, keys, start)
        counts.append(len(rest))
        return rest

    monkeypatch.setattr(OrderedSlots, "at", counted_at)
    monkeypatch.setattr(OrderedSlots, "_rest_of", counted_rest)
    return counts


def with_sessions(count: int) -> Held:
    """Of key 0, one after the other from 0 on, each 5 long and 5 apart."""
    held = Held()
    held.join([(0, (10 * at, 10 * at + 5)) for at in range(count)])
    return held


def test_rows_do_not_look_at_sessions_that_they_do_not_touch(looked_at: list[int]) -> None:
    held = with_sessions(3_000)
    looked_at.clear()
    assert len(held.join([(0, (29_985, 29_988))]).slots) == 1
    assert len(held.join([(0, (30_000, 30_005)), (1, (0, 5))]).slots) == 2
    assert len(held.join([(0, (15_003, 15_004)), (0, (28_003, 28_004))]).slots) == 2, "none of those between them"
    # Each of the five windows looks for two ends among 3,000.
    assert sum(looked_at) <= 5 * 2 * LOOKS


def test_a_session_between_others_moves_those_behind_it_only(looked_at: list[int]) -> None:
    held = with_sessions(3_000)
    looked_at.clear()
    assert len(held.join([(0, (29_006, 29_008))]).slots) == 1
    assert 99 <= sum(looked_at) <= 99 + 2 * LOOKS
    looked_at.clear()
    joined = held.join([(0, (28_905, 28_910))])
    assert (len(joined.slots), len(joined.absorbed)) == (1, 1)
    assert sum(looked_at) <= 110 + 2 * LOOKS


def test_after_others_were_left_behind_a_row_looks_at_no_more_than_before(looked_at: list[int]) -> None:
    held = with_sessions(3_000)
    held.compact(500)
    looked_at.clear()
    assert len(held.join([(0, (30_000, 30_005))]).slots) == 1
    assert sum(looked_at) <= 2 * LOOKS


def test_sessions_that_come_back_from_the_newest_on_leave_those_before_them_alone(looked_at: list[int]) -> None:
    held = Held()
    for stop in range(3_000, 0, -100):
        looked_at.clear()
        joined = held.join([(0, (10 * at, 10 * at + 5)) for at in range(stop - 100, stop)])
        assert len(joined.slots) == 100
        # Moved once, and looked for as others are.
        assert sum(looked_at) <= (3_000 - stop) + 100 * 2 * LOOKS


def test_all_sessions_of_a_key_are_found_at_once(looked_at: list[int]) -> None:
    held = with_sessions(3_000)
    looked_at.clear()
    assert held.sessions.of_keys(np.array([0]), held.live).tolist() == list(range(3_000))
    assert looked_at == []


def test_the_room_that_a_key_had_is_given_to_others() -> None:
    held, rooms = Held(), []
    for keys in (range(20), range(20, 40), range(40, 60)):
        for at in range(0, 300, 10):
            held.join([(key, (at, at + 5)) for key in keys])
        rooms.append(held.sessions._by_key._slots.count)
    # What the first ones had before they had room for 32 is enough for all others.
    assert rooms == [20 * 63, 20 * 63 + 20 * 32, 20 * 63 + 40 * 32]
    assert sum(map(len, held.windows().values())) == 60 * 30
