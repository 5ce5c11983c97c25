"""The sending side of barriers: one cut for each channel and checkpoint, whatever happens in which order."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.ids import CheckpointId, Sequence
from tidegate.protocol.barriers import Cut
from tidegate.protocol.cuts import ChannelCuts, SendCut
from tidegate.protocol.kinds import CheckpointKind

ALIGNED, UNALIGNED, SWITCHED = CheckpointKind.ALIGNED, CheckpointKind.UNALIGNED, CheckpointKind.SWITCHED


def channel(first_unsent: int = 0) -> ChannelCuts:
    return ChannelCuts(first_unsent=Sequence(first_unsent))


def snapshot(
    cuts: ChannelCuts, checkpoint: int, kind: CheckpointKind, before: int, switch_at_ms: float | None = None
) -> list[SendCut]:
    return cuts.on_snapshot(CheckpointId(checkpoint), kind, before=Sequence(before), switch_at_ms=switch_at_ms)


def sent(checkpoint: int, held_from: int, before: int) -> SendCut:
    return SendCut(CheckpointId(checkpoint), Cut(Sequence(held_from), Sequence(before)))


def test_unaligned_cuts_at_once_at_the_first_element_not_handed_over() -> None:
    assert snapshot(channel(2), 1, UNALIGNED, before=5) == [sent(1, 2, 5)]


def test_aligned_cuts_when_everything_before_the_barrier_is_handed_over() -> None:
    cuts = channel(2)
    assert snapshot(cuts, 1, ALIGNED, before=4) == []
    assert cuts.on_sent(Sequence(3)) == []
    assert cuts.on_sent(Sequence(4)) == [sent(1, 4, 4)]
    assert cuts.on_sent(Sequence(5)) == []


def test_a_barrier_that_was_passed_by_more_than_one_element_is_cut_at_the_barrier() -> None:
    cuts = channel(2)
    snapshot(cuts, 1, ALIGNED, before=4)
    assert cuts.on_sent(Sequence(6)) == [sent(1, 4, 4)]


def test_aligned_with_nothing_unsent_cuts_at_once() -> None:
    assert snapshot(channel(4), 1, ALIGNED, before=4) == [sent(1, 4, 4)]


def test_an_aligned_one_that_waits_too_long_cuts_where_it_stands() -> None:
    cuts = channel(2)
    snapshot(cuts, 1, ALIGNED, before=5, switch_at_ms=80.0)
    assert cuts.next_deadline_ms() == 80.0
    assert cuts.on_time(79.0) == []
    cuts.on_sent(Sequence(3))
    assert cuts.on_time(80.0) == [sent(1, 3, 5)]
    assert cuts.on_time(81.0) == []
    assert cuts.next_deadline_ms() is None


def test_an_aligned_one_that_may_not_switch_waits_for_ever() -> None:
    cuts = channel()
    snapshot(cuts, 1, ALIGNED, before=1)
    assert cuts.on_time(1e12) == []


def test_an_older_one_that_waits_is_cut_together_with_an_overtaking_newer_one() -> None:
    cuts = channel(1)
    snapshot(cuts, 1, ALIGNED, before=3)
    assert snapshot(cuts, 2, SWITCHED, before=5) == [sent(1, 1, 3), sent(2, 1, 5)]


def test_a_newer_one_goes_on_waiting_when_an_older_one_switches() -> None:
    cuts = channel(1)
    snapshot(cuts, 1, ALIGNED, before=3, switch_at_ms=10.0)
    snapshot(cuts, 2, ALIGNED, before=5, switch_at_ms=20.0)
    assert cuts.on_time(10.0) == [sent(1, 1, 3)]
    assert cuts.on_sent(Sequence(5)) == [sent(2, 5, 5)]


def test_one_that_may_switch_is_cut_at_once_when_waiting_is_dear_and_older_ones_with_it() -> None:
    cuts = channel(1)
    snapshot(cuts, 1, ALIGNED, before=3, switch_at_ms=100.0)
    snapshot(cuts, 2, ALIGNED, before=5, switch_at_ms=200.0)
    snapshot(cuts, 3, ALIGNED, before=6, switch_at_ms=300.0)
    assert cuts.switchable() == [(1, 3, 100.0), (2, 5, 200.0), (3, 6, 300.0)]
    assert cuts.switch_now(CheckpointId(2)) == [sent(1, 1, 3), sent(2, 1, 5)]
    assert cuts.switchable() == [(3, 6, 300.0)]


def test_one_that_may_not_switch_waits_however_dear_that_is() -> None:
    cuts = channel()
    snapshot(cuts, 1, ALIGNED, before=1)
    assert cuts.switchable() == [] and cuts.switch_now(CheckpointId(1)) == []


def test_an_aborted_one_is_never_cut() -> None:
    cuts = channel()
    snapshot(cuts, 1, ALIGNED, before=1, switch_at_ms=10.0)
    cuts.on_abort(CheckpointId(1))
    assert cuts.on_sent(Sequence(1)) == []
    assert cuts.on_time(20.0) == []
    assert cuts.next_deadline_ms() is None


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    return draw(
        st.lists(st.tuples(st.sampled_from(["seal", "send", "aligned", "unaligned", "time"]), st.integers(0, 30)))
    )


@given(histories())
def test_each_checkpoint_gets_exactly_one_cut_and_cuts_come_in_order(history: list[tuple[str, int]]) -> None:
    cuts = channel()
    next_sequence = first_unsent = checkpoint = 0
    now_ms = 0.0
    done: list[SendCut] = []
    barriers: dict[int, int] = {}
    for event, amount in history:
        match event:
            case "seal":
                next_sequence += 1
            case "send" if first_unsent < next_sequence:
                first_unsent += 1
                done += cuts.on_sent(Sequence(first_unsent))
            case "aligned" | "unaligned":
                checkpoint += 1
                barriers[checkpoint] = next_sequence
                kind = ALIGNED if event == "aligned" else UNALIGNED
                done += snapshot(cuts, checkpoint, kind, next_sequence, switch_at_ms=now_ms + amount)
            case "time":
                now_ms += amount
                done += cuts.on_time(now_ms)
        for send in done:
            assert send.cut.held_from <= send.cut.before
    done += cuts.on_time(now_ms + 1000)
    assert [send.checkpoint for send in done] == list(range(1, checkpoint + 1))
    assert {send.checkpoint: send.cut.before for send in done} == barriers
