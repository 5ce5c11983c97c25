"""Rows of built-in operators that come out of a table: as they are stored, by slot, and as sections of that slot.

What they have in the table is all that is stored of them: whoever chose the state has seen to that. Must never write
two rows of one key, nor a row that its operator could not have made.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import OptionError
from tidegate.operators.columnar import KeyIndex, Slots, fixed_array, slots_array
from tidegate.operators.expiry import end_of
from tidegate.operators.stored_group_values import stored_columns
from tidegate.operators.stored_rows import stream_of, with_key_group
from tidegate.plan.key_groups import fixed_values_of, owner_of
from tidegate.storage.stored_plan import FormOnDisk, StoredGroups, StoredOperator, StoredRows, decode_schema
from tidegate.worker.regrouped_rows import by_section, key_count_of

# When an operator that keeps keys forgets them, as the shape of a plan says it; None if it does not.
Forgets: TypeAlias = Literal["never", "ForgetByKey", "ForgetAfterDelay"] | None
Section: TypeAlias = tuple[str, Sequence[memoryview]]

# Rows travel in so small parts that ten thousand of those, which Spark may take at once, are no more than a slot has.
_STREAM_ROWS: Final = 1 << 10
_NEVER_US: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class RowsOfTable:
    """Groups or keys, by the columns of their table. `parallelism`: of the operator's vertex."""

    operator: StoredOperator
    state: StoredGroups | StoredRows
    forgets: Forgets
    parallelism: int
    max_parallelism: int

    def by_slot(self, rows: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """Arrow streams of rows as they are stored, each of one slot, with one of its key groups."""
        if rows.num_rows == 0:
            return
        stored = with_key_group(self._stored(rows), self._key_count, self.max_parallelism)
        key_groups = fixed_values_of(stored.column(stored.num_columns - 1))
        owners = owner_of(key_groups, parallelism=self.parallelism, max_parallelism=self.max_parallelism)
        order = np.argsort(owners, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
            for start in range(0, len(own), _STREAM_ROWS):
                part = own[start : start + _STREAM_ROWS]
                yield int(key_groups[part[0]]), b"".join(stream_of(stored.take(slots_array(part))))

    def sections(
        self,
        streams: Iterable[bytes],
        unshown: Callable[[Callable[[pa.RecordBatch], pa.RecordBatch]], Iterator[Section]],
    ) -> Iterator[Section]:
        """Name and content of the sections of a slot. `unshown`: those of groups that were not shown yet, less some."""
        batches = [batch for stream in streams for batch in pa.ipc.open_stream(stream)]
        index = KeyIndex(self._schema.types[: self._key_count])
        for batch in batches:
            self._add(index, batch)
        count = index.count
        for rows in by_section(batches):
            yield self.state.section, stream_of(rows)
        yield from unshown(lambda rows: _of_the_first(index, count, rows))

    def _add(self, index: KeyIndex, rows: pa.RecordBatch) -> None:
        count_before = index.count
        slots = index.find_or_add(rows)
        if index.count - count_before == rows.num_rows:
            return
        _, first = np.unique(slots, return_index=True)
        again: Slots = np.setdiff1d(np.arange(rows.num_rows), first[slots[first] >= count_before])
        key = tuple(column[int(again[0])].as_py() for column in rows.columns[: self._key_count])
        raise OptionError(
            f"Two rows have the key {key!r} in state {self.state.name!r} of operator {self.operator.id}: give each key "
            f"once."
        )

    def _stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema, count = self._schema, self._key_count
        keys = [rows.column(at).cast(schema.field(at).type) for at in range(count)]
        given = [*keys, *rows.columns[count:]]
        match self.state:
            case StoredGroups():
                columns = stored_columns(self.state, given)
            case StoredRows():
                columns = [*keys, fixed_array(pa.int64(), self._forgotten_at_us(given), None)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _forgotten_at_us(self, columns: Sequence[pa.Array]) -> Slots:
        given = columns[-1].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        times: Slots = fixed_values_of(pc.fill_null(given, _NEVER_US))
        name = decode_schema(self.state.columns).names[-1] if isinstance(self.state, StoredRows) else ""
        of = f"Operator {self.operator.id} ({self.operator.name})"
        end_key = self._form.end_key
        if end_key is not None and (times != end_of(columns[end_key])).any():
            by = decode_schema(self.operator.keys).names[end_key]
            raise OptionError(
                f"{of} forgets its keys by {by!r}: {name!r} must be that time, or the end of that window."
            )
        if self.forgets == "never" and given.null_count != len(given):
            raise OptionError(f"{of} never forgets its keys: {name!r} must be null.")
        if self.forgets == "ForgetAfterDelay" and given.null_count:
            raise OptionError(f"{of} forgets each key at a time: {name!r} must not be null.")
        return times

    @property
    def _form(self) -> FormOnDisk:
        assert self.state.on_disk is not None, "checked when the state was chosen"
        return self.state.on_disk

    @property
    def _schema(self) -> pa.Schema:
        return decode_schema(self._form.columns)

    @property
    def _key_count(self) -> int:
        return key_count_of(self.operator, self.state)


def _of_the_first(index: KeyIndex, count: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the keys that were added first."""
    found = np.flatnonzero(index.find_or_add(rows) < count)
    return rows if len(found) == rows.num_rows else rows.take(slots_array(found))
