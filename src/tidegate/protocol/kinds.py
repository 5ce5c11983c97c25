"""How a checkpoint passes: every channel aligned, captured at once, or captured after a wait."""

from enum import Enum


class CheckpointKind(Enum):
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    SWITCHED = "switched"


class Guarantee(Enum):
    """What a row that was processed before a failure may do after it."""

    EXACTLY_ONCE = "exactly_once"  # a channel whose barrier was reached waits for the others
    AT_LEAST_ONCE = "at_least_once"  # nothing waits: rows behind a barrier may be in its snapshot, and come again


class CheckpointStorage(Enum):
    """Where the slots' parts of a checkpoint are stored."""

    FILES = "files"  # beside the manifest
    DRIVER = "driver"  # in the manifest, which the driver writes: for small state only


def combined(kinds: "list[CheckpointKind]") -> CheckpointKind:
    """The kind of a whole checkpoint: one captured part makes it not aligned, one switched part makes it switched."""
    if CheckpointKind.SWITCHED in kinds:
        return CheckpointKind.SWITCHED
    if CheckpointKind.UNALIGNED in kinds:
        return CheckpointKind.UNALIGNED
    return CheckpointKind.ALIGNED
