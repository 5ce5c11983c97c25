"""A job's life on the driver: hears slots, asks the protocol what to do, does it.

One thread calls everything here. It never blocks and makes no thread, socket or clock of its own: blocking work goes
to the backgrounds it is given, waiting is a deadline, so that real time and simulated time drive the same code.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import assert_never

from tidegate.coordinator.bringing_up import BringingUp
from tidegate.coordinator.durable import DurableJob, GenerationBasis
from tidegate.coordinator.ending import Leaving, Restarting
from tidegate.coordinator.heap_watch import HeapWatch
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.launch import Broken, Cancelled, Ended, Impossible, Launcher, LaunchExit, version_difference
from tidegate.coordinator.launching import CurrentLaunch
from tidegate.coordinator.members import Members
from tidegate.coordinator.restores import Restores
from tidegate.coordinator.roster import RosterEvent, SlotGone, SlotJoined, SlotSaid
from tidegate.coordinator.running import Running
from tidegate.coordinator.savepoints import SavepointWish, fail
from tidegate.coordinator.splits import Splits
from tidegate.coordinator.views import JobView
from tidegate.model.clock import Clock
from tidegate.model.errors import (
    Damaged,
    EnvironmentProblem,
    IncompatibleCheckpoint,
    JobFailure,
    SlotLost,
    Superseded,
    TidegateError,
    UserCodeFailure,
)
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.messages import (
    Acknowledge,
    Decline,
    Failed,
    FromSlot,
    InputEnded,
    Progress,
    Ready,
    Run,
    SnapshotsTaken,
)
from tidegate.protocol.checkpoint_facts import CheckpointFacts
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.job import JobEvent, JobState, next_state
from tidegate.protocol.requests import Afterwards
from tidegate.protocol.restart import GiveUp, RestartAfter, Restarts
from tidegate.worker.mailbox import Background

log = logging.getLogger("tidegate")

# A slot says something five times a second. One that has not for so long would not hear of another generation either.
_SILENT_MS = 10_000.0


class Driver:
    """After each round of events, `on_time`; again at `next_deadline_ms` at the latest, until it `is_over`."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        durable: DurableJob,
        launcher: Launcher,
        members: Members,
        storing: Background,
        looking: Background,
        clock: Clock,
        post: Callable[[Callable[[], None]], None],
        secret: bytes,
        versions: dict[str, str],
    ) -> None:
        self._spec = spec
        self._durable = durable
        self._members = members
        self._storing = storing
        self._looking = looking
        self._clock = clock
        self._versions = versions
        self._launch = CurrentLaunch(
            spec, launcher, members, secret=secret, versions=versions, post=post, on_exit=self._on_launch_exit
        )
        self._restarts = Restarts(spec.restart)
        self._restores = Restores(spec)
        self._heap_watch = HeapWatch(spec)
        self._restarting = Restarting(self._launch, members, clock, wanted=spec.slots, start_again=self._start_again)
        self._leaving = Leaving(self._launch, members, clock, query=spec.name)
        self._running = Running(
            spec,
            durable=durable,
            members=members,
            storing=storing,
            clock=clock,
            listener=self,
            heap_watch=self._heap_watch,
        )

        self._state = JobState.STARTING
        self._failure: TidegateError | None = None
        self._is_over = False
        self._last_word_ms: dict[SlotIndex, float] = {}
        self._bringing_up = self._next_bringing_up()
        self._generation: Generation | None = None  # the newest that was begun
        self._started_at = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)

    # -- what happens

    def begin(self) -> None:
        self._bringing_up.begin()

    def on_event(self, event: RosterEvent) -> None:
        match event:
            case SlotJoined(slot=slot) if self._leaving.has_begun:
                self._leaving.on_joined(slot)
            case SlotJoined() | SlotGone() if self._state is JobState.RESTARTING:
                self._restarting.send_away()
            case SlotJoined(slot=slot, introduction=introduction):
                self._heap_watch.on_joined(slot, introduction)
                if (difference := version_difference(self._versions, introduction.versions)) is not None:
                    self._give_up(EnvironmentProblem(difference))
                else:
                    self._bringing_up.on_joined()
            case SlotGone() if not self._launch.is_there:
                return  # of a launch that has exited, whose end was heard before
            case SlotGone(slot, pid, why):
                self._fail(SlotLost(f"Slot {slot} (process {pid}) is gone." if why is None else why))
            case SlotSaid(slot, message):
                self._last_word_ms[slot] = self._clock.monotonic_ms()
                self._on_message(slot, message)
            case unreachable:
                assert_never(unreachable)

    def on_time(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._running.on_time(now_ms)
        self._bringing_up.on_time(now_ms)
        self._restarting.on_time(now_ms)
        self._leaving.on_time(now_ms)

    def ask_to_drain(self, done: threading.Event) -> None:
        """Set once everything that is there now is processed and committed."""
        self._running.ask_to_drain(done)

    def withdraw(self, done: threading.Event) -> None:
        self._running.withdraw(done)

    def stop(self) -> None:
        if self._is_ending():
            return  # it ends already
        self._end_generation(FailureReason.JOB_STOPPED)
        self._failure = None
        self._move(JobEvent.STOP_ASKED)
        self._leave("stopped", JobEvent.SLOTS_GONE)

    def ask_for_savepoint(self, wish: SavepointWish) -> None:
        """With `Afterwards.SUSPEND` the query stops once the savepoint is committed, and goes on if it fails."""
        if wish.afterwards is Afterwards.SUSPEND:
            if self._state not in (JobState.RUNNING, JobState.FINISHING) or self._is_ending():
                fail(wish.answer, f"the query is {self._state.value}")
                return
            self._move(JobEvent.SAVEPOINT_ASKED)
        self._running.ask_for_savepoint(wish)

    def crash(self, failure: TidegateError) -> None:
        """Whoever drives it cannot go on: failed at once, without waiting for the slots."""
        self._failure = failure
        self._state = JobState.FAILED
        self._clean_up()

    def release_waiting(self) -> None:
        """Nothing more will be drained: whoever waits for that is let go."""
        self._running.release_waiting()

    # -- questions

    @property
    def is_leaving(self) -> bool:
        """The slots are told to leave for good; the final state follows when they are gone."""
        return self._leaving.has_begun

    @property
    def is_over(self) -> bool:
        """In a final state, with nothing left to do."""
        return self._is_over

    @property
    def failure(self) -> TidegateError | None:
        """What the job has ended with."""
        return self._failure if self._state is JobState.FAILED else None

    def next_deadline_ms(self) -> float:
        """By the clock's monotonic time; infinite if only an event can change anything."""
        parts = (self._running, self._bringing_up, self._restarting, self._leaving)
        return min(part.next_deadline_ms() for part in parts)

    def view(self) -> JobView:
        return JobView(
            state=self._state.value,
            generation=self._generation or Generation(0),
            checkpoints=self._running.checkpoint_views(),
            tasks=self._running.task_views(),
            last_failure=None if self._failure is None else str(self._failure),
            committed_checkpoints=self._running.committed,
            slot_pids=self._members.pids(),
            started_at=self._started_at,
            first_row_after_ms=self._running.first_row_after_ms,
            statistics=self._running.statistics(),
            restore=self._restores.newest,
            dropped=self._restores.dropped,
            warnings=self._heap_watch.warnings,
            heap_state_share=self._heap_watch.largest_share,
        )

    def facts(self) -> tuple[CheckpointFacts, ...]:
        """What is known of the newest checkpoints, newest first."""
        return self._running.facts()

    def ended_facts(self) -> tuple[CheckpointFacts, ...]:
        """The same without those under way, which cost more to put together."""
        return self._running.ended_facts()

    # -- from the generation that comes up

    def on_generation_begun(self, generation: Generation) -> None:
        self._generation = generation

    def on_all_ready(self, basis: GenerationBasis, splits: Splits, ready: Mapping[SlotIndex, Ready]) -> None:
        self._restores.on_restored(basis, ready.values())
        self._running.begin(basis, splits)
        self._move(JobEvent.SLOTS_READY)
        self._members.tell_all(Run(basis.generation, self._running.next_checkpoint))

    # -- from the generation that runs

    def on_input_ended(self) -> None:
        self._move(JobEvent.INPUT_ENDED)

    def on_last_committed(self) -> None:
        if self._is_ending() or not self._has_generation():
            return  # it has failed beside it, and ends when what follows has
        # Closed first: another checkpoint that completes while the slots leave must not end the job once more.
        self._end_generation(FailureReason.JOB_STOPPED)
        self._leave("the input has ended", JobEvent.LAST_COMMITTED)

    def on_suspending_committed(self) -> None:
        if self._is_ending():
            return
        if not self._has_generation():
            self.stop()  # it has failed beside it: what was asked for is done
            return
        self._end_generation(FailureReason.JOB_STOPPED)
        self._failure = None
        self._move(JobEvent.SAVEPOINT_COMMITTED)
        self._leave("stopped with a savepoint", JobEvent.SLOTS_GONE)

    def on_suspending_failed(self) -> None:
        if self._has_generation() and self._state in (JobState.SUSPENDING, JobState.FINISHING):
            self._move(JobEvent.SAVEPOINT_FAILED)

    def on_generation_failed(self, failure: TidegateError) -> None:
        self._fail(failure)

    # -- inside

    def _on_message(self, slot: SlotIndex, message: FromSlot) -> None:
        if message.generation != self._bringing_up.generation or not self._has_generation():
            return
        match message:
            case Ready():
                self._bringing_up.on_ready(slot, message)
            case Progress() | InputEnded() | SnapshotsTaken() | Acknowledge() | Decline():
                self._running.on_message(slot, message)
            case Failed(is_damage=True, message=text) if self._bringing_up.restoring is not None:
                self._go_back(self._bringing_up.restoring, text)
            case Failed(is_damage=True, message=text):
                self._give_up(Damaged(text))
            case Failed(is_final=True, message=text):
                self._give_up(EnvironmentProblem(text))
            case Failed(is_user_code=is_user_code, message=text, traceback=traceback):
                log.warning("Slot %d of query %r failed:\n%s", slot, self._spec.name, traceback)
                self._fail(UserCodeFailure(text) if is_user_code else JobFailure(text))
            case unreachable:
                assert_never(unreachable)

    # -- failing and starting again

    def _fail(self, failure: TidegateError) -> None:
        """The generation is over; the strategy says whether there is another one."""
        if not self._has_generation():
            return
        ran_for_ms = self._bringing_up.ran_for_ms()
        is_a_slot_silent = self._is_a_slot_silent()
        self._failure = failure
        self._end_generation(FailureReason.JOB_RESTARTED, str(failure))
        self._move(JobEvent.FAILURE)
        if isinstance(failure, Superseded | EnvironmentProblem | IncompatibleCheckpoint | Damaged):
            self._fail_for_good()
            return
        match self._restarts.on_failure(ran_for_ms=ran_for_ms):
            case RestartAfter(delay_ms):
                self._restarting.begin(delay_ms=delay_ms, in_place=not is_a_slot_silent)
            case GiveUp():
                self._fail_for_good()

    def _is_a_slot_silent(self) -> bool:
        """It is in a call that does not return, or still restores: it would not hear of the next generation either."""
        deployed_ms = self._bringing_up.deployed_ms
        if deployed_ms is None:
            return False
        heard_ms = (self._last_word_ms.get(SlotIndex(slot), deployed_ms) for slot in range(self._spec.slots))
        return self._clock.monotonic_ms() - max(deployed_ms, min(heard_ms)) > _SILENT_MS

    def _go_back(self, damaged: CheckpointId, damage: str) -> None:
        """To an older checkpoint, if there is one: slots found damage that the driver had not looked for."""
        self._durable.note_damage(damaged, damage)
        self._failure = Damaged(damage)
        self._end_generation(FailureReason.JOB_RESTARTED, damage)
        self._move(JobEvent.FAILURE)
        # Whatever the strategy: nothing was processed yet, and each checkpoint is found damaged once at the most.
        self._restarting.begin(delay_ms=0.0)

    def _give_up(self, failure: TidegateError) -> None:
        if not self._has_generation():
            return
        self._failure = failure
        self._end_generation(FailureReason.JOB_STOPPED)
        self._move(JobEvent.FAILURE)
        self._fail_for_good()

    def _fail_for_good(self) -> None:
        self._leave("the query failed", JobEvent.GAVE_UP)

    def _start_again(self, slots: int) -> None:
        log.warning("Query %r starts again after a failure: %s", self._spec.name, self._failure)
        if not self._launch.is_there and slots != self._spec.slots:
            log.warning("Query %r has room for %d of its slots now.", self._spec.name, slots)
            self._spec = self._spec.with_slots(slots)
            self._launch.use(self._spec)
            self._durable.use(self._spec.slot_settings.plan)
        self._move(JobEvent.GENERATION_STARTED)
        self._bringing_up = self._next_bringing_up()
        self._running.begin_again(self._spec)
        self._bringing_up.begin()

    def _next_bringing_up(self) -> BringingUp:
        return BringingUp(
            self._spec,
            durable=self._durable,
            launch=self._launch,
            members=self._members,
            storing=self._storing,
            looking=self._looking,
            clock=self._clock,
            listener=self,
        )

    def _end_generation(self, reason: FailureReason, detail: str | None = None) -> None:
        self._bringing_up.close()
        self._running.end(reason, detail)

    def _on_launch_exit(self, exit: LaunchExit) -> None:
        if self._leaving.has_begun:
            self._leaving.on_launch_exit()
            return
        match exit:
            case Cancelled():
                self.stop()
            case _ if self._state is JobState.RESTARTING:
                self._restarting.on_launch_exit()
            case Ended():
                self._fail(SlotLost("The slots returned to Spark before the query ended."))
            case Broken(message):
                self._fail(SlotLost(f"The Spark job that carries the slots failed: {message}"))
            case Impossible(message):
                self._give_up(EnvironmentProblem(message))
            case unreachable:
                assert_never(unreachable)

    # -- ending

    def _leave(self, reason: str, then: JobEvent) -> None:
        """Let the slots go for good; `then` is the move into the final state, made when they are gone."""
        self._restarting.close()
        self._leaving.begin(reason, lambda: self._end(then))

    def _end(self, event: JobEvent) -> None:
        self._move(event)
        self._clean_up()

    def _clean_up(self) -> None:
        """Remove what no checkpoint holds, unless somebody may still write there: slots, or a driver that took over."""
        # Slots that would not go are asked once more; nobody is left to wait for them.
        self._launch.cancel()
        if self._generation is None or self._launch.is_there or isinstance(self._failure, Superseded):
            self._is_over = True
            return
        generation = self._generation

        was_stopped = self._state is JobState.STOPPED

        def clean_up() -> None:
            if was_stopped:
                self._durable.on_cancelled()
            self._durable.clean_up(generation)

        # Behind what was begun: a checkpoint in the log is committed before the query is over. And first of all this:
        # committed rows must not stay hidden because a file could not be removed.
        self._storing.submit(self._durable.publish_held, self._on_published)
        self._storing.submit(clean_up, self._on_cleaned_up)

    def _on_published(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, Superseded):
            log.warning(
                "Query %r has committed rows that no reader sees yet: %s Started again with the same "
                "checkpointLocation, it publishes them.", self._spec.name, error,
            )  # fmt: skip

    def _on_cleaned_up(self, error: BaseException | None) -> None:
        if isinstance(error, Superseded):
            # Whatever it ended with: who took over moves and removes what this one was about to use.
            self._failure = error
        elif error is not None:
            log.warning("Query %r left unfinished files behind: %s", self._spec.name, error)
        self._is_over = True

    # -- the state

    def _is_ending(self) -> bool:
        return self._leaving.has_begun or self._state.is_final

    def _has_generation(self) -> bool:
        """One is being brought up or runs: only then can it fail."""
        return self._state is not JobState.RESTARTING and not self._is_ending()

    def _move(self, event: JobEvent) -> None:
        self._state = next_state(self._state, event)
