"""Rows that an operator stored in a log by number, and sessions that it wrote away, for readers of a checkpoint.

Reads copies of the stored files: must never be given a store that an operator uses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidegate.model.ids import KeyGroupRange
from tidegate.operators.evicted_rows import EvictedRows
from tidegate.operators.numbered_format import LogReader
from tidegate.operators.sessions_on_disk import sessions_in, stored_schema_of
from tidegate.operators.stored_rows import RowFormat, with_key_group
from tidegate.state.contract import ROCKSDB_SECTION, ROW_LOG_SECTION, RestoredSection
from tidegate.state.row_store import RowStore
from tidegate.storage.stored_plan import FormOnDisk, NumberedForm, decode_schema

# So many entries are decoded at once.
_PART_KEYS: Final = 1 << 13


@dataclass(frozen=True, slots=True)
class NumberedFromDisk:
    """`store`: an empty one. `away`: how sessions that are not in memory lie on disk. `noun`: for messages."""

    store: RowStore
    form: NumberedForm
    away: FormOnDisk | None
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
            for path in self.store.log.fetched(section):
                for found in reader.read(path):
                    if found.number_column == self.form.own:
                        rows = found.with_flags() if found.has_met.any() else found.rows
                        yield self._with_key_group(rows)
        entries = [section for section in sections if section.name == ROCKSDB_SECTION]
        if entries and self.away is not None:
            yield from map(self._with_key_group, self._written_away(entries, self.away))

    def _written_away(self, entries: Sequence[RestoredSection], form: FormOnDisk) -> Iterator[pa.RecordBatch]:
        """A key is in the log or here."""
        assert self.store.entries is not None, "there are some"
        columns = decode_schema(form.columns)
        evicted = EvictedRows(
            self.store.entries,
            columns,
            key_count=form.key_count,
            max_parallelism=self.max_parallelism,
            ends=None,
            restored=entries,
        )
        sessions = stored_schema_of(columns, form.key_count)
        for rows in evicted.all_rows(range(self.key_groups.first, self.key_groups.last), _PART_KEYS):
            yield sessions_in(rows, sessions, form.key_count)

    def _with_key_group(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return with_key_group(rows, self.form.key_count, self.max_parallelism)
