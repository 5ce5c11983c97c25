"""One simulated run: the scheduler, the faults it strikes with, and what must be true at the end."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import accumulate
from random import Random
from typing import assert_never
from unittest.mock import patch

from tidegate.connectors import registry
from tidegate.coordinator.durable import GenerationBasis
from tidegate.model.ids import SlotIndex, TaskId
from tidegate.network.messages import ToSlot
from tidegate.plan.key_groups import range_of
from tidegate.state.codec import decode
from tidegate.state.heap import HeapBackend
from tidegate.storage.job_log import CheckpointCompleted, Committed, JobLog, newest_completed
from tidegate.storage.manifests import decode_manifest
from tidegate.testing.simulation.connectors import SimSink
from tidegate.testing.simulation.driver import SimDriver
from tidegate.testing.simulation.scenario import FORMAT, Scenario, scenario_of
from tidegate.testing.simulation.slot import EVEN_PACES, RARE_PACES, Action, RandomSlices, SimSlot
from tidegate.testing.simulation.world import (
    Crash,
    LaneLink,
    OwnLaneLink,
    SimBackground,
    SimStore,
    SimulationFailed,
    World,
)
from tidegate.worker.restoring import restore_slot
from tidegate.worker.settings import SlotSettings

# In every round everything gets its turn once; the slowest of 300 seeds needed 619 of them.
_DRAIN_ROUNDS = 4_000
# Idle time passes quickly once faults have stopped; the faulty part has looked at every millisecond.
_DRAIN_TICK_MS = 10.0
# Paces change this often while faults strike, so that now one task, now another is the slow one.
_TURNS_PER_PACE = 200
# Enough for every strike to find checkpoints, whatever the pace.
_FAULTY_TURNS = 12_000
# The last start meets aborts and stalls for a while as well.
_TURNS_AFTER_STRIKES = 1500


class Strike(Enum):
    """How the job is made to start again."""

    CRASH = "everything is gone between two turns"
    IN_A_WRITE = "everything is gone at one of the next writes, whoever does it"
    WHILE_STORING = "everything is gone between state files, manifest, log entry and commit"
    RESTART_IN_PLACE = "a task failed; the processes stay, and with them what they have not sent yet"


@dataclass(frozen=True, slots=True)
class RunReport:
    seed: int
    turns: int
    checkpoints: int
    starts: int
    restores_with_rows_in_flight: int
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What went wrong, and the last that happened before."""

    seed: int
    reason: str
    scenario: Scenario
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}: {self.reason}", f"  {self.scenario}", *(f"  {t}" for t in self.trace)])


