"""Runs a job's driver in real time: its thread, its background threads, the slots' sockets.

Decides nothing about the job. Other threads reach the driver through `post` and read it through `view`.
"""

import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future

from tidegate.connectors.registry import open_sink, open_source
from tidegate.coordinator.driver import Driver
from tidegate.coordinator.durable import DurableJob, DurableSettings
from tidegate.coordinator.failure_notes import FailureNotes
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.launch import Launcher
from tidegate.coordinator.roster import Roster
from tidegate.coordinator.savepoints import SavepointWish
from tidegate.coordinator.views import JobView
from tidegate.model.clock import Clock, SystemClock
from tidegate.model.errors import JobFailure, TidegateError
from tidegate.protocol.checkpoint_facts import CheckpointFacts
from tidegate.protocol.job import JobState
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.storage.access import StoreAccess
from tidegate.storage.store import Store, open_place
from tidegate.worker.mailbox import BackgroundThread, Mailbox

log = logging.getLogger("tidegate")

_LONGEST_WAIT_MS = 1_000.0
# How often whoever waits for an answer of the loop looks whether it has ended.
_LOOK_S = 0.2
# A look at a source that takes longer than this when the job ends is not waited for.
_PATIENCE_WITH_SOURCES_S = 10.0
# A query that ends is looked at more often: somebody waits for it.
_LONGEST_WAIT_WHILE_LEAVING_MS = 100.0


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
            plan,
            DurableSettings(
                fingerprint=spec.fingerprint,
                keep=spec.keep,
                restore_from=spec.restore_from,
                rollback=spec.rollback,
                not_restored=spec.not_restored,
                restore_mode=spec.restore_mode,
                on_cancel=spec.on_cancel,
                without_captured_rows=spec.without_captured_rows,
                state_backend=spec.slot_settings.state_backend,
                run=spec.run,
            ),
            open_location=lambda location: open_place(location, self.access),
            wall_ms=self._clock.wall_ms,
        )
        self._mailbox = Mailbox()
        self._storing = BackgroundThread(self._mailbox, name="tidegate-storing")
        self._failure_notes = FailureNotes(store, self._storing, self._clock)
        self._looking = BackgroundThread(self._mailbox, name="tidegate-sources")
        self._roster = Roster(
            job=spec.job_id,
            slots=plan.parallelism,
            secret=self._secret,
            bind_host=spec.bind_host,
            clock=self._clock,
            mailbox=self._mailbox,
        )
        self._driver: Driver  # from `start` on
        self._view = JobView(state=JobState.STARTING.value, generation=0)
        self._thread = threading.Thread(target=self._serve, name=f"tidegate-{spec.name}", daemon=True)
        self._finished = threading.Event()
        self._finish_lock = threading.Lock()
        self._on_finish: list[Callable[[], None]] | None = []  # None once they were called

    # -- for other threads

    def start(self) -> None:
        """Checks what can be checked, in the caller's thread, then starts the loop."""
        try:
            self._driver = self._make_driver()
            self._publish()
            self._sink.prepare_location()
            for vertex in self._plan.vertices:
                if vertex.source is not None:
                    open_source(vertex.source).enumerator(
                        parallelism=self._plan.parallelism_of(vertex.id), available_now=self._spec.available_now
                    )
            self._durable.check_compatible()
        except BaseException:
            self._close()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Asks for the end; `wait` for it."""
        self.post(lambda: self._driver.stop())

    @property
    def access(self) -> StoreAccess:
        """What every location of this job is opened with."""
        return self._spec.slot_settings.access

    def is_calling(self) -> bool:
        """Whether the caller is the job itself, by a user's function: waiting for it would be waiting for oneself."""
        return self._storing.is_current() or self._looking.is_current() or threading.current_thread() is self._thread

    def wait(self, timeout_s: float | None) -> bool:
        return self._finished.wait(timeout_s)

    def view(self) -> JobView:
        return self._view

    def failure(self) -> TidegateError | None:
        return self._driver.failure if self._finished.is_set() else None

    def process_all_available(self) -> threading.Event:
        """Set once everything that is there now is processed and committed, or the job has ended."""
        done = threading.Event()
        self.post(lambda: self._driver.ask_to_drain(done))
        return done

    def withdraw(self, done: threading.Event) -> None:
        """Nobody waits for what `process_all_available` gave any more."""
        self.post(lambda: self._driver.withdraw(done))

    def savepoint(
        self, folder: str, *, alignment: SavepointAlignment, afterwards: Afterwards = Afterwards.GO_ON
    ) -> "Future[str]":
        """The path of the savepoint, once it is committed; a failure if it cannot be taken."""
        wish = SavepointWish(folder, alignment, afterwards)
        self.post(lambda: self._driver.ask_for_savepoint(wish))
        return wish.answer

    def checkpoint_facts(self) -> tuple[CheckpointFacts, ...]:
        """What is known of the newest checkpoints, newest first; asks the loop, and waits for its answer."""
        answer: Future[tuple[CheckpointFacts, ...]] = Future()
        self.post(lambda: answer.set_result(self._driver.facts()))
        while not self._finished.wait(0):
            try:
                return answer.result(timeout=_LOOK_S)
            except TimeoutError:
                continue
        return self._driver.facts()

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
            self._driver.begin()
            while not self._driver.is_over:
                self._take_turn()
            self._failure_notes.finish(self._driver.ended_facts())
        except BaseException as error:
            # A bug in the loop itself: whoever waits must hear of it.
            log.exception("The coordinator of query %r failed.", self._spec.name)
            self._driver.crash(JobFailure(f"The coordinator failed: {type(error).__name__}: {error}"))
            self._finish_storing()
        finally:
            try:
                self._close()
            finally:
                self._announce_end()

    def _take_turn(self) -> None:
        events = self._roster.poll(self._wait_ms())
        for note in self._mailbox.take():
            note()
        for event in events:
            self._driver.on_event(event)
        self._driver.on_time()
        self._publish()
        self._failure_notes.look(self._driver.ended_facts())

    def _wait_ms(self) -> float:
        longest_ms = _LONGEST_WAIT_WHILE_LEAVING_MS if self._is_leaving else _LONGEST_WAIT_MS
        return min(longest_ms, self._driver.next_deadline_ms() - self._clock.monotonic_ms())

    @property
    def _is_leaving(self) -> bool:
        return self._driver.is_leaving

    def _publish(self) -> None:
        self._view = self._driver.view()

    # -- the end

    def _finish_storing(self) -> None:
        """Without the loop, which has failed: what was begun is brought to its end."""
        if self._driver.is_over:
            return
        self._storing.finish()
        for note in self._mailbox.take():
            note()

    def _close(self) -> None:
        self._storing.close()
        # Not dropping anything: sources are closed there. A source's own code may never come back.
        if not self._looking.finish(_PATIENCE_WITH_SOURCES_S):
            log.warning(
                "Query %r ends without a source that has not answered for %.0f s (latestOffset, partitions, commit or "
                "stop of a data source): its thread is left behind.",
                self._spec.name,
                _PATIENCE_WITH_SOURCES_S,
            )
        self._roster.close()
        self._mailbox.close()

    def _announce_end(self) -> None:
        try:
            self._publish()
            with self._finish_lock:
                calls, self._on_finish = self._on_finish, None
            # Before anybody hears of the end: what the query held is then free for the next one.
            for call in calls or ():
                call()
        finally:
            # Whatever goes wrong above: nobody must wait for ever for a job that is over.
            self._finished.set()
            self._driver.release_waiting()

    def _make_driver(self) -> Driver:
        return Driver(
            self._spec,
            durable=self._durable,
            launcher=self._launcher,
            members=self._roster,
            storing=self._storing,
            looking=self._looking,
            clock=self._clock,
            post=self.post,
            secret=self._secret,
            versions=self._versions,
        )
