"""`tg.connect`: two streams into one processor, as a DataFrame that composes further."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidegate.model.errors import OptionError
from tidegate.plan.nodes import RightSide
from tidegate.spark.connected import Connection, ConnectProcessor, carrying

_TIME_MODES = {"none": "NoTime$", "processingtime": "ProcessingTime$", "eventtime": "EventTime$"}


def connect(
    left: DataFrame,
    right: DataFrame,
    processor: ConnectProcessor,
    outputStructType: StructType | str,
    by: str | Sequence[str] | None = None,
    *,
    leftBy: str | Sequence[str] | None = None,
    timeMode: str = "None",
) -> DataFrame:
    """Gives the rows of both inputs to one processor, which shares its state between them.

    With `by`, both sides are grouped by these columns, which both have, and a key's rows of both sides meet. Without
    it, the right side is broadcast: every slot gets all of it and keeps it as broadcast state; the left side is
    grouped by `leftBy`, or not at all. Only Tidegate runs the result: write it with `tg.writeStream`.
    """
    if not isinstance(processor, ConnectProcessor):
        raise OptionError(f"tg.connect needs a tg.ConnectProcessor, not {type(processor).__name__}.")
    if by is not None and leftBy is not None:
        raise OptionError("tg.connect takes by for two keyed sides, or leftBy for a broadcast right side, not both.")
    mode = _TIME_MODES.get(str(timeMode).lower())
    if mode is None:
        raise OptionError(f"timeMode {timeMode!r} does not exist: use 'None', 'ProcessingTime' or 'EventTime'.")
    keys, side = (_names(leftBy), RightSide.BROADCAST) if by is None else (_names(by), RightSide.KEYED)
    if by is not None and not keys:
        raise OptionError("tg.connect has an empty by: name a column, or leave it out to broadcast the right side.")
    # A cogroup has as many keys on both sides, and at least one: where there is none, a constant stands for it.
    left_keys: list[Any] = list(keys) or [F.lit(0)]
    right_keys: list[Any] = list(keys) if side is RightSide.KEYED else [F.lit(0) for _ in left_keys]
    function = carrying(Connection(processor, side, mode, len(keys)))
    return left.groupBy(*left_keys).cogroup(right.groupBy(*right_keys)).applyInArrow(function, outputStructType)


def _names(by: str | Sequence[str] | None) -> tuple[str, ...]:
    if by is None:
        return ()
    names = (by,) if isinstance(by, str) else tuple(by)
    if not all(isinstance(name, str) for name in names):
        raise OptionError("tg.connect is keyed by names of columns: write texts.")
    return names
