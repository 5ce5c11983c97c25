"""Tidegate: exactly-once checkpoints, in milliseconds, for PySpark streams that are behind.

    import tidegate as tg
    query = tg.writeStream(df).format("parquet").option("checkpointLocation", "chk").start("out")
"""

from tidegate.spark.java import prepare_environment as _prepare_environment

_prepare_environment()

from tidegate.api.query import StreamingQuery, active_queries as queries  # noqa: E402 - Java is found before Spark
from tidegate.api.writer import DataStreamWriter, writeStream  # noqa: E402
from tidegate.coordinator.views import CheckpointView  # noqa: E402
from tidegate.model.errors import TidegateError, UserError  # noqa: E402
from tidegate.model.version import VERSION as __version__  # noqa: E402

__all__ = [
    "CheckpointView",
    "DataStreamWriter",
    "StreamingQuery",
    "TidegateError",
    "UserError",
    "__version__",
    "queries",
    "writeStream",
]
