"""Tidegate: exactly-once checkpoints for PySpark streams, which complete also when the stream is behind.

    import tidegate as tg
    query = tg.writeStream(df).format("parquet").option("checkpointLocation", "chk").start("out")

Names are loaded when they are first used: slots import this package too, and need none of them.
"""

from typing import TYPE_CHECKING, Any

from tidegate.model.errors import TidegateError, UserError
from tidegate.model.version import VERSION as __version__
from tidegate.spark.java import prepare_environment

if TYPE_CHECKING:
    from tidegate.api.async_map import async_map
    from tidegate.api.connect import connect
    from tidegate.api.naming import named
    from tidegate.api.nexmark import NexmarkDataSource
    from tidegate.api.profiles import profiles
    from tidegate.api.query import StreamingQuery
    from tidegate.api.query import active_queries as queries
    from tidegate.api.writer import DataStreamWriter, writeStream
    from tidegate.api.written_savepoints import savepoints
    from tidegate.coordinator.views import CheckpointView
    from tidegate.protocol.why import WhyReport
    from tidegate.spark.connected import ConnectProcessor

__all__ = [
    "CheckpointView",
    "ConnectProcessor",
    "DataStreamWriter",
    "NexmarkDataSource",
    "StreamingQuery",
    "TidegateError",
    "UserError",
    "WhyReport",
    "__version__",
    "async_map",
    "connect",
    "named",
    "profiles",
    "queries",
    "savepoints",
    "writeStream",
]

# Before anybody makes a SparkSession: a machine without Java is served by the `java` extra.
prepare_environment()

_HOMES = {
    "CheckpointView": ("tidegate.coordinator.views", "CheckpointView"),
    "ConnectProcessor": ("tidegate.spark.connected", "ConnectProcessor"),
    "DataStreamWriter": ("tidegate.api.writer", "DataStreamWriter"),
    "NexmarkDataSource": ("tidegate.api.nexmark", "NexmarkDataSource"),
    "StreamingQuery": ("tidegate.api.query", "StreamingQuery"),
    "WhyReport": ("tidegate.protocol.why", "WhyReport"),
    "async_map": ("tidegate.api.async_map", "async_map"),
    "connect": ("tidegate.api.connect", "connect"),
    "named": ("tidegate.api.naming", "named"),
    "profiles": ("tidegate.api.profiles", "profiles"),
    "queries": ("tidegate.api.query", "active_queries"),
    "savepoints": ("tidegate.api.written_savepoints", "savepoints"),
    "writeStream": ("tidegate.api.writer", "writeStream"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
