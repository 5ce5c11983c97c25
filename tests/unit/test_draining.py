"""When everything that was there at the call of `processAllAvailable` is processed and committed."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.driver_by_hand import SLOTS, Hand, acknowledge
from tidegate.connectors.contract import Withheld
from tidegate.coordinator import splits
from tidegate.coordinator.draining import Draining
from tidegate.coordinator.job import JobSpec
from tidegate.coordinator.splits import Splits
from tidegate.model.ids import CheckpointId, Generation, SlotIndex
from tidegate.network.messages import AssignSplits, Decline, Progress, TriggerCheckpoint
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Scan, Sink

ONE = SlotIndex(0)


class Listed:
    """A source of which everything is handed out, unless it withholds some; every look is a round."""

    rounds = 0
    assigned = 0
    withheld = Withheld.NOTHING
    gave_all_in = 0

    def look_now(self) -> None: ...

    def look(self) -> None:
        self.rounds += 1
        if self.withheld is Withheld.NOTHING:
            self.gave_all_in = self.rounds

    def have_given_all(self, *, since_round: int) -> bool:
        return self.gave_all_in >= since_round

    def wait_for_commit(self) -> bool:
        return self.withheld is Withheld.UNTIL_COMMITTED


class Asked:
    """A job of one slot, as the coordinator's loop sees it."""

    def __init__(self) -> None:
        self.draining = Draining()
        self.done = threading.Event()
        self.listed = Listed()
        self.draining.ask(self.done)

    def says(self, *, is_idle: bool) -> bool:
        """The slot's next report; whether a checkpoint is wanted then."""
        self.listed.look()
        progress = Progress(generation=Generation(1), tasks=[], splits_received=0, is_idle=is_idle)
        self.draining.on_progress(ONE, progress)
        return self.draining.wants_checkpoint({ONE: progress}, cast(Splits, self.listed), slots=1)

    def reports_until_a_checkpoint_is_wanted(self) -> int:
        return next(number for number in range(1, 10) if self.says(is_idle=True))

    def commit(self, checkpoint: int, *, inflight_bytes: int = 0) -> bool:
        """Whether the caller goes on."""
        self.draining.on_committed(CheckpointId(checkpoint), inflight_bytes=inflight_bytes)
        return self.done.is_set()


def test_a_checkpoint_is_wanted_when_nothing_moved_for_two_reports() -> None:
    asked = Asked()
    assert not any(asked.says(is_idle=False) for _ in range(5))
    assert asked.reports_until_a_checkpoint_is_wanted() == 2


def test_only_a_checkpoint_from_then_on_counts() -> None:
    asked = Asked()
    asked.reports_until_a_checkpoint_is_wanted()
    asked.draining.checkpoint_from = CheckpointId(7)
    assert not asked.commit(6)
    assert asked.commit(7)


def test_one_with_rows_in_flight_is_followed_by_another_one() -> None:
    """They came out of a function at the barrier, which passed them: only the next epoch has them."""
    asked = Asked()
    asked.reports_until_a_checkpoint_is_wanted()
    asked.draining.checkpoint_from = CheckpointId(7)
    assert not asked.commit(7, inflight_bytes=100)
    assert not asked.commit(8), "nothing was asked for yet"
    assert asked.reports_until_a_checkpoint_is_wanted() == 3
    asked.draining.checkpoint_from = CheckpointId(9)
    assert asked.commit(9)


def test_for_nobody_who_waits_any_more_no_checkpoint_is_asked_for() -> None:
    asked = Asked()
    asked.listed.withheld = Withheld.UNTIL_COMMITTED
    assert asked.reports_until_a_checkpoint_is_wanted() == 3
    asked.draining.checkpoint_from = CheckpointId(7)
    other = threading.Event()
    asked.draining.ask(other)
    asked.draining.withdraw(asked.done)
    assert asked.reports_until_a_checkpoint_is_wanted() == 3, "somebody else still waits"
    asked.draining.withdraw(other)
    asked.draining.withdraw(other)
    assert not any(asked.says(is_idle=True) for _ in range(5))
    assert asked.draining.checkpoint_from is None


# -- sources with a limit


def test_no_checkpoint_is_wanted_before_a_source_has_given_what_it_withholds() -> None:
    asked = Asked()
    asked.listed.withheld = Withheld.UNTIL_LATER
    assert not any(asked.says(is_idle=True) for _ in range(5))
    asked.listed.withheld = Withheld.NOTHING
    assert asked.reports_until_a_checkpoint_is_wanted() == 1


def test_what_a_source_withholds_once_it_has_given_all_came_later_and_is_not_waited_for() -> None:
    asked = Asked()
    assert not any(asked.says(is_idle=False) for _ in range(3))
    asked.listed.withheld = Withheld.UNTIL_LATER
    assert asked.reports_until_a_checkpoint_is_wanted() == 2


