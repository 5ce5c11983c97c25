"""What a file sink's writer hands to its committer, in the checkpoint."""

import msgspec

from tidegate.model.ids import CheckpointId


class FileCommittable(msgspec.Struct, frozen=True):
    """One finished file: its name in the hidden folder, and the path it gets below the sink's when it is committed.

    `written_as` tells files apart that cannot be merged: those of other options or columns.
    """

    hidden: str
    final: str
    checkpoint: CheckpointId
    rows: int
    written_as: str = ""
