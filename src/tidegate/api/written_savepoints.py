"""`tg.savepoints`: savepoints that are written from DataFrames, and started from like any other."""

from collections.abc import Callable
from os import PathLike, fspath
from time import time
from typing import TYPE_CHECKING

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidegate.api.places import missing_folders, remove_empty
from tidegate.api.writer import DataStreamWriter
from tidegate.coordinator.checkpoint_tables import find_checkpoint
from tidegate.coordinator.written_savepoints import (
    PLACE_COLUMNS,
    WrittenRows,
    WrittenSavepoint,
    new_savepoint,
    regrouped_savepoint,
    rewritten_savepoint,
    savepoint_without_keys,
)
from tidegate.model.errors import EnvironmentProblem, OptionError
from tidegate.plan.lower import fingerprint
from tidegate.spark.catalyst import require_classic
from tidegate.spark.hadoop_conf import store_access
from tidegate.spark.savepoint_job import write_savepoint
from tidegate.spark.session import use_driver_interpreter
from tidegate.storage.access import StoreAccess
from tidegate.storage.store import local_path

if TYPE_CHECKING:
    _Path = str | PathLike[str]


class Savepoints:
    """What `tg.savepoints` is."""

    @staticmethod
    def from_dataframe(
        df: DataFrame | None = None,
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
        savepoint or checkpoint that it is a copy of, but for the rows of that state. With `max_parallelism` all its
        state, of whatever operator, gets the key groups of a query with that `maxParallelism`; then `df` may be left
        out, and all rows stay. The columns are those of `spark.read.format("tidegate")` with table `state`. It may be a
        value, list or map state, groups of an aggregation whose functions show all that they keep, or keys of a
        deduplication.
        An `initialState` of the operator whose state is written is not applied any more: the rows take its place.
        """
        spark = _active_session() if df is None else _session_of(df)

        def target(folder: str, access: StoreAccess) -> WrittenSavepoint:
            if df is None:
                _refuse_rows(state, operator, query)
                return _regrouped(folder, access, based_on=based_on, max_parallelism=max_parallelism)
            return _target(
                folder,
                access,
                state=state,
                operator=operator,
                query=query,
                based_on=based_on,
                max_parallelism=max_parallelism,
            )

        return _written(spark, df, path, target, based_on=based_on)

    @staticmethod
    def drop_keys(keys: DataFrame, *, path: "_Path", based_on: "_Path", operator: str | None = None) -> str:
        """Writes a savepoint into the folder `path`, in which an operator has nothing of `keys`; returns the path.

        It is a copy of `based_on`, a savepoint or checkpoint, but for all that `operator` has of these keys: values,
        lists, maps and timers of a function, groups, keys or rows of any other. The columns are those that it is keyed
        by, as in its state table; of sessions without the window. Keys that it does not have change nothing; rows of
        these keys that are in flight stay, and begin anew when they arrive.
        """
        spark = _session_of(keys)

        def target(folder: str, access: StoreAccess) -> WrittenSavepoint:
            base = find_checkpoint(_absolute(based_on), access=access)
            without = savepoint_without_keys(folder, base, operator=operator, now_ms=_now_ms())
            assert without.rows is not None, "keys are given as rows"
            _check_keys(keys, without.rows)
            return without

        return _written(spark, keys, path, target, based_on=based_on)


def _written(
    spark: SparkSession,
    df: DataFrame | None,
    path: "_Path",
    target: Callable[[str, StoreAccess], WrittenSavepoint],
    *,
    based_on: "_Path | None",
) -> str:
    """One that is refused leaves no folder behind that was not there before. What slots have written of one that fails
    means nothing without a manifest, and goes with the next try."""
    use_driver_interpreter(spark)
    folder = _absolute(path)
    absent = missing_folders([folder])
    try:
        access = store_access(spark, [folder] if based_on is None else [folder, _absolute(based_on)])
        write_savepoint(spark, df, target(folder, access))
    except BaseException:
        remove_empty(absent)
        raise
    return folder


def _session_of(df: DataFrame) -> SparkSession:
    require_classic(df)
    if df.isStreaming:
        raise OptionError("A savepoint is written from a DataFrame with an end, not from a stream: use spark.read.")
    return df.sparkSession


def _active_session() -> SparkSession:
    try:
        spark = SparkSession.active()
    except PySparkRuntimeError as error:
        raise EnvironmentProblem(
            "A savepoint is written by a Spark job, and there is no SparkSession: create one first."
        ) from error
    require_classic(spark.range(0))
    return spark


def _check_keys(df: DataFrame, keys: WrittenRows) -> None:
    expected = from_arrow_schema(keys.columns).fields
    wanted = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in expected)
    of = f"Operator {keys.operator.id} ({keys.operator.name}) is keyed by {wanted}"
    given = [field for field in df.schema.fields if field.name not in PLACE_COLUMNS]
    if sorted(field.name for field in given) != sorted(field.name for field in expected):
        found = ", ".join(field.name for field in given)
        raise OptionError(f"{of}, but the DataFrame has the columns {found}: select the keys, all and no more.")
    types = {field.name: field.dataType.simpleString() for field in given}
    for field in expected:
        if types[field.name] != field.dataType.simpleString():
            raise OptionError(f"{of}, but column {field.name!r} of the DataFrame is {types[field.name]}: cast it.")


def _refuse_rows(state: str | None, operator: str | None, query: DataStreamWriter | None) -> None:
    given = [name for name, value in (("state", state), ("operator", operator), ("query", query)) if value is not None]
    if given:
        raise OptionError(f"{given[0]} goes with the rows of a DataFrame, and there is none: give it, or leave it out.")


def _regrouped(
    path: str, access: StoreAccess, *, based_on: "_Path | None", max_parallelism: int | None
) -> WrittenSavepoint:
    if based_on is None or max_parallelism is None:
        raise OptionError(
            "Without a DataFrame a savepoint can only be given other key groups: name it with based_on=..., and their "
            "number with max_parallelism=...."
        )
    base = find_checkpoint(_absolute(based_on), access=access)
    return regrouped_savepoint(path, base, max_parallelism=max_parallelism, now_ms=_now_ms())


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
    if based_on is not None and query is None:
        base = find_checkpoint(_absolute(based_on), access=access)
        return rewritten_savepoint(
            path, base, operator=operator, state=state, max_parallelism=max_parallelism, now_ms=_now_ms()
        )
    if query is None or based_on is not None:
        raise OptionError(
            "Say what the savepoint is for: query=tg.writeStream(...) for a query that starts from it, or based_on=... "
            "for a copy of a savepoint with other rows."
        )
    if max_parallelism is not None:
        raise OptionError("max_parallelism goes with based_on: set .option('maxParallelism', ...) on the query.")
    plan, _, _ = query._planned()
    return new_savepoint(path, plan, fingerprint(plan), operator=operator, state=state, now_ms=_now_ms(), access=access)


def _now_ms() -> int:
    return int(time() * 1000)


def _absolute(path: "_Path") -> str:
    given = fspath(path)
    return str(local_path(given) or given.rstrip("/"))


savepoints = Savepoints()
