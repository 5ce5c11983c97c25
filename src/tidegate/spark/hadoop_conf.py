"""The session's Hadoop settings, as far as they say how to reach a checkpoint location.

Owns how they are read: from `spark.hadoop.*`, core-site.xml and what was set on the session, as Spark itself sees them.
Never logs a value.
"""

import logging
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from tidegate.storage.access import StoreAccess
from tidegate.storage.decoding import from_json
from tidegate.storage.hadoop_settings import PREFIXES, not_understood, understood

log = logging.getLogger("tidegate")


def store_access(spark: SparkSession, locations: Iterable[str]) -> StoreAccess:
    """For every location of a query. Those settings that concern `locations` and are not understood are named once."""
    chosen = _chosen_settings(spark)
    unused = sorted({name for location in locations for name in not_understood(chosen, location)})
    if unused:
        log.warning(
            "These Hadoop settings are not used by Tidegate, which reaches the checkpointLocation without Hadoop: %s.",
            ", ".join(unused),
        )
    return StoreAccess({**understood(chosen), **_of_hdfs(spark)})


def _of_hdfs(spark: SparkSession) -> dict[str, str]:
    """Only what was given to Spark: the rest libhdfs reads from hdfs-site.xml by itself."""
    prefix = "spark.hadoop."
    given = spark.sparkContext.getConf().getAll()
    return {name.removeprefix(prefix): value for name, value in given if name.startswith(f"{prefix}dfs.")}


def _chosen_settings(spark: SparkSession) -> dict[str, str]:
    """What somebody has set: Hadoop's own defaults are left out."""
    jvm: Any = spark._jvm
    configured = spark._jsparkSession.sessionState().newHadoopConf()
    defaults = jvm.org.apache.hadoop.conf.Configuration(False)
    defaults.addResource("core-default.xml")
    # As one text each: a call per setting would take longer than all the rest of a start.
    to_text = jvm.com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString
    chosen: dict[str, str] = {}
    for prefix in PREFIXES:
        found, standard = (
            from_json(to_text(settings.getPropsWithPrefix(prefix)), dict[str, str])
            for settings in (configured, defaults)
        )
        chosen |= {f"{prefix}{name}": value for name, value in found.items() if standard.get(name) != value}
    return chosen
