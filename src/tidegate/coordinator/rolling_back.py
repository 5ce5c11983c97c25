"""Taking back what a damaged checkpoint has committed, where the sink can: what that is, and whether all of it can go.

What a checkpoint commits is in its log entry as well as in its manifest, which may be the damaged file. Must never take
anything back before the log says that the checkpoint is skipped: a file that came back from a backup would make it the
newest again, without its output.
"""

from collections.abc import Callable, Sequence

from tidegate.connectors.contract import RollsBack, SinkCommitter
from tidegate.model.errors import Damaged
from tidegate.model.ids import CheckpointId
from tidegate.storage.job_log import CheckpointCompleted
from tidegate.storage.manifests import Manifest


def output_of(manifest: Manifest) -> list[bytes]:
    return [committable for part in manifest.committables for committable in part.committables]


class RollingBack:
    """`manifest_of` raises `Damaged` if it cannot be read."""

    def __init__(self, committer: SinkCommitter, *, manifest_of: Callable[[CheckpointCompleted], Manifest]) -> None:
        self._committer = committer
        self._manifest_of = manifest_of

    @property
    def is_possible(self) -> bool:
        return isinstance(self._committer, RollsBack)

    def noted_output(self, manifest: Manifest) -> tuple[bytes, ...]:
        """For the log entry."""
        return tuple(output_of(manifest)) if self.is_possible else ()

    def why_not(self, skipped: Sequence[CheckpointCompleted], *, to: CheckpointId) -> str | None:
        """One sentence if the output of the skipped checkpoints cannot be taken back as a whole."""
        if not isinstance(self._committer, RollsBack):
            return "the sink cannot take back what it committed"
        output: list[bytes] = []
        for each in skipped:
            found = self._output_of(each)
            if found is None:
                return f"what checkpoint {each.checkpoint} has committed is not known any more"
            output += found
        return self._committer.why_not_back(output, to=to)

    def roll_back(self, skipped: Sequence[CheckpointCompleted], *, to: CheckpointId) -> None:
        assert isinstance(self._committer, RollsBack), "asked for only where it is possible"
        output = [committable for each in skipped for committable in self._output_of(each) or ()]
        self._committer.roll_back(output, to=to)

    def _output_of(self, completed: CheckpointCompleted) -> list[bytes] | None:
        if not completed.has_committables:
            return []
        try:
            return output_of(self._manifest_of(completed))
        except Damaged:
            return list(completed.output) or None
