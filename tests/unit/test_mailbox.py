"""How other threads reach a loop, also one that ends."""

import sys
import threading
from functools import partial

from tidegate.worker.mailbox import Mailbox

ROUNDS = 300
POSTERS = 3


def test_notes_are_taken_in_their_order() -> None:
    mailbox, taken = Mailbox(), list[int]()
    for number in range(3):
        mailbox.post(partial(taken.append, number))
    for note in mailbox.take():
        note()
    mailbox.close()
    assert taken == [0, 1, 2]


def test_a_note_that_meets_the_end_of_the_loop_is_dropped() -> None:
    """A pipe that is closed while a thread is about to write may be another file of the process by then."""
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        failures = [error for _ in range(ROUNDS) for error in _posted_while_it_closes()]
    finally:
        sys.setswitchinterval(switch_s)
    assert not failures


def _posted_while_it_closes() -> list[OSError]:
    mailbox, failures, is_over = Mailbox(), list[OSError](), threading.Event()

    def post() -> None:
        try:
            while not is_over.is_set():
                mailbox.post(lambda: None)
        except OSError as error:
            failures.append(error)

    posters = [threading.Thread(target=post) for _ in range(POSTERS)]
    for poster in posters:
        poster.start()
    mailbox.close()
    is_over.set()
    for poster in posters:
        poster.join()
    return failures
