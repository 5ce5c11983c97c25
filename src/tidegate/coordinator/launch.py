"""How the coordinator asks for slots; implemented over Spark, and over plain processes in tests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

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
