"""Rows as lines of JSON, spelled so that Spark reads the same values back. No Python per row.

A null field is left out, as Spark does it; times have as many digits as they need.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.row_text import timestamp_text
from tidegate.model.errors import OptionError
from tidegate.plan.kernels.json_escapes import json_escaped


def json_lines(rows: pa.RecordBatch) -> bytes:
    fields = [_field(column, name) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
    # Every field brings its comma, so the first one of a line is cut off again.
    # Arrow's own skipping of nulls would skip a row that has nothing else.
    inner = pc.binary_join_element_wise(*(pc.fill_null(field, "") for field in fields), "")
    inner = pc.utf8_slice_codeunits(inner, 1)
    lines = pc.binary_join_element_wise("{", inner, "}\n", "")
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    return bytes(pc.binary_join(whole, "")[0].as_buffer())


def check_json(schema: pa.Schema) -> None:
    for field in schema:
        if _spelling(field.type) is None:
            raise OptionError(
                f"The json sink does not write column {field.name!r}, a {field.type}: leave it out, or use parquet."
            )


def _field(column: pa.Array, name: str) -> pa.Array:
    spell = _spelling(column.type)
    assert spell is not None, "other types are refused before the start"
    prefix = f',"{json_escaped(pa.array([name], pa.string()))[0].as_py()}":'
    return pc.binary_join_element_wise(prefix, spell(column), "")


def _spelling(type_: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    is_type = pa.types
    if is_type.is_string(type_):
        return lambda column: _quoted(json_escaped(column))
    if is_type.is_floating(type_):
        return _float
    if is_type.is_signed_integer(type_) or is_type.is_boolean(type_) or is_type.is_decimal(type_):
        return lambda column: pc.cast(column, pa.string())
    if is_type.is_date32(type_):
        return lambda column: _quoted(pc.cast(column, pa.string()))
    if is_type.is_timestamp(type_):
        return lambda column: _quoted(timestamp_text(column))
    return None


def _float(column: pa.Array) -> pa.Array:
    text = pc.cast(column, pa.string())
    # Spark's reader takes -0 for the integer, which has no sign.
    text = pc.if_else(pc.equal(text, "-0"), "-0.0", text)
    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return text
    infinite = pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"')
    return pc.case_when(pc.make_struct(pc.is_nan(column), pc.is_inf(column)), pa.scalar('"NaN"'), infinite, text)


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")
