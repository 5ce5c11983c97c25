"""The backends of a slot: what is decided for all of its operators together."""

from itertools import pairwise
from pathlib import Path

import pytest

from tidegate.model.ids import Generation, KeyGroupRange, SlotIndex
from tidegate.state.changelog import ChangelogBackend
from tidegate.storage.store import LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.simulation.world import SimBackground
from tidegate.worker.state_backends import ChangelogBackends, HeapBackends
from tidegate.worker.stored_ahead import StoredAhead

INTERVAL_MS = 10_000.0
SIZES = [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 3), (4, 4), (8, 3), (16, 1), (16, 8)]


def first_images_ms(folder: Path, *, slot: int, operators: int) -> list[float]:
    """How long after its beginning a slot makes the first image of each operator."""
    clock = ManualClock()
    ahead = StoredAhead(
        slot=SlotIndex(slot),
        generation=Generation(1),
        store=LocalFiles(folder),
        background=SimBackground(),
        clock=clock,
    )
    backends = ChangelogBackends(
        HeapBackends(folder), folder, ahead=ahead, clock=clock, interval_ms=INTERVAL_MS, slot=slot
    )
    images_ms: list[float] = []
    for _ in range(operators):
        backend = backends.open(KeyGroupRange(0, 16))
        assert isinstance(backend, ChangelogBackend)
        # Nothing has changed yet: there is nothing else to wait for.
        deadline_ms = backend.next_deadline_ms()
        assert deadline_ms is not None
        images_ms.append(deadline_ms - clock.monotonic_ms())
    backends.close()
    return images_ms


@pytest.mark.parametrize(("slots", "operators"), SIZES)
def test_the_first_images_of_a_job_lie_apart_within_the_interval(tmp_path: Path, slots: int, operators: int) -> None:
    """Also those of one slot's operator and of another slot's next one: storage is the same for all."""
    images_ms = [at_ms for slot in range(slots) for at_ms in first_images_ms(tmp_path, slot=slot, operators=operators)]
    assert all(INTERVAL_MS / 2 <= at_ms <= INTERVAL_MS for at_ms in images_ms), "not at once, and none is left out"
    evenly_ms = INTERVAL_MS / 2 / len(images_ms)
    closest_ms = min((later - earlier for earlier, later in pairwise(sorted(images_ms))), default=evenly_ms)
    assert closest_ms > evenly_ms / 10
