"""The slots that are connected, as decisions see them: who is here, where, and how to speak to them.

The roster is this over sockets. Nothing here waits: what slots say comes as roster events.
"""

from typing import Protocol

from tidegate.model.ids import SlotIndex
from tidegate.network.address import SlotAddress
from tidegate.network.messages import ToSlot


class Members(Protocol):
    """They belong to one launch; who comes from another one is turned away."""

    @property
    def port(self) -> int:
        """Where slots find the coordinator."""
        ...

    def expect_launch(self, launch: int) -> None:
        """Who belonged to the one before is dismissed."""
        ...

    def members(self) -> frozenset[SlotIndex]: ...
    def addresses(self) -> dict[SlotIndex, SlotAddress]: ...
    def pids(self) -> tuple[int, ...]: ...
    def tell(self, slot: SlotIndex, message: ToSlot) -> None: ...
    def tell_all(self, message: ToSlot) -> None: ...
    def dismiss(self) -> None: ...
