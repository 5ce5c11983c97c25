"""Nested columns of parquet files: fields by name in any case, missing ones null, numbers widened inside."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.column_names import ColumnNames
from tidegate.connectors.parquet_file import ParquetRows
from tidegate.connectors.parquet_sink import from_node
from tidegate.model.errors import OptionError
from tidegate.plan.nodes import Sink

POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
STORED = pa.struct([("Y", pa.string()), ("unwanted", pa.int8()), ("X", pa.int32())])


def read(
    path: Path, column: pa.Array, wanted: pa.DataType, *, names: ColumnNames = ColumnNames.IN_ANY_CASE
) -> list[object]:
    pq.write_table(pa.table({"v": column}), path / "file.parquet")
    size_bytes = (path / "file.parquet").stat().st_size
    schema = pa.schema([("v", wanted)])
    rows = ParquetRows(str(path / "file.parquet"), schema, names, size_bytes=size_bytes, first_row=0)
    batch = rows.next_rows(100)
    rows.close()
    assert batch is not None
    batch.validate(full=True)
    values: list[object] = batch.column(0).to_pylist()
    return values


def test_fields_of_a_struct_are_matched_by_name_and_widened(tmp_path: Path) -> None:
    column = pa.array([{"Y": "a", "X": 1}, None, {"Y": None, "X": 2}], STORED)
    assert read(tmp_path, column, POINT) == [{"x": 1, "y": "a"}, None, {"x": 2, "y": None}]


def test_names_as_they_are_written_are_told_apart_by_case_at_every_depth(tmp_path: Path) -> None:
    stored = pa.struct([("x", pa.int64()), ("X", pa.int64()), ("Y", pa.string())])
    value = {"x": 1, "X": 2, "Y": "a"}
    exact = ColumnNames.AS_WRITTEN
    assert read(tmp_path, pa.array([value, None], stored), POINT, names=exact) == [{"x": 1, "y": None}, None]
    assert read(tmp_path, pa.array([[value]], pa.list_(stored)), pa.list_(POINT), names=exact) == [
        [{"x": 1, "y": None}]
    ]  # fmt: skip
    with pytest.raises(OptionError, match="cannot be read as"):
        read(tmp_path, pa.array([value], stored), POINT)


def test_a_field_that_the_file_lacks_is_null(tmp_path: Path) -> None:
    column = pa.array([{"x": 1}, None], pa.struct([("x", pa.int64())]))
    assert read(tmp_path, column, POINT) == [{"x": 1, "y": None}, None]


def test_structs_inside_of_arrays_and_maps_are_matched_too(tmp_path: Path) -> None:
    column = pa.array([[{"Y": "a", "X": 1}, None], None, []], pa.list_(STORED))
    assert read(tmp_path, column, pa.list_(POINT)) == [[{"x": 1, "y": "a"}, None], None, []]
    column = pa.array([[("k", {"Y": "a", "X": 1}), ("n", None)], None, []], pa.map_(pa.string(), STORED))
    assert read(tmp_path, column, pa.map_(pa.string(), POINT)) == [[("k", {"x": 1, "y": "a"}), ("n", None)], None, []]


def test_numbers_inside_of_arrays_are_widened_but_never_narrowed(tmp_path: Path) -> None:
    column = pa.array([[1, None], None], pa.list_(pa.int32()))
    assert read(tmp_path, column, pa.list_(pa.int64())) == [[1, None], None]
    with pytest.raises(OptionError, match="cannot be read as"):
        read(tmp_path, pa.array([[1]], pa.list_(pa.int64())), pa.list_(pa.int32()))


def test_the_parquet_sink_refuses_intervals_wherever_they_are(tmp_path: Path) -> None:
    schema = pa.schema([("waits", pa.list_(pa.struct([("long", pa.duration("us"))])))])
    with pytest.raises(OptionError, match="'waits'"):
        from_node(Sink("parquet", {"path": str(tmp_path)}, schema))


@pytest.mark.parametrize(
    ("stored", "wanted", "values"),
    [
        (pa.large_list(pa.int32()), pa.list_(pa.int64()), [[1, None], None, [], [3]]),
        (pa.list_(pa.int32(), 2), pa.list_(pa.int64()), [[1, None], None, [3, 4]]),
        (pa.large_list(pa.list_(pa.string_view(), 1)), pa.list_(pa.list_(pa.string())), [[["a"], None], None, []]),
        (pa.list_(pa.struct([("Y", pa.large_string())]), 1), pa.list_(POINT), [[{"x": None, "y": "a"}], None]),
        (pa.large_string(), pa.string(), ["a", None, ""]),
        (pa.string_view(), pa.string(), ["a", None, "longer than twelve letters"]),
        (pa.large_binary(), pa.binary(), [b"a", None]),
        (pa.binary_view(), pa.binary(), [b"a", None, b"longer than twelve letters"]),
        (pa.binary(2), pa.binary(), [b"ab", None, b"cd"]),
    ],
)
def test_how_arrow_laid_out_a_column_in_memory_changes_nothing(
    tmp_path: Path, stored: pa.DataType, wanted: pa.DataType, values: list[object]
) -> None:
    if wanted == pa.list_(POINT):
        column = pa.array([[{"Y": "a"}], None], stored)
    else:
        column = pa.array(values, stored)
    assert read(tmp_path, column, wanted) == values
