"""The driver's own part of a checkpoint, behind the sink's commits and its other work, and what sources pause until the
end: how it is noted, stored and told.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit import driver_by_hand
from tests.unit.driver_by_hand import SLOTS, Hand, acknowledge, running
from tests.unit.facts_by_hand import facts, keyed, slot, source
from tidegate.coordinator.facts import as_completed
from tidegate.model.ids import CheckpointId, Generation, SlotIndex, TaskId, VertexId
from tidegate.network.messages import Acknowledge, Progress, SlotStanding, TaskPart, TaskProgress, TaskStanding
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoint_facts import CheckpointFacts, CommitFacts, InputBefore, Outcome
from tidegate.protocol.commit import CommitPermit
from tidegate.protocol.critical_path import PhaseKind
from tidegate.protocol.culprits import BehindSavepoint, Cause, SlowCommit, SlowStore
from tidegate.protocol.why import WhyReport, why
from tidegate.storage.manifests import decode_manifest
from tidegate.storage.statistics import read_statistics
from tidegate.worker.settings import SlotSettings

UPGRADES = Path(__file__).parents[1] / "fixtures" / "upgrades"
READY_MS = 10.0
SOURCE = TaskId(VertexId(0), 0)


def ready(**more: Any) -> CheckpointFacts:
    """All slots had acknowledged after ten milliseconds, and the writing itself took five."""
    given: dict[str, Any] = {"duration_ms": 2_000.0, "interval_ms": 1_000.0, "writing_ms": 1_995.0, **more}
    return facts(source(), keyed(), slots=(slot(),), completing_ms=READY_MS, **given)


def commit(started_ms: float, ended_ms: float | None, *, written_ms: float = 5.0, checkpoint: int = 6) -> CommitFacts:
    return CommitFacts(checkpoint=checkpoint, started_ms=started_ms, ended_ms=ended_ms, written_ms=written_ms)


def drivers_part(report: WhyReport) -> list[tuple[PhaseKind, str, float]]:
    return [(p.kind, p.where, p.duration_ms) for p in report.critical_path if p.started_ms >= READY_MS]


# -- what is said of it


def test_one_that_waited_behind_a_slow_commit_blames_the_sink_and_not_the_store() -> None:
    report = why(ready(commits_before=(commit(-2.0, 1_994.0),)))
    assert isinstance(report.culprit, SlowCommit), report
    assert (report.culprit.checkpoint, report.culprit.waited_ms, report.culprit.commit_ms) == (6, 1_984.0, 1_996.0)
    assert drivers_part(report) == [
        (PhaseKind.BEHIND_COMMIT, "checkpoint 6", 1_984.0),
        (PhaseKind.STORE_QUEUE, "driver", 1.0),
        (PhaseKind.LOGGING, "driver", 5.0),
    ]
    assert report.summary == (
        "It was ready, and waited 1.98 s behind the commit of checkpoint 6: the sink, or the foreachBatch function, "
        "took 2.00 s for it, longer than the interval of 1.00 s."
    )
    assert "foreachBatch" in report.advice[0] and "checkpoint.interval" in report.advice[1]
    assert not any(line.startswith("use a faster store") for line in report.advice)
    assert "1.98 s  behind the sink's commit: checkpoint 6" in str(report)


def test_a_commit_that_is_shorter_than_the_interval_is_not_said_to_be_longer() -> None:
    report = why(ready(commits_before=(commit(-2.0, 1_994.0),), interval_ms=10_000.0))
    assert report.cause is Cause.SLOW_COMMIT and "interval" not in report.summary


def test_a_commit_that_took_about_as_long_as_its_log_entry_had_a_slow_store_and_no_slow_sink() -> None:
    report = why(ready(writing_ms=1_400.0, commits_before=(commit(0.0, 1_400.0, written_ms=950.0),)))
    assert isinstance(report.culprit, SlowStore) and report.culprit.where.what == "the job log", report
    assert report.advice[0] == "use a faster store for checkpointLocation"


def test_one_that_waited_for_other_work_of_the_driver_has_a_slow_store() -> None:
    """The removal of old checkpoints, for instance."""
    report = why(ready(kind="unaligned"))
    assert isinstance(report.culprit, SlowStore), report
    assert "writing or removing for earlier checkpoints" in report.summary
    assert drivers_part(report)[0] == (PhaseKind.STORE_QUEUE, "driver", 1_985.0)
    assert not any("checkpoint.unaligned" in line for line in report.advice), "the driver stores no rows"


def test_commits_that_were_waited_for_in_turn_are_blamed_together() -> None:
    """Each alone is shorter than what slots stored; together they are longer."""
    stored = slot(storing_ms=1_000.0)
    both = commit(-500.0, 1_700.0, checkpoint=5), commit(1_710.0, 2_500.0, checkpoint=6)
    found = facts(
        source(),
        keyed(),
        slots=(stored,),
        duration_ms=2_520.0,
        completing_ms=1_010.0,
        writing_ms=2_510.0,
        commits_before=both,
    )
    report = why(found)
    assert isinstance(report.culprit, SlowCommit), report
    assert [phase.where for phase in report.critical_path if phase.kind is PhaseKind.BEHIND_COMMIT] == [
        "checkpoint 5",
        "checkpoint 6",
    ]


def test_one_under_way_that_waits_behind_a_commit_says_so_and_not_that_it_waits_for_a_savepoint() -> None:
    waiting = ready(outcome=Outcome.IN_PROGRESS, writing_ms=None, commits_before=(commit(-2.0, None),))
    report = why(waiting)
    assert isinstance(report.culprit, SlowCommit), report
    assert report.culprit.commit_ms == 2_002.0
    assert report.summary.startswith("It is 2.00 s old and not complete: it was ready, and waited 1.99 s behind")
    assert report.critical_path[-1].kind is PhaseKind.BEHIND_COMMIT
    writing = why(ready(outcome=Outcome.IN_PROGRESS, writing_ms=12.0))
    assert isinstance(writing.culprit, SlowStore) and writing.culprit.where.what == "the job log"
    held_back = facts(source(), keyed(), slots=(slot(),), duration_ms=2_000.0, outcome=Outcome.IN_PROGRESS)
    assert isinstance(why(held_back).culprit, BehindSavepoint)


# Folders that name a release were kept later.
BEFORE = sorted(path for folder in UPGRADES.glob("*[!0-9]") for path in folder.rglob("manifest.json"))


@pytest.mark.parametrize("manifest", BEFORE, ids=lambda path: path.parts[-4])
def test_manifests_from_before_it_was_noted_are_read_and_all_of_the_drivers_part_is_writing(manifest: Path) -> None:
    stored = decode_manifest(manifest.read_bytes(), name=str(manifest)).statistics
    assert stored is not None and (stored.writing_ms, stored.commits_before) == (None, ())
    path = why(as_completed(stored, duration_ms=stored.duration_ms + 500.0)).critical_path
    assert (path[-1].kind, path[-1].duration_ms) == (PhaseKind.LOGGING, pytest.approx(500.0))
    assert {PhaseKind.STORE_QUEUE, PhaseKind.BEHIND_COMMIT}.isdisjoint({phase.kind for phase in path})


@pytest.mark.parametrize("manifest", BEFORE, ids=lambda path: path.parts[-4])
def test_manifests_from_before_settings_the_store_and_encoding_were_noted_are_explained_without(manifest: Path) -> None:
    stored = decode_manifest(manifest.read_bytes(), name=str(manifest)).statistics
    assert stored is not None and stored.configured is None
    assert {(slot.storage, slot.encoded_for_ms) for slot in stored.slots} == {(None, None)}
    report = why(stored)
    assert report.cost_to_stream.encoding_ms is None and "encoding them" not in str(report)


# -- how it comes to be known


def with_commits(job: Hand, of: Callable[[int], None]) -> None:
    """`of` happens while the sink commits the checkpoint with this number."""

    def commit(committables: Sequence[bytes], permit: CommitPermit) -> None:
        of(permit.checkpoint)

    job.committer.commit = commit  # type: ignore[method-assign]


def latest(job: Hand, checkpoint: int) -> CheckpointFacts:
    return next(found for found in job.driver.facts() if found.checkpoint == checkpoint)


def test_the_driver_notes_for_how_long_a_checkpoint_waits_behind_the_commit_of_the_one_before() -> None:
    job, seen = running(), list[CheckpointFacts]()
    interval_ms = job.spec.checkpoints.interval_ms

    def commit(checkpoint: int) -> None:
        if checkpoint == 1:
            job.pass_ms(interval_ms)
            job.all_say(acknowledge(2))
            job.pass_ms(20_000.0)
            seen.append(latest(job, 2))
            job.pass_ms(10_000.0)

    with_commits(job, commit)
    job.pass_ms(interval_ms)
    job.all_say(acknowledge(1))
    job.store_all()
    (waiting,) = seen
    assert waiting.outcome is Outcome.IN_PROGRESS and waiting.duration_ms == 20_000.0
    assert (waiting.completing_ms, waiting.writing_ms) == (0.0, None)
    assert waiting.commits_before == (
        CommitFacts(checkpoint=1, started_ms=-interval_ms, ended_ms=None, written_ms=0.0),
    )
    first, second = latest(job, 1), latest(job, 2)
    assert (first.writing_ms, first.commits_before) == (0.0, ())
    assert (second.completing_ms, second.writing_ms, second.duration_ms) == (0.0, 30_000.0, 30_000.0)
    assert second.commits_before == (
        CommitFacts(checkpoint=1, started_ms=-interval_ms, ended_ms=30_000.0, written_ms=0.0),
    )
    stored = {found.checkpoint: found for found in read_statistics(job.store)}
    assert stored[2] == second, "who looks from outside is told the same"
    assert why(stored[2]).culprit == why(second).culprit
    assert isinstance(why(second).culprit, SlowCommit)


def test_a_commit_that_was_over_when_the_next_one_was_ready_is_not_waited_for() -> None:
    job = running()
    interval_ms = job.spec.checkpoints.interval_ms
    with_commits(job, lambda checkpoint: job.clock.advance(500.0))
    for checkpoint in (1, 2):
        job.pass_ms(interval_ms)
        job.all_say(acknowledge(checkpoint))
        job.store_all()
    assert latest(job, 2).commits_before == ()


def test_a_commit_that_fails_is_over() -> None:
    job = running()

    def commit(checkpoint: int) -> None:
        job.pass_ms(job.spec.checkpoints.interval_ms)
        job.all_say(acknowledge(2))
        job.clock.advance(70.0)
        raise OSError("the table is gone")

    with_commits(job, commit)
    job.pass_ms(job.spec.checkpoints.interval_ms)
    job.all_say(acknowledge(1))
    job.take_turn()
    for _ in range(2):  # the manifest and log entry of the first, and its commit
        job.storing.run_one()
    assert latest(job, 2).commits_before[0].ended_ms == 70.0


def test_what_a_checkpoint_leaves_in_front_of_a_task_is_known_to_the_next_one() -> None:
    job = running()
    for checkpoint, epoch_bytes, queued_bytes in ((1, 1_000, 600), (2, 800, 500), (3, 100, 0)):
        task = TaskStanding(
            SOURCE, kind="unaligned", snapshot_at_ms=1.0, epoch_bytes=epoch_bytes, queued_bytes=queued_bytes
        )
        part = TaskPart(SOURCE, "unaligned", 0.0, 0.0, 0.0, 0.0, 0, queued_bytes, 0, [])
        said = SlotStanding(CheckpointId(checkpoint), tasks=[task])
        job.pass_ms(job.spec.checkpoints.interval_ms)
        job.say(SLOTS[1], acknowledge(checkpoint))
        job.say(SLOTS[0], msgspec.structs.replace(acknowledge(checkpoint), parts=[part], standing=said, now_ms=1.0))
        job.store_all()
    known = [found.before for checkpoint in (1, 2, 3) if (found := latest(job, checkpoint).task(SOURCE)) is not None]
    # 1000 came first, then 800 of which 600 had been there before, and 500 that were not processed.
    assert known == [None, InputBefore(600, 750), InputBefore(500, 1_087)]
    stored = {found.checkpoint: found for found in read_statistics(job.store)}
    assert stored[3] == latest(job, 3)


# -- what sources pause


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """A job whose sources pause for every checkpoint that is late, one of which has just been triggered."""
    settings = functools.partial(SlotSettings, active_backpressure=ActiveBackpressure.STRICT)
    monkeypatch.setattr(driver_by_hand, "SlotSettings", settings)
    job = running()
    job.pass_ms(job.spec.checkpoints.interval_ms)
    return job


def report(job: Hand, *, in_all_ms: float, for_it_ms: float | None = None) -> None:
    """Slot 0 says what its source paused in all and, until it has acknowledged, for the checkpoint."""
    standings = [] if for_it_ms is None else [standing(for_it_ms)]
    task = TaskProgress(SOURCE, 1, 1, 0, 0.0, 0.0, paused_ms=in_all_ms)
    job.pass_ms(200.0)
    job.say(SLOTS[0], Progress(Generation(1), False, 0, [task], standings, now_ms=job.clock.monotonic_ms()))
    job.pass_ms(100.0)


def standing(paused_ms: float) -> SlotStanding:
    return SlotStanding(CheckpointId(1), tasks=[TaskStanding(SOURCE, kind="aligned", paused_ms=paused_ms)])


def acknowledged(job: Hand, slot: SlotIndex, *, paused_ms: float = 0.0) -> None:
    said: Acknowledge = msgspec.structs.replace(
        acknowledge(1), standing=standing(paused_ms), now_ms=job.clock.monotonic_ms()
    )
    job.say(slot, said)


def paused_ms(job: Hand) -> float:
    return why(latest(job, 1)).cost_to_stream.paused_ms


def test_a_source_that_pauses_after_its_slot_has_acknowledged_is_counted_until_the_end(strict: Hand) -> None:
    """What it paused for earlier checkpoints, 500 ms, is not."""
    report(strict, in_all_ms=700.0, for_it_ms=200.0)
    acknowledged(strict, SLOTS[0], paused_ms=300.0)
    report(strict, in_all_ms=1_500.0)
    assert paused_ms(strict) == 1_000.0, "the other slot is behind"
    acknowledged(strict, SLOTS[1])
    report(strict, in_all_ms=1_700.0)
    strict.storing.run_one()
    strict.say(SLOTS[0], Progress(Generation(1), False, 0, [TaskProgress(SOURCE, 1, 1, 0, 0.0, 0.0, 1_900.0)]))
    strict.store_all()
    report(strict, in_all_ms=9_000.0)
    assert paused_ms(strict) == 1_400.0, "the manifest was slow; what came later is not for this one"
    (stored,) = read_statistics(strict.store)
    assert why(stored).cost_to_stream.paused_ms == 1_200.0, "what was known when the manifest was written"


def test_a_slot_that_acknowledges_before_it_has_reported_is_counted_from_its_next_report(strict: Hand) -> None:
    acknowledged(strict, SLOTS[0], paused_ms=20.0)
    strict.pass_ms(100.0)
    assert paused_ms(strict) == 20.0, "as it acknowledged"
    report(strict, in_all_ms=500.0)
    assert paused_ms(strict) == 20.0
    report(strict, in_all_ms=900.0)
    assert paused_ms(strict) == 420.0


def test_a_report_from_before_the_acknowledgement_says_nothing_of_what_came_before_the_trigger(strict: Hand) -> None:
    """It is of the checkpoint before, for which the source paused on after the report."""
    report(strict, in_all_ms=500.0)
    acknowledged(strict, SLOTS[0])
    strict.pass_ms(100.0)
    report(strict, in_all_ms=650.0)
    assert paused_ms(strict) == 0.0


def test_pauses_for_one_that_fails_are_counted_until_it_is_given_up(strict: Hand) -> None:
    report(strict, in_all_ms=700.0, for_it_ms=200.0)
    acknowledged(strict, SLOTS[0], paused_ms=300.0)
    report(strict, in_all_ms=1_500.0)
    strict.pass_ms(strict.spec.checkpoints.timeout_ms)
    report(strict, in_all_ms=9_000.0)
    assert latest(strict, 1).failure == "expired" and paused_ms(strict) == 1_000.0
