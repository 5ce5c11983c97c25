"""Reads the leaves of a streaming plan: which format, with which options, from where."""

from typing import Any

import pyarrow as pa
from pyspark import SparkContext

from tidegate.connectors.text_sources import check_readable, with_session_defaults
from tidegate.model.errors import OptionError, UnsupportedPlan
from tidegate.plan.nodes import Scan
from tidegate.spark.python_sources import is_python_relation, read_python_relation

# Spark names a format by the user's word for it or by its class, old or new.
_FILE_FORMATS = {
    "parquetfileformat": "parquet", "jsonfileformat": "json", "csvfileformat": "csv", "textfileformat": "text",
    "parquetdatasourcev2": "parquet", "jsondatasourcev2": "json", "csvdatasourcev2": "csv",
    "textdatasourcev2": "text", "parquet": "parquet", "json": "json", "csv": "csv", "text": "text",
}  # fmt: skip


def read_file_relation(relation: Any, schema: pa.Schema) -> Scan:
    """A `StreamingRelation`: what `DataSource` V1 serves, files above all."""
    source = relation.dataSource()
    class_name = str(source.className())
    format_name = _FILE_FORMATS.get(class_name.lower().rpartition(".")[2])
    if format_name is None:
        raise _refused_format(class_name)
    options = _lower_keys(_java_map(source.options()))
    if not options.get("path"):
        raise OptionError(f"The {format_name} source has no path: give one to spark.readStream.{format_name}(...).")
    options["path"] = _qualified(options["path"])
    # Of the session that the source belongs to, which need not be the one that is active.
    settings = source.sparkSession().sessionState().conf()

    def setting(name: str, default: str) -> str:
        return str(settings.getConfString(name, default))

    options["sessiontimezone"] = str(settings.sessionLocalTimeZone())
    if setting("spark.sql.caseSensitive", "false").lower() == "true":
        options["sessioncasesensitive"] = "true"
    if format_name not in ("json", "csv"):
        return Scan(format_name, options, schema)
    scan = Scan(format_name, with_session_defaults(options, setting), schema)
    check_readable(scan, setting)
    return scan


def read_table_relation(relation: Any, schema: pa.Schema) -> Scan:
    """A `StreamingRelationV2`."""
    name = str(relation.sourceName())
    if is_python_relation(relation):
        return read_python_relation(relation, schema)
    if name != "rate":
        raise _refused_format(name)
    return Scan("rate", _lower_keys(dict(relation.extraOptions().asCaseSensitiveMap())), schema)


def _refused_format(name: str) -> UnsupportedPlan:
    return UnsupportedPlan(
        f"Tidegate does not read Spark's source {name!r}: supported are csv, json, parquet, rate and text."
    )


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
