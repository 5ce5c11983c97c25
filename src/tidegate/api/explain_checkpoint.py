"""From what is known of a query's checkpoints to the report about one of them, or a sentence why there is none."""

from collections.abc import Sequence

from tidegate.model.errors import UserError
from tidegate.protocol.checkpoint_facts import CheckpointFacts
from tidegate.protocol.why import WhyReport, choose, why


def explain_checkpoint(newest_first: Sequence[CheckpointFacts], checkpoint: int | None) -> WhyReport:
    chosen = choose(newest_first, checkpoint)
    if chosen is not None:
        return why(chosen)
    if not newest_first:
        raise UserError("There is no checkpoint to explain yet: the first one is taken after checkpoint.interval.")
    known = ", ".join(str(facts.checkpoint) for facts in reversed(newest_first))
    raise UserError(f"Nothing is known of checkpoint {checkpoint}: known are {known}.")
