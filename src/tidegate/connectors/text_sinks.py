"""The sinks json and csv: their options. Writing and publishing is `file_sink`'s and `file_committer`'s business."""

import pyarrow as pa

from tidegate.connectors.csv_text import CsvText, check_csv
from tidegate.connectors.file_sink import FILE_SINK_OPTIONS, FileSink, file_sink
from tidegate.connectors.json_text import check_json
from tidegate.connectors.options import Options, nearest
from tidegate.connectors.sink_encodings import CsvEncoding, JsonEncoding, TextCompression
from tidegate.connectors.text_sources import read_marks
from tidegate.model.errors import OptionError
from tidegate.plan import nodes

# Hadoop's framing of snappy, lz4 and deflate is its own; these are what Spark reads back by the suffix.
_COMPRESSIONS: dict[str, TextCompression] = {
    "none": "none", "uncompressed": "none", "gzip": "gzip", "bzip2": "bz2", "zstd": "zstd",
}  # fmt: skip
_CSV_OPTIONS = ("header", "sep", "delimiter", "quote", "escape", "nullValue", "emptyValue", "quoteAll", "encoding")


def json_from_node(node: nodes.Sink) -> FileSink:
    what = "json sink"
    options = Options(node.options, owner=what, known=(*FILE_SINK_OPTIONS, "encoding", "ignoreNullFields"))
    options.only("encoding", ("utf-8", "utf8"))
    options.only("ignoreNullFields", ("true",))
    sink = file_sink(options, JsonEncoding(_compression(options, what)), node.schema, what=what)
    check_json(sink.file_schema)
    return sink


def csv_from_node(node: nodes.Sink) -> FileSink:
    what = "csv sink"
    options = Options(node.options, owner=what, known=(*FILE_SINK_OPTIONS, *_CSV_OPTIONS))
    options.only("encoding", ("utf-8", "utf8"))
    options.only("quoteAll", ("false",))
    options.only("emptyValue", ('""', ""))
    null_word = options.text("nullValue", default="")
    if null_word and any(pa.types.is_string(field.type) for field in node.schema):
        raise OptionError(
            f"Option 'nullValue' of the csv sink is {null_word!r}, which a string could be as well: leave it out."
        )
    text = CsvText(read_marks(options, owner=what), null_word)
    encoding = CsvEncoding(_compression(options, what), text, options.flag("header", default=False))
    sink = file_sink(options, encoding, node.schema, what=what)
    check_csv(sink.file_schema)
    return sink


def _compression(options: Options, what: str) -> TextCompression:
    name = options.text("compression", default="none").lower()
    if name not in _COMPRESSIONS:
        raise OptionError(
            f"Option 'compression' of the {what} is {name!r}{nearest(name, _COMPRESSIONS)}: "
            f"it knows {', '.join(sorted(_COMPRESSIONS))}."
        )
    return _COMPRESSIONS[name]
