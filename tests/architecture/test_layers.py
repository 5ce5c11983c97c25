"""The contracts of pyproject.toml, and what they cannot say: what of the standard library a pure layer may use."""

import os
import subprocess
import sys

from tests.architecture.sources import ROOT, is_stdlib, modules

# Everything here computes; nothing here reads a clock, a file, a socket, the environment or a random number.
PURE_STDLIB = {
    "__future__", "abc", "bisect", "collections", "copy", "dataclasses", "enum", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "re", "statistics", "string", "types", "typing",
}  # fmt: skip


def test_layers_and_forbidden_imports() -> None:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    checked = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_protocol_imports_only_pure_modules() -> None:
    impure = [
        f"{module.name}:{line} imports {name}"
        for module in modules("protocol")
        for line, name in module.imports()
        if not _is_pure_for_protocol(name)
    ]
    assert impure == []


def test_model_does_no_io_and_reads_time_only_in_clock() -> None:
    impure = [
        f"{module.name}:{line} imports {name}"
        for module in modules("model")
        for line, name in module.imports()
        if is_stdlib(name) and (module.name, name) != ("model/clock.py", "time")
        if name.split(".")[0] not in PURE_STDLIB
    ]
    assert impure == []


def _is_pure_for_protocol(name: str) -> bool:
    if name.startswith("tidegate."):
        return name.split(".")[1] in ("protocol", "model") and name != "tidegate.model.clock"
    return name.split(".")[0] in PURE_STDLIB
