"""`mode=DROPMALFORMED`: where a file is read on does not hang on what the query drops of it."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.conformance.test_file_formats import source_of
from tidegate.connectors import text_lines
from tidegate.connectors.contract import NothingNow, Rows, Source
from tidegate.connectors.file_source import decode_state
from tidegate.connectors.limited import LimitedSource
from tidegate.model.errors import IncompatibleCheckpoint
from tidegate.plan.scan_settings import READ_COLUMNS
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.sink_suite import SCHEMA
from tidegate.testing.source_suite import SourceRun, SourceSuite

RECORD = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
BAD_IN_A, BAD_IN_B = {0, 3, 4, 9, 14, 29}, {2, 3, 8, 10, 11, 12, 28}


class TestSourceThatDropsRows(SourceSuite):
    """Some at each end of a file, some in between, and all of one file."""

    def make_source(self, folder: Path) -> Source:
        write_some_malformed(folder / "a.csv", [*range(20)], [*range(0, 20, 3), 19])
        write_some_malformed(folder / "b.csv", [*range(30, 35)], [*range(30, 35)])
        write_some_malformed(folder / "c.csv", [*range(40, 49)], [*range(44, 48)])
        return source_of("csv", folder, header="true", mode="DROPMALFORMED")

    def expected_rows(self) -> list[tuple[Any, ...]]:
        kept = [i for i in range(19) if i % 3] + [40, 41, 42, 43, 48]
        return [(i, f"row {i}") for i in kept]


def write_some_malformed(path: Path, ids: Sequence[int], malformed: Sequence[int]) -> None:
    lines = ["id,text", *(f"x{i}" if i in malformed else f"{i},row {i}" for i in ids)]
    path.write_text("\n".join(lines))


def write_records(format_: str, path: Path) -> None:
    """Thirty of them, each with its number as `id`, some malformed in one of the columns."""
    records = [{"id": i, "a": "x" if i in BAD_IN_A else i, "b": "y" if i in BAD_IN_B else i} for i in range(30)]
    if format_ == "json":
        # Also several of a line.
        lines = [json.dumps(record) for record in records[:20]] + [json.dumps([*records[20:23]])]
        lines += [json.dumps(record) for record in records[23:]]
    else:
        lines = [",".join(str(value) for value in record.values()) for record in records]
    path.write_text("\n".join(lines))


def records_of(format_: str, folder: Path, columns: str, mode: str) -> Source:
    return source_of(format_, folder, RECORD, mode=mode, **{READ_COLUMNS: columns.replace(",", "\0")})


@pytest.mark.parametrize("format_", ["csv", "json"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("id,a", "DROPMALFORMED"), ("id,b", "DROPMALFORMED")),
        (("id,a,b", "DROPMALFORMED"), ("id", "DROPMALFORMED")),
        (("id", "DROPMALFORMED"), ("id,a,b", "DROPMALFORMED")),
        (("id,a", "PERMISSIVE"), ("id,a", "DROPMALFORMED")),
        (("id,a", "DROPMALFORMED"), ("id,a", "PERMISSIVE")),
    ],
    ids=lambda query: " ".join(query),
)
def test_a_half_read_file_goes_on_behind_its_last_row_whatever_the_query_drops_now(
    tmp_path: Path, format_: str, before: tuple[str, str], after: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lines, "_BLOCK_BYTES", 100)
    write_records(format_, tmp_path / f"a.{format_}")

    def kept(query: tuple[str, str]) -> list[int]:
        columns, mode = query
        bad = (BAD_IN_A if "a" in columns else set()) | (BAD_IN_B if "b" in columns else set())
        if format_ == "json" and bad & {20, 21, 22}:
            bad |= {20, 21, 22}
        return [i for i in range(30) if mode == "PERMISSIVE" or i not in bad]

    for polls in range(len(kept(before)) + 1):
        first = SourceRun(records_of(format_, tmp_path, *before), 1)
        first.discover()
        for _ in range(polls):
            assert first.poll(0, max_rows=1)
        given = [row[0] for row in first.rows]
        assert given == kept(before)[:polls]
        second = SourceRun(records_of(format_, tmp_path, *after), 1, states=first.snapshot())
        found = [row[0] for row in second.drain()]
        last = given[-1] if given else -1
        doubled = {i for i in found if i <= last}
        lost = {i for i in kept(before)[polls:] if i in kept(after)} - {*found}
        assert not doubled and not lost, f"after {polls} rows {doubled} came twice and {lost} never"
        assert found == kept(after)[len(kept(after)) - len(found) :], "and nothing is missing in between"


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_where_all_rows_are_dropped_the_position_moves_on_block_by_block_and_that_is_no_end(
    tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lines, "_BLOCK_BYTES", 100)
    bad, good = ("x,1", "7,1") if format_ == "csv" else ('{"id": "x"}', '{"id": 7}')
    (tmp_path / "a").write_text("\n".join([*[bad] * 200, good, *[bad] * 200]))
    source = source_of(format_, tmp_path, SCHEMA, mode="DROPMALFORMED")
    run = SourceRun(source, 1)
    run.discover()
    polls, positions, rows = 0, [0], []
    while not run.ended[0]:
        assert (polls := polls + 1) < 500
        match run.readers[0].poll(50):
            case Rows(rows=given):
                rows += given.column("id").to_pylist()
            case NothingNow(is_behind=is_behind):
                assert is_behind, "the source would count as idle"
            case _:
                run.ended[0] = True
        (progress,) = decode_state(run.readers[0].snapshot()).files
        if progress.next_row is not None:
            positions.append(progress.next_row)
        # From each such position the rest comes, and nothing twice.
        again = SourceRun(source, 1, states=run.snapshot())
        assert rows + [row[0] for row in again.drain()] == [7]
    steps = [after - before for before, after in pairwise(positions)]
    assert positions[-1] == 401 and 0 < max(steps) <= 34, "more than a block was read in one go"


def test_a_limit_of_rows_counts_those_that_are_given_and_waits_for_no_dropped_ones(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n".join([*["x,1"] * 10_000, *["7,1"] * 5]))
    clock = ManualClock()
    run = SourceRun(LimitedSource(source_of("csv", tmp_path, mode="DROPMALFORMED"), 10, clock), 1)
    run.discover()
    given = 0
    while given < 5:
        match run.readers[0].poll(100):
            case Rows(rows=rows):
                given += rows.num_rows
            case NothingNow(retry_after_ms, is_behind):
                assert is_behind
                clock.advance(retry_after_ms)
            case other:
                raise AssertionError(other)
    assert clock.monotonic_ms() <= 1000.0


def test_a_position_of_an_older_version_counts_the_rows_that_the_query_keeps(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_some_malformed(path, [*range(12)], [0, 2, 3, 7, 11])
    stat = path.stat()
    file = {"path": str(path), "modified_ns": stat.st_mtime_ns, "size_bytes": stat.st_size}
    older = msgspec.msgpack.encode({"files": [{"file": file, "next_row": 3}], "forget_before_ms": 0})
    source = source_of("csv", tmp_path, header="true", mode="DROPMALFORMED")
    rest = [(i, f"row {i}") for i in (6, 8, 9, 10)]
    assert SourceRun(source, 1, states=[older]).drain() == rest
    # Stored again before the file is open, dealt out anew, and stored amid the file.
    (unread,) = SourceRun(source, 1, states=[older]).snapshot()
    dealt = source.redistribute([unread], parallelism=2)
    assert sorted(SourceRun(source, 2, states=dealt).drain()) == rest
    run = SourceRun(source, 1, states=[unread])
    run.poll(0, max_rows=2)
    after = SourceRun(source, 1, states=run.snapshot())
    assert run.rows + after.drain() == rest


def test_a_position_of_an_older_version_that_counts_more_rows_than_are_kept_now_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_some_malformed(path, [*range(6)], [0, 2])
    stat = path.stat()
    file = {"path": str(path), "modified_ns": stat.st_mtime_ns, "size_bytes": stat.st_size}
    older = msgspec.msgpack.encode({"files": [{"file": file, "next_row": 5}], "forget_before_ms": 0})
    run = SourceRun(source_of("csv", tmp_path, header="true", mode="DROPMALFORMED"), 1, states=[older])
    with pytest.raises(IncompatibleCheckpoint, match=r"older Tidegate .*5 rows .*a\.csv"):
        run.drain()
