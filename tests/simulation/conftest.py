"""What all simulations share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Failures are what is simulated: what production code says about them would fill the screen."""
    log = logging.getLogger("tidegate")
    level_before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level_before)
