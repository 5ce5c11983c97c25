"""Finds the connector for a format name. Owns the two tables of formats; connectors know nothing of one another."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tidegate.connectors import (
    console,
    memory,
    messages_sink,
    noop,
    parquet_sink,
    parquet_source,
    range_source,
    rate,
    staged_sink,
    staged_source,
)
from tidegate.connectors.contract import Sink, Source
from tidegate.connectors.options import nearest
from tidegate.model.errors import OptionError
from tidegate.plan import nodes

T = TypeVar("T")

SOURCE_FORMATS: Mapping[str, Callable[[nodes.Scan], Source]] = {
    "parquet": parquet_source.from_scan,
    "python": range_source.from_scan,
    "rate": rate.from_scan,
    "staged": staged_source.from_scan,
}
SINK_FORMATS: Mapping[str, Callable[[nodes.Sink], Sink]] = {
    "console": console.from_node,
    "foreach": staged_sink.from_node,
    "foreachBatch": staged_sink.from_node,
    "memory": memory.from_node,
    "noop": noop.from_node,
    "parquet": parquet_sink.from_node,
    "python": messages_sink.from_node,
}


def open_source(scan: nodes.Scan) -> Source:
    """Checks the options; raises `OptionError` before anything is read."""
    return _find(SOURCE_FORMATS, scan.format, what="source")(scan)


def open_sink(sink: nodes.Sink) -> Sink:
    """Checks the options; nothing is written before `prepare_location`."""
    return _find(SINK_FORMATS, sink.format, what="sink")(sink)


def _find(formats: Mapping[str, T], name: str, *, what: str) -> T:
    found = next((connector for known, connector in formats.items() if known.lower() == name.lower()), None)
    if found is None:
        raise OptionError(
            f"There is no {what} for the format {name!r}{nearest(name, formats)}: "
            f"the formats are {', '.join(sorted(formats))}."
        )
    return found
