"""`tg.savepoints`: savepoints that are written from DataFrames, and started from like any other."""

from os import PathLike, fspath
from time import time
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from tidegate.api.places import missing_folders, remove_empty
from tidegate.api.writer import DataStreamWriter
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import WrittenSavepoint, new_savepoint, rewritten_savepoint
from tidegate.model.errors import OptionError
from tidegate.plan.lower import fingerprint
from tidegate.spark.catalyst import require_classic
from tidegate.spark.hadoop_conf import store_access
from tidegate.spark.savepoint_job import write_savepoint
from tidegate.storage.access import StoreAccess
from tidegate.storage.store import local_path

if TYPE_CHECKING:
    _Path = str | PathLike[str]


class Savepoints:
    """What `tg.savepoints` is."""

    @staticmethod
    def from_dataframe(
        df: DataFrame,
        *,
        path: "_Path",
        state: str | None = None,
        operator: str | None = None,
        query: DataStreamWriter | None = None,
        based_on: "_Path | None" = None,
        max_parallelism: int | None = None,
    ) -> str:
        """Writes a savepoint into the folder `path`, in which one state holds the rows of `df`; returns the path.

        `query`: for which query that has not run yet, as `tg.writeStream(...)` without `start`. Or `based_on`: the
        savepoint or checkpoint that it is a copy of, but for the rows of that state, and for its key groups if
        `max_parallelism` says so. The columns are those of `spark.read.format("tidegate")` with table `state`.
        An `initialState` of the operator whose state is written is not applied any more: the rows take its place.
        """
        require_classic(df)
        if df.isStreaming:
            raise OptionError("A savepoint is written from a DataFrame with an end, not from a stream: use spark.read.")
        folder = _absolute(path)
        absent = missing_folders([folder])
        try:
            target = _target(
                folder,
                store_access(df.sparkSession, [folder] if based_on is None else [folder, _absolute(based_on)]),
                state=state,
                operator=operator,
                query=query,
                based_on=based_on,
                max_parallelism=max_parallelism,
            )
            write_savepoint(df, target)
        except BaseException:
            remove_empty(absent)
            raise
        return folder


def _target(
    path: str,
    access: StoreAccess,
    *,
    state: str | None,
    operator: str | None,
    query: DataStreamWriter | None,
    based_on: "_Path | None",
    max_parallelism: int | None,
) -> WrittenSavepoint:
    now_ms = int(time() * 1000)
    if based_on is not None and query is None:
        base = find_checkpoint(_absolute(based_on), access=access)
        return rewritten_savepoint(
            path, base, operator=operator, state=state, max_parallelism=max_parallelism, now_ms=now_ms
        )
    if query is None or based_on is not None:
        raise OptionError(
            "Say what the savepoint is for: query=tg.writeStream(...) for a query that starts from it, or based_on=... "
            "for a copy of a savepoint with other rows."
        )
    if max_parallelism is not None:
        raise OptionError("max_parallelism goes with based_on: set .option('maxParallelism', ...) on the query.")
    plan, _, _ = query._planned()
    return new_savepoint(path, plan, fingerprint(plan), operator=operator, state=state, now_ms=now_ms, access=access)


def _absolute(path: "_Path") -> str:
    given = fspath(path)
    return str(local_path(given) or given.rstrip("/"))


savepoints = Savepoints()
