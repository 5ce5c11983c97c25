"""The options of a query: one table, read from the writer and from the session, checked before anything starts."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tidegate.connectors.staged_source import IngestMode
from tidegate.coordinator.compatibility import NotRestored
from tidegate.model.errors import OptionError
from tidegate.model.ids import CheckpointId
from tidegate.model.units import parse_duration_ms, parse_size_bytes
from tidegate.network.address import parse_ports
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoints import CheckpointSettings
from tidegate.protocol.kinds import CheckpointStorage, Guarantee
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.restart import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy
from tidegate.protocol.retention import KeepFor, KeepNumber, OnCancel, RestoreMode
from tidegate.worker.local_copies import LocalRecovery
from tidegate.worker.settings import HeapSnapshots
from tidegate.worker.state_backends import NEEDS_ROCKSDICT

SESSION_PREFIX = "spark.tidegate."
_MOST_KEY_GROUPS = 32_768  # a key group must fit a 16-bit number


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """`flink` is the key that does the same there, for those who come from it."""

    name: str
    default: str | None
    parse: Callable[[str, str], Any]
    meaning: str
    flink: str | None = None


def _duration(name: str, text: str) -> float:
    return parse_duration_ms(text, option=name)


def _size(name: str, text: str) -> int:
    return parse_size_bytes(text, option=name)


def _count(least: int, most: int = 1 << 30) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        if not text.strip().isdecimal() or not least <= int(text) <= most:
            limit = f"from {least} to {most}" if most < 1 << 30 else f"of at least {least}"
            raise OptionError(f"Option {name!r} is {text!r}: write a whole number {limit}.")
        return int(text)

    return parse


def _choice(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.strip().lower() not in choices:
            raise OptionError(f"Option {name!r} is {text!r}: write one of {', '.join(choices)}.")
        return text.strip().lower()

    return parse


def _state_backend(name: str, text: str) -> str:
    backend = _choice("heap", "rocksdb")(name, text)
    if backend == "rocksdb" and find_spec("rocksdict") is None:
        raise OptionError(NEEDS_ROCKSDICT)
    return backend


def _kept(name: str, text: str) -> KeepNumber | KeepFor:
    """A bare number counts checkpoints; with a unit it is a time."""
    try:
        if any(letter.isalpha() for letter in text):
            return KeepFor(parse_duration_ms(text, option=name))
        return KeepNumber(_count(1)(name, text))
    except OptionError:
        raise OptionError(
            f"Option {name!r} is {text!r}: write a number of checkpoints, at least 1, or a time such as 1h."
        ) from None


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise OptionError(f"Option {name!r} is empty: write a value or leave it out.")
    return text


def _ports(name: str, text: str) -> str:
    parse_ports(_text(name, text))  # said here and not by a slot, where it would be a failure of the job
    return text


OPTIONS: Mapping[str, OptionSpec] = {
    spec.name.lower(): spec
    for spec in [
        OptionSpec(
            "checkpointLocation",
            None,
            _text,
            "where checkpoints and the job log live",
            "execution.checkpointing.dir",
        ),
        OptionSpec(
            "parallelism",
            None,
            _count(1),
            "number of slots; default: free cores minus one",
            "parallelism.default",
        ),
        OptionSpec(
            "maxParallelism",
            "128",
            _count(1, _MOST_KEY_GROUPS),
            "key groups; fixed for the life of the state",
            "pipeline.max-parallelism",
        ),
        OptionSpec(
            "engine",
            "tidegate",
            _choice("tidegate", "microbatch"),
            "microbatch hands the query to Structured Streaming unchanged",
        ),
        OptionSpec(
            "ingest",
            "auto",
            _choice("auto", "native", "spark"),
            "who reads the sources: `native` Tidegate, `spark` Spark with all that is stateless, `auto` Spark where "
            "Tidegate cannot",
        ),
        OptionSpec(
            "ingest.maxStaged",
            "256MiB",
            _size,
            "bytes that Spark may have ingested and no checkpoint covers, before it waits",
        ),
        OptionSpec(
            "checkpoint.interval",
            "10s",
            _duration,
            "time between two checkpoints",
            "execution.checkpointing.interval",
        ),
        OptionSpec(
            "checkpoint.timeout",
            "10m",
            _duration,
            "after which a checkpoint is given up",
            "execution.checkpointing.timeout",
        ),
        OptionSpec(
            "checkpoint.minPause",
            "0s",
            _duration,
            "least time from a completed checkpoint to the next",
            "execution.checkpointing.min-pause",
        ),
        OptionSpec(
            "checkpoint.maxConcurrent",
            "1",
            _count(1, 100),
            "checkpoints under way at the same time",
            "execution.checkpointing.max-concurrent-checkpoints",
        ),
        OptionSpec(
            "checkpoint.mode",
            "exactly_once",
            _choice("exactly_once", "at_least_once"),
            "whether a row may count twice after a failure; at_least_once never waits, and is never unaligned",
            "execution.checkpointing.mode",
        ),
        OptionSpec(
            "checkpoint.unaligned",
            "auto",
            _choice("false", "true", "auto"),
            "aligned, unaligned, or aligned that switches",
            "execution.checkpointing.unaligned.enabled",
        ),
        OptionSpec(
            "checkpoint.alignedTimeout",
            "1s",
            _duration,
            "with auto: when an aligned checkpoint switches",
            "execution.checkpointing.aligned-checkpoint-timeout",
        ),
        OptionSpec(
            "checkpoint.tolerableFailures",
            "0",
            _count(0),
            "failed checkpoints in a row that do not fail the job",
            "execution.checkpointing.tolerable-failed-checkpoints",
        ),
        OptionSpec(
            "checkpoint.retained",
            "3",
            _kept,
            "completed checkpoints that are kept: a number, or a time such as 1h",
            "execution.checkpointing.num-retained",
        ),
        OptionSpec(
            "checkpoint.onCancel",
            "retain",
            _choice("retain", "delete"),
            "what becomes of the checkpoints when the query is stopped; savepoints stay, but for a claimed one",
            "execution.checkpointing.externalized-checkpoint-retention",
        ),
        OptionSpec(
            "checkpoint.storage",
            "files",
            _choice("files", "driver"),
            "where slots store their parts of a checkpoint: in files, or in the manifest (driver, at most 5 MiB)",
            "execution.checkpointing.storage",
        ),
        OptionSpec(
            "checkpoint.recoverWithoutChannelState",
            None,
            _count(1),
            "a checkpoint whose rows in flight are dropped when it is restored: they are lost",
            "execution.checkpointing.recover-without-channel-state.checkpoint-id",
        ),
        OptionSpec(
            "source.activeBackpressure",
            "true",
            _choice("true", "strict", "false"),
            "whether sources wait for a checkpoint that is an interval late: until it reached every task, or is over",
        ),
        OptionSpec(
            "source.parallelism",
            None,
            _count(1),
            "at most so many slots read each source; what they read goes to all slots in turn",
        ),
        OptionSpec(
            "maxRowsPerSecond",
            None,
            _count(1),
            "rows that each source may give a second, over all slots",
        ),
        OptionSpec(
            "network.window",
            "1MiB",
            _size,
            "bytes a channel may have in flight",
            "taskmanager.network.memory.buffers-per-channel",
        ),
        OptionSpec(
            "network.memory",
            "64MiB",
            _size,
            "bytes that all channels into a slot may have in flight together",
            "taskmanager.memory.network.max",
        ),
        OptionSpec(
            "network.debloat",
            "true",
            _choice("true", "false"),
            "whether windows shrink to what is processed within network.target",
            "taskmanager.network.memory.buffer-debloat.enabled",
        ),
        OptionSpec(
            "network.target",
            "1s",
            _duration,
            "with network.debloat: how long what is in flight should take to process",
            "taskmanager.network.memory.buffer-debloat.target",
        ),
        OptionSpec(
            "network.bindHost",
            None,
            _text,
            "address that slots listen on",
            "taskmanager.bind-host",
        ),
        OptionSpec(
            "network.advertisedHost",
            None,
            _text,
            "address under which slots are reached",
            "taskmanager.host",
        ),
        OptionSpec(
            "network.ports",
            "any",
            _ports,
            "ports that slots listen on: any, 4000-4010, 4000,4002",
            "taskmanager.data.port",
        ),
        OptionSpec(
            "state.backend",
            "heap",
            _state_backend,
            "where keyed state lives: heap, rocksdb",
            "state.backend.type",
        ),
        OptionSpec(
            "state.incremental",
            "true",
            _choice("true", "false"),
            "with state.backend heap: whether checkpoints store what changed, instead of all",
            "execution.checkpointing.incremental",
        ),
        OptionSpec(
            "state.changelog",
            "false",
            _choice("true", "false"),
            "whether changes of keyed state are stored all along, ahead of the checkpoints",
            "state.changelog.enabled",
        ),
        OptionSpec(
            "state.changelog.materializeInterval",
            "10m",
            _duration,
            "with state.changelog: how often all of the state is stored, in the background",
            "state.changelog.periodic-materialize.interval",
        ),
        OptionSpec(
            "state.rocksdb.memory",
            "128MiB",
            _size,
            "with state.backend rocksdb: bytes of a slot's state that are in memory",
            "state.backend.rocksdb.memory.fixed-per-slot",
        ),
        OptionSpec(
            "state.localRecovery",
            "true",
            _choice("true", "false"),
            "whether slots keep the files of the newest checkpoint on their machines, to restore from them",
            "execution.checkpointing.local-backup.enabled",
        ),
        OptionSpec(
            "state.rocksdb.rowMemory",
            "512MiB",
            _size,
            "with state.backend rocksdb: bytes of a slot's groups and joined rows that are in memory",
            None,
        ),
        OptionSpec(
            "restore.from",
            None,
            _text,
            "a checkpoint or savepoint to start from while checkpointLocation has none of its own",
            "execution.state-recovery.path",
        ),
        OptionSpec(
            "restore.mode",
            "no_claim",
            _choice("no_claim", "claim"),
            "whose the checkpoint of restore.from is: somebody else's, or the query's own, which goes in its turn",
            "execution.state-recovery.claim-mode",
        ),
        OptionSpec(
            "restore.allowDuplicates",
            "false",
            _choice("false", "true"),
            "go back past a damaged checkpoint even if its output was committed and comes out again",
        ),
        OptionSpec(
            "restore.allowNonRestored",
            "false",
            _choice("false", "true"),
            "drop state that no operator of the query takes over, instead of refusing to start",
            "execution.state-recovery.ignore-unclaimed-state",
        ),
        OptionSpec(
            "restart.strategy",
            "exponential",
            _choice("none", "fixed", "exponential"),
            "what follows a failure: restarts with `exponential` or `fixed` delays, or `none`",
            "restart-strategy.type",
        ),
        OptionSpec(
            "restart.attempts",
            "10",
            _count(0),
            "restarts before the query fails",
            "restart-strategy.fixed-delay.attempts",
        ),
        OptionSpec(
            "restart.delay",
            "1s",
            _duration,
            "the delay before a restart; `exponential` starts again at once the first time",
            "restart-strategy.fixed-delay.delay",
        ),
        OptionSpec(
            "ui.enabled",
            "true",
            _choice("true", "false"),
            "whether the driver answers over HTTP, at `query.url`: metrics, and `tidegate jobs`, `savepoint`, `stop`",
        ),
        OptionSpec(
            "ui.port",
            "4400",
            _count(0, 65_535),
            "the port it listens on, or the next one that is free; 0 takes any",
            "rest.port",
        ),
        OptionSpec(
            "ui.host",
            "127.0.0.1",
            _text,
            "the address it listens on",
            "rest.bind-address",
        ),
    ]
}


@dataclass(frozen=True, slots=True)
class PageOptions:
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    engine: str
    ingest: IngestMode
    most_staged_bytes: int
    checkpoint_location: str | None
    parallelism: int | None
    max_parallelism: int
    checkpoints: CheckpointSettings
    switch_after_ms: float | None
    guarantee: Guarantee
    keep: KeepNumber | KeepFor
    active_backpressure: ActiveBackpressure
    source_parallelism: int | None
    max_rows_per_s: int | None
    window_bytes: int
    network_memory_bytes: int
    debloat_target_ms: float | None
    bind_host: str | None
    advertised_host: str | None
    ports: str
    state_backend: str
    state_memory_bytes: int
    local_recovery: LocalRecovery
    checkpoint_storage: CheckpointStorage
    state_rows_memory_bytes: int
    heap_snapshots: HeapSnapshots
    changelog_image_interval_ms: float | None
    restore_from: str | None
    rollback: SinkRollback
    not_restored: NotRestored
    restore_mode: RestoreMode
    on_cancel: OnCancel
    without_captured_rows: CheckpointId | None
    restart: RestartStrategy
    page: PageOptions | None


def split_options(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Tidegate's options and the sink's, in this order. A name that looks like one of ours but is not is refused."""
    own: dict[str, str] = {}
    sink: dict[str, str] = {}
    families = {name.split(".")[0] for name in OPTIONS if "." in name}
    for name, value in given.items():
        lower = name.lower()
        if lower in OPTIONS:
            own[lower] = value
        elif lower.split(".")[0] in families or difflib.get_close_matches(lower, OPTIONS, n=1, cutoff=0.8):
            raise unknown_option(name)
        else:
            sink[name] = value
    return own, sink


