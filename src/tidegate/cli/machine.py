"""What can be read off this machine for `tidegate doctor`. Changes nothing, judges nothing, starts no Spark."""

import os
import platform
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata, util
from itertools import pairwise
from pathlib import Path

from tidegate.spark.java import JavaLookup, find_java
from tidegate.worker.machine_memory import machine_memory_bytes

_PACKAGES = ("pyspark", "pyarrow", "numpy", "pandas")


@dataclass(frozen=True, slots=True)
class Facts:
    """What `gather` read. A `…_problem` is None if the thing works, otherwise the system's own words."""

    python_version: tuple[int, int, int]
    java: JavaLookup
    packages: Mapping[str, str | None]
    cores: int
    memory_bytes: int | None
    loopback_problem: str | None
    unix_socket_problem: str | None
    temp_folder: str
    temp_problem: str | None
    temp_free_bytes: int
    worker_python: str | None = None
    spark_home: str | None = None
    spark_settings: Mapping[str, str] = field(default_factory=dict)


def gather() -> Facts:
    temp_folder = tempfile.gettempdir()
    return Facts(
        python_version=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        java=find_java(),
        packages={name: _installed_version(name) for name in _PACKAGES},
        cores=_usable_cores(),
        memory_bytes=machine_memory_bytes(),
        loopback_problem=_bind_problem(0),
        unix_socket_problem=_unix_socket_problem(),
        temp_folder=temp_folder,
        temp_problem=_temp_problem(temp_folder),
        temp_free_bytes=shutil.disk_usage(temp_folder).free,
        worker_python=os.environ.get("PYSPARK_PYTHON"),
        spark_home=os.environ.get("SPARK_HOME"),
        spark_settings=_spark_settings(os.environ),
    )


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _bind_problem(port: int) -> str | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _unix_socket_problem() -> str | None:
    if not hasattr(socket, "AF_UNIX"):
        return f"{platform.system()} has none"
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tidegate-doctor-") as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        ):
            listener.bind(str(Path(folder, "s")))
            listener.listen(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _temp_problem(folder: str) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tidegate")
    except OSError as error:
        return error.strerror or str(error)
    return None


def _spark_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What a session would start with, as far as files and the environment say."""
    settings: dict[str, str] = {}
    for line in _read_lines(_defaults_file(environ)):
        if match := re.match(r"\s*(spark\.[\w.]+)(?:\s*[=:]\s*|\s+)(.*?)\s*$", line):
            settings[match.group(1)] = match.group(2)
    arguments = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for flag, value in pairwise(arguments):
        if flag in ("--conf", "-c") and "=" in value:
            key, _, setting = value.partition("=")
            settings[key] = setting
        elif flag == "--master":
            settings["spark.master"] = value
    return settings


def _defaults_file(environ: Mapping[str, str]) -> Path | None:
    if folder := environ.get("SPARK_CONF_DIR"):
        return Path(folder, "spark-defaults.conf")
    if home := environ.get("SPARK_HOME"):
        return Path(home, "conf", "spark-defaults.conf")
    spec = util.find_spec("pyspark")
    return Path(spec.origin).parent / "conf" / "spark-defaults.conf" if spec and spec.origin else None


def _read_lines(path: Path | None) -> list[str]:
    if path is None or not path.is_file():
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
