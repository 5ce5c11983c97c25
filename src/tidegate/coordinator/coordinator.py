"""The driver's loop: hears slots, asks the protocol what to do, does it. One thread owns everything here.

Blocking work (the store, the sink's commits, listing folders) runs on background threads that leave notes; other
threads reach the loop through `post` and read it through `view`.
"""

import logging
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import assert_never

from tidegate.connectors.registry import open_sink, open_source
from tidegate.coordinator.checkpointing import Checkpointing, as_failure
from tidegate.coordinator.draining import Draining
from tidegate.coordinator.durable import DurableJob, GenerationBasis
from tidegate.coordinator.history import History
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.launch import (
    Broken,
    Cancelled,
    Ended,
    Impossible,
    Launched,
    Launcher,
    LaunchExit,
    slots_missing,
    version_difference,
)
from tidegate.coordinator.roster import Roster, RosterEvent, SlotGone, SlotJoined, SlotSaid
from tidegate.coordinator.splits import Splits
from tidegate.coordinator.views import JobView, task_views
from tidegate.model.clock import Clock, SystemClock
from tidegate.model.errors import (
    Damaged,
    EnvironmentProblem,
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
    Deploy,
    Failed,
    FromSlot,
    InputEnded,
    Leave,
    Progress,
    Ready,
    Run,
)
from tidegate.protocol.checkpoints import Checkpoints, FailureReason
from tidegate.protocol.job import JobEvent, JobState, next_state
from tidegate.protocol.restart import GiveUp, RestartAfter, Restarts
from tidegate.storage.store import Store
from tidegate.worker.mailbox import BackgroundThread, Mailbox
from tidegate.worker.main import SlotOrder

log = logging.getLogger("tidegate")

# Slots that have no core by then will not get one.
_SLOTS_TIMEOUT_MS = 15_000.0
# Slots that run have to import and connect, on a busy machine too; a restarted launch first waits for the old one.
_SLOW_SLOTS_TIMEOUT_MS = 60_000.0
# Told to leave, slots return within a step; then Spark may be asked to end them.
_LEAVE_TIMEOUT_MS = 10_000.0
_LONGEST_WAIT_MS = 1_000.0


