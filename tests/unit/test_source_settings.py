"""What the settings of a session change in the json and csv sources, without a session."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.nodes import Scan
from tidegate.spark import catalyst_sources
from tidegate.spark.catalyst_sources import read_file_relation

SCHEMA = pa.schema([("a", pa.int64()), ("_bad", pa.string())])
Read = Callable[..., Scan]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads a relation of a format, in a session with the settings given."""

    def read_with(format_: str, settings: dict[str, str], **options: str) -> Scan:
        conf = SimpleNamespace(sessionLocalTimeZone=lambda: "UTC", getConfString=settings.get)
        session = SimpleNamespace(sessionState=lambda: SimpleNamespace(conf=lambda: conf))
        monkeypatch.setattr(catalyst_sources, "_java_map", lambda options: options)
        monkeypatch.setattr(catalyst_sources, "_qualified", lambda path: path)
        given = {"path": "/in", **options}
        relation: Any = SimpleNamespace(
            dataSource=lambda: SimpleNamespace(
                className=lambda: format_, options=lambda: given, sparkSession=lambda: session
            )
        )
        return read_file_relation(relation, SCHEMA)

    return read_with


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_the_session_names_the_column_of_corrupt_records_unless_the_option_does(read: Read, format_: str) -> None:
    name = "columnnameofcorruptrecord"
    setting = {"spark.sql.columnNameOfCorruptRecord": "_bad"}
    assert read(format_, setting).options[name] == "_bad"
    assert read(format_, setting, columnNameOfCorruptRecord="_worse").options[name] == "_worse"
    assert name not in read(format_, {}).options
    assert name not in read("text", setting).options


@pytest.mark.parametrize(
    ("name", "value", "formats"),
    [
        ("spark.sql.legacy.timeParserPolicy", "LEGACY", ("json", "csv")),
        ("spark.sql.caseSensitive", "true", ("json", "csv")),
        ("spark.sql.json.enablePartialResults", "false", ("json",)),
        ("spark.sql.legacy.json.allowEmptyString.enabled", "true", ("json",)),
    ],
)
def test_settings_that_change_what_spark_reads_leave_the_files_to_spark(
    read: Read, name: str, value: str, formats: tuple[str, ...]
) -> None:
    for format_ in formats:
        with pytest.raises(UnsupportedPlan, match=f"The {format_} source does not read with {name}={value}"):
            read(format_, {name: value})
    for format_ in {"json", "csv", "text", "parquet"} - set(formats):
        read(format_, {name: value})


def test_the_session_says_whether_parquet_and_text_files_tell_columns_apart_by_case(read: Read) -> None:
    name, setting = "sessioncasesensitive", {"spark.sql.caseSensitive": "True"}
    for format_ in ("parquet", "text"):
        assert read(format_, setting).options[name] == "true"
        assert name not in read(format_, {}).options


def test_settings_at_what_spark_takes_without_them_change_nothing(read: Read) -> None:
    defaults = {"spark.sql.caseSensitive": "FALSE", "spark.sql.legacy.timeParserPolicy": "corrected"}
    assert read("json", defaults) == read("json", {})
