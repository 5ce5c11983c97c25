"""Expecting an error without a test framework, so that the suites run under any."""

from collections.abc import Callable


def raises(kind: type[Exception], action: Callable[[], object], *, naming: str) -> None:
    """Fails unless `action` raises an error of that kind whose message names the thing."""
    caught: Exception | None = None
    try:
        action()
    except kind as error:
        caught = error
    assert caught is not None, f"{kind.__name__} was expected, but nothing was raised"
    assert naming in str(caught), f"the message does not name {naming!r}: {caught}"
