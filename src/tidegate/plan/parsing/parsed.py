"""Records read into columns, with a mark on those that did not fit; what becomes of these is the caller's to say."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Parsed:
    """Rows in order. `bad`: None if none is; `records` holds the text each row came from."""

    columns: Sequence[pa.Array]
    bad: pa.Array | None
    records: pa.Array


def joined(pieces: Sequence[Parsed]) -> Parsed:
    if len(pieces) == 1:
        return pieces[0]
    columns = [pa.concat_arrays(list(arrays)) for arrays in zip(*(piece.columns for piece in pieces), strict=True)]
    records = pa.concat_arrays([piece.records for piece in pieces])
    if all(piece.bad is None for piece in pieces):
        return Parsed(columns, None, records)
    bad = [pa.array([False] * len(piece.records), pa.bool_()) if piece.bad is None else piece.bad for piece in pieces]
    return Parsed(columns, pa.concat_arrays(bad), records)


def either(masks: Sequence[pa.Array | None]) -> pa.Array | None:
    found = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else pc.or_(found, mask)
    return found


def runs(mask: pa.Array) -> list[tuple[bool, int]]:
    """The values of a mask without nulls, each with how often it stands there in a row."""
    encoded = pc.run_end_encode(mask)
    ends = [0, *encoded.run_ends.to_pylist()]
    values = encoded.values.to_pylist()
    return [(value, end - start) for value, start, end in zip(values, ends, ends[1:], strict=False)]
