"""The launch that carries the slots: one at a time, numbered, so that the exit of an earlier one is not mistaken.

Decides nothing: when to launch, to cancel or to wait is for whoever brings a generation up or ends one.
"""

from collections.abc import Callable

from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.launch import Launched, Launcher, LaunchExit
from tidegate.coordinator.members import Members
from tidegate.worker.main import SlotOrder


class CurrentLaunch:
    """`post` brings an exit, which any thread may report, to the loop; `on_exit` hears of it there."""

    def __init__(
        self,
        spec: JobSpec,
        launcher: Launcher,
        members: Members,
        *,
        secret: bytes,
        versions: dict[str, str],
        post: Callable[[Callable[[], None]], None],
        on_exit: Callable[[LaunchExit], None],
    ) -> None:
        self._spec = spec
        self._launcher = launcher
        self._members = members
        self._secret = secret
        self._versions = versions
        self._post = post
        self._on_exit = on_exit
        self._number = 0
        self._launched: Launched | None = None

    @property
    def is_there(self) -> bool:
        """Until its exit is reported: processes of it may be alive."""
        return self._launched is not None

    @property
    def is_first(self) -> bool:
        return self._number == 1

    @property
    def has_all_slots(self) -> bool:
        """Every process is alive and connected."""
        return self.is_there and len(self._members.members()) == self._spec.slots

    def start(self) -> None:
        self._number += 1
        number = self._number
        self._members.expect_launch(number)
        order = SlotOrder(
            job=self._spec.job_id,
            launch=number,
            coordinator_host=self._spec.driver_host,
            coordinator_port=self._members.port,
            secret=self._secret,
            settings=self._spec.slot_settings,
            bind_host=self._spec.slot_bind_host,
            advertised_host=self._spec.advertised_host,
            ports=self._spec.ports,
            versions=self._versions,
        )

        def on_exit(exit: LaunchExit) -> None:
            self._post(lambda: self._end(number, exit))

        self._launched = self._launcher.launch(order, slots=self._spec.slots, on_exit=on_exit)

    def use(self, spec: JobSpec) -> None:
        """For the next launch."""
        self._spec = spec

    def room(self) -> int | None:
        return self._launcher.room()

    def running_slots(self) -> int | None:
        return None if self._launched is None else self._launched.running_slots()

    def cancel(self) -> None:
        if self._launched is not None:
            self._launched.cancel()

    def _end(self, number: int, exit: LaunchExit) -> None:
        if number != self._number:
            return
        self._launched = None
        self._members.dismiss()
        self._on_exit(exit)
