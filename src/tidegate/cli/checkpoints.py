"""`tidegate checkpoints` and `tidegate why`: what a checkpointLocation tells about a query's checkpoints.

Reads storage only, so that the query may run anywhere, or be gone.
"""

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.api.explain_checkpoint import explain_checkpoint
from tidegate.model.units import format_bytes, format_ms
from tidegate.protocol.checkpoint_facts import CheckpointFacts, Outcome
from tidegate.protocol.why import why
from tidegate.storage.statistics import open_location, read_statistics

_STYLES = {Outcome.COMPLETED: "green", Outcome.FAILED: "bold red", Outcome.IN_PROGRESS: "yellow"}


def show_all(console: Console, location: str) -> int:
    found = read_statistics(open_location(location))
    if not found:
        print(f"No checkpoint of {location} is complete yet, and none has failed.")
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("id", "triggered", "status", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("took", "state", "in flight"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for facts in found:
        table.add_row(*_cells(facts))
    console.print(table)
    return 0


def explain(location: str, checkpoint: int | None) -> int:
    # Plain text: it is meant to be pasted.
    print(explain_checkpoint(read_statistics(open_location(location)), checkpoint))
    return 0


def _cells(facts: CheckpointFacts) -> tuple[str | Text, ...]:
    at = datetime.fromtimestamp(facts.triggered_at_ms / 1000, UTC)
    status = facts.outcome.value if facts.failure is None else facts.failure
    return (
        f"{facts.checkpoint}{' (savepoint)' if facts.is_savepoint else ''}",
        at.strftime("%Y-%m-%d %H:%M:%S"),
        Text(status.replace("_", " "), style=_STYLES[facts.outcome]),
        facts.kind,
        format_ms(facts.duration_ms),
        format_bytes(sum(task.state_bytes for task in facts.tasks)),
        format_bytes(sum(task.inflight_bytes for task in facts.tasks)),
        why(facts).cause.value,
    )
