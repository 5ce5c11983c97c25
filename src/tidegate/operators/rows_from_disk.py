"""Rows that an operator stored on disk, for readers of a checkpoint: those of its log, and those written away.

Of what the log has of a key the newest counts, and it counts more than what was written away before. Reads copies of
the stored files: must never be given a store that an operator uses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tidegate.model.ids import KeyGroupRange
from tidegate.operators.columnar import KeyIndex, Slots, slots_array
from tidegate.operators.evicted_rows import Ends, EvictedRows
from tidegate.operators.expiry import end_of
from tidegate.operators.log_format import LogFormat
from tidegate.operators.stored_rows import RowFormat, with_key_group
from tidegate.state.contract import ROCKSDB_SECTION, ROW_LOG_SECTION, RestoredSection
from tidegate.state.row_store import RowStore
from tidegate.storage.stored_plan import FormOnDisk, decode_schema

# So many entries are decoded, or left out, at once.
_PART_ROWS: Final = 1 << 13


@dataclass(frozen=True, slots=True)
class RowsFromDisk:
    """`store`: an empty one. `noun`: what the rows are of, for messages."""

    store: RowStore
    form: FormOnDisk
    key_groups: KeyGroupRange
    max_parallelism: int
    noun: str

    def read(self, sections: Sequence[RestoredSection]) -> Iterator[pa.RecordBatch]:
        """All that is there; the last column is the key group."""
        schema = decode_schema(self.form.columns)
        format = LogFormat.of(RowFormat("", self.noun, schema), self.form.key_count)
        index = KeyIndex(format.key_types)
        live: list[Slots] = []
        for section in sections:
            if section.name == ROW_LOG_SECTION:
                for slots, rows in self._logged(section, format, index):
                    live.append(slots)
                    yield self._with_key_group(rows)
        entries = [section for section in sections if section.name == ROCKSDB_SECTION]
        if entries:
            for rows in self._written_away(entries, schema, index, live):
                yield self._with_key_group(rows)

    def _logged(
        self, section: RestoredSection, format: LogFormat, index: KeyIndex
    ) -> Iterator[tuple[Slots, pa.RecordBatch]]:
        """Leaves the keys of the whole log in the index, those that are gone too."""
        for path in self.store.log.fetched(section):
            gone: list[pa.RecordBatch] = []
            for is_gone, rows in format.read(path, self.key_groups):
                if is_gone:
                    gone.append(rows)
                    continue
                count_before = index.count
                slots = index.find_or_add(rows)
                new = np.flatnonzero(slots >= count_before)
                if len(new):
                    yield slots[new], rows.take(slots_array(new))
            # After the rows of this file, which were written for keys that came back.
            for keys in gone:
                index.find_or_add(keys)

    def _written_away(
        self, entries: Sequence[RestoredSection], schema: pa.Schema, index: KeyIndex, live: Sequence[Slots]
    ) -> Iterator[pa.RecordBatch]:
        end_key = self.form.end_key
        assert self.store.entries is not None, "there are some"
        evicted = EvictedRows(
            self.store.entries,
            schema,
            key_count=self.form.key_count,
            max_parallelism=self.max_parallelism,
            ends=None if end_key is None else Ends(lambda keys: end_of(keys[end_key]), is_in_key=True),
            restored=entries,
        )
        for slots in live:
            for start in range(0, len(slots), _PART_ROWS):
                evicted.delete(index, slots[start : start + _PART_ROWS], None)
        yield from evicted.all_rows(range(self.key_groups.first, self.key_groups.last), _PART_ROWS)

    def _with_key_group(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return with_key_group(rows, self.form.key_count, self.max_parallelism)
