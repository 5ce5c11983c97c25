"""Checkpoints as tables for one session: where Spark would not find them, and with how the session reaches stores.

Spark makes a data source in a process that knows nothing of the session, so the settings travel with its class.
"""

import logging
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.spark.table_source import CheckpointDataSource
from tidegate.storage.access import StoreAccess
from tidegate.storage.store import local_path

log = logging.getLogger("tidegate")

_offered: "WeakKeyDictionary[SparkSession, Mapping[str, str]]" = WeakKeyDictionary()


def offer_tables(spark: SparkSession, location: str, access: StoreAccess) -> None:
    """From now on `spark.read.format("tidegate")` of this session reaches the checkpoints at `location`.

    To be called when it is settled which interpreter runs the slots: the tables are read by the same one.
    """
    needed = access.settings if local_path(location) is None else {}
    if _offered.get(spark) == needed:
        return
    # What an earlier query's location needs stays, and Spark warns of whoever stands in for what it finds by itself.
    if not needed and (spark in _offered or not _only_we_find_them(spark)):
        return

    class SessionCheckpoints(CheckpointDataSource):
        settings: ClassVar[Mapping[str, str]] = dict(needed)

    try:
        with _active(spark):
            spark.dataSource.register(SessionCheckpoints)
    except (PySparkException, Py4JError) as error:
        # The query runs without them as well.
        log.warning('spark.read.format("tidegate") is not to be had in this session: %s', error)
    _offered[spark] = needed


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Spark looks for a source of the same name in the active session, and refuses what another session has."""
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _only_we_find_them(spark: SparkSession) -> bool:
    """Slots run under this interpreter, but Spark looks for data sources with another one: that of `PATH`, mostly."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    environment = jvm.java.lang.System.getenv
    asked = environment("PYSPARK_DRIVER_PYTHON") or environment("PYSPARK_PYTHON") or "python3"
    path = environment("PATH")
    return _is_this_one(context.pythonExec, path) and not _is_this_one(asked, path)


def _is_this_one(program: str, path: str | None) -> bool:
    """By its folder as well: every virtual environment has links to the same interpreter."""
    found = shutil.which(program, path=path)
    own = Path(sys.executable)
    return found is not None and Path(found).parent.samefile(own.parent) and Path(found).samefile(own)
