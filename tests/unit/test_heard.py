"""What a slot hears of the coordinator: in order, but for aborts."""

from tidegate.model.ids import CheckpointId, Generation
from tidegate.network.messages import (
    AbortCheckpoint,
    BarrierEverywhere,
    CheckpointDone,
    Deploy,
    ToSlot,
    TriggerCheckpoint,
)
from tidegate.worker.heard import Heard, Over

OLD, NOW = Generation(1), Generation(2)


def trigger(checkpoint: int, generation: Generation = NOW) -> TriggerCheckpoint:
    return TriggerCheckpoint(generation, CheckpointId(checkpoint), None)


def abort(checkpoint: int, generation: Generation = NOW) -> AbortCheckpoint:
    return AbortCheckpoint(generation, CheckpointId(checkpoint))


def heard(*messages: ToSlot) -> tuple[list[Over], list[ToSlot]]:
    """What is acted on at once, and what in its turn."""
    said = Heard()
    at_once = [early for message in messages if (early := said.add(message)) is not None]
    later = []
    while (message := said.next()) is not None:
        later.append(message)
    return at_once, later


def test_a_checkpoint_that_is_over_before_it_is_begun_is_not_begun() -> None:
    everywhere = BarrierEverywhere(NOW, CheckpointId(7))
    at_once, later = heard(trigger(7), everywhere, abort(7), trigger(8), abort(8), trigger(9))
    assert at_once == [Over(abort(7), trigger(7)), Over(abort(8), trigger(8))], "and what peers say of them is over too"
    assert later == [trigger(9)]


def test_all_else_keeps_its_order() -> None:
    done = CheckpointDone(NOW, CheckpointId(6))
    assert heard(trigger(7), done, abort(5)) == ([Over(abort(5))], [trigger(7), done])
    assert heard(trigger(7, OLD), abort(7)) == ([Over(abort(7))], [trigger(7, OLD)])


def test_an_abort_of_a_generation_that_is_still_to_begin_has_its_place_behind_that() -> None:
    deploy = Deploy(NOW, {}, None)
    assert heard(deploy, trigger(7), abort(7)) == ([], [deploy, trigger(7), abort(7)])
