"""Old entries of the job log go once a summary stands for them, and no driver, reader or crash can tell."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.in_memory import folder_in_memory
from tidegate.model.errors import Damaged, DidNotHappen, Superseded
from tidegate.model.ids import CheckpointId, Generation
from tidegate.storage import layout
from tidegate.storage.job_log import (
    CheckpointCompleted,
    CheckpointRetired,
    CheckpointSkipped,
    Committed,
    Entry,
    GenerationStarted,
    JobLog,
    next_checkpoint_id,
    next_generation,
    retained_checkpoints,
    running_generation,
    runs_of,
    skipped_checkpoints,
    uncommitted,
)
from tidegate.storage.store import AlreadyThere, Created, Data, LocalFiles, Store

FEW = 5


def completed(checkpoint: int) -> CheckpointCompleted:
    return CheckpointCompleted(checkpoint=CheckpointId(checkpoint), generation=Generation(1), manifest=f"m{checkpoint}")


def start(store: Store, driver: str) -> JobLog:
    log = JobLog(store, driver=driver)
    log.start_generation(parallelism=2, at_ms=0)
    return log


def take(log: JobLog, *checkpoints: int, keep: int = 1) -> None:
    """Completed, committed, and the ones before retired."""
    for number in checkpoints:
        log.append(completed(number))
        log.append(Committed(checkpoint=CheckpointId(number)))
        if number > keep:
            log.append(CheckpointRetired(checkpoint=CheckpointId(number - keep)))


def answers(entries: Sequence[Entry]) -> dict[str, object]:
    """All that anybody asks of a log."""
    retained = retained_checkpoints(entries)
    committed = {entry.checkpoint for entry in entries if isinstance(entry, Committed)}
    return {
        "running": running_generation(entries),
        "next": (next_generation(entries), next_checkpoint_id(entries, [])),
        "retained": retained,
        "of these committed": [one.checkpoint for one in retained if one.checkpoint in committed],
        "uncommitted": uncommitted(entries),
        "skipped": skipped_checkpoints(entries),
    }


@pytest.fixture
def store(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path)


def test_a_log_stays_as_short_as_what_it_has_to_say(store: LocalFiles) -> None:
    log = start(store, "a")
    for number in range(1, 200):
        take(log, number, keep=3)
        log.shorten(from_entries=FEW)
        assert len(store.list(layout.LOG)) <= FEW + 3
    assert len(log.entries()) < 20
    assert [one.checkpoint for one in retained_checkpoints(log.entries())] == [197, 198, 199]
    assert answers(JobLog(store, driver="b").read()) == answers(log.entries())


def test_the_last_runs_are_remembered_and_their_older_generations_are_not(store: LocalFiles) -> None:
    for run in range(30):
        log = JobLog(store, driver=f"{run}")
        for _ in range(2):
            log.start_generation(parallelism=2, at_ms=run, run=f"{run:x}")
        take(log, run + 1)
        log.shorten(from_entries=FEW)
    found = JobLog(store, driver="reader").read()
    assert runs_of(found) == {f"{run:x}" for run in range(10, 30)}
    generations = [entry.generation for entry in found if isinstance(entry, GenerationStarted)]
    assert generations == [2 * run + 2 for run in range(10, 30)]
    assert answers(found) == answers(log.entries())


def test_few_entries_stay_as_they_are(store: LocalFiles) -> None:
    log = start(store, "a")
    take(log, 1)
    log.shorten(from_entries=FEW)
    assert store.list(layout.LOG) == [layout.log_entry(number) for number in range(3)]


def possible(entries: Sequence[Entry]) -> list[Entry]:
    """What a driver may add to such a log."""
    retained, still_open = retained_checkpoints(entries), uncommitted(entries)
    settled = [one for one in retained if one not in still_open]
    found: list[Entry] = [completed(next_checkpoint_id(entries, []))]
    found += [Committed(checkpoint=one.checkpoint) for one in still_open[:1]]
    found += [CheckpointSkipped(checkpoint=one.checkpoint) for one in still_open[-1:]]
    found += [CheckpointRetired(checkpoint=one.checkpoint) for one in skipped_checkpoints(entries)]
    return found + [CheckpointRetired(checkpoint=one.checkpoint) for one in settled]


@settings(max_examples=80)
@given(data=st.data())
def test_a_summary_answers_every_question_as_the_entries_did(data: st.DataObject) -> None:
    with folder_in_memory() as folder:
        store = LocalFiles(folder)
        log = start(store, "a")
        plain = log.entries()
        for _ in range(data.draw(st.integers(1, 30))):
            entry = data.draw(st.sampled_from([None, *possible(plain)]))
            if entry is None:
                log = JobLog(store, driver=f"{len(plain)}")
                log.start_generation(parallelism=2, at_ms=len(plain))
                entry = log.entries()[-1]
            else:
                log.append(entry)
            plain.append(entry)
            if data.draw(st.booleans()):
                log.shorten(from_entries=data.draw(st.integers(1, FEW)))
            assert answers(log.read()) == answers(plain)
            assert answers(JobLog(store, driver="reader").read()) == answers(plain)


@pytest.mark.parametrize("is_reading_first", [False, True])
def test_a_driver_whose_next_number_is_free_again_is_superseded(store: LocalFiles, is_reading_first: bool) -> None:
    old = start(store, "old")
    take(old, 1)
    new = start(store, "new")
    take(new, 2, 3, 4)
    new.shorten(from_entries=FEW)
    assert layout.log_entry(3) not in store.list(layout.LOG), "the number that the old driver takes for the next"
    if is_reading_first:
        old.read()
        with pytest.raises(Superseded):
            old.check_is_ours()
    with pytest.raises(Superseded, match=r"Another driver \(new\)"):
        old.append(completed(9))
    take(new, 5)
    assert answers(JobLog(store, driver="reader").read()) == answers(new.entries())
    assert completed(9) not in new.read()


def test_a_second_driver_does_not_take_what_a_superseded_one_left_for_the_log(store: LocalFiles) -> None:
    old, other = start(store, "old"), JobLog(store, driver="other")
    other.read()
    new = start(store, "new")
    take(new, 1, 2, 3)
    new.shorten(from_entries=FEW)
    with pytest.raises(Superseded):
        old.append(completed(9))
    assert layout.log_entry(1) in store.list(layout.LOG), "of the old driver, and not in the log"
    assert other.start_generation(parallelism=1, at_ms=0) == 3
    with pytest.raises(Superseded):
        take(new, 4)
    take(other, 5, 6)
    other.shorten(from_entries=1)
    assert layout.log_entry(1) not in store.list(layout.LOG)


def test_a_driver_that_saw_an_empty_log_long_ago_starts_behind_all_others(store: LocalFiles) -> None:
    late = JobLog(store, driver="late")
    assert late.read() == []
    log = start(store, "a")
    take(log, 1, 2, 3)
    log.shorten(from_entries=FEW)
    assert late.start_generation(parallelism=2, at_ms=0) == 2
    assert retained_checkpoints(late.entries()) == [completed(3)]
    with pytest.raises(Superseded):
        take(log, 4)


class Watched:
    """A store that does what a test says before it reads, creates or deletes something."""

    def __init__(self, store: LocalFiles) -> None:
        self._store = store
        self.before_change: Callable[[], None] = lambda: None
        self.before_read: Callable[[], None] = lambda: None

    def create(self, path: str, data: Data) -> Created | AlreadyThere:
        self.before_change()
        return self._store.create(path, data)

    def delete(self, path: str) -> None:
        self.before_change()
        self._store.delete(path)

    def read(self, path: str) -> bytes:
        self.before_read()
        return self._store.read(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def killed_after(calls: int) -> Callable[[], None]:
    left = iter(range(calls))

    def count() -> None:
        if next(left, None) is None:
            raise DidNotHappen("killed")

    return count


# Of a log with six entries behind a summary: a summary is created, and these go.
CHANGES = 1 + 6 + 1


@pytest.mark.parametrize("calls", range(CHANGES + 1))
def test_whenever_shortening_is_cut_short_the_log_says_the_same(store: LocalFiles, calls: int) -> None:
    watched = Watched(store)
    log = start(watched, "a")
    take(log, 1, 2)
    log.shorten(from_entries=FEW)
    take(log, 3, 4)
    expected = answers(log.entries())
    watched.before_change = killed_after(calls)
    with pytest.raises(DidNotHappen) if calls < CHANGES else nullcontext():
        log.shorten(from_entries=FEW)
    watched.before_change = lambda: None
    assert answers(JobLog(store, driver="b").read()) == expected
    assert answers(log.read()) == expected
    take(log, 5)
    log.shorten(from_entries=1)
    assert answers(JobLog(store, driver="c").read()) == answers(log.entries())
    assert len(store.list(layout.LOG)) == 1


def test_whoever_reads_while_it_is_shortened_begins_again(store: LocalFiles) -> None:
    seen = Watched(store)
    log = start(store, "a")
    take(log, 1, 2)
    numbers = iter(range(3, 5))

    def shorten() -> None:
        for number in numbers:
            take(log, number)
            log.shorten(from_entries=1)
            return

    seen.before_read = shorten
    assert answers(JobLog(seen, driver="reader").read()) == answers(log.entries())


def test_a_log_that_is_shortened_all_the_time_is_not_read_for_ever(store: LocalFiles) -> None:
    seen = Watched(store)
    log = start(store, "a")
    take(log, 1, 2)
    numbers: Iterator[int] = iter(range(3, 1000))

    def shorten() -> None:
        take(log, next(numbers))
        log.shorten(from_entries=1)

    seen.before_read = shorten
    with pytest.raises(DidNotHappen, match="try again"):
        JobLog(seen, driver="reader").read()


def test_a_damaged_summary_is_named(store: LocalFiles) -> None:
    log = start(store, "a")
    take(log, 1, 2)
    log.shorten(from_entries=FEW)
    [path] = store.list(layout.LOG_SUMMARIES)
    store.put(path, store.read(path).replace(b'"parallelism":2', b'"parallelism":3'))
    with pytest.raises(Damaged, match=rf"{path}.*checksum"):
        JobLog(store, driver="b").read()
