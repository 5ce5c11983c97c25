"""Flink 2.3 in an environment of its own: its jars from the pinned Python package, and our jobs compiled against them.

Everything goes below `.bench`, which `make clean` removes. Must never touch the environment of the project.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).resolve().parent
FLINK_VERSION = "2.3.0"
_PLACE = ROOT / ".bench" / "flink"
_LOCK = SOURCES / "requirements.lock"
_PYTHON_PLACE = ROOT / ".bench" / "pyflink"
_PYTHON_LOCK = SOURCES / "pyflink.lock"
_PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--require-hashes", "--no-build-isolation")
# Without what Flink's jars, and not the job, are warned of.
_WARNINGS = "all,-classfile,-path,-processing,-serial,-try"
# As Flink's own scripts start its processes: its collector, and what its serializers look into.
_JVM = (
    "-Xms2g",
    "-Xmx2g",
    "-XX:+UseG1GC",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.io", "java.lang", "java.lang.reflect", "java.net", "java.nio", "java.text", "java.time")
    ),
    *(
        f"--add-opens=java.base/java.util{package}=ALL-UNNAMED"
        for package in ("", ".concurrent", ".concurrent.atomic", ".concurrent.locks")
    ),
)


class CannotPrepare(Exception):
    """Flink cannot run here: one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Flink:
    java: Path
    java_version: str
    class_path: str

    def command(self, job: str, arguments: Mapping[str, object], *, folder: str) -> list[str]:
        """`job` is the class; `folder` takes whatever Flink writes, its checkpoints too."""
        properties = [f"-Djava.io.tmpdir={folder}", f"-Dlog4j.configurationFile={SOURCES / 'log4j2.properties'}"]
        named = [f"{name}={value}" for name, value in {**arguments, "folder": folder}.items()]
        return [str(self.java), *_JVM, *properties, "-cp", self.class_path, job, *named]


def prepare() -> Flink:
    """Installs and compiles what is missing or older than what it is made from."""
    javac = _javac()
    jars = _install()
    classes = _PLACE / "classes"
    class_path = os.pathsep.join([str(classes), *(str(jar) for jar in jars)])
    sources = sorted(SOURCES.glob("*.java"))
    if not all(_is_newer(classes / f"{source.stem}.class", source) for source in sources):
        classes.mkdir(exist_ok=True)
        options = [f"-Xlint:{_WARNINGS}", "-cp", class_path, "-d", str(classes)]
        _run([str(javac), *options, *map(str, sources)], "Flink's jobs cannot be compiled")
    java = javac.with_name("java")
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    return Flink(java, printed.split('"')[1], class_path)


def _javac() -> Path:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=f"{home}/bin") if home else None
    found = found or shutil.which("javac")
    if found is None:
        raise CannotPrepare(
            "Flink's job is compiled with javac, and there is none: install a JDK 17 or 21 "
            "(on Debian or Ubuntu: apt install default-jdk-headless), or leave Flink out with SYSTEMS=tidegate."
        )
    return Path(found).resolve()


def _install() -> list[Path]:
    python, stamp = _PLACE / "bin" / "python", _PLACE / ".installed"
    pinned = _LOCK.read_text()
    if not stamp.exists() or stamp.read_text() != pinned:
        print(f"Flink {FLINK_VERSION}: installing into .bench/flink (downloads about 240 MB, once)", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(_PLACE)], "Flink's environment cannot be made")
        # The package is a source archive, so what builds it comes first.
        _run([str(python), *_PIP, "-r", str(ROOT / "requirements-build.lock")], "Flink cannot be installed")
        _run([str(python), *_PIP, "--no-deps", "--use-pep517", "-r", str(_LOCK)], "Flink cannot be installed")
        stamp.write_text(pinned)
    libraries = next(_PLACE.glob("lib/python*/site-packages/pyflink/lib"))
    jars = (
        f"flink-{part}-{FLINK_VERSION}.jar"
        for part in ("dist", "cep", "table-api-java-uber", "table-planner-loader", "table-runtime")
    )
    return [*(libraries / jar for jar in jars), *sorted(libraries.glob("log4j-*.jar"))]


def _is_newer(made: Path, source: Path) -> bool:
    return made.exists() and made.stat().st_mtime >= source.stat().st_mtime


def _run(command: list[str], complaint: str) -> None:
    # Nothing of the project's environment may reach Flink's.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    if done.returncode != 0:
        raise CannotPrepare(f"{complaint}:\n{done.stderr.strip()[-2000:]}")


def prepare_python() -> Path:
    """The interpreter of PyFlink, in an environment of its own: it needs older libraries than the project has."""
    python, stamp = _PYTHON_PLACE / "bin" / "python", _PYTHON_PLACE / ".installed"
    pinned = _PYTHON_LOCK.read_text()
    if not stamp.exists() or stamp.read_text() != pinned:
        print(f"PyFlink {FLINK_VERSION}: installing into .bench/pyflink (downloads about 400 MB, once)", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(_PYTHON_PLACE)], "PyFlink's environment cannot be made")
        # Some of its libraries come as source archives that need older builders than the project's: pip isolates them.
        install = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--require-hashes")
        _run([str(python), *install, "-r", str(_PYTHON_LOCK)], "PyFlink cannot be installed")
        stamp.write_text(pinned)
    return python
