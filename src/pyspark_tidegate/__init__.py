"""Where Spark finds `format("tidegate")`: it looks for packages of such a name, and registers their `DefaultSource`."""

from tidegate.spark.table_source import CheckpointDataSource as DefaultSource

__all__ = ["DefaultSource"]
