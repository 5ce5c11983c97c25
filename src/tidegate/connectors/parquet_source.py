"""The parquet source: its options. Files are found and dealt by `file_source`, read by `parquet_file`."""

from tidegate.connectors.file_source import FILE_OPTIONS, FileSource, column_names, file_source
from tidegate.connectors.options import Options
from tidegate.connectors.parquet_file import ParquetFormat
from tidegate.plan.nodes import Scan

_OWNER = "parquet source"
_KNOWN = (*FILE_OPTIONS, "mergeSchema")


def from_scan(scan: Scan) -> FileSource:
    options = Options(scan.options, owner=_OWNER, known=_KNOWN)
    options.only("mergeSchema", ("false",))
    return file_source(options, ParquetFormat(column_names(options)), scan.schema, owner=_OWNER)
