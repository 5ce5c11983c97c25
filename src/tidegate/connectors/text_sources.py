"""The sources text, json and csv: their options, with Spark's meaning, or a refusal by the option's name.

Every option of Spark's readers that is not in the tables below is refused as unknown; those that are there only at
Spark's default say so.
"""

from collections.abc import Callable, Mapping

import pyarrow as pa

from tidegate.connectors import csv_rows
from tidegate.connectors.csv_tokens import Marks
from tidegate.connectors.file_source import FILE_OPTIONS, FileSource, file_source
from tidegate.connectors.malformed import read_mode
from tidegate.connectors.options import Options
from tidegate.connectors.text_formats import CsvFormat, JsonFormat, TextFormat
from tidegate.model.errors import OptionError, UnsupportedPlan
from tidegate.plan.nodes import Scan
from tidegate.plan.parsing.json_values import can_convert

_CORRUPT = "_corrupt_record"
_TEXT_OPTIONS = (*FILE_OPTIONS, "encoding", "lineSep", "wholetext")
_RECORD_OPTIONS = (
    *FILE_OPTIONS, "columnNameOfCorruptRecord", "encoding", "charset", "lineSep", "locale", "mode", "multiLine",
    "timeZone", "dateFormat", "timestampFormat", "timestampNTZFormat", "samplingRatio",
)  # fmt: skip
_JSON_DEFAULTS = {
    "primitivesAsString": "false", "prefersDecimal": "false", "allowComments": "false",
    "allowUnquotedFieldNames": "false", "allowSingleQuotes": "true", "allowNumericLeadingZeros": "false",
    "allowBackslashEscapingAnyCharacter": "false", "allowUnquotedControlChars": "false",
    "allowNonNumericNumbers": "true", "dropFieldIfAllNull": "false",
}  # fmt: skip
_CSV_DEFAULTS = {
    "enforceSchema": "true", "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false",
    "inferSchema": "false", "nanValue": "nan", "positiveInf": "inf", "negativeInf": "-inf", "emptyValue": "",
    "unescapedQuoteHandling": "stop_at_delimiter", "maxCharsPerColumn": "-1", "preferDate": "true",
}  # fmt: skip
# Settings of the session that change what Spark's readers give: each with the value that these readers follow.
_RECORD_SETTINGS = {"spark.sql.caseSensitive": "false", "spark.sql.legacy.timeParserPolicy": "CORRECTED"}
_SETTINGS = {
    "csv": _RECORD_SETTINGS,
    "json": {
        **_RECORD_SETTINGS,
        "spark.sql.json.enablePartialResults": "true",
        "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    },
}
# Meaning nothing when the schema is given, as it always is for a stream.
_CSV_MARKS = ("sep", "delimiter", "quote", "escape", "header", "nullValue")


def text_from_scan(scan: Scan) -> FileSource:
    owner = "text source"
    options = Options(scan.options, owner=owner, known=_TEXT_OPTIONS)
    _check_common(options)
    fmt = TextFormat(_separator(options, owner), options.flag("wholetext", default=False))
    source = file_source(options, fmt, scan.schema, owner=owner)
    if not pa.types.is_string(scan.schema.field(0).type):
        raise OptionError(f"The text source gives strings, and {scan.schema.field(0).name!r} is not one: use 'value'.")
    return source


def json_from_scan(scan: Scan) -> FileSource:
    owner = "json source"
    options = Options(scan.options, owner=owner, known=(*_RECORD_OPTIONS, *_JSON_DEFAULTS))
    _check_records(options, _JSON_DEFAULTS, owner=owner)
    corrupt = _corrupt_column(options, scan, can_convert, owner=owner)
    fmt = JsonFormat(
        separator=_separator(options, owner),
        mode=read_mode(options.text("mode", default="PERMISSIVE"), owner=owner),
        corrupt_column=corrupt,
        zone=_zone(options),
    )
    return file_source(options, fmt, scan.schema, owner=owner)


def csv_from_scan(scan: Scan) -> FileSource:
    owner = "csv source"
    options = Options(scan.options, owner=owner, known=(*_RECORD_OPTIONS, *_CSV_DEFAULTS, *_CSV_MARKS))
    _check_records(options, _CSV_DEFAULTS, owner=owner)
    corrupt = _corrupt_column(options, scan, csv_rows.can_read, owner=owner)
    fmt = CsvFormat(
        separator=_separator(options, owner),
        mode=read_mode(options.text("mode", default="PERMISSIVE"), owner=owner),
        corrupt_column=corrupt,
        zone=_zone(options),
        marks=read_marks(options, owner=owner),
        null_word=options.text("nullValue", default=""),
        has_header=options.flag("header", default=False),
    )
    return file_source(options, fmt, scan.schema, owner=owner)


def with_session_defaults(options: Mapping[str, str], setting: Callable[[str, str], str]) -> dict[str, str]:
    """The options of a json or csv source, named in lower case, and the session's word where they are silent.

    `setting` gives a setting of the session by its name, or the default given with it.
    """
    corrupt = setting("spark.sql.columnNameOfCorruptRecord", _CORRUPT)
    # Left out where it says nothing new, so that the source stays the one that older checkpoints know.
    return dict(options) if corrupt == _CORRUPT else {"columnnameofcorruptrecord": corrupt, **options}


def check_readable(scan: Scan, setting: Callable[[str, str], str]) -> None:
    """Raises `UnsupportedPlan` for what Spark's own json and csv readers can do and these cannot."""
    for name, followed in _SETTINGS[scan.format].items():
        value = setting(name, followed)
        if value.lower() != followed.lower():
            raise UnsupportedPlan(f"The {scan.format} source does not read with {name}={value}: set it to {followed}.")
    owner, defaults, can_read, more = {
        "json": ("json source", _JSON_DEFAULTS, can_convert, ()),
        "csv": ("csv source", _CSV_DEFAULTS, csv_rows.can_read, _CSV_MARKS),
    }[scan.format]
    options = Options(scan.options, owner=owner, known=(*_RECORD_OPTIONS, *defaults, *more))
    try:
        _check_records(options, defaults, owner=owner)
        _corrupt_column(options, scan, can_read, owner=owner)
    except OptionError as refusal:
        raise UnsupportedPlan(str(refusal)) from None


def read_marks(options: Options, *, owner: str) -> Marks:
    separator = options.text("sep", default=options.text("delimiter", default=","))
    separator = "\t" if separator == "\\t" else separator
    quote = options.text("quote", default='"')
    escape = options.text("escape", default="\\")
    for name, mark in (("sep", separator), ("quote", quote), ("escape", escape)):
        if len(mark) != 1 or not mark.isascii() or mark in "\r\n\0":
            raise OptionError(
                f"Option {name!r} of the {owner} is {mark!r}: one ASCII character other than a line break is supported."
            )
    if separator in (quote, escape):
        raise OptionError(
            f"Option 'sep' of the {owner} is {separator!r}, which quotes or escapes as well: choose another."
        )
    return Marks(separator, quote, escape)


def _check_common(options: Options) -> None:
    for name in ("encoding", "charset"):
        options.only(name, ("utf-8", "utf8"))


def _check_records(options: Options, defaults: dict[str, str], *, owner: str) -> None:
    _check_common(options)
    options.only("multiLine", ("false",))
    options.only("locale", ("en-us",))
    for name in ("dateFormat", "timestampFormat", "timestampNTZFormat"):
        if options.text(name, default=""):
            raise OptionError(
                f"Option {name!r} of the {owner} is not supported: leave it out, and times are read by the rules of "
                f"Spark's cast; or read the column as a string and convert it in the query."
            )
    for name, default in defaults.items():
        options.only(name, (default,))


def _corrupt_column(options: Options, scan: Scan, can_read: Callable[[pa.DataType], bool], *, owner: str) -> str:
    name = options.text("columnNameOfCorruptRecord", default=_CORRUPT)
    for column in scan.schema:
        if column.name == name and not pa.types.is_string(column.type):
            raise OptionError(f"Column {name!r} of the {owner} keeps malformed records and must be a string.")
        if not can_read(column.type):
            raise OptionError(
                f"Column {column.name!r} of the {owner} is {column.type}, which it does not read: "
                f"use numbers, booleans, strings, dates, timestamps or decimals."
            )
    return name


def _separator(options: Options, owner: str) -> bytes | None:
    text = options.text("lineSep", default="")
    if len(text) > 1 and owner == "csv source":
        raise OptionError(f"Option 'lineSep' of the {owner} is {text!r}: it can be one character only.")
    return text.encode() or None


def _zone(options: Options) -> str:
    return options.text("timeZone", default=options.text("sessionTimeZone", default="UTC"))
