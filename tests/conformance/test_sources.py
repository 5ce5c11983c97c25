"""Every source keeps the promises of the contract; then what each does in its own way."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors import rate
from tidegate.connectors.contract import EndOfSource, NothingNow, Rows, Source, Withheld
from tidegate.connectors.file_listing import FileSplit
from tidegate.connectors.file_source import decode_state
from tidegate.connectors.rate import RateEnumerator, RateSource
from tidegate.connectors.registry import open_source
from tidegate.model.errors import Damaged, IncompatibleCheckpoint, OptionError
from tidegate.plan.nodes import Scan
from tidegate.testing.source_suite import SourceRun, SourceSuite, row_tuples

RATE_SCHEMA = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
FILE_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
START_MS = 1_700_000_000_000


@dataclass
class FixedClock:
    wall: int = START_MS

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> float:
        return float(self.wall)


def parquet(folder: Path, schema: pa.Schema = FILE_SCHEMA, **options: str) -> Source:
    return open_source(Scan("parquet", {"path": str(folder), **options}, schema))


def write_file(path: Path, first: int, count: int, *, row_group_rows: int = 10, age_s: int = 0) -> None:
    ids = list(range(first, first + count))
    table = pa.table({"id": ids, "text": [f"row {i}" for i in ids]}, schema=FILE_SCHEMA)
    pq.write_table(table, path, row_group_size=row_group_rows)
    os.utime(path, ns=(0, (START_MS // 1000 - age_s) * 10**9))


def rows_of(*ranges: tuple[int, int]) -> list[tuple[Any, ...]]:
    return [(i, f"row {i}") for first, count in ranges for i in range(first, first + count)]


def splits_of(run: SourceRun) -> list[str]:
    splits = [msgspec.msgpack.decode(assignment.split, type=FileSplit) for assignment in run.enumerator.discover()]
    return [Path(split.path).name for split in splits]


def files_in(state: bytes) -> list[str]:
    return [Path(progress.file.path).name for progress in decode_state(state).files]


class TestParquetSource(SourceSuite):
    def make_source(self, folder: Path) -> Source:
        write_file(folder / "a.parquet", 0, 33)
        write_file(folder / "b.parquet", 100, 1)
        write_file(folder / "empty.parquet", 0, 0)
        write_file(folder / "c.parquet", 200, 20, row_group_rows=20)
        return parquet(folder, maxFilesPerTrigger="2")

    def expected_rows(self) -> list[tuple[Any, ...]]:
        return rows_of((0, 33), (100, 1), (200, 20))


class TestRateSource(SourceSuite):
    def make_source(self, folder: Path) -> Source:
        return RateOfFourSeconds(10, RATE_SCHEMA, FixedClock(START_MS + 4000))

    def expected_rows(self) -> list[tuple[Any, ...]]:
        start = datetime.fromtimestamp(START_MS / 1000, UTC)
        return [(start + timedelta(milliseconds=100 * k), k) for k in range(41)]


class RateOfFourSeconds(RateSource):
    """A rate source that is resumed four seconds after its start, so that a fixed number of values is due."""

    def enumerator(self, *, parallelism: int, available_now: bool) -> RateEnumerator:
        return ResumedEnumerator(self, parallelism=parallelism, available_now=available_now)


class ResumedEnumerator(RateEnumerator):
    def __init__(self, source: RateSource, *, parallelism: int, available_now: bool) -> None:
        super().__init__(source, parallelism=parallelism, available_now=available_now)
        self.restore([])

    def restore(self, reader_states: Sequence[bytes]) -> None:
        super().restore([*reader_states, rate_run(FixedClock()).snapshot()[0]])


def rate_run(clock: FixedClock, *, parallelism: int = 1, rows_per_s: str = "10") -> SourceRun:
    source = rate.from_scan(Scan("rate", {"rowsPerSecond": rows_per_s}, RATE_SCHEMA), clock)
    run = SourceRun(source, parallelism, available_now=False)
    run.discover()
    return run


def test_a_value_is_given_when_it_is_due_and_not_before() -> None:
    clock = FixedClock()
    run = rate_run(clock)
    run.poll(0)
    assert [value for _, value in run.rows] == [0]
    assert run.readers[0].poll(100) == NothingNow(100.0)
    clock.wall += 99
    assert run.readers[0].poll(100) == NothingNow(1.0)
    clock.wall += 1
    run.poll(0)
    assert [value for _, value in run.rows] == [0, 1]


def test_a_late_reader_catches_up_in_batches_of_what_is_asked_for() -> None:
    clock = FixedClock()
    run = rate_run(clock, rows_per_s="1000000")
    clock.wall += 1000
    polled = run.readers[0].poll(500_000)
    assert isinstance(polled, Rows)
    assert polled.rows.num_rows == 500_000
    values, times = polled.rows.column("value"), polled.rows.column("timestamp").cast(pa.int64())
    assert (values[-1].as_py(), times[-1].as_py()) == (499_999, START_MS * 1000 + 499_999)


def test_readers_share_the_values_and_the_start() -> None:
    clock = FixedClock()
    run = rate_run(clock, parallelism=3)
    clock.wall += 700
    for subtask in range(3):
        run.poll(subtask, max_rows=100)
    assert Counter(value for _, value in run.rows) == Counter(range(8))
    assert {time - timedelta(milliseconds=100 * value) for time, value in run.rows} == {
        datetime.fromtimestamp(START_MS / 1000, UTC)
    }


def test_a_restored_rate_goes_on_from_its_old_start_as_if_it_had_never_stopped() -> None:
    clock = FixedClock()
    before = rate_run(clock, parallelism=2)
    clock.wall += 500
    before.poll(0, max_rows=2)
    clock.wall += 60_000
    after = SourceRun(before.source, 2, available_now=False, states=before.snapshot())
    after.discover()
    for subtask in range(2):
        after.poll(subtask, max_rows=100_000)
    times = {value: time for time, value in before.rows + after.rows}
    assert sorted(times) == list(range(606))
    assert times[605] - times[0] == timedelta(milliseconds=60_500)


def test_a_clock_that_goes_back_pauses_the_rate() -> None:
    clock = FixedClock()
    run = rate_run(clock)
    clock.wall -= 5000
    assert run.readers[0].poll(10) == NothingNow(5000.0)


def test_a_rate_without_limit_does_not_end() -> None:
    run = rate_run(FixedClock())
    run.poll(0)
    assert run.enumerator.is_complete()
    assert isinstance(run.readers[0].poll(10), NothingNow)


def test_a_resumed_available_now_ends_with_what_is_due_at_the_resumption() -> None:
    clock = FixedClock()
    before = rate_run(clock)
    before.poll(0)
    clock.wall += 1000
    after = SourceRun(before.source, 1, available_now=True, states=before.snapshot())
    after.discover()
    clock.wall += 1000
    assert [value for _, value in after.drain()] == list(range(1, 11))


def test_a_file_in_progress_keeps_its_row_at_another_parallelism(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 0, 33)
    before = SourceRun(parquet(tmp_path), 1)
    before.discover()
    before.poll(0, max_rows=4)
    after = before.at_parallelism(3)
    assert after.discover() == 0
    assert [after.poll(subtask, max_rows=100) for subtask in range(3)] == [True, False, False]
    assert after.rows[0] == (4, "row 4")
    after.close()


def test_unfinished_files_go_to_the_new_readers_with_the_fewest_bytes_oldest_first(tmp_path: Path) -> None:
    write_file(tmp_path / "large.parquet", 0, 5000, age_s=9)
    for age_s, name in ((8, "b"), (7, "c"), (6, "d")):
        write_file(tmp_path / f"{name}.parquet", 0, 5, age_s=age_s)
    before = SourceRun(parquet(tmp_path), 1)
    before.discover()
    after = before.at_parallelism(2)
    assert [files_in(state) for state in after.snapshot()] == [
        ["large.parquet"],
        ["b.parquet", "c.parquet", "d.parquet"],
    ]
    after.close()


def test_a_new_file_goes_to_the_reader_that_the_redistribution_left_with_the_fewest_bytes(tmp_path: Path) -> None:
    write_file(tmp_path / "large.parquet", 0, 5000)
    before = SourceRun(parquet(tmp_path), 1, available_now=False)
    before.discover()
    after = before.at_parallelism(2)
    write_file(tmp_path / "new.parquet", 0, 5)
    assert [assignment.subtask for assignment in after.enumerator.discover()] == [1]
    after.close()


def test_finished_files_are_remembered_evenly_by_all_new_readers(tmp_path: Path) -> None:
    for number in range(6):
        write_file(tmp_path / f"{number}.parquet", 0, 5)
    before = SourceRun(parquet(tmp_path), 2, available_now=False)
    before.discover()
    while before.poll(0) or before.poll(1):
        pass
    after = before.at_parallelism(3)
    assert [len(files_in(state)) for state in after.snapshot()] == [2, 2, 2]
    assert splits_of(after) == []
    after.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rowsPerSecond": "0"}, "rowsPerSecond"),
        ({"rowsPerSecond": "fast"}, "rowsPerSecond"),
        ({"rampUpTime": "5s"}, "rampUpTime"),
        ({"rowsPerSecnd": "5"}, r"did you mean 'rowsPerSecond'\?"),
    ],
)
def test_wrong_options_of_the_rate_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_source(Scan("rate", options, RATE_SCHEMA))


def test_spark_spells_options_in_any_case() -> None:
    source = open_source(Scan("RATE", {"rowspersecond": "7", "numpartitions": "3", "rampuptime": "0s"}, RATE_SCHEMA))
    assert isinstance(source, RateSource)
    assert source.rows_per_s == 7


def test_an_unknown_source_format_is_named_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"'rat' \(did you mean 'rate'\?\).*parquet, .*rate"):
        open_source(Scan("rat", {}, RATE_SCHEMA))


def test_new_files_are_found_and_each_is_given_once(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 0, 5)
    run = SourceRun(parquet(tmp_path), 2, available_now=False)
    assert splits_of(run) == ["a.parquet"]
    assert splits_of(run) == []
    write_file(tmp_path / "b.parquet", 5, 5)
    assert splits_of(run) == ["b.parquet"]
    assert not run.enumerator.is_complete()


def test_after_a_restore_only_files_without_a_reader_are_found(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_file(tmp_path / f"{name}.parquet", ord(name), 5)
    source = parquet(tmp_path, maxFilesPerTrigger="1")
    before = SourceRun(source, 2, available_now=False)
    before.discover()
    before.poll(0)
    before.poll(0)
    before.discover()
    after = SourceRun(source, 2, available_now=False, states=before.snapshot())
    assert [splits_of(after), splits_of(after)] == [["c.parquet"], []]
    before.close()


def test_available_now_reads_only_what_was_there_at_the_start(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 0, 5)
    run = SourceRun(parquet(tmp_path), 1, available_now=True)
    run.discover()
    write_file(tmp_path / "b.parquet", 5, 5)
    assert run.drain() == rows_of((0, 5))


def test_files_come_oldest_first_then_by_name_and_as_many_as_the_limit_says(tmp_path: Path) -> None:
    write_file(tmp_path / "new.parquet", 0, 1, age_s=1)
    write_file(tmp_path / "old-b.parquet", 0, 1, age_s=9)
    write_file(tmp_path / "old-a.parquet", 0, 1, age_s=9)
    run = SourceRun(parquet(tmp_path, maxFilesPerTrigger="2"), 1, available_now=False)
    assert [splits_of(run), splits_of(run)] == [["old-a.parquet", "old-b.parquet"], ["new.parquet"]]
    latest = SourceRun(parquet(tmp_path, latestFirst="true", maxFilesPerTrigger="1"), 1, available_now=False)
    assert splits_of(latest) == ["new.parquet"]


def test_what_a_limit_withholds_for_an_interval_is_told_even_if_it_came_after_the_share(tmp_path: Path) -> None:
    def look() -> tuple[list[str], Withheld]:
        return splits_of(run), run.enumerator.withheld()

    for name in ("a", "b", "c"):
        write_file(tmp_path / name, 0, 1)
    clock = FixedClock()
    opened: Any = parquet(tmp_path, maxFilesPerTrigger="2", checkpointIntervalMs="1000")
    run = SourceRun(replace(opened, clock=clock), 1, available_now=False)
    assert [look(), look()] == [(["a", "b"], Withheld.UNTIL_LATER), ([], Withheld.UNTIL_LATER)]
    clock.wall += 1000
    assert [look(), look()] == [(["c"], Withheld.NOTHING), ([], Withheld.NOTHING)]
    write_file(tmp_path / "d", 0, 1)
    assert look() == ([], Withheld.UNTIL_LATER)
    clock.wall += 1000
    assert look() == (["d"], Withheld.NOTHING)


def test_a_file_goes_to_the_reader_with_the_fewest_bytes(tmp_path: Path) -> None:
    write_file(tmp_path / "a-large.parquet", 0, 5000)
    for name in ("b", "c", "d"):
        write_file(tmp_path / f"{name}.parquet", 0, 5)
    assignments = SourceRun(parquet(tmp_path), 2).enumerator.discover()
    assert [assignment.subtask for assignment in assignments] == [0, 1, 1, 1]


def test_hidden_files_other_folders_and_filtered_names_are_not_read(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 0, 5)
    write_file(tmp_path / "b.other", 5, 5)
    for hidden in ("_SUCCESS", ".a.parquet.crc", "_tidegate.parquet", "c.parquet._COPYING_"):
        (tmp_path / hidden).write_text("not parquet")
    (tmp_path / "_tidegate").mkdir()
    (tmp_path / "nested").mkdir()
    write_file(tmp_path / "nested" / "n.parquet", 50, 5)
    assert sorted(SourceRun(parquet(tmp_path), 1).drain()) == rows_of((0, 10))
    assert SourceRun(parquet(tmp_path, pathGlobFilter="*.parquet"), 1).drain() == rows_of((0, 5))


def test_a_single_file_and_a_glob_are_paths_too(tmp_path: Path) -> None:
    (tmp_path / "day1").mkdir()
    (tmp_path / "day2").mkdir()
    write_file(tmp_path / "day1" / "a.parquet", 0, 5)
    write_file(tmp_path / "day2" / "b.parquet", 5, 5)
    assert SourceRun(parquet(tmp_path / "day1" / "a.parquet"), 1).drain() == rows_of((0, 5))
    assert sorted(SourceRun(parquet(tmp_path / "day*"), 1).drain()) == rows_of((0, 10))
    assert sorted(SourceRun(parquet(tmp_path / "*" / "*.parquet"), 1).drain()) == rows_of((0, 10))
    assert SourceRun(parquet(tmp_path / "month*"), 1).drain() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxFilesPerTriger": "1"}, r"did you mean 'maxFilesPerTrigger'\?"),
        ({"maxFilesPerTrigger": "none"}, "whole number above 0"),
        ({"maxFileAge": "old"}, "maxFileAge"),
        ({"recursiveFileLookup": "maybe"}, "recursiveFileLookup"),
        ({"ignoreCorruptFiles": "true"}, "ignoreCorruptFiles"),
        ({"cleanSource": "delete"}, "cleanSource"),
        ({"maxFilesPerTrigger": "1", "maxBytesPerTrigger": "1"}, "leave one of them out"),
        ({"path": ""}, "needs the option 'path'"),
        ({"path": "s3://bucket/x"}, "remote"),
        ({"path": "/no/such/folder"}, "/no/such/folder of the parquet source does not exist"),
    ],
)
def test_wrong_options_of_the_parquet_source_are_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_source(Scan("parquet", {"path": str(tmp_path), **options}, FILE_SCHEMA))


def test_streaming_outputs_are_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "stream" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(OptionError, match="_spark_metadata"):
        parquet(tmp_path / "stream")


def test_columns_are_matched_by_name_in_any_case_and_missing_ones_are_null(tmp_path: Path) -> None:
    pq.write_table(pa.table({"extra": [0, 0], "TEXT": ["x", "y"], "Id": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"other": [1, 2, 3]}), tmp_path / "b.parquet")
    rows = SourceRun(parquet(tmp_path), 1).drain()
    assert Counter(rows) == Counter([(1, "x"), (2, "y"), *[(None, None)] * 3])


def test_types_widen_as_in_spark(tmp_path: Path) -> None:
    stored = pa.table(
        {
            "i": pa.array([1], pa.int32()),
            "f": pa.array([0.5], pa.float32()),
            "t": pa.array([START_MS], pa.timestamp("ms", "UTC")),
            "l": pa.array([[1]], pa.list_(pa.int32())),
            "s": pa.array(["x"], pa.large_string()),
        }
    )
    pq.write_table(stored, tmp_path / "a.parquet")
    wanted = pa.schema(
        [
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("t", pa.timestamp("us", "UTC")),
            ("l", pa.list_(pa.int64())),
            ("s", pa.string()),
        ]
    )
    run = SourceRun(parquet(tmp_path, wanted), 1)
    run.discover()
    polled = run.readers[0].poll(10)
    assert isinstance(polled, Rows)
    assert polled.rows.schema == wanted
    assert row_tuples(polled.rows) == [(1, 0.5, datetime.fromtimestamp(START_MS / 1000, UTC), [1], "x")]
    run.close()


def test_old_int96_timestamps_are_read_as_instants(tmp_path: Path) -> None:
    stored = pa.table({"t": pa.array([START_MS * 1000], pa.timestamp("us"))})
    pq.write_table(stored, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    schema = pa.schema([("t", pa.timestamp("us", "UTC"))])
    assert SourceRun(parquet(tmp_path, schema), 1).drain() == [(datetime.fromtimestamp(START_MS / 1000, UTC),)]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([1], pa.int64()), pa.int32()),
        (pa.array([1], pa.int64()), pa.string()),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([0.5], pa.float64()), pa.int64()),
    ],
)
def test_a_type_that_would_lose_values_is_refused_by_name(tmp_path: Path, stored: Any, wanted: pa.DataType) -> None:
    pq.write_table(pa.table({"id": stored}), tmp_path / "a.parquet")
    run = SourceRun(parquet(tmp_path, pa.schema([("id", wanted)])), 1)
    with pytest.raises(OptionError, match=r"Column 'id' of the source file .*a\.parquet"):
        run.drain()


def test_columns_that_differ_only_in_case_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "ID": [2], "text": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(OptionError, match=r"several columns for 'id' \(id, ID\)"):
        SourceRun(parquet(tmp_path), 1).drain()


def test_a_file_that_disappears_or_changes_is_named(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 0, 30)
    source = parquet(tmp_path)
    run = SourceRun(source, 1)
    run.discover()
    run.poll(0)
    states = run.snapshot()
    run.close()
    write_file(tmp_path / "a.parquet", 0, 3000)
    with pytest.raises(IncompatibleCheckpoint, match=r"a\.parquet was changed"):
        SourceRun(source, 1, states=states).drain()
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(Damaged, match=r"a\.parquet disappeared"):
        SourceRun(source, 1, states=states).drain()


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("hello, I am not parquet")
    with pytest.raises(Damaged, match=r"a\.parquet is not readable as parquet"):
        SourceRun(parquet(tmp_path), 1).drain()


def test_a_large_row_group_is_decoded_piece_by_piece(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 0, 100_000, row_group_rows=100_000)
    run = SourceRun(parquet(tmp_path), 1)
    run.discover()
    run.poll(0, max_rows=10)
    decoded = run.readers[0]._rows._piece  # type: ignore[attr-defined]
    assert decoded.num_rows < 20_000
    run.close()
    again = SourceRun(parquet(tmp_path), 1, states=run.snapshot())
    again.discover()
    while not again.ended[0]:
        again.poll(0, max_rows=30_000)
    assert run.rows + again.rows == rows_of((0, 100_000))
    assert again.readers[0].poll(1) == EndOfSource()


def test_reading_does_not_import_pandas(tmp_path: Path) -> None:
    write_file(tmp_path / "a.parquet", 0, 30)
    program = (
        "import sys\n"
        "import pyarrow as pa\n"
        "from tidegate.connectors.contract import Rows\n"
        "from tidegate.connectors.registry import open_source\n"
        "from tidegate.plan.nodes import Scan\n"
        "wanted = pa.schema([('id', pa.int64()), ('text', pa.large_string()), ('none', pa.int32())])\n"
        "rate = pa.schema([('timestamp', pa.timestamp('us', 'UTC')), ('value', pa.int64())])\n"
        "for scan in [Scan('parquet', {'path': sys.argv[1]}, wanted), Scan('rate', {}, rate)]:\n"
        "    source = open_source(scan)\n"
        "    reader = source.reader(subtask=0, parallelism=1)\n"
        "    enumerator = source.enumerator(parallelism=1, available_now=True)\n"
        "    reader.add_splits([a.split for a in enumerator.discover()])\n"
        "    assert isinstance(reader.poll(10), Rows)\n"
        "    reader.snapshot()\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
