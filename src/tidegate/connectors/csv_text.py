"""Rows as lines of csv, spelled as Spark's csv writer does. No Python per row.

A null is nothing, an empty string is a pair of quotes; words with separators, quotes or line breaks are quoted.
"""

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.csv_tokens import Marks
from tidegate.connectors.row_text import timestamp_text
from tidegate.model.errors import OptionError


@dataclass(frozen=True, slots=True)
class CsvText:
    marks: Marks
    null_word: str

    def lines(self, rows: pa.RecordBatch) -> bytes:
        words = [self._words(column) for column in rows.columns]
        lines = pc.binary_join_element_wise(*words, self.marks.separator) if len(words) > 1 else words[0]
        if len(words) == 1:
            # A line of nothing would be no row at all.
            lines = pc.if_else(pc.equal(lines, ""), self.marks.quote * 2, lines)
        lines = pc.binary_join_element_wise(lines, "\n", "")
        whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        return bytes(pc.binary_join(whole, "")[0].as_buffer())

    def header(self, schema: pa.Schema) -> bytes:
        names = [self._strings(pa.array([name], pa.string()))[0].as_py() for name in schema.names]
        return (self.marks.separator.join(names) + "\n").encode()

    def _words(self, column: pa.Array) -> pa.Array:
        return pc.fill_null(self._spelled(column), self.null_word)

    def _spelled(self, column: pa.Array) -> pa.Array:
        if pa.types.is_string(column.type):
            return self._strings(column)
        if pa.types.is_timestamp(column.type):
            return timestamp_text(column)
        text = pc.cast(column, pa.string())
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
            infinite = pc.if_else(pc.greater(column, 0), "Inf", "-Inf")
            text = pc.case_when(pc.make_struct(pc.is_nan(column), pc.is_inf(column)), pa.scalar("NaN"), infinite, text)
        return text

    def _strings(self, column: pa.Array) -> pa.Array:
        quote, escape = self.marks.quote, self.marks.escape
        special = "[" + re.escape(self.marks.separator + quote) + "\r\n]|^[ \t]|[ \t]$"
        needs_quotes = pc.or_(pc.match_substring_regex(column, special), pc.equal(column, ""))
        if not pc.any(needs_quotes, min_count=0).as_py():
            return column
        inside = column
        if escape != quote:
            inside = pc.replace_substring(inside, escape, escape * 2)
        inside = pc.replace_substring(inside, quote, escape + quote)
        return pc.if_else(needs_quotes, pc.binary_join_element_wise(quote, inside, quote, ""), column)


def check_csv(schema: pa.Schema) -> None:
    is_type = pa.types
    for field in schema:
        known = (
            is_type.is_string(field.type), is_type.is_signed_integer(field.type), is_type.is_floating(field.type),
            is_type.is_boolean(field.type), is_type.is_decimal(field.type), is_type.is_date32(field.type),
            is_type.is_timestamp(field.type),
        )  # fmt: skip
        if not any(known):
            raise OptionError(
                f"The csv sink does not write column {field.name!r}, a {field.type}: leave it out, or use parquet."
            )
