"""Slots are threads here: whatever a test does, none may outlive it."""

import threading
import time
from collections.abc import Iterator

import pytest

LONGEST_END_S = 60.0


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + LONGEST_END_S
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left
