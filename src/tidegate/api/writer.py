"""`tg.writeStream(df)`: a writer shaped like PySpark's, that starts a Tidegate query."""

import atexit
import dataclasses
import secrets
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from tidegate.api.advice import advice
from tidegate.api.control import serve
from tidegate.api.ingest import Feeds, IngestingPlan, read_ingesting, settle_staging
from tidegate.api.options import SESSION_PREFIX, QueryOptions, read_options, split_options
from tidegate.api.places import (
    checkpoint_path,
    missing_folders,
    path_option,
    reachable,
    refuse_own_output,
    remove_empty,
)
from tidegate.api.query import StreamingQuery, active_queries
from tidegate.api.savepoints import SavepointPlace
from tidegate.api.sinks import KNOW_THEIR_LOCATION, ChosenSink, attach, choose_sink, detach, staging_folder_of
from tidegate.api.tables import open_table
from tidegate.api.trial import current_trial
from tidegate.connectors.console import Spelling
from tidegate.connectors.memory import read_memory_table
from tidegate.connectors.registry import open_source
from tidegate.connectors.staged_sink import FOREACH, FOREACH_BATCH
from tidegate.connectors.staged_source import IngestMode
from tidegate.coordinator.coordinator import Coordinator
from tidegate.coordinator.job import JobSpec
from tidegate.model.errors import OptionError, TidegateError, UnsupportedPlan
from tidegate.network.address import Listener
from tidegate.plan.lower import describe, fingerprint, lower
from tidegate.plan.nodes import Node, OutputMode, Sink
from tidegate.plan.physical import JobPlan
from tidegate.plan.scan_settings import with_scan_settings
from tidegate.spark.bounded import check_bounded_output
from tidegate.spark.catalyst import check_output_mode, require_classic
from tidegate.spark.catalyst_text import java_digits
from tidegate.spark.epochs import Foreach, ForeachBatch, foreach, foreach_batch
from tidegate.spark.events import QueryIdentity, SparkEvents
from tidegate.spark.launch import HOST_OF_EXECUTOR, SparkLauncher, package_versions
from tidegate.spark.microbatch import WriterCalls, start_micro_batches
from tidegate.spark.session import (
    SessionFacts,
    SlotClaim,
    await_executors,
    check_session,
    claim_slots,
    release_slots,
    use_driver_interpreter,
)
from tidegate.spark.session_tables import offer_tables
from tidegate.spark.zones import zone_rules
from tidegate.storage.store import local_path, open_store
from tidegate.worker.settings import SlotSettings

# Sinks whose results end with the process may keep their checkpoints in a folder that ends with it too.
_PASSING_SINKS = ("memory", "console", "noop", FOREACH, FOREACH_BATCH)
_FILE_SINKS = ("csv", "json", "parquet")
# Sinks that can show all groups anew each time.
_REPLACING_SINKS = ("memory", "console", "noop", "foreachBatch", "foreach")
# The last is shown nowhere.
_ORDERING_SINKS = ("memory", "console", "noop")
_LOOPBACK = "127.0.0.1"


def writeStream(df: DataFrame) -> "DataStreamWriter":
    """In place of `df.writeStream`."""
    return DataStreamWriter(df)


