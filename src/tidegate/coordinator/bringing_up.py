"""One generation from the job log to the moment when every slot is ready: its basis, its splits, its slots.

Never blocks: the log and the sources' listings are read in the background, and slots that do not come are a deadline.
"""

from collections.abc import Mapping
from typing import Protocol

from tidegate.coordinator.checkpointing import as_failure
from tidegate.coordinator.durable import DurableJob, GenerationBasis
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.launch import slots_missing
from tidegate.coordinator.launching import CurrentLaunch
from tidegate.coordinator.members import Members
from tidegate.coordinator.splits import Splits
from tidegate.model.clock import Clock
from tidegate.model.errors import SlotLost, TidegateError
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.messages import Deploy, Ready
from tidegate.worker.mailbox import Background

# Slots that have no core by then will not get one.
_SLOTS_TIMEOUT_MS = 40_000.0
# Slots that run have to import and connect, on a busy machine too; a restarted launch first waits for the old one.
_SLOW_SLOTS_TIMEOUT_MS = 60_000.0
# Slots that are all here read their state back, which may be large; one that dies shows on its connection.
_RESTORING_TIMEOUT_MS = 3_600_000.0
_NEVER_MS = float("inf")


class GenerationListener(Protocol):
    """Whom it concerns how far the generation is."""

    def on_generation_begun(self, generation: Generation) -> None: ...
    def on_all_ready(self, basis: GenerationBasis, splits: Splits, ready: Mapping[SlotIndex, Ready]) -> None: ...
    def on_generation_failed(self, failure: TidegateError) -> None: ...


class BringingUp:
    """One object per generation. Closed, it does nothing any more: what its background work finds is dropped."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        durable: DurableJob,
        launch: CurrentLaunch,
        members: Members,
        storing: Background,
        looking: Background,
        clock: Clock,
        listener: GenerationListener,
    ) -> None:
        self._spec = spec
        self._plan = spec.slot_settings.plan
        self._durable = durable
        self._launch = launch
        self._members = members
        self._storing = storing
        self._looking = looking
        self._clock = clock
        self._listener = listener
        self._ready: dict[SlotIndex, Ready] = {}
        self._deployed_ms: float | None = None
        self._deadline_ms = _NEVER_MS
        self._were_slots_slow = False
        self._is_closed = False
        self._ready_at_ms: float | None = None
        self._found: tuple[GenerationBasis, Splits] | None = None

    # -- events

    def begin(self) -> None:
        found: list[tuple[GenerationBasis, Splits]] = []

        def work() -> None:
            basis = self._durable.start_generation(at_ms=self._clock.wall_ms())
            splits = Splits(
                generation=basis.generation,
                plan=self._plan,
                background=self._looking,
                tell=self._members.tell,
                on_error=self._on_splits_failed,
            )
            splits.open(basis.source_states, available_now=self._spec.available_now)
            found.append((basis, splits))

        self._storing.submit(work, lambda error: self._on_found(found, error))

    def on_joined(self) -> None:
        if self._found is not None and self._launch.has_all_slots:
            self._deploy(self._found[0])

    def on_ready(self, slot: SlotIndex, message: Ready) -> None:
        self._ready[slot] = message
        if self._found is not None and len(self._ready) == self._plan.parallelism:
            self._deadline_ms = _NEVER_MS
            self._ready_at_ms = self._clock.monotonic_ms()
            self._listener.on_all_ready(*self._found, self._ready)

    def on_time(self, now_ms: float) -> None:
        if now_ms >= self._deadline_ms:
            self._on_slots_missing(now_ms)

    def close(self) -> None:
        self._is_closed = True
        self._deadline_ms = _NEVER_MS
        if self._found is not None:
            self._found[1].close()

    # -- questions

    @property
    def generation(self) -> Generation | None:
        """None while it is found out: what slots say till then is about the one before."""
        return None if self._found is None else self._found[0].generation

    @property
    def restoring(self) -> CheckpointId | None:
        """The job's own checkpoint or savepoint, while slots read it."""
        if self._found is None or len(self._ready) == self._plan.parallelism:
            return None
        basis, _ = self._found
        return basis.restored_checkpoint if basis.is_own else None

    def next_deadline_ms(self) -> float:
        return self._deadline_ms

    def ran_for_ms(self) -> float:
        """Without the time for restoring: that tells nothing about how well it runs."""
        return 0.0 if self._ready_at_ms is None else self._clock.monotonic_ms() - self._ready_at_ms

    @property
    def deployed_ms(self) -> float | None:
        """When slots were told to restore and begin."""
        return self._deployed_ms

    # -- inside

    def _on_found(self, found: list[tuple[GenerationBasis, Splits]], error: BaseException | None) -> None:
        if self._is_closed:
            return
        if error is not None:
            self._listener.on_generation_failed(as_failure(error, "The next generation could not be started"))
            return
        self._found = found[0]
        basis, _ = self._found
        self._listener.on_generation_begun(basis.generation)
        if self._launch.has_all_slots:
            self._deploy(basis)  # in place: the processes are all there
        elif self._launch.is_there:
            # A slot has gone and its event is on its way: a launch beside the old one would find no cores.
            self._listener.on_generation_failed(SlotLost("A slot is gone before the next generation was deployed."))
        else:
            self._bring_up_slots()

    def _bring_up_slots(self) -> None:
        self._launch.start()
        timeout_ms = _SLOTS_TIMEOUT_MS if self._launch.is_first else _SLOW_SLOTS_TIMEOUT_MS
        self._deadline_ms = self._clock.monotonic_ms() + timeout_ms

    def _deploy(self, basis: GenerationBasis) -> None:
        if self._deployed_ms is not None:
            return  # several slots that join in one turn are all members when the first of them is looked at
        self._deployed_ms = self._clock.monotonic_ms()
        self._deadline_ms = self._deployed_ms + _RESTORING_TIMEOUT_MS
        self._members.tell_all(
            Deploy(
                basis.generation,
                self._members.addresses(),
                basis.restore_manifest,
                basis.restore_location,
                basis.captured_rows,
            )
        )

    def _on_slots_missing(self, now_ms: float) -> None:
        if self._deployed_ms is not None:
            self._deadline_ms = _NEVER_MS
            missing = self._plan.parallelism - len(self._ready)
            hours = _RESTORING_TIMEOUT_MS / 3_600_000
            self._listener.on_generation_failed(
                SlotLost(f"{missing} of {self._plan.parallelism} slots have not read their state back in {hours:g} h.")
            )
            return
        wanted = self._plan.parallelism
        running = self._launch.running_slots()
        if running == wanted and not self._were_slots_slow:
            self._were_slots_slow = True
            self._deadline_ms = now_ms + _SLOW_SLOTS_TIMEOUT_MS - _SLOTS_TIMEOUT_MS
            return
        self._deadline_ms = _NEVER_MS
        problem = slots_missing(
            here=len(self._members.members()),
            wanted=wanted,
            running=running,
            driver=f"{self._spec.driver_host}:{self._members.port}",
        )
        # What once ran here can run here again.
        self._listener.on_generation_failed(problem if self._launch.is_first else SlotLost(str(problem)))

    def _on_splits_failed(self, error: BaseException) -> None:
        self._listener.on_generation_failed(as_failure(error, "A source could not be listed"))
