"""What a processor's `init` may declare, as the driver sees it before a job starts."""

from collections.abc import Callable

import pytest

from tidegate.model.errors import UserError
from tidegate.spark.stateful import DeclaringHandle

OPENINGS: dict[str, Callable[[DeclaringHandle], object]] = {
    "value": lambda handle: handle.value_state("s", ("v",)),
    "list": lambda handle: handle.list_state("s", ("v",)),
    "map": lambda handle: handle.map_state("s", ("k",), ("v",)),
    "broadcast": lambda handle: handle.broadcast_state("s"),
}


@pytest.mark.parametrize("shape", OPENINGS)
@pytest.mark.parametrize("first", ["deleted", "opened"])
def test_a_state_cannot_be_declared_deleted_and_opened_in_either_order(shape: str, first: str) -> None:
    """Every recovery would empty it."""
    handle = DeclaringHandle()
    steps: list[Callable[[], object]] = [lambda: handle.delete_if_exists("s"), lambda: OPENINGS[shape](handle)]
    before, after = steps if first == "deleted" else reversed(steps)
    before()
    with pytest.raises(UserError, match="State 's' is deleted and opened in one init: do one of both"):
        after()


def test_a_state_that_is_no_longer_opened_may_be_deleted_more_than_once() -> None:
    handle = DeclaringHandle()
    handle.delete_if_exists("old")
    handle.delete_if_exists("old")
    handle.value_state("new", ("v",))
