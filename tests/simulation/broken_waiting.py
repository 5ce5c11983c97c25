"""Rules of operators that hold rows while calls wait, each broken once."""

from typing import Any

from tests.simulation.broken_variant import Patch, variant
from tidegate.operators.async_map import AsyncMapOperator
from tidegate.worker import restoring
from tidegate.worker.task import Task


@variant(found_at=11)
def stores_no_rows_that_wait_for_their_calls(patch: Patch) -> None:
    patch.setattr(AsyncMapOperator, "snapshot", lambda self: [])


@variant(found_at=128)
def stores_rows_that_were_given_already(patch: Patch) -> None:
    patch.setattr(AsyncMapOperator, "_held_of", lambda self, taken: taken.rows)


@variant(found_at=12)
def lets_event_time_pass_rows_that_wait(patch: Patch) -> None:
    patch.setattr(AsyncMapOperator, "watermark_behind", lambda self, event_time_ms: event_time_ms)


@variant(found_at=11)
def gives_rows_as_they_are_answered_where_order_was_asked_for(patch: Patch) -> None:
    def ready(self: AsyncMapOperator, max_rows: int) -> list[int]:
        return [number for number, held in self._held.items() if held.outcome is not None][:max_rows]

    patch.setattr(AsyncMapOperator, "_ready", ready)


@variant(found_at=63)
def ends_its_output_while_rows_wait(patch: Patch) -> None:
    patch.setattr(Task, "_holds_rows", lambda self: False)


@variant(found_at=233)
def gives_rows_that_wait_to_every_task_at_another_parallelism(patch: Patch) -> None:
    def to_all(items_by_subtask: Any, parallelism: int) -> Any:
        items = [item for items in items_by_subtask for item in items]
        return [items] * parallelism

    patch.setattr(restoring, "split_items", to_all)
