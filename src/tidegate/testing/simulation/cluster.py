"""A simulated cluster: production workers and coordinator under a seeded scheduler, in virtual time, with faults.

    cluster = SimCluster(scenario_of(7))
    cluster.play()          # raises SimulationFailed, or whatever production code raised

Every step of every process is one turn of the scheduler, in any order that real machines could have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import accumulate
from random import Random
from typing import assert_never
from unittest.mock import patch

from tidegate.connectors import registry
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.savepoints import SavepointWish
from tidegate.model.errors import Superseded
from tidegate.model.ids import SlotIndex
from tidegate.plan.lower import fingerprint
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.job import JobState
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.protocol.restart import FixedDelay
from tidegate.testing.simulation.checks import check_end, check_location, check_retained, check_savepoints
from tidegate.testing.simulation.connectors import SimSink
from tidegate.testing.simulation.incarnation import Incarnation
from tidegate.testing.simulation.scenario import MOST_SLOTS, OFTEN_RESTORED, Scenario
from tidegate.testing.simulation.slot import Action
from tidegate.testing.simulation.states import StateKind, limits_in_place, local_disk
from tidegate.testing.simulation.steps import CrashAt, Step, StepWatch, steps_watched
from tidegate.testing.simulation.taken_states import TakenStates
from tidegate.testing.simulation.topologies import FORMAT
from tidegate.testing.simulation.world import Crash, SimBackground, SimStore, SimulationFailed, World
from tidegate.worker import gate, output
from tidegate.worker.settings import SlotSettings

# In every round everything gets its turn once: far more rounds than the slowest seed needs once faults have stopped.
_DRAIN_ROUNDS = 3_000
_DRAIN_REPEATS = 3
# Idle time passes quickly once faults have stopped; the faulty part has looked at every millisecond.
_DRAIN_TICK_MS = 10.0
_IDLE_TICK_MS = 100.0
# Paces change this often while faults strike, so that now one task, now another is the slow one.
_TURNS_PER_PACE = 200
# Enough for every strike to find checkpoints, whatever the pace.
_FAULTY_TURNS = 14_000
# The last start meets aborts and stalls for a while as well.
_TURNS_AFTER_STRIKES = 1_500
_RESTART_DELAY_MS = 3.0
# Of RocksDB, for the few keys of a run.
_STATE_MEMORY_BYTES = 8 << 20
# Elsewhere, as a user would have it: what a lost driver leaves there nobody finds.
_SAVEPOINTS = "savepoints"


class Strike(Enum):
    """What is made to go wrong."""

    DRIVER_CRASH = "the driver's process is gone, and its slots with it"
    SLOT_CRASH = "one slot's process is gone; the others live until they are told"
    IN_A_WRITE = "whoever writes next, or soon, is gone in the middle of it"
    AT_A_STEP = "whoever makes a certain step of the barrier path is gone at it"
    USER_FAILURE = "a task failed; the processes stay, and with them what they have not sent yet"
    SECOND_DRIVER = "another driver starts on the same location while the first one goes on"
    STOP_WITH_SAVEPOINT = "stopped with a savepoint, then started from it"


class SimCluster:
    """`crash`: one more strike, which waits for its step for as long as it takes."""

    def __init__(self, scenario: Scenario, *, crash: CrashAt | None = None) -> None:
        self.scenario = scenario
        self._crash = crash
        self.random = Random(f"run:{scenario.seed}")
        self._state_random = Random(f"state of starts:{scenario.seed}")
        self.world = World(self.random)
        self.taken = TakenStates()
        self.watch = StepWatch()
        self.turns = 0
        self.starts = 0
        self.strikes = 0
        self.rescales = 0
        self.crashes = 0
        self._run = 1
        self._shape = scenario.shape.with_available(is_last_run=scenario.runs == 1)
        self._location = "job"
        self._left_locations: list[str] = []
        self._was_outlived = False
        self._has_lost_a_driver = False
        self._restore_from: str | None = None
        self._slots = scenario.slots
        self._last_strike = 0
        self._strike = Strike.DRIVER_CRASH
        self._strike_after = 0
        self._turns_until_strike = 0
        self._stopping: SavepointWish | None = None
        self._zombies: list[SimBackground] = []
        self._old: list[Incarnation] = []
        self._current: Incarnation
        self._actions: list[tuple[Action, Incarnation, SlotIndex | None]] = []
        self._actions_for = -1

    @property
    def checkpoints(self) -> int:
        """How many were completed, by every driver together."""
        return self._completed_before + self._completed()

    _completed_before = 0

    # -- the life of one job

    def play(self) -> None:
        states = self.scenario.states
        with (
            local_disk(),
            limits_in_place(states, self.scenario.seed),
            self._connectors(),
            steps_watched(self.watch.at),
            self._costs(),
        ):
            self.world.interlude = self._let_others_act
            self._set_faults(is_on=True)
            self.watch.armed = self._crash
            self._start()
            while self.turns < self._faulty_turns() and not self._is_finished():
                self._guarded_turns()
            self._stop_faults()
            self._drain()
            while self._run < self.scenario.runs:
                self._run += 1
                self._shape = self.scenario.shape.with_available(is_last_run=self._run == self.scenario.runs)
                self._next_parallelism()
                self._start()
                self._drain()
            if self._was_outlived:
                # What an overtaken driver wrote after the end of the last one is for the next one to remove.
                self._start()
                self._drain()
            self._check_cuts()
            store = SimStore(self.world, self._location)
            self.rescales += self._current.rescales
            check_end(self.world, store, self._shape, self._current, rescales=self.rescales)
            if not self._has_lost_a_driver:
                check_savepoints(self.world, _SAVEPOINTS)
            for left in self._left_locations:
                check_location(SimStore(self.world, left), self._shape.plan(self._slots))
            self._current.forget_processes()
            self._actions = []

    def _is_finished(self) -> bool:
        return self._current.driver.is_over and self._stopping is None

    # -- turns

    def _guarded_turns(self) -> None:
        """Some turns at one pace. Faults come between any two actions, and within one that writes."""
        actions = self._all_actions()
        weights = list(accumulate(self.random.choice(action.paces) for action, _, _ in actions))
        for action, incarnation, slot in self.random.choices(actions, cum_weights=weights, k=_TURNS_PER_PACE):
            self.turns += 1
            try:
                self._disturb()
            except Crash:  # a user's call into the driver, a savepoint for instance, went as far as the step
                self._on_crash(self._current, None)
            try:
                if incarnation.is_alive and not incarnation.driver.is_over:
                    action.act()
            except Crash:
                self._on_crash(incarnation, slot)
            self._settle()
            if self._is_finished() or self._has_changed():
                return

    def _all_actions(self) -> list[tuple[Action, Incarnation, SlotIndex | None]]:
        if self._has_changed():
            incarnations = [*self._old, self._current]
            self._actions_for = self._processes()
            self._actions = [(action, i, slot) for i in incarnations for action, slot in i.actions()]
        return self._actions

    def _has_changed(self) -> bool:
        """Processes came or went: what can happen next is something else."""
        return self._processes() != self._actions_for

    def _processes(self) -> int:
        """Another number for every set of processes."""
        return self.starts + len(self._old) * 1_000 + self._current.launches * 1_000_000

    def _disturb(self) -> None:
        self._strike_when_due()
        scenario, fault = self.scenario, self.random.random()
        self.world.clock.advance(self.random.random() * scenario.tick_ms / 20)
        if fault < scenario.abort_rate:
            self._decline_one()
        elif fault > 1.0 - scenario.stall_rate:
            self.world.clock.advance(scenario.checkpoints.timeout_ms)
        elif 0.5 < fault < 0.5 + scenario.savepoint_rate:
            self._ask_for_savepoint(Afterwards.GO_ON)
        if self._zombies and self.random.random() < 0.02:
            self._zombie_work()

    def _decline_one(self) -> None:
        """As a slot does that has not acknowledged yet; none declines what it has acknowledged."""
        current = self._current.driver._running._current
        if current is None:
            return
        waiting = [id for id, pending in current[0].machine._pending.items() if pending.waiting_for]
        if waiting:
            current[0]._give_up_on(self.random.choice(waiting), FailureReason.DECLINED, "by the simulation")

    def _ask_for_savepoint(self, afterwards: Afterwards) -> SavepointWish:
        wish = SavepointWish(_SAVEPOINTS, self.random.choice(list(SavepointAlignment)), afterwards)
        self.world.note(f"savepoint asked for, {wish.alignment.value}, then {afterwards.value}")
        self._current.driver.ask_for_savepoint(wish)
        return wish

    # -- strikes

    def _faulty_turns(self) -> int:
        is_waiting = self.strikes < self.scenario.strikes or self.watch.armed is not None
        return _FAULTY_TURNS if is_waiting else self._last_strike + _TURNS_AFTER_STRIKES

    def _arm(self) -> None:
        """Strike next after so many checkpoints, so that most restores find a new one with rows in flight."""
        self._strike = self._next_strike()
        self._strike_after = self._completed() + self.random.choice([0, 1, 1, 1])
        self._turns_until_strike = self.random.randint(0, 60)

    def _next_strike(self) -> Strike:
        if self._shape.topology in OFTEN_RESTORED and self.random.random() < 0.4:
            return Strike.DRIVER_CRASH  # the one that is followed by a start at another parallelism at once
        # Twice the one that is followed by a new generation in the same processes, with its predecessor's messages.
        strikes: list[Strike] = [*Strike, Strike.USER_FAILURE]
        return self.random.choice(strikes)

    def _completed(self) -> int:
        return self._current.driver._running.statistics().completed

    def _strike_when_due(self) -> None:
        if self.strikes >= self.scenario.strikes:
            return
        self._turns_until_strike -= 1
        if self._turns_until_strike > 0 or self._completed() < self._strike_after:
            return
        self.strikes += 1
        self._last_strike = self.turns
        strike = self._strike
        self._arm()
        self.world.note(f"strike: {strike.value}")
        match strike:
            case Strike.DRIVER_CRASH:
                self._crash_driver(self._current)
            case Strike.SLOT_CRASH:
                if self.scenario.rescales and self.random.random() < 0.5:
                    # It takes cores with it, or others have come.
                    self._current.cores = self.random.randint(1, MOST_SLOTS)
                self._current.kill_slot(self.random.choice(self._current.indexes))
            case Strike.IN_A_WRITE:
                self.world.effects_until_crash = self.random.randint(1, 20)
            case Strike.AT_A_STEP:
                self.watch.armed = CrashAt(self.random.choice(list(Step)), self.random.randint(1, 3))
            case Strike.USER_FAILURE:
                if self._current.slots:
                    self.random.choice(self._current.slots).fail_in_user_code()
            case Strike.SECOND_DRIVER:
                # One that has not begun yet would itself be the second.
                if self._current.driver.view().generation:
                    self._has_lost_a_driver = True
                    self._retire_current(goes_on=True)
                    self._start()
            case Strike.STOP_WITH_SAVEPOINT:
                if self._stopping is None:
                    self._stopping = self._ask_for_savepoint(Afterwards.SUSPEND)
            case unreachable:
                assert_never(unreachable)

    def _on_crash(self, incarnation: Incarnation, slot: SlotIndex | None) -> None:
        self.crashes += 1
        self._last_strike = self.turns
        self.world.note(f"crash of {'the driver' if slot is None else f'slot {slot}'}")
        if slot is not None:
            incarnation.kill_slot(slot)
        elif incarnation is self._current:
            self._crash_driver(incarnation)
        else:
            incarnation.kill_driver()

    def _crash_driver(self, incarnation: Incarnation) -> None:
        self._has_lost_a_driver = True
        begun = incarnation.kill_driver()
        if self.scenario.leaves_zombies:
            self._zombies = begun
        if self.scenario.strikes and self.random.random() < 0.3:
            # Once more, while it starts: the commits that it does again are cut short as well.
            self.world.effects_until_crash = self.random.randint(1, 12)
        self._retire_current(goes_on=False)
        self._next_parallelism()
        self._start()

    def _retire_current(self, *, goes_on: bool) -> None:
        self._check_cuts()
        self.rescales += self._current.rescales
        self._completed_before += self._completed()
        self._stopping = None
        if goes_on:
            self._old.append(self._current)

    # -- coming up and going down

    def _next_parallelism(self) -> None:
        if self.scenario.rescales:
            before = self._slots
            self._slots = self.random.randint(1, MOST_SLOTS)
            self.rescales += before != self._slots

    def _start(self) -> None:
        """A new driver process, which knows nothing but what is in the store."""
        with self._undisturbed():
            check_retained(SimStore(self.world, self._location), self._shape.plan(self._slots), self.taken)
        self.starts += 1
        kind = self.scenario.states.kind_of(self.starts, self._state_random)
        self.world.note(f"a driver starts with {self._slots} slots in {self._location}, state in {kind.value}")
        self._current = Incarnation(self.world, self.random, self._spec(kind), self.scenario.network, self.taken)
        self._arm()

    def _settle(self) -> None:
        """What has ended makes room for what follows."""
        if self._old:
            self._settle_old()
        driver = self._current.driver
        if driver.is_leaving:
            self._check_windows()
        if driver.is_over and driver.failure is not None:
            raise SimulationFailed(f"the job failed: {driver.failure}")
        stopping = self._stopping
        if stopping is None or not stopping.answer.done():
            return
        if stopping.answer.exception() is not None:
            self._stopping = None  # it goes on as if nothing had been asked
        elif self._current.driver.is_over:
            self._start_from(stopping.answer.result())

    def _settle_old(self) -> None:
        for old in [old for old in self._old if old.driver.is_over or not old.is_alive]:
            self._old.remove(old)
            failure = old.driver.failure
            if old.is_alive and failure is not None and not isinstance(failure, Superseded):
                raise SimulationFailed(f"a driver that was overtaken ended with {failure}")

    def _check_windows(self) -> None:
        """When all input has ended, every byte that a channel was lent has been consumed at its other end."""
        current = self._current
        if not current.has_checked_windows and current.driver.view().state == JobState.FINISHING.value:
            current.check_windows()

    def _check_retained(self) -> None:
        check_retained(SimStore(self.world, self._location), self._shape.plan(self._slots))

    def _check_cuts(self) -> None:
        """No fault excuses that the two sides of a channel do not meet."""
        failures = self._current.driver._running.statistics().by_reason
        if failures.get(FailureReason.INCONSISTENT):
            raise SimulationFailed("a checkpoint was given up because the two sides of a channel do not meet")

    def _start_from(self, savepoint: str) -> None:
        """In the same location, or with the savepoint in a new one."""
        self._retire_current(goes_on=False)
        if self.random.random() < 0.5:
            self._left_locations.append(self._location)
            self._location = f"job{len(self._left_locations) + 1}"
            self._restore_from = savepoint
        self._next_parallelism()
        self._start()

    def _spec(self, kind: StateKind) -> JobSpec:
        scenario = self.scenario
        inline_bytes = scenario.states.inline_below_bytes
        plan = self._shape.plan(self._slots)
        return JobSpec(
            name="simulated",
            job_id="job",
            slot_settings=SlotSettings(
                plan=plan,
                checkpoint_location=self._location,
                window_bytes=scenario.window_bytes,
                state_backend=kind.backend,
                state_memory_bytes=_STATE_MEMORY_BYTES,
                heap_snapshots=kind.heap_snapshots,
                changelog_image_interval_ms=scenario.states.image_interval_ms if kind.has_changelog else None,
                active_backpressure=scenario.active_backpressure,
                checkpoint_interval_ms=scenario.checkpoints.interval_ms,
                max_concurrent_checkpoints=scenario.checkpoints.max_concurrent,
                debloat_target_ms=scenario.debloat_target_ms,
                least_window_bytes=1,
                watermark_interval_ms=0.0,
                idle_after_ms=None,
                inline_below_bytes=scenario.inline_below_bytes if inline_bytes is None else inline_bytes,
            ),
            fingerprint=tuple(fingerprint(plan)),
            checkpoints=scenario.checkpoints,
            switch_after_ms=scenario.switch_after_ms,
            keep=scenario.keep,
            restart=FixedDelay(1_000_000, _RESTART_DELAY_MS),
            available_now=True,
            restore_from=self._restore_from,
            driver_host="simulated",
            bind_host="simulated",
            slot_bind_host="simulated",
            advertised_host=None,
            ports="any",
        )

    # -- others that act in between

    def _let_others_act(self) -> None:
        if self._zombies and self.random.random() < 0.1:
            self._zombie_work()

    def _zombie_work(self) -> None:
        """The old processes are cut off, but what they had begun to write may still get through."""
        with self._undisturbed():
            self.random.choice(self._zombies).work_once()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Whoever acts here is not the one that is to crash."""
        effects, self.world.effects_until_crash = self.world.effects_until_crash, None
        armed, self.watch.armed = self.watch.armed, None
        try:
            yield
        finally:
            self.world.effects_until_crash, self.watch.armed = effects, armed

    # -- the end of faults

    def _set_faults(self, *, is_on: bool) -> None:
        self.world.store_flaky_rate = self.scenario.store_flaky_rate if is_on else 0.0
        self.world.sink_flaky_rate = self.scenario.sink_flaky_rate if is_on else 0.0

    def _stop_faults(self) -> None:
        self.world.effects_until_crash = None
        self.watch.armed = None
        self._set_faults(is_on=False)
        while any(zombie.work_once() for zombie in self._zombies):
            pass
        self._zombies = []
        self.world.note("faults stop")

    def _drain(self) -> None:
        """Everything in turn, until the job has ended; that takes a bounded number of rounds, or it hangs."""
        for _ in range(_DRAIN_ROUNDS):
            if self._is_finished() and not self._old:
                return
            self._was_outlived |= self._is_finished()
            self._round()
            self._settle()
            if self.random.random() < 0.02:
                self._check_retained()
        state = self._current.driver.view().state
        raise SimulationFailed(f"no progress: {state} still, {_DRAIN_ROUNDS} rounds after the faults stopped")

    def _round(self) -> None:
        actions = self._all_actions()
        self.turns += len(actions)
        moved = False
        for action, incarnation, _ in self.random.sample(actions, len(actions)):
            for _ in range(_DRAIN_REPEATS):
                if not incarnation.is_alive or incarnation.driver.is_over or not action.act():
                    break
                moved = True
        # Where all wait for time to pass, it passes quickly.
        self.world.clock.advance(self.random.random() * (_DRAIN_TICK_MS if moved else _IDLE_TICK_MS))

    @contextmanager
    def _costs(self) -> Iterator[None]:
        """In virtual time work takes none, so rates are not known: that waiting is dear is a throw of the dice."""
        random = Random(f"cost:{self.scenario.seed}")

        def should_switch_now(**facts: object) -> bool:
            return random.random() < self.scenario.cost_switch_rate

        with (
            patch.object(gate, "should_switch_now", should_switch_now),
            patch.object(output, "should_switch_now", should_switch_now),
        ):
            yield

    @contextmanager
    def _connectors(self) -> Iterator[None]:
        """The simulated sources and the sink stand in the registry while the run lasts."""
        with (
            patch.dict(registry.SOURCE_FORMATS, {FORMAT: lambda scan: self._shape.sources()[scan.options["name"]]}),
            patch.dict(registry.SINK_FORMATS, {FORMAT: lambda sink: SimSink(self.world)}),
        ):
            yield