def test_where_a_source_waits_for_a_commit_a_checkpoint_makes_room_and_another_one_is_the_last() -> None:
    asked = Asked()
    asked.listed.withheld = Withheld.UNTIL_COMMITTED
    assert asked.reports_until_a_checkpoint_is_wanted() == 3
    asked.draining.checkpoint_from = CheckpointId(7)
    asked.listed.withheld = Withheld.NOTHING
    assert not asked.commit(7), "what there is room for now is not read yet"
    assert asked.reports_until_a_checkpoint_is_wanted() == 3
    asked.draining.checkpoint_from = CheckpointId(8)
    assert asked.commit(8)


FILES = pa.schema([("v", pa.int64())])
INTERVAL_MS = 60_000.0


class ReadByHand(Hand):
    """Its slots have read what they were given, by the time they report; they take and store each checkpoint."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        source = Scan("parquet", {"path": str(folder), **options, "checkpointIntervalMs": str(INTERVAL_MS)}, FILES)

        def change(spec: JobSpec) -> JobSpec:
            plan = lower(source, Sink("noop", {}, FILES), parallelism=2, max_parallelism=8)
            checkpoints = replace(spec.checkpoints, tolerable_failures=1)
            return replace(spec, slot_settings=replace(spec.slot_settings, plan=plan), checkpoints=checkpoints)

        super().__init__(change=change)
        opened: Any = splits.open_source(source)
        monkeypatch.setattr(splits, "open_source", lambda scan: replace(opened, clock=self.clock))
        self.declined: set[int] = set()
        self._answered: set[int] = set()
        self.run()

    def read_for(self, ms: float) -> int:
        """How many files were given out in all when that time has passed."""
        end_ms = self.clock.monotonic_ms() + ms
        while self.clock.monotonic_ms() < end_ms:
            self.pass_ms(250.0)
            while self.looking.waiting:
                self.looking.run_one()
                self.take_turn()
            for slot in SLOTS:
                received = sum(len(message.splits) for message in self._told(slot, AssignSplits))
                self.say(slot, Progress(Generation(1), is_idle=True, splits_received=received, tasks=[]))
            for message in self._told(SLOTS[0], TriggerCheckpoint):
                self._answer(message.checkpoint)
            self.store_all()
        return sum(len(message.splits) for slot in SLOTS for message in self._told(slot, AssignSplits))

    def _answer(self, checkpoint: int) -> None:
        if checkpoint in self._answered:
            return
        self._answered.add(checkpoint)
        if checkpoint in self.declined:
            self.say(SLOTS[0], Decline(Generation(1), CheckpointId(checkpoint), "the disk is full"))
        else:
            self.all_say(acknowledge(checkpoint))

    def _told(self, slot: SlotIndex, kind: type[Any]) -> list[Any]:
        return [message for message in self.heard(slot) if isinstance(message, kind)]


def add_file(folder: Path, name: str) -> None:
    pq.write_table(pa.table({"v": [1]}, schema=FILES), folder / name)


def test_files_beyond_a_limit_are_waited_for_until_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        add_file(tmp_path, f"{number}.parquet")
    job, done = ReadByHand(tmp_path, monkeypatch, maxFilesPerTrigger="1"), threading.Event()
    job.driver.ask_to_drain(done)
    assert (job.read_for(INTERVAL_MS), done.is_set()) == (1, False)
    assert (job.read_for(INTERVAL_MS), done.is_set()) == (2, False)
    assert (job.read_for(5_000.0), done.is_set()) == (3, True)


def test_a_file_that_came_behind_the_share_of_an_interval_is_waited_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_file(tmp_path, "0.parquet")
    job, done = ReadByHand(tmp_path, monkeypatch, maxFilesPerTrigger="1"), threading.Event()
    assert job.read_for(5_000.0) == 1
    add_file(tmp_path, "1.parquet")
    job.driver.ask_to_drain(done)
    assert (job.read_for(30_000.0), done.is_set()) == (1, False)
    assert (job.read_for(INTERVAL_MS), done.is_set()) == (2, True)


def test_where_all_files_are_read_no_interval_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_file(tmp_path, "0.parquet")
    job, done = ReadByHand(tmp_path, monkeypatch, maxFilesPerTrigger="1"), threading.Event()
    job.driver.ask_to_drain(done)
    assert (job.read_for(5_000.0), done.is_set()) == (1, True)


def test_a_checkpoint_that_was_asked_for_and_fails_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_file(tmp_path, "0.parquet")
    job, done = ReadByHand(tmp_path, monkeypatch), threading.Event()
    job.declined = {1}
    job.driver.ask_to_drain(done)
    job.read_for(5_000.0)
    assert (done.is_set(), job.committer.committed) == (True, [2])
