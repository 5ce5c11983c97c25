"""The arguments of a measured process: name=value, the same names for every system."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arguments:
    values: Mapping[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def text(self, name: str, otherwise: str = "") -> str:
        return self.values.get(name, otherwise)

    def number(self, name: str, otherwise: int = 0) -> int:
        return int(self.values.get(name, otherwise))

    def real(self, name: str, otherwise: float = 0.0) -> float:
        return float(self.values.get(name, otherwise))

    def options(self, prefix: str) -> dict[str, str]:
        """Those that begin with the prefix, without it: options of the system itself."""
        return {name[len(prefix) :]: value for name, value in self.values.items() if name.startswith(prefix)}


def arguments(given: list[str] | None = None) -> Arguments:
    pairs = (argument.partition("=") for argument in (sys.argv[1:] if given is None else given))
    return Arguments({name: value for name, _, value in pairs})
