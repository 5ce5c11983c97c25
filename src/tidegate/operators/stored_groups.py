"""Groups in a snapshot: keys and running values by column, each row with its key group, in bounded sections."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from tidegate.model.errors import Damaged, IncompatibleCheckpoint, ProtocolViolation
from tidegate.model.ids import KeyGroupRange
from tidegate.operators.columnar import Flags, fixed_array, slots_array
from tidegate.operators.contract import TaskContext
from tidegate.plan.key_groups import Hashes, fixed_values_of, key_group_of
from tidegate.state.contract import RestoredSection, Section

# A section is encoded between two steps of the stream; this many groups take a few ms.
SECTION_ROWS = 1 << 17
SECTION_NAME = "aggregate"

_KEY_GROUP_COLUMN = "key_group"


def sections_of(
    read: Callable[[slice], list[pa.Array]], hashes: Hashes, live: Flags, schema: pa.Schema, context: TaskContext
) -> list[Section]:
    """`read` gives the columns of a range of slots, as they are now, whenever it is called; `live` is not changed."""
    slot_count = len(live)
    return [
        Section(
            SECTION_NAME,
            context.key_groups,
            partial(_encoded, read, hashes, live, schema, context.max_parallelism, slice(start, stop)),
        )
        for start, stop in ((at, min(at + SECTION_ROWS, slot_count)) for at in range(0, slot_count, SECTION_ROWS))
    ]


def stored_batches(section: RestoredSection, schema: pa.Schema, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
    """The groups of those key groups, without that column."""
    if section.name != SECTION_NAME:
        raise ProtocolViolation(f"Section {section.name!r} is not the state of an aggregation.")
    expected = _with_key_group(schema)
    try:
        with pa.ipc.open_stream(section.data) as stream:
            if stream.schema != expected:
                raise IncompatibleCheckpoint(
                    f"The checkpoint holds an aggregation of ({_described(stream.schema)}), this query has one of "
                    f"({_described(expected)}): start with a new checkpointLocation, or with the query it was."
                )
            for stored in stream:
                own = _of_range(stored, key_groups)
                if own.num_rows:
                    yield own.select(range(len(schema)))
    except (pa.ArrowInvalid, OSError) as error:
        raise Damaged(f"The state of an aggregation cannot be read ({error}): restore an older checkpoint.") from error


def _encoded(
    read: Callable[[slice], list[pa.Array]],
    hashes: Hashes,
    live: Flags,
    schema: pa.Schema,
    max_parallelism: int,
    part: slice,
) -> memoryview:
    key_groups = fixed_array(pa.uint16(), key_group_of(hashes[part], max_parallelism), None)
    whole = _with_key_group(schema)
    rows = pa.RecordBatch.from_arrays([*read(part), key_groups], schema=whole)
    if not live[part].all():
        rows = rows.take(slots_array(np.flatnonzero(live[part])))
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, whole) as stream:
        stream.write_batch(rows)
    return memoryview(target.getvalue())


def _with_key_group(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(_KEY_GROUP_COLUMN, pa.uint16()))


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _of_range(stored: pa.RecordBatch, key_groups: KeyGroupRange) -> pa.RecordBatch:
    found = fixed_values_of(stored.column(stored.num_columns - 1))
    own = (found >= key_groups.first) & (found < key_groups.last)
    return stored if own.all() else stored.take(slots_array(np.flatnonzero(own)))
