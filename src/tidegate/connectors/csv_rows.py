"""Lines of csv as rows of a schema, with the answers of Spark's csv reader.

Plain lines (as many words as columns, quotes only around whole words, no escapes) are cut by Arrow; all others one by
one. Words become values column by column, by Spark's rules and not by Arrow's.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from tidegate.connectors.csv_tokens import Marks, split_words
from tidegate.plan.parsing.parsed import Parsed, either, joined, runs
from tidegate.plan.parsing.text_values import FloatWords, Reading, reading

# What String.trim removes: a line of nothing else is no record.
_BLANKS = "".join(map(chr, range(33)))


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """`names`: all columns of the file, by position. `schema`: those to read.

    `counts_words`: whether a line of more or fewer words than columns is malformed; where Spark reads some columns
    only, it does not look.
    """

    names: Sequence[str]
    schema: pa.Schema
    marks: Marks
    null_word: str
    zone: str
    counts_words: bool

    def parse(self, lines: pa.Array) -> Parsed:
        lines = lines.filter(pc.not_equal(pc.utf8_trim(lines, _BLANKS), ""))
        if not self.names or (len(self.schema) == 0 and not self.counts_words):
            # Spark does not look into a line of which it reads nothing.
            return Parsed([], None, lines)
        pieces = []
        at = 0
        for is_plain, count in runs(self._is_plain(lines)):
            part = lines.slice(at, count)
            words, bad = (self._in_bulk(part), None) if is_plain else self._one_by_one(part)
            pieces.append(self._converted(words, bad, part))
            at += count
        return joined(pieces) if pieces else self._converted(*self._one_by_one(lines), lines)

    def _is_plain(self, lines: pa.Array) -> pa.Array:
        # Read in bulk, a line with an end of line in it would be two: `lineSep` may be another.
        is_one_line = pc.invert(pc.or_(pc.match_substring(lines, "\n"), pc.match_substring(lines, "\r")))
        bare = pc.and_(
            pc.equal(pc.count_substring(lines, self.marks.separator), len(self.names) - 1),
            pc.and_(is_one_line, pc.invert(pc.match_substring(lines, self.marks.quote))),
        )
        # The pattern costs ten times the look for a quote.
        if pc.all(bare, min_count=0).as_py():
            return bare
        return pc.or_(bare, pc.and_(is_one_line, pc.match_substring_regex(lines, self._plain_line())))

    def _plain_line(self) -> str:
        quote, escape, separator = (
            re.escape(mark) for mark in (self.marks.quote, self.marks.escape, self.marks.separator)
        )
        inside = f"(?:[^{quote}]|{quote}{quote})*" if quote == escape else f"[^{quote}{escape}]*"
        word = f"(?:{quote}{inside}{quote}|[^{quote}{separator}]*)"
        return f"^(?s:{word}{f'(?:{separator}{word}){{{len(self.names) - 1}}}' if len(self.names) > 1 else ''})$"

    def _in_bulk(self, lines: pa.Array) -> list[pa.Array]:
        whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        text = pc.binary_join(whole, "\n")[0].as_buffer()
        # Names may come twice in a file of any schema; positions do not.
        positions = [str(position) for position in range(len(self.names))]
        wanted = [str(self.names.index(field.name)) for field in self.schema]
        table = pcsv.read_csv(
            pa.BufferReader(text),
            read_options=pcsv.ReadOptions(
                use_threads=False, block_size=max(1024, text.size + 1), column_names=positions
            ),
            parse_options=pcsv.ParseOptions(
                delimiter=self.marks.separator,
                quote_char=self.marks.quote,
                double_quote=True,
                escape_char=False,
                newlines_in_values=False,
                ignore_empty_lines=False,
            ),
            convert_options=pcsv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return [_one_chunk(column) for column in table.columns]

    def _one_by_one(self, lines: pa.Array) -> tuple[list[pa.Array], pa.Array | None]:
        rows = [split_words(line, self.marks) for line in lines.to_pylist()]
        positions = [self.names.index(field.name) for field in self.schema]
        columns = [pa.array([row[at] if at < len(row) else None for row in rows], pa.string()) for at in positions]
        if not self.counts_words:
            return columns, None
        bad = [len(row) != len(self.names) for row in rows]
        return columns, pa.array(bad, pa.bool_()) if any(bad) else None

    def _converted(self, words: Sequence[pa.Array], bad: pa.Array | None, lines: pa.Array) -> Parsed:
        arrays, masks = [], [bad]
        for field, column in zip(self.schema, words, strict=True):
            present = pc.if_else(pc.equal(column, self.null_word), pa.scalar(None, pa.string()), column)
            if pa.types.is_string(field.type):
                arrays.append(present)
                continue
            read = self._reading(field.type).column(present)
            arrays.append(read.values)
            masks.append(read.bad)
        return Parsed(arrays, either(masks), lines)

    def _reading(self, type_: pa.DataType) -> Reading:
        found = reading(type_, zone=self.zone, floats=FloatWords())
        assert found is not None, "types without words are refused before the start"
        return found


def can_read(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or reading(type_, zone="UTC", floats=FloatWords()) is not None


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
