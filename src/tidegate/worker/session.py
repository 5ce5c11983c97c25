"""A slot's part in the life of the job, apart from its connections: generations begin, run and end by message."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, assert_never

from tidegate.model.ids import Generation, SlotIndex
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
from tidegate.storage.store import Store
from tidegate.worker.heard import Over
from tidegate.worker.local_copies import LocalCopies
from tidegate.worker.restoring import NOTHING_TO_RESTORE, SlotRestore, restore_slot


class GenerationRun(Protocol):
    """The tasks of one generation, as the coordinator talks to them."""

    def on_run(self, message: Run) -> None: ...
    def on_splits(self, message: AssignSplits) -> None: ...
    def on_trigger(self, message: TriggerCheckpoint) -> None: ...
    def on_barrier_everywhere(self, message: BarrierEverywhere) -> None: ...
    def note_unbegun(self, message: TriggerCheckpoint) -> None: ...
    def on_abort(self, message: AbortCheckpoint) -> None: ...
    def on_done(self, message: CheckpointDone) -> None: ...


@dataclass(slots=True)
class SlotSession:
    """`begin` leaves the old generation and connects for a new one; `on_built` is then told of its tasks.

    `on_error` hears what tasks raise when they are told something, or made to leave.
    """

    begin: Callable[[Deploy], None]
    on_error: Callable[[BaseException], None]
    deploy: Deploy | None = field(default=None, init=False)
    run: GenerationRun | None = field(default=None, init=False)
    is_running: bool = field(default=False, init=False)
    has_left: bool = field(default=False, init=False)
    comes_back: bool = field(default=False, init=False)

    @property
    def generation(self) -> Generation:
        return Generation(0) if self.deploy is None else self.deploy.generation

    def on_built(self, run: GenerationRun) -> None:
        self.run = run

    def on_torn_down(self) -> None:
        self.run = None
        self.is_running = False

    def on_over(self, over: Over) -> None:
        if self.run is not None and over.unbegun is not None and over.unbegun.generation == self.generation:
            self.run.note_unbegun(over.unbegun)
        self.on_message(over.abort)

    def on_message(self, message: ToSlot) -> None:
        match message:
            case Leave(comes_back=comes_back):
                self.has_left, self.comes_back = True, comes_back
            case Deploy():
                # First, so that a failure to begin is reported as this generation's.
                self.deploy = message
                try:
                    self.begin(message)
                except KeyboardInterrupt:
                    raise  # somebody ends the process
                except BaseException as error:  # a panic of native code too: not to end without a word
                    self.on_error(error)
            case _ if self.run is None or message.generation != self.generation:
                return  # of a generation that this slot has left, or failed in
            case _:
                self.is_running |= isinstance(message, Run)
                try:
                    _tell(self.run, message)
                except KeyboardInterrupt:
                    raise  # somebody ends the process
                except BaseException as error:  # a panic of native code too: not to end without a word
                    self.on_error(error)


def restore_for(
    deploy: Deploy,
    store: Store,
    open_location: Callable[[str], Store],
    plan: JobPlan,
    slot: SlotIndex,
    *,
    copies: LocalCopies | None = None,
) -> SlotRestore:
    """`copies`: on this machine, of what the job's own store holds."""
    if deploy.restore_manifest is None:
        return NOTHING_TO_RESTORE
    if deploy.restore_location is None:
        return restore_slot(
            store, deploy.restore_manifest, plan, slot, captured_rows=deploy.captured_rows, copies=copies
        )
    elsewhere = open_location(deploy.restore_location)
    restored = restore_slot(elsewhere, deploy.restore_manifest, plan, slot, captured_rows=deploy.captured_rows)
    # What lies elsewhere belongs to somebody else: this job's checkpoints must not refer to it.
    return replace(restored, known=[], known_files={})


def _tell(
    run: GenerationRun,
    message: Run | AssignSplits | TriggerCheckpoint | BarrierEverywhere | AbortCheckpoint | CheckpointDone,
) -> None:
    match message:
        case Run():
            run.on_run(message)
        case AssignSplits():
            run.on_splits(message)
        case TriggerCheckpoint():
            run.on_trigger(message)
        case BarrierEverywhere():
            run.on_barrier_everywhere(message)
        case AbortCheckpoint():
            run.on_abort(message)
        case CheckpointDone():
            run.on_done(message)
        case _:
            assert_never(message)
