"""`tidegate doctor`: what this machine offers, what is amiss, and the command that mends it.

`examine` judges what `machine.gather` read, and is pure; `render` shows it. Nothing here changes anything; only
`--spark` starts a session, a local one of its own, and stops it.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.api.advice import advice
from tidegate.api.options import SESSION_PREFIX, read_options
from tidegate.cli.machine import Facts, gather
from tidegate.model.errors import OptionError, TidegateError
from tidegate.model.units import format_bytes, format_ms
from tidegate.spark.java import (
    JAVA_PACKAGE,
    TESTED_MAJORS,
    JavaHome,
    JavaLookup,
    JavaProblem,
    ensure_java,
    parse_version,
)

_OLDEST_PYTHON = (3, 11)
_LITTLE_MEMORY_BYTES = 2 << 30
_LITTLE_DISK_BYTES = 1 << 30
_PROBE_SLOTS = 2
_BARRIER_CHECK = "spark.scheduler.barrier.maxConcurrentTasksCheck.interval"


class Status(enum.Enum):
    OK = "ok"
    WARN = "warn"
    FIX = "fix"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row: what was looked at, what is there, and, unless all is well, what to type."""

    subject: str
    status: Status
    detail: str
    remedy: str = ""


def run(console: Console, *, with_spark: bool) -> int:
    """Exit code: 1 if something must be mended before a query can run."""
    facts = gather()
    findings = examine(facts)
    if with_spark and isinstance(facts.java, JavaHome):
        findings.append(_try_spark())
    render(findings, console)
    return 1 if any(finding.status is Status.FIX for finding in findings) else 0


def examine(facts: Facts) -> list[Finding]:
    return [
        _python(facts),
        _java(facts.java),
        *(_package(name, version) for name, version in facts.packages.items()),
        _cores(facts.cores),
        _memory(facts.memory_bytes),
        _loopback(facts.loopback_problem),
        _unix_sockets(facts.unix_socket_problem),
        _temp_folder(facts),
        *_settings(facts),
    ]


def render(findings: Sequence[Finding], console: Console) -> None:
    styles = {Status.OK: "green", Status.WARN: "yellow", Status.FIX: "bold red"}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.detail)
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", style="cyan")
        table.add_row(finding.subject, Text(finding.status.value, style=styles[finding.status]), text)
    console.print(table)
    console.print(_verdict(findings))


def _verdict(findings: Sequence[Finding]) -> str:
    broken = [finding.subject for finding in findings if finding.status is Status.FIX]
    doubtful = [finding.subject for finding in findings if finding.status is Status.WARN]
    if broken:
        return f"\nTo mend before a query can run: {', '.join(broken)}."
    if doubtful:
        return f"\nReady; worth a look: {', '.join(doubtful)}."
    return "\nReady."


def _python(facts: Facts) -> Finding:
    version = ".".join(map(str, facts.python_version))
    if facts.python_version[:2] < _OLDEST_PYTHON:
        return Finding("Python", Status.FIX, version, "install Python 3.11 or newer")
    if facts.worker_python is not None and Path(facts.worker_python).name == facts.worker_python:
        return Finding(
            "Python",
            Status.WARN,
            f"{version}; workers run {facts.worker_python!r} from PATH, which may be another one",
            "unset PYSPARK_PYTHON, or set it to a full path",
        )
    return Finding("Python", Status.OK, version)


def _java(java: JavaLookup) -> Finding:
    match java:
        case JavaProblem(reason):
            return Finding("Java", Status.FIX, reason, f"pip install {JAVA_PACKAGE}")
        case JavaHome(home, version, origin):
            detail = f"{version} from {origin.value}: {home}"
            if parse_version(version)[0] not in TESTED_MAJORS:
                tested = ", ".join(map(str, TESTED_MAJORS))
                return Finding("Java", Status.WARN, f"{detail}; Spark is tested on {tested}", "install Java 21")
            return Finding("Java", Status.OK, detail)


def _package(name: str, version: str | None) -> Finding:
    if version is None:
        return Finding(name, Status.FIX, "not installed", "pip install tidegate")
    if name == "pyspark" and not version.startswith("4.3."):
        return Finding(
            name, Status.FIX, f"{version}, but Tidegate reads the plans of 4.3", "pip install 'pyspark==4.3.*'"
        )
    if name == "pandas" and parse_version(version)[0] >= 3:
        return Finding(name, Status.FIX, f"{version}, which PySpark 4.3 does not take", "pip install 'pandas<3'")
    return Finding(name, Status.OK, version)


def _cores(cores: int) -> Finding:
    if cores == 1:
        return Finding(
            "cores", Status.WARN, "1: a query leaves none to Spark's own jobs", 'use .master("local[2]") or more'
        )
    return Finding("cores", Status.OK, f"{cores}; by default a query takes {cores - 1} of them")


