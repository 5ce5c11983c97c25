"""Which files the sources of files take, and which they leave alone, as Spark does."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conformance.test_file_formats import source_of, write_json
from tests.conformance.test_sources import rows_of
from tidegate.connectors.file_listing import Listing
from tidegate.connectors.file_source import decode_state
from tidegate.model.errors import IncompatibleCheckpoint, OptionError
from tidegate.testing.source_suite import SourceRun


def drained(folder: Path, format_: str = "json", **options: str) -> list[tuple[Any, ...]]:
    return sorted(SourceRun(source_of(format_, folder, **options), 1).drain())


def test_a_pattern_takes_no_hidden_files_and_none_that_the_filter_leaves_out(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 0, 5)
    for hidden in ("_SUCCESS", "_part.json", ".x.json", "b.json._COPYING_"):
        write_json(tmp_path / hidden, 100, 5)
    write_json(tmp_path / "c.other", 5, 5)
    assert drained(tmp_path / "*") == rows_of((0, 10))
    assert drained(tmp_path / "*", pathGlobFilter="*.json") == rows_of((0, 5))
    assert drained(tmp_path / "_part.json") == []
    assert drained(tmp_path / "c.other", pathGlobFilter="*.json") == []


def test_a_pattern_reads_no_log_of_structured_streaming(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 0, 5)
    write_json(tmp_path / "_spark_metadata" / "0", 100, 5)
    assert drained(tmp_path / "*") == rows_of((0, 5))


def test_patterns_of_hadoop_are_understood_in_the_path_and_in_the_filter(tmp_path: Path) -> None:
    for number, name in enumerate(("a/x.json", "b/y.json", "c/z.json")):
        write_json(tmp_path / name, 10 * number, 5)
    assert drained(tmp_path / "{a,b}") == rows_of((0, 5), (10, 5))
    assert drained(tmp_path / "[^a]" / "*.json") == rows_of((10, 5), (20, 5))
    assert drained(tmp_path / "*", pathGlobFilter="{x,z}.json") == rows_of((0, 5), (20, 5))
    assert drained(tmp_path / "{a/x.json,c}") == rows_of((0, 5), (20, 5))
    (tmp_path / "a").rename(tmp_path / "a*")
    assert drained(tmp_path / "a\\*") == rows_of((0, 5))


def test_a_pattern_that_nobody_understands_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has a \{ without its \}"):
        source_of("json", tmp_path / "{a,b")
    with pytest.raises(OptionError, match=r"has a \[ without its \]"):
        source_of("json", tmp_path, pathGlobFilter="[a")


@pytest.mark.parametrize(("format_", "wholetext"), [("parquet", None), ("text", "true"), ("csv", None), ("json", None)])
def test_an_empty_file_counts_as_read_and_gives_no_row(tmp_path: Path, format_: str, wholetext: str | None) -> None:
    schema = pa.schema([("value", pa.string())])
    if format_ == "parquet":
        pq.write_table(pa.table({"value": ["kept"]}), tmp_path / "full")
    else:
        (tmp_path / "full").write_text('{"value": "kept"}' if format_ == "json" else "kept")
    (tmp_path / "empty").touch()
    (tmp_path / "empty.gz").touch()
    options = {} if wholetext is None else {"wholetext": wholetext}
    run = SourceRun(source_of(format_, tmp_path, schema, **options), 1)
    assert run.drain() == [("kept",)]
    state = run.readers[0].snapshot()
    remembered = {Path(done.file.path).name: done.next_row for done in decode_state(state).files}
    assert remembered == {"full": None, "empty": None, "empty.gz": None}
    assert SourceRun(source_of(format_, tmp_path, schema, **options), 1, states=[state]).drain() == []


def test_an_empty_file_that_grew_since_it_was_found_is_named(tmp_path: Path) -> None:
    (tmp_path / "late.json").touch()
    run = SourceRun(source_of("json", tmp_path), 1)
    run.discover()
    write_json(tmp_path / "late.json", 0, 5)
    with pytest.raises(IncompatibleCheckpoint, match=r"late\.json was changed after the query found it"):
        run.poll(0)


def test_a_pattern_is_not_looked_for_again_with_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        write_json(tmp_path / f"day{number}" / "text=kept" / "a.json", number, 1)
    find_roots = Listing._roots
    times_looked_for = 0

    def counted(listing: Listing) -> list[Path]:
        nonlocal times_looked_for
        times_looked_for += 1
        return find_roots(listing)

    monkeypatch.setattr(Listing, "_roots", counted)
    assert drained(tmp_path / "day*") == [(number, "kept") for number in range(20)]
    assert times_looked_for == 2, "once before the start, once when the files are handed out"
