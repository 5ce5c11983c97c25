"""Packs Python, Tidegate and what it needs into one archive that spark-submit takes to machines without them.

Run it with the Python whose packages are to travel (`make pack` uses the one in .venv). The archive holds the
interpreter as well, so that a machine needs neither the same Python nor the same paths. PySpark stays out: Spark
gives every Python worker its own. Reads the environment only; writes nothing but the archive.
"""

import argparse
import io
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from py_compile import compile as compile_source

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ENVIRONMENT = "environment"  # the folder that an executor unpacks the archive into
DEFAULT_ARCHIVE = Path("dist") / "tidegate-environment.tar.gz"

# Spark brings these itself, on the driver and on every executor; its jars alone are 450 MB.
_LEFT_OUT = frozenset({"pyspark", "py4j"})
# What lies side by side in a working copy: the second is where Spark finds format("tidegate").
_OWN_PACKAGES = ("tidegate", "pyspark_tidegate")
# Parts of Python and of Tidegate's packages that no job imports.
_STDLIB_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}
)
# Extension modules for terminals and windows: each would ask the machines for libraries of its own.
_EXTENSIONS_LEFT_OUT = ("_tkinter", "_curses", "readline", "nis", "ossaudiodev", "_test", "_xx", "xx")
_PACKAGE_LEFT_OUT = frozenset({"tests", "include"})
_SOURCES_OF_EXTENSIONS = frozenset({".a", ".h", ".hpp", ".pxd", ".pyi", ".pyx"})
# Needs no quotes in a shell: a # does so only where a word begins.
_PLAIN = re.compile(r"[\w./:=,#-]+")
_TAG = f"python{sys.version_info.major}.{sys.version_info.minor}"

# LD_LIBRARY_PATH: an interpreter with a shared library looks for it where it was built.
# PYTHONNOUSERSITE: packages in the home folder of whoever runs Spark would come before those in the archive.
_WRAPPER = f"""#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export LD_LIBRARY_PATH="$here/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" PYTHONNOUSERSITE=1
exec "$here/{_TAG}" "$@"
"""


# A twentieth larger than with 9, in a sixth of the time.
_COMPRESSION = 4


class CannotPack(Exception):
    pass


def main() -> int:
    parser = argparse.ArgumentParser(description="Pack Python, Tidegate and what it needs for spark-submit.")
    parser.add_argument("--output", type=Path, default=DEFAULT_ARCHIVE, help="a .tar.gz")
    parser.add_argument("--with", dest="extra", metavar="PACKAGE", nargs="*", default=[], help="also take these along")
    arguments = parser.parse_args()
    try:
        pack(arguments.output, extra=arguments.extra)
    except CannotPack as problem:
        print(problem, file=sys.stderr)
        return 1
    size_mb = arguments.output.stat().st_size / 1e6
    print(f"{arguments.output}: {size_mb:.0f} MB, {_TAG} and {len(distributions(extra=arguments.extra))} packages")
    if needed := system_libraries():
        print(f"The machines need the same kind of processor and: {', '.join(needed)}")
    print(f"Submit a job, here the example, with:\n{shown(example_command(arguments.output))}")
    return 0


def pack(output: Path, *, extra: Sequence[str] = (), compression: int = _COMPRESSION) -> None:
    # Spark unpacks a plain .tar or .zip without its permissions, after which nobody may run the Python inside.
    if not output.name.endswith((".tar.gz", ".tgz")):
        raise CannotPack(f"{output} is no .tar.gz: Spark unpacks other archives without their permissions.")
    files = {**_interpreter(), **_packages(extra=extra)}
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.name}")
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-pack-") as compiled,
        tarfile.open(unfinished, "w:gz", dereference=True, compresslevel=compression) as archive,
    ):
        for name, source in sorted({**files, **_bytecode(files, Path(compiled))}.items()):
            archive.add(source, arcname=name, recursive=False, filter=_owned_by_nobody)
        _add_wrapper(archive)
    unfinished.replace(output)


def submit_command(
    archive: Path | str,
    *,
    master: str,
    job: Sequence[str],
    driver_python: str = ".venv/bin/python",
    py_files: Sequence[str] = (),
    settings: Sequence[str] = ("spark.executor.cores=2",),
) -> list[str]:
    """What is to be run where the driver shall run. Executors unpack the archive into their own work folders."""
    command = ["spark-submit", "--master", master, "--archives", f"{archive}#{ENVIRONMENT}"]
    settings = [
        f"spark.pyspark.python=./{ENVIRONMENT}/bin/python",
        f"spark.pyspark.driver.python={driver_python}",
        *settings,
    ]
    for setting in settings:
        command += ["--conf", setting]
    if py_files:
        command += ["--py-files", ",".join(py_files)]
    return [*command, *job]


def example_command(archive: Path) -> list[str]:
    return submit_command(
        archive,
        master="spark://HOST:7077",
        job=["examples/cluster/job.py", "/shared/folder"],
        py_files=["examples/cluster/pipeline.py"],
    )


