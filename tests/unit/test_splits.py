"""How splits that were found on the driver are handed to readers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.unit.driver_by_hand import SCHEMA, WhenAsked
from tidegate.connectors.contract import Assignment, Withheld
from tidegate.coordinator.handing_out import HandingOut, in_parts
from tidegate.coordinator.splits import Splits, _Source
from tidegate.model.ids import Generation, SlotIndex, VertexId
from tidegate.network.messages import AssignSplits
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Scan, Sink


@dataclass
class Told:
    messages: list[AssignSplits] = field(default_factory=list)

    def hand_out(self, splits: list[bytes], *, is_complete: bool) -> list[AssignSplits]:
        plan = lower(Scan("rate", {}, SCHEMA), Sink("noop", {}, SCHEMA), parallelism=1, max_parallelism=8)
        nobody: object = None
        handing = Splits(
            generation=Generation(1),
            plan=plan,
            background=nobody,  # type: ignore[arg-type]
            tell=lambda slot, message: self.messages.append(message),
            on_error=lambda error: None,
        )
        source = _Source(VertexId(0), nobody)  # type: ignore[arg-type]
        handing._hand_out(source, [Assignment(0, split) for split in splits], is_complete=is_complete)
        return self.messages


def test_very_many_splits_go_in_several_messages_of_which_the_last_says_so() -> None:
    splits = [number.to_bytes(1_000) for number in range(10_000)]
    messages = Told().hand_out(splits, is_complete=True)
    assert [split for message in messages for split in message.splits] == splits
    assert len(messages) == 3 and [message.is_last for message in messages] == [False, False, True]


def test_without_splits_only_their_end_is_told() -> None:
    assert Told().hand_out([], is_complete=False) == []
    (message,) = Told().hand_out([], is_complete=True)
    assert (message.splits, message.is_last) == ([], True)


def test_what_fills_a_message_exactly_is_one() -> None:
    assert [(len(part), size_bytes) for part, size_bytes in in_parts([bytes(1 << 20)] * 4)] == [(4, 4 << 20)]
    assert list(in_parts([])) == []


def test_a_slot_is_told_of_more_splits_as_it_reports_those_it_has() -> None:
    """A million files at once would fill its connection, which counts as a slot that hangs."""
    told: list[tuple[int, AssignSplits]] = []
    handing = HandingOut(Generation(1), lambda slot, message: told.append((slot, message)))
    splits = [number.to_bytes(1 << 20) for number in range(100)]
    for slot in (0, 1):
        handing.give(VertexId(0), SlotIndex(slot), splits, is_last=True)
    assert [len(message.splits) for slot, message in told if slot == 0] == [4] * 8
    handing.on_received(SlotIndex(0), 7)
    assert len(told) == 2 * 8 + 1, "the first message is read, the second one half"
    received = 7
    while (now := sum(len(message.splits) for slot, message in told if slot == 0)) > received:
        assert now - received <= 36, "eight messages, and what was read of one more"
        received = now
        handing.on_received(SlotIndex(0), received)
    assert [split for slot, message in told if slot == 0 for split in message.splits] == splits
    assert [message.is_last for slot, message in told if slot == 0] == [False] * 24 + [True]
    assert len([message for slot, message in told if slot == 1]) == 8, "each by what it reported itself"


def test_a_later_vertex_waits_behind_what_a_slot_has_not_been_told() -> None:
    told: list[AssignSplits] = []
    handing = HandingOut(Generation(1), lambda slot, message: told.append(message))
    handing.give(VertexId(0), SlotIndex(0), [bytes(1 << 20)] * 40, is_last=False)
    handing.give(VertexId(1), SlotIndex(0), [], is_last=True)
    assert len(told) == 8
    handing.on_received(SlotIndex(0), 32)
    assert [(message.vertex, len(message.splits), message.is_last) for message in told[8:]] == [
        (0, 4, False),
        (0, 4, False),
        (1, 0, True),
    ]


# -- sources with a limit


@dataclass
class LimitedEnumerator:
    kept: Withheld = Withheld.NOTHING
    has_ended: bool = False

    def restore(self, reader_states: Sequence[bytes]) -> None: ...

    def discover(self) -> list[Assignment]:
        return []

    def withheld(self) -> Withheld:
        return self.kept

    def is_complete(self) -> bool:
        return self.has_ended


class TwoSources:
    def __init__(self) -> None:
        plan = lower(Scan("rate", {}, SCHEMA), Sink("noop", {}, SCHEMA), parallelism=1, max_parallelism=8)
        looking = WhenAsked(lambda note: note())
        told = Told()
        self.one, self.other = LimitedEnumerator(), LimitedEnumerator()
        self.splits = Splits(
            generation=Generation(1),
            plan=plan,
            background=looking,
            tell=lambda slot, message: told.messages.append(message),
            on_error=lambda error: None,
        )
        self.splits._sources += [_Source(VertexId(0), self.one), _Source(VertexId(0), self.other)]
        self._looking = looking

    def look(self) -> int:
        self.splits.look_now()
        self.splits.on_time(1.0)
        self._looking.run_one()
        return self.splits.rounds


def test_all_is_given_once_each_source_has_withheld_nothing_be_it_in_different_rounds() -> None:
    sources = TwoSources()
    first = sources.look()
    assert sources.splits.have_given_all(since_round=first)
    assert not sources.splits.have_given_all(since_round=first + 1)
    sources.one.kept = Withheld.UNTIL_LATER
    second = sources.look()
    assert not sources.splits.have_given_all(since_round=second)
    sources.one.kept, sources.other.kept = Withheld.NOTHING, Withheld.UNTIL_LATER
    sources.look()
    assert sources.splits.have_given_all(since_round=second)


def test_a_source_that_is_complete_has_given_all_though_it_is_not_asked_again() -> None:
    sources = TwoSources()
    sources.one.has_ended = True
    sources.look()
    sources.one.kept = Withheld.UNTIL_LATER
    assert sources.splits.have_given_all(since_round=sources.look())


def test_one_source_that_gives_no_more_before_a_commit_is_enough_to_wait_for_one() -> None:
    sources = TwoSources()
    sources.one.kept = Withheld.UNTIL_LATER
    sources.look()
    assert not sources.splits.wait_for_commit()
    sources.other.kept = Withheld.UNTIL_COMMITTED
    sources.look()
    assert sources.splits.wait_for_commit()