class Coordinator:
    def __init__(self, spec: JobSpec, store: Store, launcher: Launcher, *, versions: dict[str, str]) -> None:
        self._spec = spec
        self._launcher = launcher
        self._versions = versions
        self._clock: Clock = SystemClock()
        self._secret = secrets.token_bytes(32)
        plan = spec.slot_settings.plan
        self._plan = plan
        sink = next(vertex.sink for vertex in plan.vertices if vertex.sink is not None)
        self._sink = open_sink(sink)
        self._durable = DurableJob(
            store,
            self._sink.committer(),
            fingerprint=spec.fingerprint,
            parallelism=plan.parallelism,
            max_parallelism=plan.max_parallelism,
            retained=spec.retained,
        )
        self._mailbox = Mailbox()
        self._storing = BackgroundThread(self._mailbox, name="tidegate-storing")
        self._looking = BackgroundThread(self._mailbox, name="tidegate-sources")
        self._roster = Roster(
            job=spec.job_id,
            slots=plan.parallelism,
            secret=self._secret,
            bind_host=spec.bind_host,
            clock=self._clock,
            mailbox=self._mailbox,
        )
        self._thread = threading.Thread(target=self._serve, name=f"tidegate-{spec.name}", daemon=True)
        self._finished = threading.Event()
        self._finish_lock = threading.Lock()
        self._on_finish: list[Callable[[], None]] | None = []  # None once they were called

        self._state = JobState.STARTING
        self._restarts = Restarts(spec.restart)
        self._history = History()
        self._basis: GenerationBasis | None = None
        self._checkpoints: Checkpointing | None = None
        self._splits: Splits | None = None
        self._draining = Draining()
        self._launch = 0
        self._deployed: Generation | None = None
        self._launched: Launched | None = None
        self._ready: set[SlotIndex] = set()
        self._ended: set[SlotIndex] = set()
        self._progress: dict[SlotIndex, Progress] = {}
        self._next_checkpoint = CheckpointId(1)
        self._last_from: CheckpointId | None = None
        self._committed = 0
        self._generation_since_ms = 0.0
        self._slots_deadline_ms: float | None = None
        self._were_slots_slow = False
        self._is_leaving = False
        self._restart_at_ms: float | None = None
        self._is_restart_due = False
        self._leave_deadline_ms: float | None = None
        self._failure: TidegateError | None = None
        self._started_at_ms = self._clock.monotonic_ms()
        self._started_at = datetime.now(UTC)
        self._first_row_after_ms: float | None = None
        self._view = JobView(state=self._state.value, generation=0, started_at=self._started_at)

    # -- for other threads

    def start(self) -> None:
        """Checks what can be checked, in the caller's thread, then starts the loop."""
        try:
            self._sink.prepare_location()
            for vertex in self._plan.vertices:
                if vertex.source is not None:
                    open_source(vertex.source).enumerator(
                        parallelism=self._plan.parallelism, available_now=self._spec.available_now
                    )
            self._durable.check_compatible()
        except BaseException:
            self._close()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Asks for the end; `wait` for it."""
        self.post(self._stop)

    def wait(self, timeout_s: float | None) -> bool:
        return self._finished.wait(timeout_s)

    def view(self) -> JobView:
        return self._view

    def failure(self) -> TidegateError | None:
        return self._failure if self._finished.is_set() and self._state is JobState.FAILED else None

    def process_all_available(self) -> threading.Event:
        """Set once everything that is there now is processed and committed, or the job has ended."""
        done = threading.Event()
        self.post(lambda: self._draining.ask(done))
        return done

    def on_finish(self, call: Callable[[], None]) -> None:
        """Called once the job has ended, at once if it has."""
        with self._finish_lock:
            if self._on_finish is not None:
                self._on_finish.append(call)
                return
        call()

    def post(self, note: Callable[[], None]) -> None:
        self._mailbox.post(note)

    # -- the loop

    def _serve(self) -> None:
        try:
            self._begin_generation()
            while not self._state.is_final:
                events = self._roster.poll(self._wait_ms())
                for note in self._mailbox.take():
                    note()
                for event in events:
                    self._on_event(event)
                self._on_time(self._clock.monotonic_ms())
                self._publish()
        except BaseException as error:
            # A bug in the loop itself: whoever waits must hear of it.
            log.exception("The coordinator of query %r failed.", self._spec.name)
            self._failure = JobFailure(f"The coordinator failed: {type(error).__name__}: {error}")
            self._state = JobState.FAILED
        finally:
            try:
                self._clean_up()
                self._close()
            finally:
                self._announce_end()

    def _announce_end(self) -> None:
        self._publish()
        with self._finish_lock:
            calls, self._on_finish = self._on_finish, None
        # Before anybody hears of the end: what the query held is then free for the next one.
        for call in calls or ():
            call()
        self._finished.set()
        self._draining.release_all()

    def _clean_up(self) -> None:
        """Unless another driver has taken over: then what lies there may be its."""
        if self._basis is None or self._launched is not None or isinstance(self._failure, Superseded):
            return
        generation = self._basis.generation

        def then(error: BaseException | None) -> None:
            if error is not None:
                log.warning("Query %r left unfinished files behind: %s", self._spec.name, error)

        self._storing.submit(lambda: self._durable.clean_up(generation), then)
        # What was begun is brought to its end: a checkpoint in the log is committed before the query is over.
        self._storing.finish()
        for note in self._mailbox.take():
            note()

    def _close(self) -> None:
        if self._launched is not None:
            self._launched.cancel()
        self._storing.close()
        self._looking.close()
        self._roster.close()
        self._mailbox.close()

    def _wait_ms(self) -> float:
        now_ms = self._clock.monotonic_ms()
        deadlines = [now_ms + _LONGEST_WAIT_MS, self._restart_at_ms, self._slots_deadline_ms, self._leave_deadline_ms]
        if self._state in (JobState.RUNNING, JobState.FINISHING):
            assert self._checkpoints is not None and self._splits is not None
            deadlines += [self._checkpoints.next_deadline_ms(), self._splits.next_deadline_ms()]
        return min(deadline for deadline in deadlines if deadline is not None) - now_ms

    def _on_time(self, now_ms: float) -> None:
        if self._state in (JobState.RUNNING, JobState.FINISHING):
            assert self._checkpoints is not None and self._splits is not None
            self._splits.on_time(now_ms)
            self._checkpoints.on_time()
            # The line before may have ended the generation.
            if self._checkpoints is not None and self._draining.wants_checkpoint(
                self._progress, self._splits, slots=self._plan.parallelism
            ):
                self._draining.checkpoint_from = self._checkpoints.request()
        if self._slots_deadline_ms is not None and now_ms >= self._slots_deadline_ms:
            self._on_slots_missing()
        if self._restart_at_ms is not None and now_ms >= self._restart_at_ms:
            self._restart()
        if self._leave_deadline_ms is not None and now_ms >= self._leave_deadline_ms and self._launched is not None:
            self._leave_deadline_ms = None
            self._launched.cancel()

    # -- bringing up a generation

    def _begin_generation(self) -> None:
        bases: list[GenerationBasis] = []
        splits: list[Splits] = []

        def work() -> None:
            basis = self._durable.start_generation(at_ms=self._clock.wall_ms())
            opened = Splits(
                generation=basis.generation,
                parallelism=self._plan.parallelism,
                background=self._looking,
                tell=self._roster.tell,
                on_error=self._on_splits_failed,
            )
            opened.open(self._plan, basis.source_states, available_now=self._spec.available_now)
            bases.append(basis)
            splits.append(opened)

        def then(error: BaseException | None) -> None:
            if self._state is not JobState.STARTING:
                return  # stopped meanwhile
            if error is not None:
                self._fail(as_failure(error, "The next generation could not be started"))
                return
            self._basis, self._splits = bases[0], splits[0]
            self._next_checkpoint = max(self._next_checkpoint, self._basis.next_checkpoint)
            self._bring_up_slots()

        # From here on, so that one that never came up does not count as one that ran well for long.
        self._generation_since_ms = self._clock.monotonic_ms()
        self._ready.clear()
        self._ended.clear()
        self._progress.clear()
        self._last_from = None
        self._draining.begin_again()
        self._storing.submit(work, then)

    def _bring_up_slots(self) -> None:
        if self._launched is not None and len(self._roster.members()) == self._plan.parallelism:
            self._deploy()  # in place: the processes are all there
            return
        self._launch += 1
        self._were_slots_slow = False
        self._roster.expect_launch(self._launch)
        is_first = self._launch == 1
        timeout_ms = _SLOTS_TIMEOUT_MS if is_first else _SLOW_SLOTS_TIMEOUT_MS
        self._slots_deadline_ms = self._clock.monotonic_ms() + timeout_ms
        order = SlotOrder(
            job=self._spec.job_id,
            launch=self._launch,
            coordinator_host=self._spec.driver_host,
            coordinator_port=self._roster.port,
            secret=self._secret,
            settings=self._spec.slot_settings,
            bind_host=self._spec.slot_bind_host,
            advertised_host=self._spec.advertised_host,
            ports=self._spec.ports,
            versions=self._versions,
        )
        launch = self._launch

        def on_exit(exit: LaunchExit) -> None:
            self.post(lambda: self._on_launch_exit(launch, exit))

        self._launched = self._launcher.launch(order, slots=self._plan.parallelism, on_exit=on_exit)

    def _deploy(self) -> None:
        assert self._basis is not None
        if self._deployed == self._basis.generation:
            return  # several slots that join in one turn are all members when the first of them is looked at
        self._deployed = self._basis.generation
        self._generation_since_ms = self._clock.monotonic_ms()
        self._slots_deadline_ms = self._generation_since_ms + _SLOW_SLOTS_TIMEOUT_MS
        self._roster.tell_all(Deploy(self._basis.generation, self._roster.addresses(), self._basis.restore_manifest))

    def _on_all_ready(self) -> None:
        assert self._basis is not None
        self._slots_deadline_ms = None
        self._checkpoints = Checkpointing(
            generation=self._basis.generation,
            plan=self._plan,
            fingerprint=self._spec.fingerprint,
            machine=Checkpoints(
                self._spec.checkpoints,
                slots=[SlotIndex(i) for i in range(self._plan.parallelism)],
                next_id=self._next_checkpoint,
                now_ms=self._clock.monotonic_ms(),
            ),
            durable=self._durable,
            storing=self._storing,
            clock=self._clock,
            history=self._history,
            tell_all=self._roster.tell_all,
            listener=self,
        )
        self._move(JobEvent.SLOTS_READY)
        self._roster.tell_all(Run(self._basis.generation))

    def _on_slots_missing(self) -> None:
        wanted = self._plan.parallelism
        running = None if self._launched is None else self._launched.running_slots()
        patience_ms = _SLOW_SLOTS_TIMEOUT_MS - _SLOTS_TIMEOUT_MS
        if running == wanted and not self._were_slots_slow:
            self._were_slots_slow = True
            self._slots_deadline_ms = self._clock.monotonic_ms() + patience_ms
            return
        self._slots_deadline_ms = None
        problem = slots_missing(
            here=len(self._roster.members()),
            wanted=wanted,
            running=running,
            driver=f"{self._spec.driver_host}:{self._roster.port}",
        )
        if self._launch == 1:
            self._give_up(problem)
        else:
            self._fail(SlotLost(str(problem)))

    # -- what happens

    def _on_event(self, event: RosterEvent) -> None:
        match event:
            case SlotJoined() | SlotGone() if self._state is JobState.RESTARTING:
                # Not in place any more: the sooner all are gone, the sooner they can be started again.
                self._roster.tell_all(Leave("another slot is gone"))
            case SlotJoined(introduction=introduction):
                if (difference := version_difference(self._versions, introduction.versions)) is not None:
                    self._give_up(EnvironmentProblem(difference))
                elif self._state is JobState.STARTING and len(self._roster.members()) == self._plan.parallelism:
                    self._deploy()
            case SlotGone(slot, pid):
                self._fail(SlotLost(f"Slot {slot} (process {pid}) is gone."))
            case SlotSaid(slot, message):
                self._on_message(slot, message)
            case unreachable:
                assert_never(unreachable)

    def _on_message(self, slot: SlotIndex, message: FromSlot) -> None:
        if self._basis is None or message.generation != self._basis.generation or self._checkpoints_over():
            return
        match message:
            case Ready():
                self._ready.add(slot)
                if len(self._ready) == self._plan.parallelism:
                    self._on_all_ready()
            case Progress():
                self._progress[slot] = message
                self._draining.on_progress(slot, message)
                if self._first_row_after_ms is None and any(t.rows_in for t in message.tasks if t.task.vertex == 0):
                    self._first_row_after_ms = self._clock.monotonic_ms() - self._started_at_ms
            case InputEnded():
                self._ended.add(slot)
                if len(self._ended) == self._plan.parallelism:
                    self._take_last_checkpoint()
            case Acknowledge():
                if self._checkpoints is not None:
                    self._checkpoints.on_acknowledge(slot, message)
            case Decline():
                if self._checkpoints is not None:
                    self._checkpoints.on_decline(slot, message)
            case Failed(is_final=True, message=text):
                self._give_up(EnvironmentProblem(text))
            case Failed(is_user_code=is_user_code, message=text, traceback=traceback):
                log.warning("Slot %d of query %r failed:\n%s", slot, self._spec.name, traceback)
                self._fail(UserCodeFailure(text) if is_user_code else JobFailure(text))
            case unreachable:
                assert_never(unreachable)

    def _checkpoints_over(self) -> bool:
        return self._state in (JobState.RESTARTING, JobState.STOPPING) or self._state.is_final

    def _take_last_checkpoint(self) -> None:
        assert self._checkpoints is not None
        self._move(JobEvent.INPUT_ENDED)
        self._last_from = self._checkpoints.request()

    def _on_splits_failed(self, error: BaseException) -> None:
        if self._state in (JobState.RUNNING, JobState.FINISHING):
            self._fail(as_failure(error, "A source could not be listed"))

    # -- checkpoints

    def on_checkpoint_committed(self, checkpoint: CheckpointId) -> None:
        self._committed += 1
        self._draining.on_committed(checkpoint)
        if self._last_from is not None and checkpoint >= self._last_from:
            self._finish()

    def on_checkpointing_failed(self, failure: TidegateError) -> None:
        self._fail(failure)

    def _finish(self) -> None:
        # Closed first: another checkpoint that completes while the slots leave must not end the job once more.
        self._end_generation(FailureReason.JOB_STOPPED)
        self._roster.tell_all(Leave("the input has ended"))
        self._await_slots()
        self._move(JobEvent.LAST_COMMITTED)

    # -- failing, stopping

    def _fail(self, failure: TidegateError) -> None:
        """The generation is over; the strategy says whether there is another one."""
        if self._is_leaving or self._state not in (JobState.STARTING, JobState.RUNNING, JobState.FINISHING):
            return
        ran_for_ms = self._clock.monotonic_ms() - self._generation_since_ms
        self._failure = failure
        self._end_generation(FailureReason.JOB_RESTARTED)
        self._move(JobEvent.FAILURE)
        if isinstance(failure, Superseded | EnvironmentProblem | Damaged):
            self._fail_for_good()
            return
        match self._restarts.on_failure(ran_for_ms=ran_for_ms):
            case RestartAfter(delay_ms):
                self._restart_at_ms = self._clock.monotonic_ms() + delay_ms
                if len(self._roster.members()) < self._plan.parallelism:
                    self._roster.tell_all(Leave("another slot is gone"))
            case GiveUp():
                self._fail_for_good()

    def _give_up(self, failure: TidegateError) -> None:
        self._failure = failure
        self._end_generation(FailureReason.JOB_STOPPED)
        if self._state is not JobState.RESTARTING:
            self._move(JobEvent.FAILURE)
        self._fail_for_good()

    def _fail_for_good(self) -> None:
        self._roster.tell_all(Leave("the query failed"))
        self._await_slots()
        self._move(JobEvent.GAVE_UP)

    def _restart(self) -> None:
        """Once the delay is over: in place if every process is alive, else when the old launch is gone."""
        if self._launched is not None and len(self._roster.members()) < self._plan.parallelism:
            self._restart_at_ms = None
            self._is_restart_due = True
            self._leave_deadline_ms = self._clock.monotonic_ms() + _LEAVE_TIMEOUT_MS
            return
        self._restart_at_ms = None
        self._is_restart_due = False
        self._leave_deadline_ms = None
        log.warning("Query %r starts again after a failure: %s", self._spec.name, self._failure)
        self._move(JobEvent.GENERATION_STARTED)
        self._begin_generation()

    def _stop(self) -> None:
        if self._is_leaving or self._state.is_final:
            return  # it ends already
        self._end_generation(FailureReason.JOB_STOPPED)
        self._failure = None
        self._restart_at_ms = None
        self._move(JobEvent.STOP_ASKED)
        self._roster.tell_all(Leave("stopped"))
        self._await_slots()
        self._move(JobEvent.SLOTS_GONE)

    def _end_generation(self, reason: FailureReason) -> None:
        self._slots_deadline_ms = None
        if self._splits is not None:
            self._splits.close()
        if self._checkpoints is not None:
            checkpoints, self._checkpoints = self._checkpoints, None
            self._next_checkpoint = checkpoints.machine.next_id
            checkpoints.close(reason)

    def _await_slots(self) -> None:
        """Until the launch has ended: nothing may be left running when the query says it is over."""
        self._is_leaving = True
        deadline_ms = self._clock.monotonic_ms() + _LEAVE_TIMEOUT_MS
        was_cancelled = False
        while self._launched is not None:
            now_ms = self._clock.monotonic_ms()
            if now_ms >= deadline_ms:
                if was_cancelled:
                    log.error("Query %r: Spark did not end the slots.", self._spec.name)
                    return
                self._launched.cancel()
                was_cancelled, deadline_ms = True, now_ms + _LEAVE_TIMEOUT_MS
            for event in self._roster.poll(min(100.0, deadline_ms - now_ms)):
                if isinstance(event, SlotJoined):  # it was on its way when the others were told
                    self._roster.tell(event.slot, Leave("the query ends"))
            for note in self._mailbox.take():
                note()

    def _on_launch_exit(self, launch: int, exit: LaunchExit) -> None:
        if launch != self._launch:
            return
        self._launched = None
        self._roster.dismiss()
        if self._is_leaving:
            return
        if self._state not in (JobState.STARTING, JobState.RUNNING, JobState.FINISHING):
            if self._state is JobState.RESTARTING and isinstance(exit, Cancelled):
                self._stop()
            elif self._is_restart_due:
                self._restart()
            return
        match exit:
            case Cancelled():
                self._stop()
            case Ended():
                self._fail(SlotLost("The slots returned to Spark before the query ended."))
            case Broken(message):
                self._fail(SlotLost(f"The Spark job that carries the slots failed: {message}"))
            case Impossible(message):
                self._give_up(EnvironmentProblem(message))
            case unreachable:
                assert_never(unreachable)

    # -- what others see

    def _move(self, event: JobEvent) -> None:
        self._state = next_state(self._state, event)
        self._publish()

    def _publish(self) -> None:
        in_progress = () if self._checkpoints is None else self._checkpoints.in_progress()
        self._view = JobView(
            state=self._state.value,
            generation=Generation(0) if self._basis is None else self._basis.generation,
            checkpoints=in_progress + self._history.views(),
            tasks=task_views(self._plan, self._progress),
            last_failure=None if self._failure is None else str(self._failure),
            committed_checkpoints=self._committed,
            slot_pids=self._roster.pids(),
            started_at=self._started_at,
            first_row_after_ms=self._first_row_after_ms,
        )