def shown(command: Sequence[str]) -> str:
    """For a shell, one option to a line."""
    lines: list[list[str]] = [[]]
    for at, word in enumerate(command):
        if word.startswith("--") or (at >= 2 and command[at - 2].startswith("--") and not word.startswith("--")):
            lines.append([])
        lines[-1].append(word if _PLAIN.fullmatch(word) else shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines)


def distributions(*, extra: Sequence[str] = ()) -> dict[str, metadata.Distribution]:
    """Tidegate, the packages asked for, and all that these need here."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement("tidegate"), *map(Requirement, extra)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found or name in _LEFT_OUT:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise CannotPack(f"{name} is not installed for {sys.executable}: install it there first.") from None
        waiting += _needs(found[name], wanted.extras)
    return dict(sorted(found.items()))


def system_libraries() -> list[str]:
    """The shared libraries that the interpreter takes from the machine it runs on."""
    if shutil.which("ldd") is None:
        return []
    binaries = [str(path) for path in _interpreter().values() if path.suffix == ".so" or path.name == _TAG]
    told = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False).stdout
    own = sysconfig.get_config_var("INSTSONAME")
    return sorted({name for name in re.findall(r"^\s+(lib\S+) => ", told, re.MULTILINE) if name != own})


def _needs(distribution: metadata.Distribution, extras: Iterable[str]) -> Iterator[Requirement]:
    for line in distribution.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *extras)):
            yield requirement


def _interpreter() -> dict[str, Path]:
    """The base interpreter: it finds its library by its own place, wherever that is."""
    files = {f"bin/{_TAG}": Path(sys.base_prefix) / "bin" / _TAG}
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    for path in _below(library):
        if not _is_left_out_of_stdlib(path.relative_to(library)):
            files[f"{sys.platlibdir}/{_TAG}/{path.relative_to(library).as_posix()}"] = path
    shared = Path(sysconfig.get_config_var("LIBDIR") or "") / (sysconfig.get_config_var("INSTSONAME") or "")
    if shared.suffix != ".a" and shared.is_file():
        files[f"lib/{shared.name}"] = shared
    return files


def _packages(*, extra: Sequence[str]) -> dict[str, Path]:
    own = distributions()
    files: dict[str, Path] = {}
    for name, distribution in distributions(extra=extra).items():
        for inside, path in _files_of(name, distribution):
            # What was asked for goes as it is: nobody here knows what it can do without.
            if name not in own or not _is_left_out(Path(inside)):
                files[f"{sys.platlibdir}/{_TAG}/site-packages/{inside}"] = path
    return files


def _files_of(name: str, distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Where each file goes below site-packages, and where it is now."""
    if '"editable": true' in (distribution.read_text("direct_url.json") or ""):
        yield from _editable(name)
    for file in distribution.files or ():
        path = Path(str(file.locate()))
        # Scripts in bin name the interpreter of this machine; a link to a working copy means nothing elsewhere.
        is_local = ".." in file.parts or file.suffix in (".pth", ".pyc") or file.name == "direct_url.json"
        if not is_local and path.is_file():
            yield file.as_posix(), path


def _editable(name: str) -> Iterator[tuple[str, Path]]:
    found = find_spec("tidegate")
    if name != "tidegate" or found is None or found.origin is None:
        raise CannotPack(f"{name} is installed as a link to a working copy: install a wheel of it, or use --py-files.")
    sources = Path(found.origin).parent.parent
    yield from (
        (path.relative_to(sources).as_posix(), path)
        for package in _OWN_PACKAGES
        for path in _below(sources / package)
        if "__pycache__" not in path.parts
    )


def _is_left_out_of_stdlib(inside: Path) -> bool:
    is_extension = inside.suffix == ".so" and inside.name.startswith(_EXTENSIONS_LEFT_OUT)
    is_for_builds = inside.parts[0].startswith("config-") or "__pycache__" in inside.parts
    return is_extension or is_for_builds or bool(_STDLIB_LEFT_OUT & set(inside.parts))


def _is_left_out(inside: Path) -> bool:
    return bool(_PACKAGE_LEFT_OUT & set(inside.parts)) or inside.suffix in _SOURCES_OF_EXTENSIONS


def _bytecode(files: dict[str, Path], compiled: Path) -> dict[str, Path]:
    """So that no executor compiles: importing pandas from its sources alone would take seconds."""
    found = {}
    for number, (name, source) in enumerate(files.items()):
        if source.suffix != ".py":
            continue
        there = Path(cache_from_source(str(source)))
        if not there.is_file() or there.stat().st_mtime < source.stat().st_mtime:
            there = compiled / f"{number}.pyc"
            compile_source(str(source), cfile=str(there), quiet=2)
        if there.is_file():  # some packages ship sources for other versions of Python
            found[cache_from_source(name)] = there
    return found


def _below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _add_wrapper(archive: tarfile.TarFile) -> None:
    entry = tarfile.TarInfo("bin/python")
    entry.mode, entry.size = 0o755, len(_WRAPPER)
    archive.addfile(entry, io.BytesIO(_WRAPPER.encode()))


def _owned_by_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    sys.exit(main())