class DataStreamWriter:
    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._format: str | None = None
        self._epoch_function: ForeachBatch | Foreach | None = None
        self._calls = WriterCalls()
        self._options: dict[str, str] = {}
        self._output_mode = "append"
        self._query_name: str | None = None
        self._available_now = False

    # -- PySpark's words

    def format(self, source: str) -> "DataStreamWriter":
        self._format, self._epoch_function = source, None
        self._calls = dataclasses.replace(self._calls, format=source, foreach=None, foreach_batch=None)
        return self

    def option(self, key: str, value: Any) -> "DataStreamWriter":
        if value is None:
            self._options.pop(key, None)
        else:
            self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> "DataStreamWriter":
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> "DataStreamWriter":
        if not isinstance(outputMode, str):
            raise OptionError(f"The output mode is {outputMode!r}: write append, update or complete.")
        self._output_mode = outputMode.strip().lower()
        self._calls.output_mode = self._output_mode
        return self

    def queryName(self, queryName: str) -> "DataStreamWriter":
        if not isinstance(queryName, str) or not queryName.strip():
            raise OptionError(f"The query name is {queryName!r}: write a text that is not empty.")
        self._query_name = self._calls.query_name = queryName
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> "DataStreamWriter":
        given = [value for value in (processingTime, once, continuous, availableNow, realTime) if value is not None]
        if len(given) != 1:
            raise OptionError("trigger() takes just one of processingTime='10 seconds' and availableNow=True.")
        if availableNow:
            self._available_now = True
            self._calls.trigger = {"availableNow": True}
        elif processingTime is not None:
            self.option("checkpoint.interval", processingTime)
            self._calls.trigger = {"processingTime": processingTime}
        else:
            raise OptionError(
                "Tidegate streams all the time, so it has the triggers processingTime (the checkpoint interval) and "
                "availableNow=True: use one of these."
            )
        return self

    def partitionBy(self, *cols: Any) -> "DataStreamWriter":
        names = list(cols[0]) if len(cols) == 1 and isinstance(cols[0], list | tuple) else list(cols)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise OptionError(f"partitionBy takes names of columns, and was given {names!r}.")
        self._calls.partition_by = tuple(names)
        return self

    def foreach(self, f: Any) -> "DataStreamWriter":
        """Calls `f` for every row of each committed epoch, in Spark tasks."""
        self._format, self._epoch_function = FOREACH, foreach(self._df, f)
        self._calls = dataclasses.replace(self._calls, format=None, foreach=f, foreach_batch=None)
        return self

    def foreachBatch(self, func: Any) -> "DataStreamWriter":
        """Calls `func(df, batch_id)` for each committed epoch that has rows."""
        self._format, self._epoch_function = FOREACH_BATCH, foreach_batch(self._df, func)
        self._calls = dataclasses.replace(self._calls, format=None, foreach=None, foreach_batch=func)
        return self

    def toTable(
        self,
        tableName: str,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Starts, with a table of Spark's catalog as the sink, which is made if there is none of that name."""
        require_classic(self._df)
        if format is not None:
            self.format(format)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        self.options(**options)
        asked = read_options(split_options(self._options)[0], _session_options(self._df.sparkSession))
        if asked.engine == "microbatch":
            self._calls.table = tableName
            return self.start(outputMode=outputMode, queryName=queryName)
        table = open_table(self._df, tableName, format=self._format, partition_by=self._calls.partition_by)
        try:
            written = self.format(table.format).options(**{**table.options, **self._options})
            query = written.start(table.path, outputMode=outputMode, queryName=queryName)
        except BaseException:
            table.undo()
            raise
        query._refresh = table.show_committed
        return query

    # -- starting

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Checks everything, then starts. What is wrong is said here, before anything has started."""
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(partitionBy)
        if queryName is not None:
            self.queryName(queryName)
        self.options(**options)
        if path is not None:
            self.option("path", path)

        require_classic(self._df)
        spark = self._df.sparkSession
        query_options = read_options(split_options(self._options)[0], _session_options(spark))
        if query_options.engine == "microbatch":
            if current_trial() is not None:
                raise OptionError(
                    "With engine=microbatch the query is Spark's own, which keeps other checkpoints: leave the option "
                    "out to check it."
                )
            return self._start_micro_batches()
        read, chosen = self._read(query_options.ingest)
        if (trial := current_trial()) is not None:
            slots = query_options.parallelism or max(1, check_session(spark).cores - 1)
            plan = _lowered(chosen.root, chosen.sink, query_options, slots=slots)
            trial.look_at(
                plan,
                query_options.not_restored,
                state_backend=query_options.state_backend,
                rollback=query_options.rollback,
                restore_mode=query_options.restore_mode,
                without_captured_rows=query_options.without_captured_rows,
            )
        await_executors(spark, wanted=query_options.parallelism)
        facts = check_session(spark)
        restore_from = None if query_options.restore_from is None else checkpoint_path(query_options.restore_from)
        name = self._query_name or f"query-{uuid.uuid4().hex[:8]}"
        claim: SlotClaim | None = None
        is_attached = False
        location, is_passing = self._location(query_options, chosen.sink)
        sink = _settled(chosen.sink, location, zone=str(spark.conf.get("spark.sql.session.timeZone")))
        written = path_option(sink.options.items()) or staging_folder_of(sink) or location
        absent = missing_folders([location, written, restore_from or location])
        try:
            self._refuse_taken(location, name)
            attach(sink, chosen.driver_part)
            is_attached = True
            spare = max(chosen.spare_cores, 1 if read.parts else 0)
            claim = claim_slots(spark, query=name, wanted=query_options.parallelism, spare=spare)
            return self._start(
                chosen.root,
                sink,
                query_options,
                spark,
                facts,
                claim,
                name=name,
                location=location,
                is_passing=is_passing,
                restore_from=restore_from,
                ingested=read,
            )
        except BaseException:
            if claim is not None:
                release_slots(claim)
            if is_attached:  # else another query's part may be there
                detach(sink)
            if is_passing:
                shutil.rmtree(location, ignore_errors=True)
            remove_empty(absent)
            raise

    def _start_micro_batches(self) -> StreamingQuery:
        own, options = split_options(self._options)
        location = own.pop("checkpointlocation", None)
        own.pop("engine", None)
        if own.get("checkpoint.interval") == self._calls.trigger.get("processingTime"):
            own.pop("checkpoint.interval", None)  # Spark has it as its trigger.
        if location is not None:
            options["checkpointLocation"] = location
        # PySpark's own query: it has all of ours that PySpark knows, and none of what Tidegate adds.
        return cast(StreamingQuery, start_micro_batches(self._df, self._calls, options=options, left_out=own))

    def explain(self, extended: bool = False) -> None:
        """Spark's plan, what Tidegate runs of it and how."""
        plan, options, read = self._planned()
        print(self._explanation(plan, options, read))  # noqa: T201 - as PySpark's explain does

    def _planned(self) -> tuple[JobPlan, QueryOptions, IngestingPlan]:
        """What would be started, with the slots that it would have if the session did nothing else."""
        require_classic(self._df)
        options = read_options(split_options(self._options)[0], _session_options(self._df.sparkSession))
        read, chosen = self._read(options.ingest)
        facts = check_session(self._df.sparkSession)
        slots = options.parallelism or max(1, facts.cores - 1)
        return _lowered(chosen.root, chosen.sink, options, slots=slots), options, read

    def _read(self, ingest: IngestMode) -> tuple[IngestingPlan, ChosenSink]:
        read = read_ingesting(self._df, ingest)
        check_output_mode(self._df, self._output_mode)
        if not self._df.isStreaming:
            check_bounded_output(read.root, OutputMode(self._output_mode), read.order)
        _, sink_options = split_options(self._options)
        if self._format is None:
            raise OptionError("The sink is not named: add .format('parquet'), .format('memory') or another.")
        if self._format.lower() == "memory" and self._query_name:
            sink_options["queryName"] = self._query_name
        if self._calls.partition_by:
            sink_options["partitionBy"] = "\0".join(self._calls.partition_by)
        mode = OutputMode(self._output_mode)
        chosen = choose_sink(
            self._df, read.root, format=self._format, options=sink_options, function=self._epoch_function, mode=mode
        )
        if mode is OutputMode.COMPLETE and chosen.sink.format not in _REPLACING_SINKS:
            raise OptionError(
                f"The {chosen.sink.format} sink does not support output mode complete: "
                f"use {', '.join(_REPLACING_SINKS)}, or outputMode('update')."
            )
        if read.order is not None:
            if chosen.sink.format not in _ORDERING_SINKS:
                raise UnsupportedPlan(
                    f"The {chosen.sink.format} sink does not keep the order of orderBy and limit: "
                    f"use {', '.join(_ORDERING_SINKS)}, or sort what foreachBatch is given."
                )
            chosen = dataclasses.replace(chosen, sink=dataclasses.replace(chosen.sink, order=read.order))
        return read, chosen

    def _start(
        self,
        root: Node,
        sink: Sink,
        options: QueryOptions,
        spark: SparkSession,
        facts: SessionFacts,
        claim: SlotClaim,
        *,
        name: str,
        location: str,
        is_passing: bool,
        restore_from: str | None,
        ingested: IngestingPlan,
    ) -> StreamingQuery:
        plan = settle_staging(_lowered(root, sink, options, slots=claim.slots), location)
        for vertex in plan.vertices:
            if vertex.source is not None:
                open_source(vertex.source)
        refuse_own_output(plan, sink)
        access = reachable(spark, location, restore_from)
        feeds = Feeds(
            spark,
            ingested.parts,
            location=location,
            query=name,
            available_now=self._available_now or not self._df.isStreaming,
            options=options,
        )
        driver_host = _LOOPBACK if facts.is_local else str(spark.conf.get("spark.driver.host"))
        slot_host = _LOOPBACK if facts.is_local else HOST_OF_EXECUTOR
        spec = JobSpec(
            name=name,
            job_id=str(uuid.uuid5(uuid.NAMESPACE_URL, location)),
            slot_settings=SlotSettings(
                plan=plan,
                checkpoint_location=location,
                window_bytes=options.window_bytes,
                network_memory_bytes=options.network_memory_bytes,
                state_backend=options.state_backend,
                state_memory_bytes=options.state_memory_bytes,
                local_recovery=options.local_recovery,
                checkpoint_storage=options.checkpoint_storage,
                state_rows_memory_bytes=options.state_rows_memory_bytes,
                heap_snapshots=options.heap_snapshots,
                changelog_image_interval_ms=options.changelog_image_interval_ms,
                guarantee=options.guarantee,
                active_backpressure=options.active_backpressure,
                checkpoint_interval_ms=options.checkpoints.interval_ms,
                max_concurrent_checkpoints=options.checkpoints.max_concurrent,
                debloat_target_ms=options.debloat_target_ms,
                access=access,
            ),
            fingerprint=tuple(fingerprint(plan)),
            checkpoints=options.checkpoints,
            switch_after_ms=options.switch_after_ms,
            keep=options.keep,
            restart=options.restart,
            available_now=self._available_now or not self._df.isStreaming,
            restore_from=restore_from,
            rollback=options.rollback,
            not_restored=options.not_restored,
            restore_mode=options.restore_mode,
            on_cancel=options.on_cancel,
            without_captured_rows=options.without_captured_rows,
            driver_host=driver_host,
            bind_host=driver_host,
            slot_bind_host=options.bind_host or slot_host,
            advertised_host=options.advertised_host,
            ports=options.ports,
            followers=(feeds,),
            run=secrets.token_hex(4),
        )
        if facts.is_local:
            # Slots listen on this host: an address that cannot be listened on is better found here.
            Listener(bind_host=spec.slot_bind_host, advertised_host=spec.advertised_host, ports=spec.ports).close()
        use_driver_interpreter(spark)
        explanation = self._explanation(plan, options, ingested)
        launcher = SparkLauncher(spark, claim)
        coordinator = Coordinator(spec, open_store(location, access), launcher, versions=package_versions())
        coordinator.on_finish(lambda: release_slots(claim))
        coordinator.on_finish(lambda: detach(sink))
        feeds.attach()
        coordinator.on_finish(feeds.stop)
        if is_passing:
            coordinator.on_finish(lambda: shutil.rmtree(location, ignore_errors=True))
        try:
            coordinator.start()
        except BaseException:
            feeds.stop()
            raise
        try:
            # Whoever has a query wants to look at its checkpoints too.
            offer_tables(spark, location, access)
            return self._handle(
                coordinator,
                spec,
                spark,
                feeds,
                options,
                sink,
                explanation,
                name=name,
                location=location,
                is_passing=is_passing,
            )
        except BaseException:
            # Nobody would have it in hand: it must not run on.
            coordinator.stop()
            coordinator.wait(None)
            raise

    def _handle(
        self,
        coordinator: Coordinator,
        spec: JobSpec,
        spark: SparkSession,
        feeds: Feeds,
        options: QueryOptions,
        sink: Sink,
        explanation: str,
        *,
        name: str,
        location: str,
        is_passing: bool,
    ) -> StreamingQuery:
        """What the user holds of a query that runs, with its page and its events."""
        place = SavepointPlace(None if is_passing else location, options.guarantee)
        query = StreamingQuery(
            spark,
            coordinator,
            id=spec.job_id,
            name=self._query_name,
            explanation=explanation,
            savepoints=place,
        )
        if options.page is not None:
            query._url = serve(coordinator, place, options.page, query=name, location=location, ingested=feeds.progress)
        query._feed_all_available, query._is_more_fed = feeds.process_all_available, feeds.is_more_staged
        query._ingest_progress = feeds.progress
        identity = QueryIdentity(id=query.id, run_id=query.runId, name=query.name, sink=sink.format)
        events = SparkEvents(spark, coordinator, identity)
        query._await_last_events = events.await_last
        events.start()
        if sink.format == "memory":
            query._refresh = lambda: _show_memory_table(spark, name)
        return query

    # -- inside

    def _explanation(self, plan: JobPlan, options: QueryOptions, ingested: IngestingPlan) -> str:
        mode = _alignment(options.switch_after_ms)
        guarantee = options.guarantee.value.replace("_", " ")
        return "\n".join(
            [
                "== Spark's optimised plan ==",
                _spark_plan_text(self._df),
                *ingested.describe(),
                "== Tidegate runs ==",
                describe(plan),
                f"checkpoint every {options.checkpoints.interval_ms:.0f} ms, {mode}, {guarantee}",
                *(f"Warning: {sentence}" for sentence in advice(options)),
            ]
        )

    def _location(self, options: QueryOptions, sink: Sink) -> tuple[str, bool]:
        """Where checkpoints go, and whether that ends with the query."""
        if options.checkpoint_location is None:
            if sink.format not in _PASSING_SINKS:
                raise OptionError(
                    f"The {sink.format} sink needs a place for its checkpoints: "
                    f"add .option('checkpointLocation', 'a/folder')."
                )
            return tempfile.mkdtemp(prefix="tidegate-"), True
        path = local_path(options.checkpoint_location)
        return (options.checkpoint_location.rstrip("/") if path is None else str(Path(path).absolute())), False

    def _refuse_taken(self, location: str, name: str) -> None:
        job_id = str(uuid.uuid5(uuid.NAMESPACE_URL, location))
        for query in active_queries():
            if query.id == job_id:
                raise OptionError(
                    f"The active query {query.name or query.runId!r} uses the checkpointLocation {location!r}: "
                    f"stop it first, or give this one a folder of its own."
                )
            if self._query_name is not None and query.name == name:
                raise OptionError(f"A query named {name!r} is active: choose another name or stop it first.")


def _alignment(switch_after_ms: float | None) -> str:
    match switch_after_ms:
        case None:
            return "aligned"
        case 0:
            return "unaligned"
        case after_ms:
            return f"aligned, switching after {after_ms:.0f} ms"


def _lowered(root: Node, sink: Sink, options: QueryOptions, *, slots: int) -> JobPlan:
    settled = with_scan_settings(
        root, checkpoint_interval_ms=options.checkpoints.interval_ms, max_rows_per_s=options.max_rows_per_s
    )
    return lower(
        settled,
        sink,
        parallelism=slots,
        max_parallelism=options.max_parallelism,
        source_parallelism=options.source_parallelism,
    )


def _settled(sink: Sink, location: str, *, zone: str) -> Sink:
    """Options that must mean the same in every process: slots run in folders of their own."""
    if sink.format in KNOW_THEIR_LOCATION:
        return dataclasses.replace(sink, options={**sink.options, "checkpointLocation": location})
    if sink.format == "console":
        spelling = Spelling(zone_rules(zone), java_digits())
        return dataclasses.replace(sink, options={**sink.options, **spelling.options()})
    if sink.format not in _FILE_SINKS:
        return sink
    settled = dict(sink.options)
    settled["sessionTimeZone"] = zone
    for name in [name for name in settled if name.lower() == "path"]:
        path = local_path(settled[name])
        settled[name] = settled[name] if path is None else str(path.absolute())
    # Keeps this query's unfinished files apart from those of others that write to the same folder.
    settled["checkpointLocation"] = location
    return dataclasses.replace(sink, options=settled)


def _session_options(spark: SparkSession) -> dict[str, str]:
    every: dict[str, str] = spark.conf.getAll
    return {key: value for key, value in every.items() if key.startswith(SESSION_PREFIX)}


def _spark_plan_text(df: DataFrame) -> str:
    state = df.sparkSession._jsparkSession.sessionState()
    return str(state.optimizer().execute(df._jdf.queryExecution().analyzed()).toString()).rstrip()


def _show_memory_table(spark: SparkSession, name: str) -> None:
    """The rows committed so far, as a temporary view of the query's name."""
    spark.createDataFrame(read_memory_table(name)).createOrReplaceTempView(name)


def _stop_all_at_exit() -> None:
    """The interpreter ends: queries end in order, before Spark's own shutdown pulls the JVM away."""
    for query in active_queries():
        try:
            query.stop()
        except TidegateError:
            continue  # it had failed already; nobody is left to be told


atexit.register(_stop_all_at_exit)
