"""The job log is dense, has one owner at a time, and answers what a driver must know to start."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.model.errors import Damaged, DidNotHappen, MayHaveHappened, ProtocolViolation, Superseded
from tidegate.model.ids import CheckpointId, Generation
from tidegate.storage import layout
from tidegate.storage.job_log import (
    CheckpointCompleted,
    CheckpointRetired,
    Committed,
    Entry,
    GenerationStarted,
    JobLog,
    newest_completed,
    next_checkpoint_id,
    next_generation,
    retained_checkpoints,
    runs_of,
    uncommitted,
)
from tidegate.storage.manifests import seal, unseal
from tidegate.storage.store import AlreadyThere, Created, Data, LocalFiles, Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def completed(checkpoint: int, generation: int = 1) -> CheckpointCompleted:
    return CheckpointCompleted(
        checkpoint=CheckpointId(checkpoint), generation=Generation(generation), manifest=f"m{checkpoint}"
    )


def committed(checkpoint: int) -> Committed:
    return Committed(checkpoint=CheckpointId(checkpoint))


def retired(checkpoint: int) -> CheckpointRetired:
    return CheckpointRetired(checkpoint=CheckpointId(checkpoint))


def started(generation: int, driver: str = "a") -> GenerationStarted:
    return GenerationStarted(generation=Generation(generation), driver=driver, parallelism=2, at_ms=0)


def start(store: Store, driver: str) -> JobLog:
    log = JobLog(store, driver=driver)
    log.start_generation(parallelism=2, at_ms=0)
    return log


class Flaky:
    """A store whose next creates do what the test says before or instead of the real call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.script: list[Callable[[str, Data], Created | AlreadyThere]] = []

    def create(self, path: str, data: Data) -> Created | AlreadyThere:
        return self.script.pop(0)(path, data) if self.script else self._store.create(path, data)

    def happened_but_looked_failed(self, path: str, data: Data) -> Created | AlreadyThere:
        self._store.create(path, data)
        raise MayHaveHappened(path)

    def failed_and_did_not_happen(self, path: str, data: Data) -> Created | AlreadyThere:
        raise MayHaveHappened(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_entries_come_back_in_order(store: Store) -> None:
    log = start(store, "a")
    log.append(completed(1))
    log.append(committed(1))
    log.append(retired(1))
    assert JobLog(store, driver="b").read() == [started(1), completed(1), committed(1), retired(1)]
    assert store.list("log") == [layout.log_entry(n) for n in range(4)]


def test_a_new_location_has_an_empty_log_and_generation_one(store: Store) -> None:
    assert JobLog(store, driver="a").read() == []
    assert JobLog(store, driver="a").start_generation(parallelism=1, at_ms=5) == 1


def test_a_gap_is_damage_and_names_the_missing_entry(store: Store) -> None:
    log = start(store, "a")
    log.append(completed(1))
    log.append(completed(2))
    store.delete(layout.log_entry(1))
    with pytest.raises(Damaged, match="lacks log/000000000001"):
        JobLog(store, driver="b").read()


def test_a_missing_first_entry_is_a_gap_too(store: Store) -> None:
    log = start(store, "a")
    log.append(completed(1))
    store.delete(layout.log_entry(0))
    with pytest.raises(Damaged, match="lacks log/000000000000"):
        JobLog(store, driver="b").read()


def test_a_damaged_entry_is_named(store: Store) -> None:
    start(store, "a")
    store.put(layout.log_entry(0), store.read(layout.log_entry(0)).replace(b'"parallelism":2', b'"parallelism":3'))
    with pytest.raises(Damaged, match=r"log/000000000000.*checksum"):
        JobLog(store, driver="b").read()


def test_a_leftover_of_a_killed_writer_is_no_entry(tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    log = start(store, "a")
    (tmp_path / "log" / "000000000001#55").write_bytes(b"half")
    log.append(completed(1))
    assert JobLog(store, driver="b").read() == [started(1), completed(1)]


def test_an_older_driver_loses_its_next_append_and_stops(store: Store) -> None:
    old = start(store, "old")
    old.append(completed(1))
    new = start(store, "new")
    with pytest.raises(Superseded, match=r"Another driver \(new\)"):
        old.append(completed(2))
    new.append(completed(3, 2))
    with pytest.raises(Superseded):
        old.append(committed(1))
    assert new.read() == [started(1, "old"), completed(1), started(2, "new"), completed(3, 2)]


def test_an_older_driver_that_reads_first_is_superseded_all_the_same(store: Store) -> None:
    old = start(store, "old")
    start(store, "new")
    old.read()
    with pytest.raises(Superseded):
        old.append(completed(2))


def test_an_older_driver_cannot_take_the_job_back_by_a_restart(store: Store) -> None:
    old = start(store, "old")
    start(store, "new")
    with pytest.raises(Superseded):
        old.start_generation(parallelism=2, at_ms=0)
    with pytest.raises(Superseded):
        old.append(started(3, "old"))


def test_a_driver_may_start_generation_after_generation(store: Store) -> None:
    log = start(store, "a")
    assert log.start_generation(parallelism=2, at_ms=0) == 2
    log.append(completed(1, 2))
    assert next_generation(log.read()) == 3


def test_two_drivers_that_start_at_once_get_different_generations(store: Store) -> None:
    flaky = Flaky(store)
    second = JobLog(flaky, driver="second")  # type: ignore[arg-type]

    def first_comes_in_between(path: str, data: Data) -> Created | AlreadyThere:
        start(store, "first")
        return store.create(path, data)

    flaky.script.append(first_comes_in_between)
    assert second.start_generation(parallelism=2, at_ms=0) == 2
    assert second.read() == [started(1, "first"), started(2, "second")]


def test_a_given_start_that_loses_to_another_start_is_superseded(store: Store) -> None:
    start(store, "first")
    with pytest.raises(Superseded):
        JobLog(store, driver="second").append(started(1, "second"))


def test_a_given_start_after_older_generations_is_appended(store: Store) -> None:
    start(store, "first")
    JobLog(store, driver="second").append(started(2, "second"))
    assert JobLog(store, driver="x").read() == [started(1, "first"), started(2, "second")]


def test_an_append_that_happened_but_looked_failed_is_found_and_not_repeated(store: Store) -> None:
    flaky = Flaky(store)
    log = start(flaky, "a")  # type: ignore[arg-type]
    flaky.script.append(flaky.happened_but_looked_failed)
    log.append(completed(1))
    assert log.read() == [started(1), completed(1)]


def test_an_append_whose_outcome_stays_unknown_may_be_repeated_later(store: Store) -> None:
    flaky = Flaky(store)
    log = start(flaky, "a")  # type: ignore[arg-type]
    flaky.script += [flaky.happened_but_looked_failed, flaky.failed_and_did_not_happen, flaky.failed_and_did_not_happen]
    with pytest.raises(MayHaveHappened):
        log.append(completed(1))
    log.append(completed(1))
    log.append(committed(1))
    assert log.read() == [started(1), completed(1), committed(1)]


def test_an_unsettled_entry_keeps_its_place_before_a_different_one(store: Store) -> None:
    flaky = Flaky(store)
    log = start(flaky, "a")  # type: ignore[arg-type]
    flaky.script += [flaky.happened_but_looked_failed, flaky.failed_and_did_not_happen, flaky.failed_and_did_not_happen]
    with pytest.raises(MayHaveHappened):
        log.append(completed(1))
    log.append(completed(2))
    assert log.read() == [started(1), completed(1), completed(2)]


def test_a_start_that_happened_but_looked_failed_is_one_generation(store: Store) -> None:
    flaky = Flaky(store)
    flaky.script.append(flaky.happened_but_looked_failed)
    log = JobLog(flaky, driver="a")  # type: ignore[arg-type]
    assert log.start_generation(parallelism=2, at_ms=0) == 1
    assert log.read() == [started(1)]


def test_nothing_is_appended_before_a_generation_is_started(store: Store) -> None:
    with pytest.raises(ProtocolViolation):
        JobLog(store, driver="a").append(completed(1))
    assert store.list() == []


HISTORY: list[Entry] = [
    started(1), completed(1), committed(1), completed(2), started(2), completed(4, 2), retired(1),
]  # fmt: skip


def test_the_newest_completed_checkpoint_is_the_last_in_the_log_that_is_not_retired() -> None:
    assert newest_completed([]) is None
    assert newest_completed(HISTORY) == completed(4, 2)
    assert newest_completed([*HISTORY, retired(4)]) == completed(2)


def test_uncommitted_checkpoints_come_in_log_order() -> None:
    assert uncommitted(HISTORY) == [completed(2), completed(4, 2)]
    assert uncommitted([*HISTORY, committed(2)]) == [completed(4, 2)]


def test_retired_checkpoints_are_not_retained() -> None:
    assert retained_checkpoints(HISTORY) == [completed(2), completed(4, 2)]


def test_an_id_is_not_reused_even_if_its_checkpoint_never_completed() -> None:
    assert next_checkpoint_id([], []) == 1
    assert next_checkpoint_id(HISTORY, []) == 5
    assert next_checkpoint_id(HISTORY, ["checkpoints/9-g2/0.state", "shared/x"]) == 10
    assert next_checkpoint_id(HISTORY, ["checkpoints/9-g2/0.state", "shared/11-g2-s0.channels"]) == 12
    assert next_checkpoint_id(HISTORY, ["savepoints/savepoint-7-g2-5f2c9a1b/0.state", "savepoints/mine/0.state"]) == 8
    assert next_checkpoint_id([*HISTORY, retired(4)], []) == 5


def test_a_log_from_before_starts_had_a_run_is_read(store: Store) -> None:
    start(store, "a")
    path = layout.log_entry(0)
    record = json.loads(unseal(store.read(path), name=path))
    assert record["entry"].pop("run") == ""
    store.put(path, seal(json.dumps(record).encode()))
    found = JobLog(store, driver="b").read()
    assert found == [started(1)] and runs_of(found) == frozenset()


def test_a_retry_that_surely_failed_does_not_make_the_first_try_sure(tmp_path: Path) -> None:
    class FirstTryIsUnknown(LocalFiles):
        tries = 0

        def create(self, path: str, data: Data) -> Created | AlreadyThere:
            type(self).tries += 1
            if self.tries == 1:
                super().create(path, data)
                raise MayHaveHappened("the answer was lost")
            raise DidNotHappen("the store is away")

    log = JobLog(FirstTryIsUnknown(tmp_path), driver="a")
    with pytest.raises(MayHaveHappened):
        log.start_generation(parallelism=1, at_ms=0)
