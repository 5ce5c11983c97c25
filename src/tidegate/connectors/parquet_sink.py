"""The parquet sink: its options. Writing and publishing is `file_sink`'s and `file_committer`'s business."""

from tidegate.connectors.file_sink import FILE_SINK_OPTIONS, FileSink, file_sink
from tidegate.connectors.nested_columns import has_intervals
from tidegate.connectors.options import Options, nearest
from tidegate.connectors.sink_encodings import ParquetCompression, ParquetEncoding
from tidegate.model.errors import OptionError
from tidegate.plan import nodes

_COMPRESSIONS: dict[str, ParquetCompression] = {
    "none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "lz4": "lz4",
}  # fmt: skip


def from_node(node: nodes.Sink) -> FileSink:
    options = Options(node.options, owner="parquet sink", known=FILE_SINK_OPTIONS)
    intervals = [field.name for field in node.schema if has_intervals(field.type)]
    if intervals:
        raise OptionError(
            f"The parquet sink cannot write the interval in column {intervals[0]!r} so that Spark reads it back: "
            f"turn it into a number, such as extract(SECOND FROM {intervals[0]})."
        )
    compression = options.text("compression", default="snappy").lower()
    if compression not in _COMPRESSIONS:
        raise OptionError(
            f"Option 'compression' of the parquet sink is {compression!r}{nearest(compression, _COMPRESSIONS)}: "
            f"it knows {', '.join(sorted(_COMPRESSIONS))}."
        )
    return file_sink(options, ParquetEncoding(_COMPRESSIONS[compression]), node.schema, what="parquet sink")
