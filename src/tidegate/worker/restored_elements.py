"""Rows in flight as a restore gives them back: in sequence, and to each new channel those that belong to it.

Decodes what it is given; must never look for files itself.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from tidegate.model.elements import Batch, NumberedElement
from tidegate.model.errors import Damaged
from tidegate.network.messages import StoredElement
from tidegate.operators.columnar import slots_array
from tidegate.plan.key_groups import hash_rows, key_group_of
from tidegate.plan.physical import Edge, HashPartitioning
from tidegate.protocol.rescale import Piece
from tidegate.storage.manifests import ChannelRange, SharedFile
from tidegate.worker.captured import decode_element
from tidegate.worker.captured_parts import CapturedPart, StoredCapture, without_rows
from tidegate.worker.channel_state import INLINE
from tidegate.worker.dropped_rows import no_rows


def in_sequence(
    stored: ChannelRange,
    parts: Iterable[CapturedPart],
    schema: pa.Schema,
    *,
    read: Callable[[SharedFile], memoryview],
    instead: Callable[[StoredElement], NumberedElement] | None,
) -> Iterator[StoredCapture]:
    """As long as there is no gap; whether all are there is seen at the end.

    `instead`: what takes the place of one that cannot be read; without it, that is raised.
    """
    channel = stored.channel
    expected = int(stored.first)
    for part in parts:
        for element in part.elements:
            try:
                data = part.inline if element.file == INLINE else read(part.files[element.file])
                piece = data[element.offset : element.offset + element.length]
                sequence, decoded = decode_element(piece, schema, name=f"{part.side} of {channel}")
            except Damaged:
                if instead is None:
                    raise
                sequence, decoded = element.sequence, instead(element)
            if sequence != expected:
                break
            first_row = stored.row if sequence == stored.first else 0
            left = without_rows(decoded, first_row - element.first_row)
            yield StoredCapture(part.side, sequence, left, first_row)
            expected += 1
    if expected != stored.n:
        raise Damaged(
            f"Channel {channel} should have the elements {stored.first} to {stored.n} in flight, but the "
            f"checkpoint holds none of number {expected} there: start from another checkpoint."
        )


def rows_of(element: NumberedElement, edge: Edge, piece: Piece, *, max_parallelism: int) -> NumberedElement:
    """What a new channel takes of an element. Marks spoke for one old sender: only their place is kept."""
    if not isinstance(element, Batch):
        return no_rows(edge.schema)
    if piece.key_groups is None or element.rows.num_rows == 0:
        return element
    assert isinstance(edge.partitioning, HashPartitioning), "only hash edges are split by key group"
    key_groups = key_group_of(hash_rows(element.rows, edge.partitioning.key_count), max_parallelism)
    own = (key_groups >= piece.key_groups.first) & (key_groups < piece.key_groups.last)
    return Batch(element.rows.take(slots_array(np.flatnonzero(own))))
