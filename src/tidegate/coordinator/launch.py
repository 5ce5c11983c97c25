"""How the coordinator asks for slots; implemented over Spark, and over plain processes in tests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tidegate.model.errors import EnvironmentProblem
from tidegate.worker.main import SlotOrder


@dataclass(frozen=True, slots=True)
class Ended:
    """All slots returned by themselves."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody cancelled it from outside: Ctrl-C, the session was stopped. That is a stop, not a failure."""


@dataclass(frozen=True, slots=True)
class Broken:
    message: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """The slots cannot run here, however often they are started; one sentence that names the fix."""

    message: str


LaunchExit: TypeAlias = Ended | Cancelled | Broken | Impossible


class Launched(Protocol):
    def running_slots(self) -> int | None:
        """How many slots have a core and have begun, as far as that can be told; those may just be slow to report."""
        ...

    def cancel(self) -> None:
        """End it by force; its exit is reported as usual."""
        ...


class Launcher(Protocol):
    def launch(self, order: SlotOrder, *, slots: int, on_exit: Callable[[LaunchExit], None]) -> Launched:
        """Start the slots and return at once. `on_exit` is called once, from any thread, when all are gone."""
        ...

    def room(self) -> int | None:
        """How many slots would find a core now, as far as that can be told."""
        ...


def slots_missing(*, here: int, wanted: int, running: int | None, driver: str) -> EnvironmentProblem:
    """What to tell a user whose slots do not come: they run and cannot reach us, or they have no cores."""
    if running == wanted:
        return EnvironmentProblem(
            f"Only {here} of {wanted} slots reported: their workers cannot connect to {driver}; set "
            f".option('network.advertisedHost') and look into the executors' logs."
        )
    return EnvironmentProblem(
        f"Only {here} of {wanted} slots reported: the session has too few free cores for a barrier stage of {wanted} "
        f"tasks; lower .option('parallelism') or end what else runs in the session."
    )


def version_difference(own: dict[str, str], other: dict[str, str]) -> str | None:
    for name, version in own.items():
        if other.get(name) != version:
            return (
                f"The workers run {name} {other.get(name)} and the driver {version}: "
                f"set PYSPARK_PYTHON so that both use the same environment."
            )
    return None
