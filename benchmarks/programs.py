"""The command that runs a variant, for each system; installs and compiles Flink when a variant needs it."""

import sys
from collections.abc import Collection, Mapping
from typing import assert_never

from benchmarks.benchmark import System, Variant
from benchmarks.flink.environment import Flink, prepare, prepare_python
from benchmarks.processes import FOLDER


class Programs:
    def __init__(self) -> None:
        self._flink: Flink | None = None
        self._flink_python: str | None = None

    def prepare(self, systems: Collection[System]) -> None:
        if System.FLINK in systems and self._flink is None:
            self._flink = prepare()
        if System.PYFLINK in systems and self._flink_python is None:
            self._flink_python = str(prepare_python())

    @property
    def java_version(self) -> str | None:
        return None if self._flink is None else self._flink.java_version

    def command(self, variant: Variant) -> list[str]:
        match variant.system:
            case System.TIDEGATE | System.SPARK:
                return _python(sys.executable, f"benchmarks.systems.{variant.program}", variant.work)
            case System.FLINK:
                assert self._flink is not None, "prepared before"
                return self._flink.command(variant.program, variant.work, folder=FOLDER)
            case System.PYFLINK:
                assert self._flink_python is not None, "prepared before"
                return _python(self._flink_python, f"benchmarks.flink.{variant.program}", variant.work)
            case _:
                assert_never(variant.system)


def _python(interpreter: str, module: str, work: Mapping[str, object]) -> list[str]:
    named = [f"{name}={value}" for name, value in {**work, "folder": FOLDER}.items()]
    return [interpreter, "-m", module, *named]