def _memory(memory_bytes: int | None) -> Finding:
    if memory_bytes is None:
        return Finding("memory", Status.OK, "unknown")
    if memory_bytes < _LITTLE_MEMORY_BYTES:
        return Finding(
            "memory",
            Status.WARN,
            f"{format_bytes(memory_bytes)}: little for a JVM and its Python workers",
            'lower it with .config("spark.driver.memory", "512m")',
        )
    return Finding("memory", Status.OK, format_bytes(memory_bytes))


def _loopback(problem: str | None) -> Finding:
    if problem is not None:
        return Finding("loopback", Status.FIX, f"no port can be bound: {problem}", "allow sockets on 127.0.0.1")
    return Finding("loopback", Status.OK, "ports can be bound on 127.0.0.1")


def _unix_sockets(problem: str | None) -> Finding:
    if problem is not None:
        return Finding(
            "unix sockets", Status.WARN, f"{problem}: slots of one host talk over TCP", "set TMPDIR elsewhere"
        )
    return Finding("unix sockets", Status.OK, "work")


def _temp_folder(facts: Facts) -> Finding:
    if facts.temp_problem is not None:
        return Finding("temp folder", Status.FIX, f"{facts.temp_folder}: {facts.temp_problem}", "export TMPDIR=…")
    detail = f"{facts.temp_folder}, {format_bytes(facts.temp_free_bytes)} free"
    if facts.temp_free_bytes < _LITTLE_DISK_BYTES:
        return Finding("temp folder", Status.WARN, detail, "export TMPDIR=… or SPARK_LOCAL_DIRS=…")
    return Finding("temp folder", Status.OK, detail)


def _settings(facts: Facts) -> list[Finding]:
    """Only what is amiss: settings that are right need no row."""
    settings = facts.spark_settings
    findings = []
    if settings.get("spark.dynamicAllocation.enabled", "false").lower() == "true":
        findings.append(
            Finding(
                "allocation",
                Status.FIX,
                "spark.dynamicAllocation.enabled is on, with which Spark runs no barrier stage",
                'start the session with .config("spark.dynamicAllocation.enabled", "false")',
            )
        )
    if "spark.executor.pyspark.memory" in settings:
        findings.append(
            Finding(
                "worker memory",
                Status.WARN,
                "spark.executor.pyspark.memory limits address space, which Arrow reserves far more of than it uses",
                "use spark.executor.memoryOverhead instead",
            )
        )
    findings += _cluster_settings(settings)
    findings += _tidegate_settings(settings)
    if facts.spark_home is not None:
        findings.append(
            Finding(
                "SPARK_HOME",
                Status.WARN,
                f"{facts.spark_home} is used instead of the Spark that came with PySpark",
                "unset SPARK_HOME, unless it is a Spark 4.3",
            )
        )
    return findings


def _cluster_settings(settings: Mapping[str, str]) -> list[Finding]:
    """What makes a restart sooner on the cluster that the settings name. In local mode nothing of it matters."""
    master = settings.get("spark.master", "local")
    if master.startswith("local") or _BARRIER_CHECK in settings:
        return []
    lost = f"{master}: a lost executor's slots wait up to 15 s for Spark's next look at its cores"
    remedy = f"set {_BARRIER_CHECK} to 1s, and leave the cores of one executor free, so that it can take over at once"
    return [Finding("cluster", Status.WARN, lost, remedy)]


def _tidegate_settings(settings: Mapping[str, str]) -> list[Finding]:
    """What every query of a session would start with, unless its writer says otherwise."""
    own = {name: value for name, value in settings.items() if name.startswith(SESSION_PREFIX)}
    try:
        options = read_options({}, own)
    except OptionError as error:
        return [Finding("options", Status.FIX, str(error), "correct it in spark-defaults.conf")]
    set_on = f"set {SESSION_PREFIX}source.activeBackpressure to true"
    return [Finding("options", Status.WARN, sentence, set_on) for sentence in advice(options)]


def _try_spark() -> Finding:
    from tidegate.spark.session import probe  # imports PySpark, which takes a second that plain `doctor` need not wait

    try:
        ensure_java()
        result = probe(slots=_PROBE_SLOTS)
    except TidegateError as error:
        return Finding("Spark", Status.FIX, str(error), "see the message")
    except Exception as error:  # whatever Spark raises is the finding
        first_line = str(error).strip().splitlines()[:1]
        return Finding(
            "Spark", Status.FIX, f"{type(error).__name__}: {''.join(first_line)}", "read Spark's output above"
        )
    return Finding(
        "Spark",
        Status.OK,
        f"session up in {format_ms(result.session_start_ms)}, "
        f"a barrier stage of {result.slots} tasks ran in {format_ms(result.barrier_stage_ms)}",
    )
