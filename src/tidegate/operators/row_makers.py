"""Operators that make several rows from one: `explode` and its relatives, grouping sets.

A row may become millions. What it makes is given slice by slice; the rest of its batch, and how far its first row has
come, are in the snapshots in between. Must never make rows long before they can be given on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa

from tidegate.operators.contract import Emit, Stateless, TaskContext
from tidegate.operators.held_rows import GivesInOrder, encode_batch
from tidegate.plan.kernels import compile_expand, compile_generate
from tidegate.plan.kernels.generators import Exploded
from tidegate.plan.physical import ExpandSpec, GenerateSpec, Giving
from tidegate.state.contract import Redistribution, RestoredSection, Section
from tidegate.storage.decoding import from_msgpack

SECTION = "rows to explode"


class _StoredRest(msgspec.Struct, frozen=True, array_like=True):
    """`given`: how many rows the first row of the batch has made already."""

    given: int
    rows: bytes


@dataclass(slots=True)
class _Held:
    exploded: Exploded
    given: int = 0


class ExplodeOperator(GivesInOrder[_Held]):
    def __init__(self, spec: GenerateSpec) -> None:
        super().__init__(spec.giving)
        self._explode = compile_generate(
            spec.collection, spec.exploded_as, spec.of_empty, kept=spec.kept, schema=spec.schema
        )

    def open(self, context: TaskContext, restored: Sequence[RestoredSection]) -> None:
        super().open(context, restored)
        for section in restored:
            for item in from_msgpack(section.data, list[bytes]):
                rest = from_msgpack(item, _StoredRest)
                with pa.ipc.open_stream(rest.rows) as reader:
                    (rows,) = reader
                self._hold(_Held(self._explode(rows), rest.given))

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        exploded = self._explode(rows)
        if exploded.count == 0:
            return
        if self._giving is Giving.AT_ONCE:
            for piece in exploded:
                emit(piece)
            return
        count = self._at_once(exploded.count)
        if count:
            self._timed(emit, exploded.made(0, count))
        self._hold(_Held(exploded, count))

    def give(self, max_rows: int, emit: Emit) -> int:
        given = 0
        # What small batches made is one slice together.
        while self._held and given < max_rows:
            held = self._held[0]
            first, last = held.given, min(held.given + max_rows - given, held.exploded.count)
            if last == held.exploded.count:
                self._held.popleft()
            held.given = last
            self._timed(emit, held.exploded.made(first, last))
            given += last - first
        return given

    def snapshot(self) -> list[Section]:
        if not self._held:
            return []
        # Batches never change, so that they can be encoded later.
        rests = [held.exploded.rest(held.given) for held in self._held]
        return [Section(SECTION, None, partial(_encode, rests), Redistribution.SPLIT)]

    def state_bytes(self) -> int:
        return sum(held.exploded.rest(held.given)[0].nbytes for held in self._held)

    def _hold(self, held: _Held) -> None:
        if held.given < held.exploded.count:
            self._held.append(held)


class ExpandOperator(Stateless):
    """A few rows for each row: one for each grouping set. It keeps nothing."""

    def __init__(self, spec: ExpandSpec) -> None:
        self._make = compile_expand(spec.projections, spec.schema)

    def process(self, rows: pa.RecordBatch, emit: Emit) -> None:
        for made in self._make(rows):
            emit(made)


def _encode(rests: Sequence[tuple[pa.RecordBatch, int]]) -> bytes:
    items = [_StoredRest(given, encode_batch(rows)) for rows, given in rests]
    return msgspec.msgpack.encode([msgspec.msgpack.encode(item) for item in items])
