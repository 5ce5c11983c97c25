"""Which checkpoints may go. One whose commit is not recorded is never among them."""

from collections.abc import Sequence

from tidegate.model.ids import CheckpointId


def to_retire(
    completed: Sequence[CheckpointId], *, committed: frozenset[CheckpointId], keep: int
) -> list[CheckpointId]:
    """Of `completed` (oldest first) all but the newest `keep`, as far as they are committed."""
    assert keep >= 1, "the newest checkpoint is always kept"
    return [checkpoint for checkpoint in completed[:-keep] if checkpoint in committed]
