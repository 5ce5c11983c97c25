"""Rows of built-in operators for other key groups, or without some keys: read as tables are, written as the heap does.

A key group is a range of hashes, however many there are. So the new ones of a slot were in a few of the old subtasks:
the slot reads those, and no row is sent. Must never leave out a row: what it does not know is not among `held_rows`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.model.ids import KeyGroupRange, VertexId, key_groups_with_keys_of, range_of
from tidegate.operators.held_pairs import PAIRS_SECTION, hashes_of_pairs
from tidegate.operators.join_side import arrived_section
from tidegate.operators.stored_rows import SECTION_ROWS, regrouped, stored_key_groups, stream_of
from tidegate.plan.key_groups import Hashes, hash_rows, key_group_of
from tidegate.storage.stored_plan import StoredGroups, StoredOperator, StoredRows, UserState
from tidegate.worker.reading import rows_in_sections, stored_rows
from tidegate.worker.restoring import StoredFiles

# What is written together, so that a restore has not much more of it in memory at a time.
_SECTION_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows in sections of one name. `hashes`: of their keys. `state`: as what readers know them, if they do."""

    section: str
    hashes: Callable[[pa.RecordBatch], Hashes]
    state: StoredRows | StoredGroups | None


def held_rows(operator: StoredOperator) -> list[HeldRows]:
    """All that an operator may hold as rows. Raises if the checkpoint does not say what their keys are."""
    held: list[HeldRows] = []
    for state in operator.states:
        if not isinstance(state, UserState):
            by_key = partial(hash_rows, key_count=key_count_of(operator, state))
            held += [HeldRows(state.section, by_key, state), HeldRows(arrived_section(state.section), by_key, None)]
    return [*held, HeldRows(PAIRS_SECTION, hashes_of_pairs, None)] if held else []


def regrouped_sections(
    files: StoredFiles, operator: StoredOperator, own: KeyGroupRange, *, max_parallelism: int
) -> Iterator[tuple[str, Sequence[memoryview]]]:
    """Name and content of sections with all rows of some of `max_parallelism` key groups."""
    for held in held_rows(operator):
        for rows in by_section(_rows(files, operator, held, own, max_parallelism)):
            yield held.section, stream_of(rows)


def remaining_sections(
    files: StoredFiles, operator: StoredOperator, own: KeyGroupRange, left: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> Iterator[tuple[str, Sequence[memoryview]]]:
    """The same in the key groups that they have, with what is `left` of some rows; not of those still on their way."""
    for held in _kept_rows(operator):
        rows = map(left, _rows(files, operator, held, own, files.manifest.max_parallelism))
        for batch in by_section(batch for batch in rows if batch.num_rows):
            yield held.section, stream_of(batch)


def unshown_sections(
    files: StoredFiles,
    operator: StoredOperator,
    own: KeyGroupRange,
    left: Callable[[pa.RecordBatch], pa.RecordBatch],
    *,
    max_parallelism: int,
) -> Iterator[tuple[str, Sequence[memoryview]]]:
    """Keys of groups that are not shown yet, those that are `left` of some, by other key groups if they are others."""
    for held in _kept_rows(operator):
        if held.state is None:
            rows = map(left, _rows(files, operator, held, own, max_parallelism))
            for batch in by_section(batch for batch in rows if batch.num_rows):
                yield held.section, stream_of(batch)


def kept_sections(operator: StoredOperator) -> frozenset[str]:
    """What `remaining_sections` stand for, and what rows of a table with the `unshown_sections` do."""
    return frozenset(held.section for held in _kept_rows(operator))


def _kept_rows(operator: StoredOperator) -> list[HeldRows]:
    """Also the keys of groups that are not shown yet: they would come back as groups of no rows."""
    unshown = {arrived_section(state.section) for state in operator.states if isinstance(state, StoredGroups)}
    return [held for held in held_rows(operator) if held.state is not None or held.section in unshown]


def not_by_key(operator: StoredOperator) -> Damaged:
    """A key that is not hashed as it was would never be found again."""
    return Damaged(
        f"The state of {operator.name} lies in other key groups than those of its keys: base the savepoint on another "
        "checkpoint."
    )


def _rows(
    files: StoredFiles, operator: StoredOperator, held: HeldRows, own: KeyGroupRange, max_parallelism: int
) -> Iterator[pa.RecordBatch]:
    before = files.manifest.max_parallelism
    wanted = key_groups_with_keys_of(own, max_parallelism, among=before)
    for subtask in _subtasks_with(files, operator, wanted):
        for stored in _stored(files, operator, held, subtask, wanted):
            hashes = held.hashes(stored)
            if (key_group_of(hashes, before) != stored_key_groups(stored)).any():
                raise not_by_key(operator)
            rows = regrouped(stored, hashes, max_parallelism, own)
            if rows.num_rows:
                yield rows


def _stored(
    files: StoredFiles, operator: StoredOperator, held: HeldRows, subtask: int, wanted: KeyGroupRange
) -> Iterator[pa.RecordBatch]:
    if held.state is None:
        return rows_in_sections(files, operator, held.section, subtask)
    return stored_rows(files, operator, held.state, subtask, wanted=wanted)


def _subtasks_with(files: StoredFiles, operator: StoredOperator, wanted: KeyGroupRange) -> Iterator[int]:
    parallelism = files.parallelism_of(VertexId(operator.vertex))
    for subtask in range(parallelism):
        had = range_of(subtask, parallelism=parallelism, max_parallelism=files.manifest.max_parallelism)
        if max(had.first, wanted.first) < min(had.last, wanted.last):
            yield subtask


def by_section(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What was read in small parts is put together; what is large as it is stays alone."""
    gathered: list[pa.RecordBatch] = []
    row_count = size_bytes = 0
    for rows in batches:
        row_count, size_bytes = row_count + rows.num_rows, size_bytes + rows.nbytes
        if gathered and (row_count > SECTION_ROWS or size_bytes > _SECTION_BYTES):
            yield pa.concat_batches(gathered)
            gathered, row_count, size_bytes = [], rows.num_rows, rows.nbytes
        gathered.append(rows)
    if gathered:
        yield pa.concat_batches(gathered)


def key_count_of(operator: StoredOperator, state: StoredRows | StoredGroups) -> int:
    """Of those that rows are sent by, which come first."""
    form = state.on_disk if state.in_log is None else state.in_log
    if form is None:
        raise IncompatibleCheckpoint(
            f"The checkpoint does not say which columns are the key of {operator.name}, because it was taken by an "
            "earlier Tidegate: resume its query, and base the savepoint on a checkpoint that was taken since."
        )
    return form.key_count
