"""Rows that an operator stored in a log by number, for readers of a checkpoint.

Reads copies of the stored files: must never be given a log that an operator uses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.model.ids import KeyGroupRange
from tidegate.operators.numbered_format import LogReader
from tidegate.operators.stored_rows import RowFormat, with_key_group
from tidegate.state.contract import ROW_LOG_SECTION, RestoredSection
from tidegate.state.row_log import RowLog
from tidegate.storage.stored_plan import NumberedForm, decode_schema


@dataclass(frozen=True, slots=True)
class NumberedFromDisk:
    """`log`: an empty one. `noun`: what the rows are of, for messages."""

    log: RowLog
    form: NumberedForm
    key_groups: KeyGroupRange
    max_parallelism: int
    noun: str

    def read(self, sections: Sequence[RestoredSection]) -> Iterator[pa.RecordBatch]:
        """All that is there; the last column is the key group."""
        schemas = [decode_schema(each) for each in self.form.columns]
        formats = {schema.names[-1]: RowFormat("", self.noun, schema) for schema in schemas}
        for section in sections:
            if section.name != ROW_LOG_SECTION:
                continue
            reader = LogReader(formats, self.key_groups)
            for path in self.log.fetched(section):
                for found in reader.read(path):
                    if found.number_column == self.form.own:
                        rows = found.with_flags() if found.has_met.any() else found.rows
                        yield with_key_group(rows, self.form.key_count, self.max_parallelism)
