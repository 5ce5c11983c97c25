"""Files of which a query uses no column: Spark counts their records, whatever stands in them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.registry import open_source
from tidegate.model.errors import Damaged
from tidegate.plan.nodes import Scan
from tidegate.plan.scan_settings import NO_COLUMN, READ_COLUMNS
from tidegate.testing.source_suite import SourceRun

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64())])
STRICT_MODES = ["DROPMALFORMED", "FAILFAST"]


def counted(format_: str, folder: Path, schema: pa.Schema = SCHEMA, read: str = NO_COLUMN, **options: str) -> int:
    source = open_source(Scan(format_, {"path": str(folder), READ_COLUMNS: read, **options}, schema))
    run = SourceRun(source, 1)
    run.drain()
    return len(run.rows)


@pytest.mark.parametrize("mode", ["PERMISSIVE", *STRICT_MODES])
@pytest.mark.parametrize("schema", [SCHEMA, pa.schema([("a", pa.int64())])], ids=["two columns", "one column"])
def test_lines_of_csv_count_whatever_stands_in_them(tmp_path: Path, schema: pa.Schema, mode: str) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,2\nx,y\n\n3\n4,5,6\n"7,8\n')
    assert counted("csv", tmp_path, schema, header="true", mode=mode) == 5


def test_records_of_json_count_unless_they_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n{"a": "x"}\n\n[{"b": 1}, {"b": "y"}]\n{}\n')
    for mode in ("PERMISSIVE", *STRICT_MODES):
        assert counted("json", tmp_path, mode=mode) == 5
    (tmp_path / "b.json").write_text('{"a": 1\n')
    assert counted("json", tmp_path, mode="PERMISSIVE") == 6
    assert counted("json", tmp_path, mode="DROPMALFORMED") == 5
    with pytest.raises(Damaged, match="FAILFAST"):
        counted("json", tmp_path, mode="FAILFAST")


@pytest.mark.parametrize("mode", STRICT_MODES)
@pytest.mark.parametrize("in_file", [SCHEMA, pa.schema([])], ids=["two columns", "no columns"])
def test_where_only_the_folders_are_read_the_records_count_too(tmp_path: Path, in_file: pa.Schema, mode: str) -> None:
    folder = tmp_path / "day=1"
    folder.mkdir()
    (folder / "a.csv").write_text("1,2\nx,y\n3\n")
    schema = in_file.append(pa.field("day", pa.int64()))
    source = open_source(Scan("csv", {"path": str(tmp_path), READ_COLUMNS: "day", "mode": mode}, schema))
    run = SourceRun(source, 1)
    run.drain()
    assert run.rows == [(*[None] * len(in_file), 1)] * 3


def test_files_that_have_rows_only_by_their_columns_give_them_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2, 3], "b": [4, 5, 6]}), tmp_path / "a.parquet")
    assert counted("parquet", tmp_path) == 3
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("one\n\nthree\n")
    assert counted("text", tmp_path / "text", pa.schema([("value", pa.string())])) == 3