def read_options(own: Mapping[str, str], session: Mapping[str, str]) -> QueryOptions:
    """`own` are the writer's, which win over those of the session (`spark.tidegate.<name>`)."""
    from_session: dict[str, str] = {}
    for key, value in session.items():
        name = key[len(SESSION_PREFIX) :]
        if name.lower() not in OPTIONS:
            raise unknown_option(name, prefix=SESSION_PREFIX)
        from_session[name.lower()] = value

    def read(name: str) -> Any:
        spec = OPTIONS[name.lower()]
        text = own.get(name.lower(), from_session.get(name.lower(), spec.default))
        return None if text is None else spec.parse(spec.name, text)

    guarantee = Guarantee(read("checkpoint.mode"))
    return QueryOptions(
        engine=read("engine"),
        ingest=IngestMode(read("ingest")),
        most_staged_bytes=_positive("ingest.maxStaged", read),
        checkpoint_location=read("checkpointLocation"),
        parallelism=read("parallelism"),
        max_parallelism=read("maxParallelism"),
        checkpoints=CheckpointSettings(
            interval_ms=_positive("checkpoint.interval", read),
            timeout_ms=_positive("checkpoint.timeout", read),
            min_pause_ms=read("checkpoint.minPause"),
            max_concurrent=read("checkpoint.maxConcurrent"),
            tolerable_failures=read("checkpoint.tolerableFailures"),
        ),
        switch_after_ms=_switch_after_ms(guarantee, read("checkpoint.unaligned"), read("checkpoint.alignedTimeout")),
        guarantee=guarantee,
        keep=read("checkpoint.retained"),
        active_backpressure=ActiveBackpressure(read("source.activeBackpressure")),
        source_parallelism=read("source.parallelism"),
        max_rows_per_s=read("maxRowsPerSecond"),
        window_bytes=_positive("network.window", read),
        network_memory_bytes=_positive("network.memory", read),
        debloat_target_ms=_debloat_target_ms(read("network.debloat"), _positive("network.target", read)),
        bind_host=read("network.bindHost"),
        advertised_host=read("network.advertisedHost"),
        ports=read("network.ports"),
        state_backend=read("state.backend"),
        state_memory_bytes=_positive("state.rocksdb.memory", read),
        local_recovery=LocalRecovery.WHERE_IT_HELPS if read("state.localRecovery") == "true" else LocalRecovery.OFF,
        checkpoint_storage=CheckpointStorage(read("checkpoint.storage")),
        state_rows_memory_bytes=_positive("state.rocksdb.rowMemory", read),
        heap_snapshots=HeapSnapshots.INCREMENTAL if read("state.incremental") == "true" else HeapSnapshots.WHOLE,
        changelog_image_interval_ms=_image_interval_ms(
            read("state.changelog"), _positive("state.changelog.materializeInterval", read), read("checkpoint.storage")
        ),
        restore_from=read("restore.from"),
        rollback=_rollback(read("restore.allowDuplicates")),
        not_restored=_not_restored(read("restore.allowNonRestored")),
        restore_mode=RestoreMode(read("restore.mode")),
        on_cancel=OnCancel(read("checkpoint.onCancel")),
        without_captured_rows=read("checkpoint.recoverWithoutChannelState"),
        restart=_restart(read("restart.strategy"), read("restart.attempts"), read("restart.delay")),
        page=PageOptions(read("ui.host"), read("ui.port")) if read("ui.enabled") == "true" else None,
    )


