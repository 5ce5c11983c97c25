"""How splits that were found on the driver are handed to readers."""

from dataclasses import dataclass, field

from tests.unit.driver_by_hand import SCHEMA
from tidegate.connectors.contract import Assignment
from tidegate.coordinator.splits import Splits, _Source, in_parts
from tidegate.model.ids import Generation, VertexId
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
    assert [len(part) for part in in_parts([bytes(1 << 20)] * 4)] == [4]
    assert list(in_parts([])) == []
