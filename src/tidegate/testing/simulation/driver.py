"""The coordinator of a simulated job: performs what `protocol.Checkpoints` decides on the production log and manifests.

Follows `coordinator.Coordinator` step by step, without its sockets and threads. Notes and messages of an older
generation reach it as they would there.
"""

from collections.abc import Callable
from typing import assert_never

from tidegate.coordinator.durable import DurableJob, GenerationBasis
from tidegate.coordinator.history import Underway
from tidegate.coordinator.splits import Splits
from tidegate.model.errors import DidNotHappen, MayHaveHappened
from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.network.messages import (
    AbortCheckpoint,
    Acknowledge,
    CheckpointDone,
    Decline,
    Failed,
    FromSlot,
    InputEnded,
    Progress,
    Ready,
    ToSlot,
    TriggerCheckpoint,
)
from tidegate.plan.lower import fingerprint
from tidegate.plan.physical import JobPlan
from tidegate.protocol.checkpoints import (
    Abort,
    CheckpointAction,
    Checkpoints,
    Complete,
    FailJob,
    FailureReason,
    Trigger,
)
from tidegate.storage.store import Store
from tidegate.testing.simulation.connectors import SimSink
from tidegate.testing.simulation.scenario import Scenario
from tidegate.testing.simulation.world import SimBackground, SimulationFailed, World

# A store that fails more often in a row than this is not what the simulation is about.
_START_ATTEMPTS = 50