def unknown_option(name: str, *, prefix: str = "") -> OptionError:
    nearest = difflib.get_close_matches(name.lower(), OPTIONS, n=1, cutoff=0.5)
    hint = f": did you mean {prefix + OPTIONS[nearest[0]].name!r}?" if nearest else "."
    known = "" if nearest else f" The options are {', '.join(spec.name for spec in OPTIONS.values())}."
    return OptionError(f"There is no option {prefix + name!r}{hint}{known}")


def _positive(name: str, read: Callable[[str], Any]) -> Any:
    value = read(name)
    if value <= 0:
        raise OptionError(f"Option {name!r} must be more than 0.")
    return value


def _switch_after_ms(guarantee: Guarantee, unaligned: str, aligned_timeout_ms: float) -> float | None:
    match guarantee, unaligned:
        case Guarantee.AT_LEAST_ONCE, "true":
            raise OptionError(
                "Option 'checkpoint.mode' is at_least_once, which is never unaligned: leave out "
                "'checkpoint.unaligned', or write exactly_once."
            )
        case (_, "false") | (Guarantee.AT_LEAST_ONCE, _):
            return None
        case _, "true":
            return 0.0
        case _:
            return aligned_timeout_ms


def _debloat_target_ms(debloat: str, target_ms: float) -> float | None:
    return target_ms if debloat == "true" else None


def _image_interval_ms(changelog: str, interval_ms: float, storage: str) -> float | None:
    if changelog == "false":
        return None
    if CheckpointStorage(storage) is CheckpointStorage.DRIVER:
        raise OptionError(
            "Option 'state.changelog' stores files ahead of checkpoints, which 'checkpoint.storage' driver has not: "
            "leave one of both out."
        )
    return interval_ms


def _rollback(allow_duplicates: str) -> SinkRollback:
    return SinkRollback.DUPLICATES_ALLOWED if allow_duplicates == "true" else SinkRollback.NONE


def _not_restored(allow: str) -> NotRestored:
    return NotRestored.DROPPED if allow == "true" else NotRestored.REFUSED


def _restart(strategy: str, attempts: int, delay_ms: float) -> RestartStrategy:
    match strategy:
        case "none":
            return NoRestart()
        case "fixed":
            return FixedDelay(attempts, delay_ms)
        case _:
            return ExponentialDelay(attempts, delay_ms)
