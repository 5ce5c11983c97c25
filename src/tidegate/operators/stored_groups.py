"""Groups in a snapshot: keys and running values by column, as rows of the groups that are there."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from tidegate.model.errors import ProtocolViolation
from tidegate.model.ids import KeyGroupRange
from tidegate.operators.columnar import Flags, Slots, slots_array
from tidegate.operators.contract import TaskContext
from tidegate.operators.stored_rows import RowFormat
from tidegate.plan.key_groups import Hashes
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.heap import refuse_files

SECTION_NAME = "aggregate"


def sections_of(
    read: Callable[[slice], list[pa.Array]],
    hashes: Hashes,
    live: Flags,
    schema: pa.Schema,
    context: TaskContext,
    array_bytes: Slots | None,
) -> list[Section]:
    """`read` gives the columns of a range of slots, as they are now, whenever it is called; `live` is not changed.

    `array_bytes`: about what each holds in arrays, if they hold any.
    """

    def live_rows(part: slice) -> tuple[pa.RecordBatch, Hashes]:
        rows = pa.RecordBatch.from_arrays(read(part), schema=schema)
        if live[part].all():
            return rows, hashes[part]
        places = np.flatnonzero(live[part])
        return rows.take(slots_array(places)), hashes[part][places]

    return row_format(schema).sections(live_rows, len(live), context, array_bytes)


def stored_batches(section: RestoredSection, schema: pa.Schema, key_groups: KeyGroupRange) -> Iterator[pa.RecordBatch]:
    """The groups of those key groups."""
    refuse_files(section)
    if section.name != SECTION_NAME:
        raise ProtocolViolation(f"Section {section.name!r} is not the state of an aggregation.")
    return row_format(schema).restored(section, key_groups)


def row_format(schema: pa.Schema) -> RowFormat:
    return RowFormat(SECTION_NAME, "an aggregation", schema)
