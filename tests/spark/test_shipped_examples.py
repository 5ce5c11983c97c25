"""The streaming examples inside the pyspark package run with `X.writeStream` changed to `tg.writeStream(X)`.

Their text is taken from the installed package. What else is changed is listed for each: the network becomes a folder of
files, the console becomes a table that can be compared, and the query ends. Structured Streaming runs the same text
with only these other changes.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

import tidegate as tg
from tidegate.model.errors import UnsupportedPlan

pytestmark = pytest.mark.spark

PATIENCE_S = 90.0
_LINES = ["the tide comes in", "the tide goes out", "in and out", "the moon"]
_TIMED = [
    ("2024-05-01T10:00:00.000Z", "the tide comes in"),
    ("2024-05-01T10:00:04.000Z", "the tide goes out"),
    ("2024-05-01T10:00:11.000Z", "in and out"),
    ("2024-05-01T10:00:31.500Z", "the moon"),
]


@dataclass(frozen=True, slots=True)
class Example:
    """`changes`: what is replaced in the text by what, each found exactly once; `{folder}` is that of the input.

    `is_ordered`: by the first column.
    """

    file: str
    changes: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...] = ("localhost", "9999")
    is_timed: bool = False
    is_ordered: bool = False


_SOCKET = """.format('socket')\\
        .option('host', host)\\
        .option('port', port)\\
"""
_INCLUDE_TIMESTAMP = "        .option('includeTimestamp', 'true')\\\n"
_TEXT_FILES = (_SOCKET + "        .load()", ".text('{folder}')")
_JSON = ".schema('value string, timestamp timestamp').json('{folder}')"
_JSON_FILES = (_SOCKET + _INCLUDE_TIMESTAMP + "        .load()", _JSON)
_TABLE = (".format('console')", ".format('memory').queryName('{name}').trigger(availableNow=True)")

EXAMPLES = [
    Example("structured_network_wordcount.py", (_TEXT_FILES, _TABLE)),
    Example(
        "structured_network_wordcount_windowed.py",
        (_JSON_FILES, (_TABLE[0], _TABLE[1]), ("        .option('truncate', 'false')\\\n", "")),
        arguments=("localhost", "9999", "10", "5"),
        is_timed=True,
        is_ordered=True,
    ),
    # As it is shipped, Spark refuses it.
    Example(
        "structured_sessionization.py",
        (_JSON_FILES, _TABLE, (".outputMode('update')", ".outputMode('complete')")),
        is_timed=True,
    ),
    Example(
        "structured_network_wordcount_session_window.py",
        (
            (
                """.format("socket")
        .option("host", host)
        .option("port", port)
        .option("includeTimestamp", "true")
        .load()""",
                _JSON,
            ),
            ('.format("console")', ".format('memory').queryName('{name}')"),
            # Sessions end by the clock, which is not waited for as long here; and the query has no end of its own.
            ("state.setTimeoutDuration(10000)", "state.setTimeoutDuration(2000)"),
            ("query.awaitTermination()", "until_idle(query, '{name}')"),
        ),
        is_timed=True,
    ),
    Example(
        "structured_kafka_wordcount.py",
        (
            (
                """.format("kafka")\\
        .option("kafka.bootstrap.servers", bootstrapServers)\\
        .option(subscribeType, topics)\\
        .load()""",
                ".text('{folder}')",
            ),
            _TABLE,
        ),
        arguments=("localhost:9092", "subscribe", "lines"),
    ),
    Example(
        "structured_blockchain_admission_control.py",
        (
            ('.format("console")', ".format('memory')"),
            ('.queryName("admission_control_test")', ".queryName('{name}')"),
            # Of the chain's 500 batches these are enough.
            ("CHAIN_HEIGHT = 10000", "CHAIN_HEIGHT = 90"),
            ("time.sleep(30)", "query.processAllAvailable()"),
            ("    spark.stop()\n", ""),
        ),
        arguments=(),
    ),
]


def test_every_shipped_streaming_example_is_here() -> None:
    assert {path.name for path in _shipped().glob("*.py")} == {example.file for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.file.removesuffix(".py"))
def test_a_shipped_example_gives_sparks_rows(
    example: Example, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "input"
    _write_input(folder, is_timed=example.is_timed)
    text = (_shipped() / example.file).read_text()
    stem = example.file.removesuffix(".py")
    expected = _rows(spark, example, text, folder, f"{stem}_spark", monkeypatch)
    assert expected, "an example without rows shows nothing"
    assert _rows(spark, example, _with_tidegate(text), folder, f"{stem}_tidegate", monkeypatch) == expected


def test_what_spark_refuses_of_a_shipped_example_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_input(tmp_path / "input", is_timed=True)
    example = Example("structured_sessionization.py", (_JSON_FILES, _TABLE))
    text = (_shipped() / example.file).read_text()
    with pytest.raises(AnalysisException, match="update.*session window"):
        _rows(spark, example, text, tmp_path / "input", "refused_by_spark", monkeypatch)
    with pytest.raises(UnsupportedPlan, match="update.*session window"):
        _rows(spark, example, _with_tidegate(text), tmp_path / "input", "refused_by_tidegate", monkeypatch)


def _shipped() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "examples" / "src" / "main" / "python" / "sql" / "streaming"


def _with_tidegate(text: str) -> str:
    changed, count = re.subn(r"(\w+)(?:\s*\\\s*|)\.writeStream\b", r"tg.writeStream(\1)", text)
    assert count == 1
    return changed


def _rows(
    spark: SparkSession, example: Example, text: str, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> list[Row]:
    for before, after in example.changes:
        assert text.count(before) == 1, f"{example.file} has {before!r} {text.count(before)} times"
        text = text.replace(before, after.replace("{folder}", str(folder)).replace("{name}", name))
    monkeypatch.setattr(sys, "argv", [example.file, *example.arguments])
    # As a script would have it, so that functions defined there travel to the workers as those of a script do.
    names: dict[str, Any] = {"__name__": "__main__", "tg": tg, "until_idle": _until_idle(spark)}
    exec(compile(text, example.file, "exec"), names)
    rows = spark.table(name).collect()
    assert not example.is_ordered or [row[0] for row in rows] == sorted(row[0] for row in rows)
    return sorted(rows)


def _until_idle(spark: SparkSession) -> Callable[[Any, str], None]:
    """Waits until every session has ended by the clock."""

    def wait(query: Any, name: str) -> None:
        words = {word for _, line in _TIMED for word in line.split(" ")}
        deadline_s = time.monotonic() + PATIENCE_S
        try:
            ended: set[str] = set()
            while ended != words:
                assert time.monotonic() < deadline_s, "sessions did not end"
                time.sleep(0.3)
                if isinstance(query, tg.StreamingQuery):  # Spark's shows its table all the time, and never has done all
                    query.processAllAvailable()
                ended = {row.sessionId for row in spark.table(name).collect()}
        finally:
            query.stop()

    return wait


def _write_input(folder: Path, *, is_timed: bool) -> None:
    folder.mkdir()
    if is_timed:
        # In one file, so in order: the session example keeps the start of the rows that it is called with first.
        lines = [json.dumps({"value": line, "timestamp": at}) for at, line in _TIMED]
        (folder / "lines.json").write_text("\n".join(lines))
        return
    for number, line in enumerate(_LINES):
        (folder / f"{number}.txt").write_text(f"{line}\n")
