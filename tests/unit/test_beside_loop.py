"""Work of a sink beside the loop: its order, what a failure stops, when there is room, how it ends."""

import threading
from collections.abc import Iterator

import pytest

from tidegate.connectors import beside_loop
from tidegate.connectors.beside_loop import BesideLoop

NAME = "a sink's thread"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def beside() -> Iterator[BesideLoop]:
    made = BesideLoop(NAME)
    yield made
    made.finish()
    assert threads() == []


class Held:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.began, self._may_end = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self._may_end.wait(10)
        return "done"

    def let_go(self) -> None:
        self._may_end.set()


def test_what_is_given_happens_in_its_order_on_another_thread(beside: BesideLoop) -> None:
    order: list[tuple[int, bool]] = []
    for number in range(50):
        beside.give(lambda n=number: order.append((n, threading.current_thread() is threading.main_thread())))  # type: ignore[misc]
    beside.given_so_far().result(10)
    assert order == [(number, False) for number in range(50)]


def test_giving_waits_for_nothing_and_the_result_can_be_waited_for(beside: BesideLoop) -> None:
    held = Held()
    result = beside.give(held)
    so_far = beside.given_so_far()
    assert held.began.wait(10)
    assert not result.done() and not so_far.done()
    held.let_go()
    assert result.result(10) == "done"
    so_far.result(10)


def test_after_a_failure_nothing_more_happens_and_everybody_hears_of_it(beside: BesideLoop) -> None:
    held, happened = Held(), list[int]()

    def fail() -> None:
        raise OSError("no space left")

    beside.give(held)
    beside.give(fail)
    later = beside.give(lambda: happened.append(1))
    so_far = beside.given_so_far()
    held.let_go()
    for waited in (later, so_far):
        with pytest.raises(OSError, match="no space left"):
            waited.result(10)
    with pytest.raises(OSError, match="no space left"):
        beside.give(lambda: happened.append(2))
    with pytest.raises(OSError, match="no space left"):
        beside.given_so_far()
    assert happened == []


def test_there_is_no_room_while_much_waits_and_whoever_asked_hears_when_something_is_done(
    beside: BesideLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside_loop, "_MOST_WAITING_BYTES", 10)
    heard = threading.Semaphore(0)
    beside.call_when_done(heard.release)
    held = Held()
    beside.give(held, size_bytes=10)
    assert beside.has_room()
    beside.give(lambda: None, size_bytes=1)
    assert not beside.has_room()
    held.let_go()
    assert heard.acquire(timeout=10) and heard.acquire(timeout=10)
    assert beside.has_room()


def test_giving_waits_once_twice_as_much_waits(beside: BesideLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_loop, "_MOST_WAITING_BYTES", 10)
    held = Held()
    beside.give(held, size_bytes=21)
    assert held.began.wait(10)
    given = threading.Event()

    def give() -> None:
        beside.give(lambda: None, size_bytes=21)
        given.set()

    giving = threading.Thread(target=give)
    giving.start()
    assert not given.wait(0.05)
    held.let_go()
    giving.join(10)
    assert given.is_set()


def test_the_end_comes_after_all_that_was_given(beside: BesideLoop) -> None:
    happened: list[int] = []
    for number in range(20):
        beside.give(lambda n=number: happened.append(n))  # type: ignore[misc]
    assert beside.finish()
    assert happened == list(range(20))


def test_leaving_does_not_wait_for_ever_for_a_thread_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_loop, "_LEAVE_WITHIN_S", 0.02)
    beside, held = BesideLoop(NAME), Held()
    beside.give(held)
    (thread,) = threads()
    assert not beside.finish()
    held.let_go()
    thread.join(10)
    assert beside.finish()


def test_there_is_no_thread_for_nothing(beside: BesideLoop) -> None:
    beside.given_so_far().result(0)
    assert threads() == []
