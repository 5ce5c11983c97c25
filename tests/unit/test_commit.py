"""Permission to commit is a value that only the protocol makes."""

import pytest

from tidegate.model.ids import CheckpointId
from tidegate.protocol.commit import CommitPermit, permit_logged


def test_a_logged_checkpoint_gets_its_permit() -> None:
    assert permit_logged(CheckpointId(4)).checkpoint == 4


def test_nobody_else_can_make_one() -> None:
    with pytest.raises(TypeError, match="made by protocol.commit alone"):
        CommitPermit(CheckpointId(4), object())


def test_a_permit_shows_its_checkpoint_and_not_its_key() -> None:
    assert repr(permit_logged(CheckpointId(4))) == "CommitPermit(checkpoint=4)"