class SimDriver:
    """`deploy` builds a generation in the slots, `tell` puts a message on a slot's connection."""

    def __init__(
        self,
        world: World,
        store: Store,
        scenario: Scenario,
        plan: JobPlan,
        *,
        deploy: Callable[[GenerationBasis], None],
        tell: Callable[[SlotIndex, ToSlot], None],
    ) -> None:
        self._world = world
        self._scenario = scenario
        self._plan = plan
        self._deploy = deploy
        self._tell = tell
        self._slots = [SlotIndex(slot) for slot in range(plan.parallelism)]
        self._fingerprint = fingerprint(plan)
        self._durable = DurableJob(
            store,
            SimSink(world).committer(),
            fingerprint=self._fingerprint,
            parallelism=plan.parallelism,
            max_parallelism=plan.max_parallelism,
            retained=scenario.retained,
        )
        self.storing = SimBackground()
        self.looking = SimBackground()
        self.has_finished = False
        self.must_restart = False
        self.completed = 0
        self._basis: GenerationBasis
        self._splits: Splits | None = None
        self._checkpoints: Checkpoints | None = None
        self._underway: dict[CheckpointId, Underway] = {}
        self._next_checkpoint = CheckpointId(1)
        self._last_from: CheckpointId | None = None
        self._ended: set[SlotIndex] = set()

    # -- generations

    def start_generation(self) -> None:
        """The first one, or the next one in place."""
        self._end_generation()
        for _ in range(_START_ATTEMPTS):
            while self.storing.work_once():
                pass  # one thread does both, so what was submitted before happens before
            try:
                self._basis = self._durable.start_generation(at_ms=self._world.clock.wall_ms())
                break
            except (DidNotHappen, MayHaveHappened) as error:
                self._world.note(f"generation not started: {error}")
        self._splits = Splits(
            generation=self._basis.generation,
            parallelism=self._plan.parallelism,
            background=self.looking,
            tell=self._tell,
            on_error=_fail_on_error,
        )
        self._splits.open(self._plan, self._basis.source_states, available_now=True)
        self._next_checkpoint = max(self._next_checkpoint, self._basis.next_checkpoint)
        self._world.note(f"generation {self._basis.generation} restores {self._basis.restored_checkpoint}")
        self._deploy(self._basis)
        self._checkpoints = Checkpoints(
            self._scenario.checkpoints,
            slots=self._slots,
            next_id=self._next_checkpoint,
            now_ms=self._world.clock.now_ms,
        )

    def _end_generation(self) -> None:
        self.must_restart = False
        self._ended.clear()
        self._last_from = None
        if self._splits is not None:
            self._splits.close()
        if self._checkpoints is not None:
            checkpoints, self._checkpoints = self._checkpoints, None
            self._perform(checkpoints.close(FailureReason.JOB_RESTARTED))
        self._underway.clear()

    # -- events

    def on_time(self) -> None:
        assert self._checkpoints is not None and self._splits is not None
        self._splits.on_time(self._world.clock.now_ms)
        self._perform(self._checkpoints.on_time(self._world.clock.now_ms))

    def abort(self, choose: Callable[[int], int]) -> None:
        """One of the pending checkpoints is declined; `choose` picks one of so many."""
        assert self._checkpoints is not None
        pending = self._checkpoints.pending()
        if pending:
            self._perform(self._checkpoints.on_failed(pending[choose(len(pending))], FailureReason.DECLINED))

    def on_message(self, slot: SlotIndex, message: FromSlot) -> None:
        if message.generation != self._basis.generation:
            return
        assert self._checkpoints is not None
        match message:
            case InputEnded():
                self._ended.add(slot)
                if len(self._ended) == self._plan.parallelism:
                    self._last_from = self._checkpoints.next_id
                    self._perform(self._checkpoints.request(self._world.clock.now_ms))
            case Acknowledge(checkpoint=checkpoint):
                if checkpoint in self._underway:
                    self._underway[checkpoint].acknowledged[slot] = message
                    self._perform(self._checkpoints.on_acknowledged(checkpoint, slot))
            case Decline(checkpoint=checkpoint):
                self._perform(self._checkpoints.on_failed(checkpoint, FailureReason.DECLINED))
            case Failed(message=text):
                raise SimulationFailed(f"slot {slot} failed: {text}")
            case Ready() | Progress():
                return
            case unreachable:
                assert_never(unreachable)

    # -- checkpoints

    def _perform(self, actions: list[CheckpointAction]) -> None:
        for action in actions:
            match action:
                case Trigger(checkpoint):
                    clock = self._world.clock
                    self._underway[checkpoint] = Underway(checkpoint, clock.now_ms, clock.wall_ms())
                    self._next_checkpoint = CheckpointId(checkpoint + 1)
                    self._tell_all(TriggerCheckpoint(self._basis.generation, checkpoint))
                    self._world.note(f"checkpoint {checkpoint} triggered")
                case Complete(checkpoint):
                    self._complete(checkpoint)
                case Abort(checkpoint, reason):
                    self._tell_all(AbortCheckpoint(self._basis.generation, checkpoint))
                    self._underway.pop(checkpoint)
                    self._world.note(f"checkpoint {checkpoint} aborted: {reason.value}")
                case FailJob():
                    self.must_restart = True
                case unreachable:
                    assert_never(unreachable)

    def _complete(self, checkpoint: CheckpointId) -> None:
        assert self._checkpoints is not None
        underway, checkpoints, generation = self._underway[checkpoint], self._checkpoints, self._basis.generation
        if (gap := underway.find_gap()) is not None:
            raise SimulationFailed(f"the sides of checkpoint {checkpoint} do not meet: {gap}")
        manifest = underway.manifest(
            generation=generation,
            now_ms=self._world.clock.now_ms,
            fingerprint=self._fingerprint,
            parallelism=self._plan.parallelism,
            max_parallelism=self._plan.max_parallelism,
        )
        paths: list[str] = []

        def stored(error: BaseException | None) -> None:
            if generation != self._basis.generation:
                return
            if error is not None and checkpoint in self._underway:
                _expect_storage(error)
                self._perform(checkpoints.on_failed(checkpoint, FailureReason.STORE_FAILED))
            elif error is None and self._underway.pop(checkpoint, None) is not None:
                self._world.note(f"checkpoint {checkpoint} stored, {manifest.kind}, {len(manifest.channels)} channels")
                self.completed += 1
                self._tell_all(CheckpointDone(generation, checkpoint))
                self._perform(checkpoints.on_stored(checkpoint, self._world.clock.now_ms))

        def committed(error: BaseException | None) -> None:
            if generation != self._basis.generation:
                return
            if error is not None:
                _expect_storage(error)
                self.must_restart = True
            elif self._last_from is not None and checkpoint >= self._last_from and paths:
                self.has_finished = True

        def commit_if_stored() -> None:
            if paths:
                self._durable.commit(checkpoint, manifest)
                self._durable.retire()

        self.storing.submit(lambda: paths.append(self._durable.complete(manifest)), stored)
        self.storing.submit(commit_if_stored, committed)

    def _tell_all(self, message: ToSlot) -> None:
        for slot in self._slots:
            self._tell(slot, message)


def _expect_storage(error: BaseException) -> None:
    if not isinstance(error, DidNotHappen | MayHaveHappened):
        raise SimulationFailed(f"the store or the sink failed: {type(error).__name__}: {error}") from error


def _fail_on_error(error: BaseException) -> None:
    raise SimulationFailed(f"the source could not be listed: {error}") from error