def run_seed(seed: int) -> RunReport | RunFailure:
    """The whole life of one job. The same seed gives the same run."""
    run = _Run(scenario_of(seed))
    with run.connectors():
        try:
            run.play()
        except Exception as error:  # whatever production code raises is a finding, with the seed that replays it
            return RunFailure(seed, f"{type(error).__name__}: {error}", run.scenario, tuple(run.world.trace))
    return RunReport(
        seed, run.turns, run.checkpoints, run.starts, run.restores_with_rows_in_flight, tuple(run.world.trace)
    )


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = Random(f"run:{scenario.seed}")
        self.world = World(self.random)
        self.turns = 0
        self.checkpoints = 0
        self.starts = 0
        self.restores_with_rows_in_flight = 0
        self.strikes = 0
        self._last_strike = 0
        self._strike = Strike.CRASH
        self._strike_after = 0
        self._turns_until_strike = 0
        self._store = SimStore(self.world)
        self._plan = scenario.plan()
        self._settings = SlotSettings(
            plan=self._plan,
            checkpoint_location="simulated",
            switch_after_ms=scenario.switch_after_ms,
            window_bytes=scenario.window_bytes,
            state_backend="heap",
        )
        self._indexes = [SlotIndex(index) for index in range(scenario.slots)]
        self._zombies: list[SimBackground] = []
        self._slots: list[SimSlot] = []
        self._driver: SimDriver
        self._lanes: dict[tuple[SlotIndex, SlotIndex], LaneLink] = {}
        self._actions: list[Action] = []

    @contextmanager
    def connectors(self) -> Iterator[None]:
        """The simulated source and sink stand in the registry while the run lasts."""
        with (
            patch.dict(registry.SOURCE_FORMATS, {FORMAT: lambda scan: self.scenario.source}),
            patch.dict(registry.SINK_FORMATS, {FORMAT: lambda sink: SimSink(self.world)}),
        ):
            yield

    def play(self) -> None:
        self.world.store_flaky_rate = self.scenario.store_flaky_rate
        self.world.sink_flaky_rate = self.scenario.sink_flaky_rate
        self.world.interlude = self._let_zombies_work
        self._boot()
        while self.turns < self._faulty_turns() and not self._driver.has_finished:
            self._guarded(self._play_faulty)
        self.world.effects_until_crash = None
        self.world.store_flaky_rate = self.world.sink_flaky_rate = 0.0
        self.world.note("faults stop")
        self._drain()
        self._check_result()

    # -- turns

    def _play_faulty(self) -> None:
        """Some turns at one pace. Faults come between any two actions."""
        scenario, random = self.scenario, self.random
        weights = list(accumulate(random.choice(action.paces) for action in self._actions))
        for action in random.choices(self._actions, cum_weights=weights, k=_TURNS_PER_PACE):
            self.turns += 1
            self._strike_when_due()
            if self._driver.must_restart:
                self._driver.start_generation()
            fault = random.random()
            if fault < scenario.abort_rate:
                self._driver.abort(random.randrange)
            elif fault > 1.0 - scenario.stall_rate:
                self.world.clock.now_ms += scenario.checkpoints.timeout_ms
            action.act()
            if self._driver.has_finished:
                return

    def _faulty_turns(self) -> int:
        return _FAULTY_TURNS if self.strikes < self.scenario.strikes else self._last_strike + _TURNS_AFTER_STRIKES

    def _arm(self) -> None:
        """Strike next after so many checkpoints, so that most restores find a new one with rows in flight."""
        self._strike = self.random.choice(list(Strike))
        self._strike_after = self._driver.completed + self.random.choice([0, 1, 1, 1])
        self._turns_until_strike = self.random.randint(0, 60)

    def _strike_when_due(self) -> None:
        if self.strikes >= self.scenario.strikes or self._driver.completed < self._strike_after:
            return
        self._turns_until_strike -= 1
        if self._turns_until_strike > 0 or (
            self._strike is Strike.WHILE_STORING and not self._driver.storing.has_work()
        ):
            return
        self.strikes += 1
        self._last_strike = self.turns
        strike = self._strike
        self._arm()
        match strike:
            case Strike.CRASH:
                raise Crash
            case Strike.IN_A_WRITE:
                self.world.effects_until_crash = self.random.randint(1, 20)
            case Strike.WHILE_STORING:
                self.world.effects_until_crash = self.random.randint(1, 12)
                while self._driver.storing.work_once():
                    pass
            case Strike.RESTART_IN_PLACE:
                self._driver.start_generation()
            case unreachable:
                assert_never(unreachable)

    def _drain(self) -> None:
        for _ in range(_DRAIN_ROUNDS):
            if self._driver.has_finished:
                break
            self._round()
        else:
            raise SimulationFailed(f"no progress: not finished {_DRAIN_ROUNDS} rounds after the faults stopped")
        while self._round():
            pass  # Nothing new starts any more: what is left are grants on their way.
        for slot in self._slots:
            assert slot.tasks is not None
            for output in slot.tasks.outputs:
                if output.in_flight_bytes():
                    raise SimulationFailed(f"{output.channel} still counts {output.in_flight_bytes()} bytes in flight")

    def _round(self) -> bool:
        """Everything once, in any order; whether anything moved."""
        self.turns += len(self._actions)
        self.world.clock.now_ms += self.random.random() * _DRAIN_TICK_MS
        actions = list(self._actions)
        self.random.shuffle(actions)
        if self._driver.must_restart:
            self._driver.start_generation()
        return sum(action.act() for action in actions) > 0

    def _guarded(self, play: Callable[[], None]) -> None:
        try:
            play()
        except Crash:
            self._crash()

    def _tick(self) -> bool:
        self.world.clock.now_ms += self.random.random() * self.scenario.tick_ms
        if not self._driver.has_finished:
            self._driver.on_time()
        return False

    def _read_outbox(self, slot: SimSlot) -> bool:
        if not slot.outbox:
            return False
        message = slot.outbox.popleft()
        if not self._driver.has_finished:
            self._driver.on_message(slot.index, message)
        return True

    # -- coming up and going down

    def _crash(self) -> None:
        self.world.note("crash")
        self.checkpoints += self._driver.completed
        if self.scenario.leaves_zombies:
            # The old processes are cut off, but what they had begun to write may still get through.
            self._zombies = [self._driver.storing, *(slot.background for slot in self._slots)]
        if self.random.random() < 0.3:
            # Once more, while it starts: the commits that it does again are cut short as well.
            self.world.effects_until_crash = self.random.randint(1, 12)
        try:
            self._boot()
        except Crash:
            self.world.note("crash while starting")
            self._boot()

    def _boot(self) -> None:
        """New processes, which know nothing but what is in the store."""
        slices = RandomSlices(self.random, self.scenario.most_rows_per_slice)
        self._slots = [
            SimSlot(
                index,
                settings=self._settings,
                store=self._store,
                clock=self.world.clock,
                user_code=self.scenario.user_code(),
                slices=slices,
            )
            for index in self._indexes
        ]
        self._driver = SimDriver(
            self.world, self._store, self.scenario, self._plan, deploy=self._deploy, tell=self._tell
        )
        self._driver.start_generation()
        self._arm()
        driver = self._driver
        self._actions = [action for slot in self._slots for action in slot.actions(self._indexes)]
        others: list[Callable[[], bool]] = [partial(self._read_outbox, slot) for slot in self._slots]
        for background in (driver.storing, driver.looking):
            others += [background.work_once, background.note_once]
        self._actions += [Action(other, EVEN_PACES) for other in [*others, self._tick]]
        self._actions.append(Action(self._tick_zombies, RARE_PACES))

    def _deploy(self, basis: GenerationBasis) -> None:
        self.starts += 1
        if basis.restore_manifest is not None:
            manifest = decode_manifest(self._store.read(basis.restore_manifest), name=basis.restore_manifest)
            self.restores_with_rows_in_flight += bool(manifest.channels)
        capacity = self.scenario.link_capacity
        self._lanes = {
            (sender, receiver): OwnLaneLink(capacity) if sender == receiver else LaneLink(capacity)
            for sender in self._indexes
            for receiver in self._indexes
            if sender != receiver or not self.scenario.has_plain_local_link
        }
        for slot in self._slots:
            slot.deploy(
                basis,
                outgoing={receiver: lane for (sender, receiver), lane in self._lanes.items() if sender == slot.index},
                incoming={sender: lane for (sender, receiver), lane in self._lanes.items() if receiver == slot.index},
            )

    def _tell(self, slot: SlotIndex, message: ToSlot) -> None:
        self._slots[slot].tell(message)

    def _tick_zombies(self) -> bool:
        if self._zombies and self.random.random() < 0.2:
            self._zombie_work()
        return False

    def _let_zombies_work(self) -> None:
        if self._zombies and self.random.random() < 0.1:
            self._zombie_work()

    def _zombie_work(self) -> None:
        effects, self.world.effects_until_crash = self.world.effects_until_crash, None
        self.random.choice(self._zombies).work_once()
        self.world.effects_until_crash = effects

    # -- what must be true

    def _check_result(self) -> None:
        self.checkpoints += self._driver.completed
        published = Counter(row for rows in self.world.published.values() for row in rows)
        expected = self.scenario.expected_rows()
        if published != expected:
            lost, surplus = expected - published, published - expected
            raise SimulationFailed(f"committed rows differ: lost {_some(lost)}, surplus {_some(surplus)}")
        entries = JobLog(self._store, driver="check").read()
        completed = [entry.checkpoint for entry in entries if isinstance(entry, CheckpointCompleted)]
        committed = [entry.checkpoint for entry in entries if isinstance(entry, Committed)]
        if committed != completed:
            raise SimulationFailed(f"committed {committed} is not the log's order {completed}")
        newest = newest_completed(entries)
        assert newest is not None, "the last checkpoint was committed"
        self._check_state(newest.manifest)

    def _check_state(self, manifest: str) -> None:
        keyed = [vertex.id for vertex in self._plan.vertices if vertex.source is None]
        found: list[dict[int, int]] = [{} for _ in keyed]
        for slot in self._indexes:
            restore = restore_slot(self._store, manifest, self._plan, slot)
            if any(channel.elements for channel in restore.recovered.values()):
                raise SimulationFailed("the last checkpoint holds rows in flight")
            for counts, vertex in zip(found, keyed, strict=True):
                groups = range_of(slot, parallelism=self._plan.parallelism, max_parallelism=self._plan.max_parallelism)
                backend = HeapBackend(groups)
                backend.restore(restore.sections.get((TaskId(vertex, slot), 0), []))
                for group in range(groups.first, groups.last):
                    counts.update({decode(k)[0]: decode(v)[0] for k, v in backend.keyed("count").scan(group)})
        if found != self.scenario.expected_states():
            raise SimulationFailed(f"final state is {found}, expected {self.scenario.expected_states()}")


def _some(rows: "Counter[tuple[int, ...]]") -> str:
    shown = sorted(rows.elements())
    return f"{shown[:5]}{'...' if len(shown) > 5 else ''} ({len(shown)})"
