"""The rows that a stateful operator's keys start with: applied once, before the first row, and marked in state.

Every subtask applies those of its own key groups before it can take part in a checkpoint, so a checkpoint without
the mark of one subtask does not exist. Must never apply them after a restore.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.operators.contract import TaskContext
from tidegate.operators.keyed_batches import ByKey
from tidegate.operators.user_rows import Key
from tidegate.plan.nodes import InitialState
from tidegate.state.contract import Redistribution, RestoredSection, Section

SECTION = "initial state applied"
_MARK = b"\x01"


def was_applied(restored: Sequence[RestoredSection]) -> bool:
    return any(section.name == SECTION for section in restored)


def applied_mark() -> Section:
    # To all: a subtask that is new at another parallelism must not apply it either.
    return Section(SECTION, None, lambda: _MARK, Redistribution.UNION)


def initial_rows(initial: InitialState, by_key: ByKey, context: TaskContext) -> Iterator[tuple[int, Key, Any]]:
    """Key group, key and rows of the keys that this subtask owns."""
    with pa.ipc.open_stream(initial.rows) as reader:
        table = reader.read_all().combine_chunks()
    for batch in table.to_batches():
        for key_group, key, rows in by_key.of(batch, max_parallelism=context.max_parallelism):
            if key_group in context.key_groups:
                yield key_group, key, rows
