"""Event time where two inputs wait for one another, as the sides of a join do."""

from tidegate.model.ids import ChannelId, EdgeId
from tidegate.protocol.input_watermarks import NO_EVENT_TIME, InputWatermarks
from tidegate.protocol.watermarks import MIN_WATERMARK_MS, Advance, BecomeActive, BecomeIdle, ChannelWatermark

LEFT, OTHER_LEFT, RIGHT = ChannelId(EdgeId(0), 0, 0), ChannelId(EdgeId(0), 1, 0), ChannelId(EdgeId(1), 0, 0)
INPUTS = {EdgeId(0): 0, EdgeId(1): 1}


def gate() -> InputWatermarks:
    return InputWatermarks([LEFT, OTHER_LEFT, RIGHT], INPUTS)


def test_event_time_is_the_lowest_of_the_inputs() -> None:
    watermarks = gate()
    assert watermarks.on_watermark(LEFT, 10) == []
    assert watermarks.on_watermark(RIGHT, 30) == []
    assert watermarks.on_watermark(OTHER_LEFT, 20) == [Advance(10)]
    assert watermarks.on_watermark(LEFT, 40) == [Advance(20)]
    assert watermarks.current_ms == 20


def test_an_idle_channel_holds_nothing_back_but_an_idle_input_does() -> None:
    watermarks = gate()
    watermarks.on_watermark(LEFT, 10)
    watermarks.on_watermark(RIGHT, 30)
    assert watermarks.on_idle(OTHER_LEFT) == [Advance(10)]
    assert watermarks.on_idle(LEFT) == []
    assert watermarks.on_watermark(RIGHT, 100) == []
    assert watermarks.current_ms == 10


def test_an_input_that_has_ended_stays_where_it_came_to() -> None:
    watermarks = gate()
    watermarks.on_watermark(RIGHT, 30)
    watermarks.on_watermark(LEFT, 50)
    watermarks.on_watermark(OTHER_LEFT, 60)
    assert watermarks.on_end(RIGHT) == []
    assert watermarks.on_watermark(LEFT, 100) == []
    assert watermarks.current_ms == 30


def test_the_end_of_a_run_finds_the_furthest_of_each_input_and_the_lowest_of_those() -> None:
    watermarks = gate()
    watermarks.on_watermark(LEFT, 10)
    watermarks.on_watermark(OTHER_LEFT, 40)
    watermarks.on_watermark(RIGHT, 90)
    watermarks.on_end(LEFT)
    assert watermarks.on_end(OTHER_LEFT) == [Advance(40)] or watermarks.current_ms == 40
    watermarks.on_end(RIGHT)
    assert watermarks.current_ms == 40


def test_an_input_without_rows_keeps_event_time_from_beginning() -> None:
    watermarks = gate()
    for channel in (LEFT, OTHER_LEFT):
        watermarks.on_watermark(channel, 10)
    assert watermarks.on_end(RIGHT) == []
    assert watermarks.current_ms == MIN_WATERMARK_MS


def test_the_gate_is_idle_when_all_inputs_are() -> None:
    watermarks = gate()
    assert [watermarks.on_idle(channel) for channel in (LEFT, OTHER_LEFT)] == [[], []]
    assert watermarks.on_idle(RIGHT) == [BecomeIdle()]
    assert watermarks.is_idle
    assert watermarks.on_rows(LEFT) == (BecomeActive(),)
    assert watermarks.on_rows(LEFT) == ()
    assert not watermarks.is_idle


def test_an_input_that_has_ended_does_not_keep_the_gate_from_being_idle() -> None:
    watermarks = gate()
    for channel in (LEFT, OTHER_LEFT):
        watermarks.on_watermark(channel, 100)
        watermarks.on_end(channel)
    assert watermarks.on_idle(RIGHT) == [BecomeIdle()]
    assert watermarks.on_rows(RIGHT) == (BecomeActive(),)
    assert watermarks.on_end(RIGHT) == [], "nor is one idle that has ended"


def test_what_a_snapshot_stored_is_where_it_goes_on() -> None:
    watermarks = gate()
    watermarks.on_watermark(LEFT, 10)
    watermarks.on_idle(OTHER_LEFT)
    watermarks.on_watermark(RIGHT, 30)
    stored = watermarks.snapshot()
    assert stored == {
        LEFT: ChannelWatermark(10, is_idle=False),
        OTHER_LEFT: ChannelWatermark(MIN_WATERMARK_MS, is_idle=True),
        RIGHT: ChannelWatermark(30, is_idle=False),
    }
    restored = InputWatermarks([LEFT, OTHER_LEFT, RIGHT], INPUTS, restored=stored, current_ms=watermarks.current_ms)
    assert restored.snapshot() == stored and restored.current_ms == 10
    assert restored.on_watermark(RIGHT, 40) == []
    assert restored.on_watermark(LEFT, 35) == [Advance(35)]


def test_an_input_without_event_time_holds_nothing_back_but_is_not_idle_while_it_has_rows() -> None:
    watermarks = InputWatermarks([LEFT, OTHER_LEFT, RIGHT], {EdgeId(0): 0, EdgeId(1): NO_EVENT_TIME})
    watermarks.on_watermark(LEFT, 10)
    assert watermarks.on_watermark(OTHER_LEFT, 20) == [Advance(10)]
    assert watermarks.on_idle(LEFT) == [Advance(20)]
    assert watermarks.on_idle(OTHER_LEFT) == [], "the other one goes on"
    assert watermarks.on_idle(RIGHT) == [BecomeIdle()]
    assert watermarks.on_rows(RIGHT) == (BecomeActive(),)
