"""Reads the leaves of a streaming plan: which format, with which options, from where."""

from typing import Any

import pyarrow as pa
from pyspark import SparkContext

from tidegate.model.errors import OptionError, UnsupportedPlan
from tidegate.plan.nodes import Scan
from tidegate.spark.python_sources import is_python_relation, read_python_relation

_PARQUET = frozenset({"parquet", "org.apache.spark.sql.execution.datasources.parquet.parquetfileformat"})


def read_file_relation(relation: Any, schema: pa.Schema) -> Scan:
    """A `StreamingRelation`: what `DataSource` V1 serves, files above all."""
    source = relation.dataSource()
    class_name = str(source.className())
    if class_name.lower() not in _PARQUET:
        raise _refused_format(class_name)
    options = _lower_keys(_java_map(source.options()))
    if not options.get("path"):
        raise OptionError("The parquet source has no path: give one directory to spark.readStream.parquet(...).")
    options["path"] = _qualified(options["path"])
    return Scan("parquet", options, schema)


def read_table_relation(relation: Any, schema: pa.Schema) -> Scan:
    """A `StreamingRelationV2`."""
    name = str(relation.sourceName())
    if is_python_relation(relation):
        return read_python_relation(relation, schema)
    if name != "rate":
        raise _refused_format(name)
    return Scan("rate", _lower_keys(dict(relation.extraOptions().asCaseSensitiveMap())), schema)


def _refused_format(name: str) -> UnsupportedPlan:
    return UnsupportedPlan(f"Tidegate does not read Spark's source {name!r}: supported are parquet and rate.")


def _lower_keys(options: dict[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in options.items()}


def _java_map(scala_map: Any) -> dict[str, str]:
    return dict(_jvm().scala.jdk.javaapi.CollectionConverters.asJava(scala_map))


def _qualified(path: str) -> str:
    """Absolute, as Spark's file system resolves it here: slots run in other directories. Local paths have no scheme."""
    context = SparkContext._active_spark_context
    assert context is not None, "a DataFrame exists, so its context does"
    hadoop_path = _jvm().org.apache.hadoop.fs.Path(path)
    qualified = hadoop_path.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(hadoop_path)
    uri = qualified.toUri()
    return str(uri.getPath()) if uri.getScheme() == "file" else str(qualified.toString())


def _jvm() -> Any:
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None, "a DataFrame exists, so its JVM does"
    return context._jvm
