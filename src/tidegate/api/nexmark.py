"""`nexmark`, a Python Data Source: `spark.dataSource.register(tg.NexmarkDataSource)`, then `format("nexmark")`.

Works with any engine that reads Python Data Sources. Its rows depend on the options alone, never on when they are read.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidegate.connectors.nexmark import BIDS, SCHEMAS, Site
from tidegate.model.errors import OptionError

_BEGIN_MS = 1_436_918_400_000  # 2015-07-15T00:00:00Z, where Nexmark's own generator begins
_EVENTS_PER_BATCH = 50_000
_DEFAULTS = {
    "table": BIDS,
    "seed": 1,
    "events": None,
    "eventsPerSecond": None,
    "eventTimeRate": 10_000,
    "partitions": 2,
}


@dataclass(frozen=True, slots=True)
class _Range(InputPartition):
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class NexmarkOptions:
    """`events`: the number of all events, of which a table has its share; None for no end.

    `events_per_s` bounds how fast they come by the clock; None for as fast as they are read.
    """

    table: str
    site: Site
    events: int | None
    events_per_s: int | None
    partitions: int


class NexmarkDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nexmark"

    def schema(self) -> StructType:
        schema: StructType = from_arrow_schema(SCHEMAS[read_options(self.options).table])
        return schema

    def reader(self, schema: StructType) -> "NexmarkReader":
        options = read_options(self.options)
        if options.events is None:
            raise OptionError("A batch of nexmark needs an end: add .option('events', 100000).")
        return NexmarkReader(options)

    def streamReader(self, schema: StructType) -> "NexmarkStreamReader":
        return NexmarkStreamReader(read_options(self.options))


class NexmarkReader(DataSourceReader):
    def __init__(self, options: NexmarkOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        assert self._options.events is not None
        return _cut(0, self._options.events, parts=self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class NexmarkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets count events, of all tables."""

    def __init__(self, options: NexmarkOptions) -> None:
        self._options = options
        self._paced_from: tuple[float, int] | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        """All events are there from the start, and are read in several batches."""
        if self._options.events is None:
            raise OptionError("nexmark with availableNow needs an end: add .option('events', 100000).")

    def initialOffset(self) -> dict[str, int]:
        return {"event": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        # Without an end and without a pace there is always more: so much at a time.
        return ReadMaxRows(_EVENTS_PER_BATCH * self._options.partitions)

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
        begin = start["event"]
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else _EVENTS_PER_BATCH * self._options.partitions
        if self._options.events is not None and not isinstance(limit, ReadMaxRows):
            most = self._options.events
        end = min(begin + most, self._due(begin))
        return {"event": end if self._options.events is None else min(end, self._options.events)}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        return _cut(start["event"], end["event"], parts=self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def _due(self, begin: int) -> int:
        """How far the clock has come since this reader began."""
        if self._options.events_per_s is None:
            return begin + (1 << 62)
        if self._paced_from is None:
            self._paced_from = time.monotonic(), begin
        since_s, first = self._paced_from
        return max(begin, first + int((time.monotonic() - since_s) * self._options.events_per_s))


def read_options(given: Mapping[str, str]) -> NexmarkOptions:
    known = {name.lower(): name for name in _DEFAULTS}
    values: dict[str, Any] = dict(_DEFAULTS)
    for key, text in given.items():
        if key.lower() not in known:
            raise OptionError(f"nexmark has no option {key!r}: it has {', '.join(sorted(_DEFAULTS))}.")
        values[known[key.lower()]] = text
    if values["table"] not in SCHEMAS:
        raise OptionError(f"nexmark has no table {values['table']!r}: it has {', '.join(SCHEMAS)}.")
    return NexmarkOptions(
        table=values["table"],
        site=Site(_number(values, "seed", 0), _BEGIN_MS, _number(values, "eventTimeRate", 1)),
        events=None if values["events"] is None else _number(values, "events", 0),
        events_per_s=None if values["eventsPerSecond"] is None else _number(values, "eventsPerSecond", 1),
        partitions=_number(values, "partitions", 1),
    )


def _number(values: Mapping[str, Any], name: str, least: int) -> int:
    try:
        number = int(values[name])
    except ValueError:
        number = least - 1
    if number < least:
        raise OptionError(f"The option {name!r} of nexmark is {values[name]!r}: give a whole number from {least} on.")
    return number


def _cut(first: int, last: int, *, parts: int) -> list[InputPartition]:
    borders = [first + (last - first) * at // parts for at in range(parts + 1)]
    return [_Range(a, b) for a, b in itertools.pairwise(borders) if a < b]


def _read(options: NexmarkOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, _Range)
    for first in range(partition.first, partition.last, _EVENTS_PER_BATCH):
        rows = options.site.rows(options.table, first, min(first + _EVENTS_PER_BATCH, partition.last))
        if rows.num_rows:
            yield rows
