"""A checkpoint that is restored without the rows it holds in flight: they are counted, and all else stays."""

import pytest

from tests.unit.test_restoring import EDGES, Job, ends_agree, in_flight, plan_of, recovered_values, store
from tidegate.model.elements import Batch
from tidegate.protocol.recovery import CapturedRows
from tidegate.storage.store import LocalFiles

__all__ = ["store"]


@pytest.mark.parametrize("new", [3, 2, 4])
@pytest.mark.parametrize("kind", ["hash", "rebalance", "pointwise", "forward"])
def test_without_captured_rows_every_element_keeps_its_place_and_marks_stay(
    store: LocalFiles, kind: str, new: int
) -> None:
    plan = plan_of(3, EDGES[kind])
    job = Job(store, plan, in_flight(plan), inline_below_bytes=0)
    job.write()
    restores = job.restore(plan_of(new, EDGES[kind]), CapturedRows.DROP)
    whole = job.restore(plan_of(new, EDGES[kind]))
    ends_agree(restores)
    assert [recovered_values(restore) for restore in restores] == [[]] * new
    assert all(restore.known == [] for restore in restores), "a later checkpoint must not refer to rows that are gone"
    lost = [part for restore in restores for part in restore.dropped]
    assert sum(part.rows for part in lost) == sum(len(captured.values()) for captured in job.channels.values())
    assert sum(part.bytes for part in lost) == sum(restore.recovered_bytes for restore in whole)
    assert {part.edge for part in lost} == {0}
    for without, complete in zip(restores, whole, strict=True):
        assert complete.dropped == () and without.next_sequences == complete.next_sequences
        for channel, recovered in complete.recovered.items():
            for kept, element in zip(without.recovered[channel].elements, recovered.elements, strict=True):
                assert (kept.sequence, kept.first_row) == (element.sequence, element.first_row)
                assert isinstance(kept.element, Batch) or kept.element == element.element
