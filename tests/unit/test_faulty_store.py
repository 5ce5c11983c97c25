"""A store with faults does what each outcome says; and the job log keeps its promises over it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from tidegate.model.errors import DidNotHappen, MayHaveHappened, StorageFailure, Superseded
from tidegate.model.ids import CheckpointId, Generation
from tidegate.storage.job_log import CheckpointCompleted, Entry, GenerationStarted, JobLog
from tidegate.storage.object_store import ObjectStore
from tidegate.storage.store import AlreadyThere, Created, Store, open_store
from tidegate.testing.faulty_store import (
    EVERY_FAULT,
    FaultyStore,
    Outcome,
    RandomFaults,
    Result,
    ScriptedFaults,
    Slow,
    StoreOperation,
    no_faults,
)
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.store_suite import StoreSuite

# A retry per outcome of the longest script, and the one that then succeeds.
MOST_TRIES = 60


class TestFaultyStoreWithoutFaults(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        return FaultyStore(open_store(str(folder / "store")), no_faults)


class TestFaultyStoreThatIsOnlySlow(StoreSuite):
    def make_store(self, folder: Path) -> Store:
        faults = RandomFaults(Random(1), rate=0.5, outcomes=[Slow(10.0)])
        return FaultyStore(memory_store(), faults, pause=lambda ms: None)


def memory_store() -> Store:
    return ObjectStore("memory://test", MemoryStore())


def with_script(store: Store, *script: Outcome) -> FaultyStore:
    return FaultyStore(store, ScriptedFaults(script), pause=lambda ms: None)


WRITES: list[Callable[[Store], object]] = [
    lambda store: store.create("new", b"x"),
    lambda store: store.put("new", b"x"),
    lambda store: store.delete("old"),
]
READS: list[Callable[[Store], object]] = [
    lambda store: store.read("old"),
    lambda store: store.read_range("old", start=0, length=1),
    lambda store: store.list(),
    lambda store: store.size("old"),
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("outcome", "error", "happens"),
    [
        (Result.FAILS, DidNotHappen, False),
        (Result.FAILS_WITH_TIMEOUT, MayHaveHappened, False),
        (Result.SUCCEEDS_BUT_TIMES_OUT, MayHaveHappened, True),
        (Slow(5.0, Result.SUCCEEDS_BUT_TIMES_OUT), MayHaveHappened, True),
    ],
)
def test_a_write_with_a_fault_happens_or_not_as_its_outcome_says(
    write: Callable[[Store], object], outcome: Outcome, error: type[StorageFailure], happens: bool
) -> None:
    inner, untouched, written = memory_store(), memory_store(), memory_store()
    for store in (inner, untouched, written):
        store.put("old", b"kept")
    write(written)
    with pytest.raises(error, match=r"as the test asked"):
        write(with_script(inner, outcome))
    assert contents_of(inner) == contents_of(written if happens else untouched)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("outcome", EVERY_FAULT)
def test_a_read_with_a_fault_surely_did_nothing(read: Callable[[Store], object], outcome: Outcome) -> None:
    inner = memory_store()
    inner.put("old", b"kept")
    faulty = with_script(inner, outcome)
    with pytest.raises(DidNotHappen):
        read(faulty)
    assert read(faulty) == read(inner)


def test_a_create_that_timed_out_is_there_for_the_next_one() -> None:
    faulty = with_script(memory_store(), Result.SUCCEEDS_BUT_TIMES_OUT)
    with pytest.raises(MayHaveHappened):
        faulty.create("a", b"first")
    assert faulty.create("a", b"second") == AlreadyThere()
    assert faulty.read("a") == b"first"


def test_a_create_that_timed_out_does_not_replace_what_was_there() -> None:
    inner = memory_store()
    inner.put("a", b"first")
    with pytest.raises(MayHaveHappened):
        with_script(inner, Result.SUCCEEDS_BUT_TIMES_OUT).create("a", b"second")
    assert inner.read("a") == b"first"


def test_a_slow_call_pauses_first_and_then_goes_on() -> None:
    clock = ManualClock()
    inner = memory_store()
    faulty = FaultyStore(inner, ScriptedFaults([Slow(250.0), Slow(50.0, Result.FAILS)]), pause=clock.advance)
    assert faulty.create("a", b"x") == Created()
    assert clock.monotonic_ms() == 250.0
    with pytest.raises(DidNotHappen):
        faulty.put("b", b"x")
    assert clock.monotonic_ms() == 300.0
    assert inner.list() == ["a"]


def test_a_script_is_met_in_order_and_then_everything_succeeds() -> None:
    faults = ScriptedFaults([Result.FAILS, Result.SUCCEEDS, Result.FAILS])
    faulty = FaultyStore(memory_store(), faults)
    assert outcomes_of(faulty, 5) == [DidNotHappen, None, DidNotHappen, None, None]
    assert faults.left == ()


def test_a_script_for_some_operations_leaves_the_others_alone() -> None:
    faults = ScriptedFaults([Result.FAILS], operations={StoreOperation.CREATE})
    faulty = FaultyStore(memory_store(), faults)
    faulty.put("a", b"x")
    assert faulty.list() == ["a"]
    assert faults.left == (Result.FAILS,)
    with pytest.raises(DidNotHappen):
        faulty.create("b", b"x")


def test_random_faults_are_replayed_by_their_seed_and_come_at_their_rate() -> None:
    first, again, other = [
        outcomes_of(FaultyStore(memory_store(), RandomFaults(Random(seed), rate=0.3)), 400) for seed in (7, 7, 8)
    ]
    assert first == again != other
    assert 80 < len([error for error in first if error is not None]) < 160
    assert set(first) == {None, DidNotHappen, MayHaveHappened}


def test_an_impossible_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        RandomFaults(Random(0), rate=1.5)


OUTCOMES = st.sampled_from([Result.SUCCEEDS, *EVERY_FAULT, Slow(1.0)])


@settings(max_examples=200, deadline=None)
@given(st.lists(OUTCOMES, max_size=40), st.integers(1, 6))
def test_entries_that_are_appended_until_it_works_are_in_the_log_once_and_in_order(
    script: list[Outcome], count: int
) -> None:
    store = memory_store()
    log = JobLog(with_script(store, *script), driver="a")
    until_it_works(lambda: log.start_generation(parallelism=2, at_ms=0))
    entries = [completed(number) for number in range(1, count + 1)]
    for entry in entries:
        until_it_works(lambda entry=entry: log.append(entry))  # type: ignore[misc]
    stored = JobLog(store, driver="reader").read()
    starts = [entry for entry in stored if isinstance(entry, GenerationStarted)]
    assert [start.generation for start in starts] == list(range(1, len(starts) + 1))
    assert stored == [*starts, *entries]
    assert until_it_works(log.read) == stored


@settings(max_examples=200, deadline=None)
@given(st.lists(OUTCOMES, max_size=40), st.lists(st.sampled_from("abc"), max_size=40))
def test_drivers_that_race_over_a_faulty_store_lose_and_double_nothing(script: list[Outcome], turns: list[str]) -> None:
    store = memory_store()
    faulty = with_script(store, *script)
    drivers = {name: Driver(JobLog(faulty, driver=name), number) for number, name in enumerate("abc")}
    for name in turns:
        drivers[name].turn()
    stored = JobLog(store, driver="reader").read()
    checkpoints = [entry.checkpoint for entry in stored if isinstance(entry, CheckpointCompleted)]
    assert len(checkpoints) == len(set(checkpoints)), "an entry is in the log twice"
    for driver in drivers.values():
        assert set(driver.acknowledged) <= set(checkpoints), "an entry that was acknowledged is not in the log"
    assert owners_of(stored) == [number_of(checkpoint) for checkpoint in checkpoints]
    generations = [entry.generation for entry in stored if isinstance(entry, GenerationStarted)]
    assert generations == list(range(1, len(generations) + 1))


class Driver:
    """Starts a generation, then appends its own entries, one try a turn, the same again until it is known to be there.

    Its checkpoint ids leave the remainder `number` when divided by 10, so that an entry tells who wrote it.
    """

    def __init__(self, log: JobLog, number: int) -> None:
        self._log = log
        self._next = 10 + number
        self._is_started = False
        self._is_superseded = False
        self.acknowledged: list[int] = []

    def turn(self) -> None:
        if self._is_superseded:
            return
        try:
            if self._is_started:
                self._log.append(completed(self._next))
                self.acknowledged.append(self._next)
                self._next += 10
            else:
                self._log.start_generation(parallelism=2, at_ms=0)
                self._is_started = True
        except StorageFailure:
            return
        except Superseded:
            self._is_superseded = True


def completed(checkpoint: int) -> CheckpointCompleted:
    return CheckpointCompleted(
        checkpoint=CheckpointId(checkpoint), generation=Generation(1), manifest=f"manifest {checkpoint}"
    )


def number_of(checkpoint: int) -> int:
    return checkpoint % 10


def owners_of(stored: Sequence[Entry]) -> list[int]:
    """For each completed checkpoint the driver that had last started before it."""
    owners: list[int] = []
    owner = -1
    for entry in stored:
        if isinstance(entry, GenerationStarted):
            owner = "abc".index(entry.driver)
        else:
            owners.append(owner)
    return owners


def until_it_works(call: Callable[[], object]) -> object:
    for _ in range(MOST_TRIES):
        try:
            return call()
        except (DidNotHappen, MayHaveHappened):
            continue
    raise AssertionError("the script is over, and it still does not work")


def outcomes_of(store: Store, count: int) -> list[type[StorageFailure] | None]:
    outcomes: list[type[StorageFailure] | None] = []
    for number in range(count):
        try:
            store.put(f"{number}", b"x")
            outcomes.append(None)
        except StorageFailure as error:
            outcomes.append(type(error))
    return outcomes


def contents_of(store: Store) -> dict[str, bytes]:
    return {path: store.read(path) for path in store.list()}
