"""Captured rows that are not restored because the user gives them up: nothing takes their place, and they are counted.

Everything else stays: elements keep their numbers, so that channels meet their captures as if the rows had been
filtered out, and marks of event time are delivered. Must never be referred to by a later checkpoint as if it were what
the checkpoint holds.
"""

import pyarrow as pa

from tidegate.model.elements import Batch, NumberedElement
from tidegate.model.ids import EdgeId
from tidegate.network.messages import DroppedOnEdge
from tidegate.plan.physical import Edge


class DroppedRows:
    """What one slot has dropped, by edge."""

    def __init__(self) -> None:
        self._found: dict[EdgeId, DroppedOnEdge] = {}

    def without_rows(self, edge: Edge, element: NumberedElement) -> NumberedElement:
        if not isinstance(element, Batch) or element.rows.num_rows == 0:
            return element
        self._count(edge, rows=element.rows.num_rows, size_bytes=element.rows.nbytes)
        return no_rows(edge.schema)

    def unread(self, edge: Edge, counted_bytes: int) -> Batch:
        """In place of an element that cannot be read; 0 if another slot counts it."""
        if counted_bytes:
            self._count(edge, unread_bytes=counted_bytes)
        return no_rows(edge.schema)

    def by_edge(self) -> tuple[DroppedOnEdge, ...]:
        return tuple(self._found.values())

    def _count(self, edge: Edge, *, rows: int = 0, size_bytes: int = 0, unread_bytes: int = 0) -> None:
        before = self._found.get(edge.id, DroppedOnEdge(edge.id, 0, 0))
        self._found[edge.id] = DroppedOnEdge(
            edge.id, before.rows + rows, before.bytes + size_bytes, before.unread_bytes + unread_bytes
        )


def no_rows(schema: pa.Schema) -> Batch:
    """Keeps an element's place: a hole in the sequence would be in the next capture, too."""
    return Batch(pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema))
