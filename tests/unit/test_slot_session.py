"""A slot's part in the life of the job: what it does with each message, and with those that are not meant for it."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidegate.model.ids import CheckpointId, Generation, SlotIndex, VertexId
from tidegate.network.messages import (
    AbortCheckpoint,
    AssignSplits,
    BarrierEverywhere,
    CheckpointDone,
    Deploy,
    Leave,
    Run,
    ToSlot,
    TriggerCheckpoint,
)
from tidegate.plan.physical import JobPlan
from tidegate.storage.store import LocalFiles, Store
from tidegate.worker.restoring import NOTHING_TO_RESTORE
from tidegate.worker.session import SlotSession, restore_for

ONE = CheckpointId(1)
OLD, NOW = Generation(1), Generation(2)


@dataclass
class Tasks:
    """The tasks of a generation; notes what they are told, and fails on demand."""

    told: list[ToSlot] = field(default_factory=list)
    failure: BaseException | None = None

    def _note(self, message: ToSlot) -> None:
        self.told.append(message)
        if self.failure is not None:
            raise self.failure

    def on_run(self, message: Run) -> None:
        self._note(message)

    def on_splits(self, message: AssignSplits) -> None:
        self._note(message)

    def on_trigger(self, message: TriggerCheckpoint) -> None:
        self._note(message)

    def on_barrier_everywhere(self, message: BarrierEverywhere) -> None:
        self._note(message)

    def note_unbegun(self, message: TriggerCheckpoint) -> None:
        self._note(message)

    def on_abort(self, message: AbortCheckpoint) -> None:
        self._note(message)

    def on_done(self, message: CheckpointDone) -> None:
        self._note(message)


@dataclass
class Slot:
    begun: list[Deploy] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    failure_of_begin: BaseException | None = None

    def __post_init__(self) -> None:
        self.session = SlotSession(begin=self._begin, on_error=self.errors.append)

    def _begin(self, deploy: Deploy) -> None:
        self.session.on_torn_down()
        self.begun.append(deploy)
        if self.failure_of_begin is not None:
            raise self.failure_of_begin

    def built(self, generation: Generation) -> Tasks:
        tasks = Tasks()
        self.session.on_message(deploy(generation))
        self.session.on_built(tasks)
        return tasks


def deploy(generation: Generation) -> Deploy:
    return Deploy(generation, {}, None)


def everything(generation: Generation) -> list[ToSlot]:
    return [
        Run(generation, ONE),
        AssignSplits(generation, VertexId(0), [b"split"], False),
        TriggerCheckpoint(generation, ONE, None),
        BarrierEverywhere(generation, ONE),
        AbortCheckpoint(generation, ONE),
        CheckpointDone(generation, ONE),
    ]


def test_a_generation_begins_is_built_and_runs_by_message() -> None:
    slot = Slot()
    assert slot.session.generation == 0
    slot.built(NOW)
    assert (slot.begun, slot.session.generation, slot.session.is_running) == ([deploy(NOW)], NOW, False)
    slot.session.on_message(Run(NOW, ONE))
    assert slot.session.is_running


def test_tasks_are_told_what_is_meant_for_their_generation() -> None:
    slot = Slot()
    tasks = slot.built(NOW)
    for message in everything(NOW):
        slot.session.on_message(message)
    assert tasks.told == everything(NOW)


@pytest.mark.parametrize("generation", [OLD, Generation(3)])
def test_messages_of_another_generation_are_ignored(generation: Generation) -> None:
    slot = Slot()
    tasks = slot.built(NOW)
    for message in everything(generation):
        slot.session.on_message(message)
    assert (tasks.told, slot.session.is_running) == ([], False)


class Panic(BaseException):
    """As native code raises it."""


def test_a_panic_while_tasks_are_told_something_is_told_and_somebody_who_ends_the_process_does() -> None:
    slot = Slot()
    slot.built(NOW).failure = Panic("frozen twice")
    slot.session.on_message(TriggerCheckpoint(NOW, ONE, None))
    assert [str(error) for error in slot.errors] == ["frozen twice"]
    slot.failure_of_begin = SystemExit(3)
    slot.session.on_message(deploy(Generation(3)))
    assert len(slot.errors) == 2
    slot.failure_of_begin = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        slot.session.on_message(deploy(Generation(4)))


def test_messages_that_come_before_the_tasks_are_built_or_after_they_are_gone_are_ignored() -> None:
    slot = Slot()
    slot.session.on_message(Run(NOW, ONE))
    slot.session.on_message(deploy(NOW))
    for message in everything(NOW):
        slot.session.on_message(message)
    assert not slot.session.is_running
    tasks = slot.built(NOW)
    slot.session.on_message(Run(NOW, ONE))
    slot.session.on_torn_down()
    for message in everything(NOW):
        slot.session.on_message(message)
    assert (tasks.told, slot.session.is_running) == ([Run(NOW, ONE)], False)


def test_a_new_generation_takes_the_place_of_the_old_one() -> None:
    slot = Slot()
    old = slot.built(OLD)
    slot.session.on_message(Run(OLD, ONE))
    new = slot.built(NOW)
    assert not slot.session.is_running
    for message in [*everything(OLD), *everything(NOW)]:
        slot.session.on_message(message)
    assert (old.told, new.told) == ([Run(OLD, ONE)], everything(NOW))


def test_what_tasks_raise_goes_to_on_error_and_not_to_the_caller() -> None:
    slot = Slot()
    tasks = slot.built(NOW)
    tasks.failure = RuntimeError("no")
    for message in everything(NOW):
        slot.session.on_message(message)
    assert slot.errors == [tasks.failure] * 6


def test_a_generation_that_cannot_begin_is_reported_as_that_generation() -> None:
    """Leaving the old one runs user code, which may raise: the slot lives on, and says which generation failed."""
    slot = Slot()
    slot.built(OLD)
    slot.failure_of_begin = RuntimeError("close failed")
    slot.session.on_message(deploy(NOW))
    assert slot.errors == [slot.failure_of_begin]
    assert slot.session.generation == NOW


def test_leave_is_heard_in_every_state() -> None:
    for prepare in (lambda slot: None, lambda slot: slot.built(NOW)):
        slot = Slot()
        prepare(slot)
        slot.session.on_message(Leave("stopped"))
        assert slot.session.has_left


def test_a_new_job_restores_nothing(tmp_path: Path) -> None:
    def open_location(location: str) -> Store:
        raise AssertionError(location)

    plan = JobPlan((), (), 1, 16)
    store = LocalFiles(tmp_path)
    assert restore_for(deploy(NOW), store, open_location, plan, SlotIndex(0)) == NOTHING_TO_RESTORE
