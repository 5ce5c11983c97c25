"""How a checkpoint passes: every channel aligned, captured at once, or captured after a wait."""

from enum import Enum


class CheckpointKind(Enum):
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    SWITCHED = "switched"


def combined(kinds: "list[CheckpointKind]") -> CheckpointKind:
    """The kind of a whole checkpoint: one captured part makes it not aligned, one switched part makes it switched."""
    if CheckpointKind.SWITCHED in kinds:
        return CheckpointKind.SWITCHED
    if CheckpointKind.UNALIGNED in kinds:
        return CheckpointKind.UNALIGNED
    return CheckpointKind.ALIGNED
