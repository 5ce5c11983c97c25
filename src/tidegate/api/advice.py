"""What is allowed, but likely not meant: sentences for `explain` and `doctor`. Never refuses anything."""

from math import floor

from tidegate.api.options import QueryOptions
from tidegate.model.units import format_ms
from tidegate.protocol.admission import ActiveBackpressure


def advice(options: QueryOptions) -> list[str]:
    checkpoints = options.checkpoints
    intervals = checkpoints.timeout_ms / checkpoints.interval_ms
    found = []
    if options.active_backpressure is ActiveBackpressure.OFF and checkpoints.max_concurrent < intervals - 1:
        found.append(
            f"While checkpoints are late, sources read on, and a barrier can come to stand behind the data of "
            f"{floor(intervals - checkpoints.max_concurrent)} intervals: a checkpoint may take "
            f"{format_ms(checkpoints.timeout_ms)} (checkpoint.timeout), {checkpoints.max_concurrent} may be under way "
            f"(checkpoint.maxConcurrent), and one begins every {format_ms(checkpoints.interval_ms)}. "
            f"Set source.activeBackpressure to true."
        )
    return found
