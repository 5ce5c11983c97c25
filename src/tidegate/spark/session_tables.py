"""Checkpoints as tables for one session: with what the session says about reaching object stores.

Spark makes a data source in a process that knows nothing of the session, so the settings travel with its class.
"""

from collections.abc import Mapping
from typing import ClassVar
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from tidegate.spark.table_source import CheckpointDataSource
from tidegate.storage.access import StoreAccess

_offered: "WeakKeyDictionary[SparkSession, Mapping[str, str]]" = WeakKeyDictionary()


def offer_tables(spark: SparkSession, access: StoreAccess) -> None:
    """From now on `spark.read.format("tidegate")` of this session reaches what its queries reach."""
    if not access.settings or _offered.get(spark) == access.settings:
        return

    class SessionCheckpoints(CheckpointDataSource):
        settings: ClassVar[Mapping[str, str]] = dict(access.settings)

    spark.dataSource.register(SessionCheckpoints)
    _offered[spark] = access.settings
