"""The parts of a query that Spark ingests, from the plan to the running feeds.

Feeds run in the driver's process, one Structured Streaming query each, for as long as the query does.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tidegate.api.options import QueryOptions
from tidegate.connectors.staged_source import STAGED, IngestMode, StagingFolder, feed_from, feed_no_more
from tidegate.model.clock import SystemClock
from tidegate.model.errors import OptionError
from tidegate.model.ids import CheckpointId
from tidegate.plan.nodes import Node, RowOrder
from tidegate.plan.physical import JobPlan, Vertex
from tidegate.protocol.admission import SourceAdmission
from tidegate.spark.bounded_feed import BoundedFeed
from tidegate.spark.catalyst import read_ordered_plan
from tidegate.spark.ingest import IngestProgress, QueryFeed
from tidegate.spark.ingest_plan import IngestedPart, ingesting
from tidegate.storage import layout
from tidegate.storage.store import local_path


@dataclass(frozen=True, slots=True)
class IngestingPlan:
    root: Node
    parts: tuple[IngestedPart, ...]
    order: RowOrder | None

    def describe(self) -> list[str]:
        """For `explain`: nothing if Spark ingests nothing."""
        return ["== Spark ingests ==", *(part.describe() for part in self.parts)] if self.parts else []


def read_ingesting(df: DataFrame, mode: IngestMode) -> IngestingPlan:
    with ingesting(df, mode) as parts:
        root, order = read_ordered_plan(df)
    return IngestingPlan(root, tuple(parts), order)


def settle_staging(plan: JobPlan, location: str) -> JobPlan:
    """The plan with staged sources that mean the same folder in every process."""
    return dataclasses.replace(plan, vertices=tuple(_settled(vertex, location) for vertex in plan.vertices))


class Feeds:
    """All feeds of one query. Each starts when the slots are up and ask for its batches: before, it would take the
    cores that they wait for."""

    def __init__(
        self,
        spark: SparkSession,
        parts: Sequence[IngestedPart],
        *,
        location: str,
        query: str,
        available_now: bool,
        options: QueryOptions,
    ) -> None:
        clock = SystemClock()
        self._feeds: list[tuple[Path, QueryFeed | BoundedFeed]] = []
        for part in parts:
            folder, name = _folder(location, part.name), f"{query}-{part.name}"
            if part.is_bounded:
                self._feeds.append((folder, BoundedFeed(part.frame(_own(spark)), StagingFolder(folder), name=name)))
                continue
            feed = QueryFeed(
                part.frame(spark),
                StagingFolder(folder),
                name=name,
                available_now=available_now,
                most_staged_bytes=options.most_staged_bytes,
                admission=SourceAdmission(
                    options.active_backpressure,
                    interval_ms=options.checkpoints.interval_ms,
                    max_concurrent=options.checkpoints.max_concurrent,
                    now_ms=clock.monotonic_ms(),
                ),
                clock=clock,
            )
            self._feeds.append((folder, feed))

    def attach(self) -> None:
        for folder, feed in self._feeds:
            feed_from(folder, feed)

    def process_all_available(self) -> None:
        """Everything that is there now is staged."""
        for _, feed in self._feeds:
            feed.process_all_available()

    def is_more_staged(self) -> bool:
        """Than the newest commit is known to cover."""
        return any(feed.is_more_staged() for _, feed in self._feeds)

    def progress(self) -> list[IngestProgress]:
        return [feed.progress() for feed in self._streaming()]

    # -- how far checkpoints are, see `coordinator.job.CheckpointFollower`

    def on_triggered(self, checkpoint: CheckpointId) -> None:
        for feed in self._streaming():
            feed.on_triggered(checkpoint)

    def on_reached_all(self, checkpoint: CheckpointId) -> None:
        for feed in self._streaming():
            feed.on_reached_all(checkpoint)

    def on_settled(self, checkpoint: CheckpointId) -> None:
        for feed in self._streaming():
            feed.on_settled(checkpoint)

    def paused_ms(self) -> dict[str, float]:
        return {one.name: one.paused_ms for one in self.progress()}

    def _streaming(self) -> Iterator[QueryFeed]:
        """A bounded scan is read once as a whole: nothing of it could wait."""
        return (feed for _, feed in self._feeds if isinstance(feed, QueryFeed))

    def stop(self) -> None:
        """Twice is fine."""
        for folder, feed in self._feeds:
            feed.stop()
            feed_no_more(folder)


def _own(spark: SparkSession) -> SparkSession:
    """A session with the settings of this one, for a writer's own settings on top of them."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def _settled(vertex: Vertex, location: str) -> Vertex:
    if vertex.source is None or vertex.source.format != STAGED:
        return vertex
    options = {**vertex.source.options, "path": str(_folder(location, vertex.source.options["path"]))}
    return dataclasses.replace(vertex, source=dataclasses.replace(vertex.source, options=options))


def _folder(location: str, name: str) -> Path:
    path = local_path(location)
    if path is None:
        raise OptionError(
            f"The checkpointLocation {location!r} is remote, and Spark stages what it ingests below it in files: "
            f"choose a local or mounted folder."
        )
    return path / layout.staging_folder(name)
