"""The slots that are connected, as the driver hears of them."""

import selectors
import socket
from collections.abc import Iterator

import pytest

from tidegate.coordinator.roster import Roster, SlotGone, _Member
from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import Generation, SlotIndex, VertexId
from tidegate.network import connection, frames
from tidegate.network.address import SlotAddress
from tidegate.network.connection import ControlConnection
from tidegate.network.messages import AssignSplits, Leave, SlotIntroduction
from tidegate.testing.manual_clock import ManualClock
from tidegate.worker.mailbox import Mailbox

SLOT = SlotIndex(0)


@pytest.fixture
def roster() -> Iterator[Roster]:
    mailbox = Mailbox()
    made = Roster(job="job", slots=1, secret=b"secret", bind_host="127.0.0.1", clock=ManualClock(), mailbox=mailbox)
    yield made
    made.close()
    mailbox.close()


def join(roster: Roster) -> socket.socket:
    """The slot's end, which nobody reads."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    address = SlotAddress(host_id="h", tcp_host="127.0.0.1", tcp_port=1, unix_name=None)
    introduction = SlotIntroduction(job="job", launch=0, slot=SLOT, pid=4711, address=address, versions={})
    roster._members[SLOT] = _Member(introduction, ControlConnection(ours, peer="slot 0"))
    roster._selector.register(ours.fileno(), selectors.EVENT_READ, SLOT)
    return theirs


def test_a_slot_that_reads_nothing_any_more_is_gone_and_the_driver_goes_on(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_QUEUED_CONTROL_BYTES", 1 << 20)
    theirs = join(roster)
    message = AssignSplits(Generation(1), VertexId(0), [bytes(1 << 18)], False)
    for _ in range(20):
        roster.tell(SLOT, message)
    roster.tell_all(Leave("the query ends"))
    (gone,) = roster.poll(60_000.0)
    assert isinstance(gone, SlotGone) and (gone.slot, gone.pid) == (SLOT, 4711)
    assert gone.why is not None and "slot 0" in gone.why and "its process hangs" in gone.why
    assert (roster.members(), roster.poll(0.0)) == (frozenset(), [])
    theirs.close()


def test_who_is_given_up_with_one_launch_is_not_missed_in_the_next(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_QUEUED_CONTROL_BYTES", 0)
    theirs = join(roster)
    roster.tell(SLOT, Leave("the query ends"))
    roster.expect_launch(2)
    assert roster.poll(0.0) == []
    theirs.close()


def test_a_message_that_no_slot_could_read_is_no_fault_of_the_slot(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be as long for the next slot: starting again does not help."""
    monkeypatch.setattr(frames, "MAX_CONTROL_BYTES", 10)
    theirs = join(roster)
    with pytest.raises(ProtocolViolation):
        roster.tell(SLOT, Leave("the query ends, which takes more than ten bytes to say"))
    assert roster.members() == {SLOT}
    theirs.close()
