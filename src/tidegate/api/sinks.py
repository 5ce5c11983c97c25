"""Which sink a writer means, and what of it stays on the driver: a user's function, or a data source's commit.

Sinks are values that travel to the slots; what must not travel is attached to them here, by checkpoint location.
"""

from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame

from tidegate.connectors.messages_sink import MessagesSink, take_messages, take_no_more
from tidegate.connectors.registry import SINK_FORMATS, open_sink
from tidegate.connectors.staged_sink import FOREACH, FOREACH_BATCH, StagedSink, call_for_epochs, call_no_more
from tidegate.model.errors import OptionError
from tidegate.plan.nodes import GroupRows, Node, OutputMode, Sink
from tidegate.spark.epochs import Foreach, ForeachBatch
from tidegate.spark.python_sinks import PYTHON, PythonSink, find_python_sink

DriverPart: TypeAlias = ForeachBatch | Foreach | PythonSink

# These run Spark jobs when they commit, so they need a core that no slot has.
_NEED_A_CORE = (FOREACH, FOREACH_BATCH)
# Without these the rows of an epoch, or who commits it, could not be found.
KNOW_THEIR_LOCATION = (FOREACH, FOREACH_BATCH, PYTHON)


@dataclass(frozen=True, slots=True)
class ChosenSink:
    """`root` gives the rows that the sink takes: the query's, or what a data source says of them."""

    root: Node
    sink: Sink
    driver_part: DriverPart | None

    @property
    def spare_cores(self) -> int:
        return 1 if self.sink.format in _NEED_A_CORE else 0


def choose_sink(
    df: DataFrame,
    root: Node,
    *,
    format: str,
    options: dict[str, str],
    function: ForeachBatch | Foreach | None,
    mode: OutputMode,
) -> ChosenSink:
    """By PySpark's words; raises `OptionError` for what is no sink. Nothing is written yet."""
    match function:
        case ForeachBatch():
            return _checked(
                ChosenSink(root, Sink(FOREACH_BATCH, options, root.schema, mode, GroupRows.ONCE_PER_EPOCH), function)
            )
        case Foreach():
            return _checked(
                ChosenSink(root, Sink(FOREACH, options, root.schema, mode, GroupRows.ONCE_PER_EPOCH), function)
            )
    name = format.lower()
    if name in map(str.lower, KNOW_THEIR_LOCATION):
        raise OptionError(
            f"The format {format!r} is none to name: write .foreachBatch(f), .foreach(f), or the name under which a "
            f"Python data source is registered."
        )
    if name not in map(str.lower, SINK_FORMATS):
        python_sink = find_python_sink(df, format, options)
        if python_sink is not None:
            writing = python_sink.writing(root)
            return _checked(ChosenSink(writing, Sink(PYTHON, {}, writing.schema, mode), python_sink))
    return _checked(ChosenSink(root, Sink(name, options, root.schema, mode), None))


def attach(sink: Sink, part: DriverPart | None) -> None:
    """From now on the driver's part gets what is committed."""
    match open_sink(sink), part:
        case StagedSink(folder=folder), ForeachBatch() | Foreach():
            call_for_epochs(folder, part)
        case MessagesSink(location=location), PythonSink():
            take_messages(location, part)


def detach(sink: Sink) -> None:
    match open_sink(sink):
        case StagedSink(folder=folder):
            call_no_more(folder)
        case MessagesSink(location=location):
            take_no_more(location)


def staging_folder_of(sink: Sink) -> str | None:
    opened = open_sink(sink)
    return str(opened.folder) if isinstance(opened, StagedSink) else None


def _checked(chosen: ChosenSink) -> ChosenSink:
    open_sink(chosen.sink)
    return chosen
