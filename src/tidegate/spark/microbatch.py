"""Hands a query to Structured Streaming as it is: `.option("engine", "microbatch")`.

Adds nothing and changes nothing: what Spark's own writer refuses, it refuses here.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery as SparkStreamingQuery

log = logging.getLogger("tidegate")


@dataclass(slots=True)
class WriterCalls:
    """What was asked of a writer, in PySpark's words."""

    format: str | None = None
    output_mode: str | None = None
    query_name: str | None = None
    partition_by: tuple[str, ...] = ()
    trigger: Mapping[str, Any] = field(default_factory=dict)
    foreach: Any = None
    foreach_batch: Any = None
    table: str | None = None


def start_micro_batches(
    df: DataFrame, calls: WriterCalls, *, options: Mapping[str, str], left_out: Mapping[str, str]
) -> SparkStreamingQuery:
    """`left_out`: options that mean something to Tidegate alone."""
    writer = df.writeStream.options(**options)
    if calls.format is not None:
        writer = writer.format(calls.format)
    if calls.output_mode is not None:
        writer = writer.outputMode(calls.output_mode)
    if calls.query_name is not None:
        writer = writer.queryName(calls.query_name)
    if calls.partition_by:
        writer = writer.partitionBy(*calls.partition_by)
    if calls.trigger:
        writer = writer.trigger(**calls.trigger)
    if calls.foreach is not None:
        writer = writer.foreach(calls.foreach)
    if calls.foreach_batch is not None:
        writer = writer.foreachBatch(calls.foreach_batch)
    if left_out:
        log.warning(
            "Structured Streaming runs query %r, to which these options mean nothing: %s.",
            calls.query_name or "without a name",
            ", ".join(sorted(left_out)),
        )
    return writer.start() if calls.table is None else writer.toTable(calls.table)
