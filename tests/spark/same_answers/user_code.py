"""Python functions and processors of the compared pipelines."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DoubleType, StringType

# Workers cannot import the tests: what is defined here travels with the plan.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@F.udf(StringType())
def shout(word: str | None) -> str | None:
    return None if word is None else word.upper() + "!"


@F.pandas_udf(DoubleType())
def halved(numbers: pd.Series) -> pd.Series:
    return numbers / 2


def longest_notes(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for batch in batches:
        yield batch[batch.note.str.len() > 2][["id", "note"]]


def ids_twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([batch.column("id")], ["id"])
        yield pa.RecordBatch.from_arrays([batch.column("id")], ["id"])


class Totals(StatefulProcessor):
    """A row for each row: how many the key has had, and the sum of its ids. The order of a key's rows does not show."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = self._total.get()[0] if self._total.exists() else 0
        for _ in rows:
            n += 1
            yield Row(user=key[0], n=n)
        self._total.update((n,))

    def close(self) -> None:
        return


class Items(StatefulProcessor):
    """Lists and maps: which items a user has had how often, told whenever an item is new."""

    def init(self, handle: Any) -> None:
        self._items = handle.getMapState("items", "item int", "n long")
        self._seen = handle.getListState("seen", "id long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._seen.appendValue((row.id,))
            item = (-1 if row.item is None else row.item,)
            n = self._items.getValue(item)[0] if self._items.containsKey(item) else 0
            self._items.updateValue(item, (n + 1,))
            if n == 0:
                yield Row(user=key[0], item=item[0])

    def close(self) -> None:
        return


class Alarms(StatefulProcessor):
    """Event-time timers: for every row one, thirty seconds later."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._handle.registerTimer(int(row.ts.timestamp()) * 1000 + 30_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n = self._fired.get()[0] + 1 if self._fired.exists() else 1
        self._fired.update((n,))
        yield Row(user=key[0], at=expiredTimerInfo.getExpiryTimeInMs(), n=n)

    def close(self) -> None:
        return


def count_in_pandas(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    before = state.get[0] if state.exists else 0
    rows = sum(len(frame) for frame in frames)
    state.update((before + rows,))
    yield pd.DataFrame({"user": [key[0]], "n": [before + rows]})
