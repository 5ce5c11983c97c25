"""`toTable`: a table of Spark's catalog as a folder that the file sink writes.

Makes the table if there is none. Must never write into one whose files Tidegate would write unlike Spark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from tidegate.model.errors import OptionError

_FORMATS = ("csv", "json", "parquet")


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """`options`: those that the table's files are written with."""

    spark: SparkSession
    name: str
    format: str
    path: str
    options: Mapping[str, str]
    is_new: bool

    def show_committed(self) -> None:
        """Spark remembers which files a table has: it has to look again."""
        if self.spark.catalog.tableExists(self.name):
            self.spark.catalog.refreshTable(self.name)

    def undo(self) -> None:
        if self.is_new:
            self.spark.sql(f"DROP TABLE IF EXISTS {self.name}")


def open_table(df: DataFrame, name: str, *, format: str | None, partition_by: tuple[str, ...]) -> CatalogTable:
    """The table of that name, made with the columns of `df` if it does not exist."""
    spark = df.sparkSession
    if partition_by:
        raise OptionError("toTable does not take partitionBy: write the folder with .start(path), and read that.")
    asked = (format or str(spark.conf.get("spark.sql.sources.default"))).lower()
    if asked not in _FORMATS:
        raise OptionError(
            f"toTable writes tables of {', '.join(_FORMATS)}, not of {asked}: choose one by .format(...)."
        )
    if spark.catalog.tableExists(name):
        return _existing(df, name, format)
    spark.catalog.createTable(name, source=asked, schema=df.schema)
    return CatalogTable(spark, name, asked, _path(_metadata(spark, name)), {}, is_new=True)


def _existing(df: DataFrame, name: str, format: str | None) -> CatalogTable:
    spark = df.sparkSession
    metadata = _metadata(spark, name)
    provider = str(metadata.provider().getOrElse(None)).lower()
    if provider not in _FORMATS or (format is not None and format.lower() != provider):
        raise OptionError(f"The table {name!r} is one of {provider}: toTable writes {', '.join(_FORMATS)} as they are.")
    if metadata.bucketSpec().isDefined() or not metadata.partitionColumnNames().isEmpty():
        raise OptionError(f"The table {name!r} has buckets or partitions: toTable writes tables without them.")
    columns = spark.table(name).schema
    if not has_same_columns(columns, df.schema):
        raise OptionError(
            f"The table {name!r} has the columns {_named(columns)} and the query {_named(df.schema)}: select the same, "
            f"in the same order."
        )
    jvm: Any = spark._jvm
    options = dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(metadata.storage().properties()))
    return CatalogTable(spark, name, provider, _path(metadata), options, is_new=False)


def has_same_columns(table: StructType, query: StructType) -> bool:
    """Names and types, in their order.

    Not what may be null: Spark lets everything in a table of files be null, at every depth, whatever was written.
    """
    return _names_and_types(table) == _names_and_types(query)


def _names_and_types(kind: DataType) -> DataType:
    match kind:
        case StructType(fields=fields):
            # Without metadata, as watermarks leave it in nested fields: it says nothing of what is stored.
            return StructType([StructField(field.name, _names_and_types(field.dataType)) for field in fields])
        case ArrayType(elementType=element):
            return ArrayType(_names_and_types(element))
        case MapType(keyType=key, valueType=value):
            return MapType(_names_and_types(key), _names_and_types(value))
        case _:
            return kind


def _metadata(spark: SparkSession, name: str) -> Any:
    state: Any = spark._jsparkSession.sessionState()
    try:
        metadata = state.catalog().getTableMetadata(state.sqlParser().parseTableIdentifier(name))
    except AnalysisException:
        metadata = None
    if metadata is None or str(metadata.tableType().name()) == "VIEW":
        raise OptionError(f"{name!r} is no table of the session's own catalog with files: choose another name.")
    return metadata


def _path(metadata: Any) -> str:
    location = str(metadata.location().toString())
    parsed = urlparse(location)
    return unquote(parsed.path) if parsed.scheme in ("", "file") else location


def _named(columns: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns.fields)
