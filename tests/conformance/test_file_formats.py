"""Text formats keep the promises of sources and sinks; and compaction, killed anywhere, shows every row once."""

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from tests.conformance.test_sources import START_MS, rows_of
from tidegate.connectors import file_sink
from tidegate.connectors.contract import HoldsBack, NothingNow, Rows, Sink, SinkCommitter, Source
from tidegate.connectors.file_listing import FileSplit
from tidegate.connectors.file_source import decode_state
from tidegate.connectors.limited import LimitedSource
from tidegate.connectors.registry import open_sink, open_source
from tidegate.model.errors import Damaged, OptionError, StorageFailure, UserCodeFailure
from tidegate.model.ids import Generation
from tidegate.plan import nodes
from tidegate.plan.nodes import Scan
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.sink_suite import FIRST, SCHEMA, SECOND, SinkSuite, expected, make_rows, permit, prepare
from tidegate.testing.source_suite import SourceRun, SourceSuite

DAY_MS = 86_400_000


def source_of(format_: str, folder: Path, schema: pa.Schema = SCHEMA, **options: str) -> Source:
    return open_source(Scan(format_, {"path": str(folder), **options}, schema))


def sink_of(format_: str, folder: Path, schema: pa.Schema = SCHEMA, **options: str) -> Sink:
    options = {name.replace("_", "."): value for name, value in options.items()}
    return open_sink(nodes.Sink(format_, {"path": str(folder), **options}, schema))


def write_json(path: Path, first: int, count: int, *, age_ms: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": i, "text": f"row {i}"}) for i in range(first, first + count)]
    data = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    os.utime(path, ns=(0, (START_MS - age_ms) * 1_000_000))


class TestJsonSource(SourceSuite):
    def make_source(self, folder: Path) -> Source:
        write_json(folder / "a.json", 0, 33)
        write_json(folder / "b.json.gz", 100, 5)
        (folder / "empty.json").write_text("\n \n")
        return source_of("json", folder)

    def expected_rows(self) -> list[tuple[Any, ...]]:
        return rows_of((0, 33), (100, 5))


class TestCsvSource(SourceSuite):
    def make_source(self, folder: Path) -> Source:
        for first, count in ((0, 20), (50, 11)):
            lines = ["id,text", *(f'{i},"row {i}"' for i in range(first, first + count))]
            (folder / f"{first}.csv").write_text("\n".join(lines))
        return source_of("csv", folder, header="true", maxFilesPerTrigger="1")

    def expected_rows(self) -> list[tuple[Any, ...]]:
        return rows_of((0, 20), (50, 11))


class TestLimitedSource(TestJsonSource):
    def make_source(self, folder: Path) -> Source:
        return LimitedSource(super().make_source(folder), 1_000_000)

    # A limit says "nothing now" before the source is asked at all.
    test_a_reader_without_splits_ends_when_told_that_none_come = None  # type: ignore[assignment]
    test_the_end_stays_the_end = None  # type: ignore[assignment]
    test_a_snapshot_changes_nothing = None  # type: ignore[assignment]


def json_rows(path: Path) -> list[tuple[Any, ...]]:
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    return [(row["id"], row["text"]) for row in map(json.loads, lines)]


def csv_rows(path: Path) -> list[tuple[Any, ...]]:
    table = pcsv.read_csv(path)
    return list(zip(table.column("id").to_pylist(), table.column("text").to_pylist(), strict=True))


def parquet_rows(path: Path) -> list[tuple[Any, ...]]:
    table = pq.ParquetFile(path).read()
    return list(zip(table.column("id").to_pylist(), table.column("text").to_pylist(), strict=True))


READ: dict[str, Callable[[Path], list[tuple[Any, ...]]]] = {
    "json": json_rows, "csv": csv_rows, "parquet": parquet_rows,
}  # fmt: skip


def visible_files(folder: Path) -> list[Path]:
    """What Spark reads: it skips hidden files and hidden folders."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(p for p in found if not any(part.startswith(("_", ".")) for part in p.relative_to(folder).parts))


def visible(format_: str, folder: Path) -> Counter[tuple[Any, ...]]:
    return Counter(row for path in visible_files(folder) for row in READ[format_](path))


class TestJsonSink(SinkSuite):
    def make_sink(self, folder: Path) -> Sink:
        return sink_of("json", folder / "out", compression="gzip")

    def visible_rows(self, folder: Path) -> list[tuple[Any, ...]]:
        return list(visible("json", folder / "out").elements())


class TestCsvSink(SinkSuite):
    def make_sink(self, folder: Path) -> Sink:
        return sink_of("csv", folder / "out", header="true")

    def visible_rows(self, folder: Path) -> list[tuple[Any, ...]]:
        return list(visible("csv", folder / "out").elements())


class TestCompactingSink(SinkSuite):
    """With one epoch to wait for, what is committed is merged and published at once."""

    def make_sink(self, folder: Path) -> Sink:
        return sink_of("parquet", folder / "out", sink_compact_epochs="1")

    def visible_rows(self, folder: Path) -> list[tuple[Any, ...]]:
        return list(visible("parquet", folder / "out").elements())


# -- compaction


def epoch(sink: Sink, checkpoint: int, *, rows: int = 10) -> Sequence[bytes]:
    """Two tasks write so many rows each."""
    committables: list[bytes] = []
    for number, task in enumerate((FIRST, SECOND)):
        writer = sink.writer(task=task, generation=Generation(1))
        writer.write(make_rows(checkpoint * 100 + number * 10, rows))
        committables += prepare(writer, checkpoint)
    return committables


def rows_up_to(checkpoint: int) -> Counter[tuple[Any, ...]]:
    return expected(*((c * 100, 20) for c in range(1, checkpoint + 1)))


@pytest.mark.parametrize("format_", ["parquet", "json", "csv"])
def test_the_files_of_several_epochs_become_one(tmp_path: Path, format_: str) -> None:
    options = {"header": "true"} if format_ == "csv" else {}
    sink = sink_of(format_, tmp_path, sink_compact_epochs="3", **options)
    committer = sink.committer()
    for checkpoint in (1, 2):
        committer.commit(epoch(sink, checkpoint), permit(checkpoint))
        assert visible_files(tmp_path) == [], "held back until there are three"
    committer.commit(epoch(sink, 3), permit(3))
    assert len(visible_files(tmp_path)) == 1
    assert visible(format_, tmp_path) == rows_up_to(3)


def test_enough_bytes_are_published_before_the_epochs_are_over(tmp_path: Path) -> None:
    sink = sink_of("json", tmp_path, sink_compact="1kb", sink_compact_epochs="100")
    committer = sink.committer()
    for checkpoint in range(1, 9):
        committer.commit(epoch(sink, checkpoint), permit(checkpoint))
    sizes = [path.stat().st_size for path in visible_files(tmp_path)]
    assert len(sizes) == 4 and min(sizes) >= 1024


def test_when_the_query_ends_nothing_stays_held_back(tmp_path: Path) -> None:
    sink = sink_of("parquet", tmp_path, sink_compact_epochs="100")
    committer = sink.committer()
    committer.commit(epoch(sink, 1), permit(1))
    assert isinstance(committer, HoldsBack)
    committer.publish_held()
    committer.publish_held()
    assert visible("parquet", tmp_path) == rows_up_to(1)


@pytest.mark.parametrize("restarts", ["and goes on", "and ends"])
def test_what_was_written_with_other_options_is_published_as_it_is(tmp_path: Path, restarts: str) -> None:
    before = sink_of("json", tmp_path, sink_compact_epochs="100")
    committer = before.committer()
    for checkpoint in (1, 2):
        committer.commit(epoch(before, checkpoint), permit(checkpoint))
    prepared = epoch(before, 3)  # and killed before its commit
    now = sink_of("json", tmp_path, sink_compact_epochs="2", compression="gzip")
    committer = now.committer()
    assert isinstance(committer, HoldsBack)
    if restarts == "and ends":
        committer.publish_held()
        assert visible("json", tmp_path) == rows_up_to(2)
        return
    committer.commit(prepared, permit(3))
    assert visible("json", tmp_path) == rows_up_to(3)
    for checkpoint in (4, 5):
        committer.commit(epoch(now, checkpoint), permit(checkpoint))
    assert visible("json", tmp_path) == rows_up_to(5)
    assert Counter(path.suffix for path in visible_files(tmp_path)) == {".json": 6, ".gz": 1}


def test_a_commit_repeated_after_its_files_were_merged_changes_nothing(tmp_path: Path) -> None:
    sink = sink_of("parquet", tmp_path, sink_compact_epochs="2")
    first, second = epoch(sink, 1), epoch(sink, 2)
    sink.committer().commit(first, permit(1))
    sink.committer().commit(second, permit(2))
    for path in visible_files(tmp_path):
        path.unlink()  # a reader has taken it away
    sink.committer().commit(second, permit(2))
    sink.committer().commit([*first, *second], permit(3))
    assert visible_files(tmp_path) == []


def test_a_held_file_that_vanished_before_it_was_committed_is_named(tmp_path: Path) -> None:
    sink = sink_of("parquet", tmp_path, sink_compact_epochs="2")
    committables = epoch(sink, 1)
    for path in (tmp_path / "_tidegate").iterdir():
        path.unlink()
    with pytest.raises(Damaged, match="rows cannot be committed"):
        sink.committer().commit(committables, permit(1))


class Killed(BaseException):
    pass


@dataclass
class KilledAt:
    """Ends the process, as far as it can be seen from disk, before the `at`-th change of it; looks at each step."""

    at: int
    look: Callable[[], None]
    done: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for owner, name in ((os, "replace"), (os, "fsync"), (os, "mkdir"), (os, "unlink"), (os, "rmdir")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        for name in ("unlink", "mkdir", "rmdir"):
            monkeypatch.setattr(Path, name, self._counted(getattr(Path, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.look()
            if self.done == self.at:
                raise Killed
            self.done += 1
            return call(*args, **kwargs)

        return counted


@pytest.mark.parametrize("partitioned", [False, True])
def test_killed_before_any_change_on_disk_every_row_is_seen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    kills = 0
    while True:
        folder = tmp_path / str(kills)
        options = {"partitionBy": "text"} if partitioned else {}
        sink = sink_of("json", folder, sink_compact_epochs="2", **options)
        sink.prepare_location()
        epochs = [epoch(sink, 1, rows=1 if partitioned else 10), epoch(sink, 2, rows=1 if partitioned else 10)]

        def seen(folder: Path = folder) -> Counter[int]:
            return Counter(
                json.loads(line)["id"] for path in visible_files(folder) for line in path.read_text().splitlines()
            )

        def look(seen: Callable[[], Counter[int]] = seen) -> None:
            assert max(seen().values(), default=0) <= 1, "a row is seen twice"

        with monkeypatch.context() as patch:
            killer = KilledAt(kills, look)
            killer.install(patch)
            try:
                commit_both(sink.committer(), epochs)
            except Killed:
                kills += 1
            else:
                break
        before = seen()
        again = sink.committer()
        again.discard_uncommitted([*epochs[0], *epochs[1]], Generation(2))
        commit_both(again, epochs)
        assert isinstance(again, HoldsBack)
        again.publish_held()
        assert seen() & before == before, "what was seen is gone"
        ids = [100, 110, 200, 210] if partitioned else [row[0] for row in rows_up_to(2)]
        assert seen() == Counter(ids), f"killed before change {kills}"
    assert kills > 15


def commit_both(committer: SinkCommitter, epochs: list[Sequence[bytes]]) -> None:
    for checkpoint, committables in enumerate(epochs, start=1):
        committer.commit(committables, permit(checkpoint))


# -- partitions


def test_more_partitions_than_files_may_be_open_are_all_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "_MOST_OPEN_FILES", 3)
    monkeypatch.setattr(file_sink, "_MOST_GATHERED_BYTES", 20)
    sink = sink_of("parquet", tmp_path, partitionBy="text")
    writer = sink.writer(task=FIRST, generation=Generation(1))
    for _ in range(2):
        writer.write(make_rows(0, 10))
        assert len(writer._open) <= 3  # type: ignore[attr-defined]
    sink.committer().commit(prepare(writer, 1), permit(1))
    ids = Counter(i for path in visible_files(tmp_path) for i in pq.ParquetFile(path).read().column("id").to_pylist())
    assert ids == Counter([*range(10), *range(10)])
    assert {path.parent.name for path in visible_files(tmp_path)} == {f"text=row {i}" for i in range(10)}


def test_partition_values_that_no_folder_can_have_are_escaped(tmp_path: Path) -> None:
    sink = sink_of("json", tmp_path, partitionBy="text")
    values = ["a/b=c%", "", None, "plain é"]
    rows = pa.record_batch([pa.array(range(4), pa.int64()), pa.array(values, pa.string())], schema=SCHEMA)
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(rows)
    sink.committer().commit(prepare(writer, 1), permit(1))
    assert {path.parent.name for path in visible_files(tmp_path)} == {
        "text=a%2Fb%3Dc%25",
        "text=__HIVE_DEFAULT_PARTITION__",
        "text=plain é",
    }
    run = SourceRun(source_of("json", tmp_path), 1)
    assert Counter(run.drain()) == Counter([(0, "a/b=c%"), (1, None), (2, None), (3, "plain é")])


LONGEST_TEXT = 255 - len("text=")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x" * (LONGEST_TEXT + 1), "Column 'text' of .* value 'x{40}...', .*256 bytes, of at most 255.*left"),
        ("é" * (LONGEST_TEXT // 2 + 1), "Column 'text' of .* value 'é{40}...', .*257 bytes"),
        ("/" * (LONGEST_TEXT // 3 + 1), "Column 'text' of .* value '/{40}...', .*257 bytes"),
        ("a\0b", r"Column 'text' of .* value 'a\\x00b', .*NUL.*replace"),
    ],
    ids=["letters", "bytes", "escaped", "NUL"],
)
def test_a_partition_value_that_cannot_be_a_folder_fails_the_epoch_and_not_its_commit(
    tmp_path: Path, value: str, message: str
) -> None:
    sink = sink_of("parquet", tmp_path, partitionBy="text")
    rows = pa.record_batch([pa.array([1], pa.int64()), pa.array([value], pa.string())], schema=SCHEMA)
    writer = sink.writer(task=FIRST, generation=Generation(1))
    with pytest.raises(UserCodeFailure, match=message):
        writer.write(rows)
        prepare(writer, 1)
    writer.close()
    assert visible_files(tmp_path) == []


def test_a_partition_value_among_many_that_cannot_be_a_folder_is_found_before_the_barrier(tmp_path: Path) -> None:
    texts = [f"p{i % 3}" for i in range(20_000)]
    texts[19_000] = "x" * 300
    rows = pa.record_batch([pa.array(range(len(texts)), pa.int64()), pa.array(texts)], schema=SCHEMA)
    writer = sink_of("parquet", tmp_path, partitionBy="text").writer(task=FIRST, generation=Generation(1))
    with pytest.raises(UserCodeFailure, match="Column 'text'"):
        writer.write(rows)


def test_the_longest_name_that_a_folder_can_have_is_written(tmp_path: Path) -> None:
    sink = sink_of("parquet", tmp_path, partitionBy="text")
    value = "é" * 100 + "/" * 16 + "xx"
    rows = pa.record_batch([pa.array([1], pa.int64()), pa.array([value], pa.string())], schema=SCHEMA)
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(rows)
    sink.committer().commit(prepare(writer, 1), permit(1))
    assert [len(path.parent.name.encode()) for path in visible_files(tmp_path)] == [255]


def test_folders_that_name_different_columns_are_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "a=1" / "x.json", 0, 1)
    write_json(tmp_path / "b=1" / "x.json", 0, 1)
    with pytest.raises(OptionError, match="partitioned in different ways"):
        source_of("json", tmp_path)


def test_a_recursive_lookup_reads_every_folder_and_takes_no_column_from_its_name(tmp_path: Path) -> None:
    write_json(tmp_path / "id=7" / "deep" / "x.json", 0, 5)
    write_json(tmp_path / "y.json", 5, 5)
    run = SourceRun(source_of("json", tmp_path, recursiveFileLookup="true"), 2)
    assert sorted(run.drain()) == rows_of((0, 10))


# -- which files, and what is remembered of them


def taken(run: SourceRun) -> list[str]:
    found = []
    for assignment in run.enumerator.discover():
        run.readers[assignment.subtask].add_splits([assignment.split])
        found.append(Path(msgspec.msgpack.decode(assignment.split, type=FileSplit).path).name)
    return found


def test_what_is_remembered_of_files_is_bounded_by_their_age(tmp_path: Path) -> None:
    source = source_of("json", tmp_path, maxFileAge="2d")
    run = SourceRun(source, 1, available_now=False)
    sizes = []
    for day in range(30):
        write_json(tmp_path / f"{day:02d}.json", day, 1, age_ms=(30 - day) * DAY_MS)
        assert taken(run) == [f"{day:02d}.json"]
        while run.poll(0):
            pass
        sizes.append(len(decode_state(run.readers[0].snapshot()).files))
        # Restored all the time, it neither finds a file again nor loses one.
        run = SourceRun(source, 1, available_now=False, states=run.snapshot())
        assert taken(run) == []
    assert max(sizes) <= 5
    write_json(tmp_path / "late.json", 99, 1, age_ms=2 * DAY_MS)
    write_json(tmp_path / "too-late.json", 98, 1, age_ms=20 * DAY_MS)
    assert taken(run) == ["late.json"]


def test_old_and_new_files_found_at_once_are_all_read_whatever_their_age(tmp_path: Path) -> None:
    for name, age_days in (("old", 100), ("new", 0)):
        write_json(tmp_path / f"{name}.json", age_days, 1, age_ms=age_days * DAY_MS)
    source = source_of("json", tmp_path)
    run = SourceRun(source, 2, available_now=False)
    assignments = run.enumerator.discover()
    # Only the new one reached its reader before the checkpoint: the old one must be found again.
    new = next(a for a in assignments if b"new.json" in a.split)
    run.readers[new.subtask].add_splits([new.split])
    assert taken(SourceRun(source, 2, available_now=False, states=run.snapshot())) == ["old.json"]


def test_a_file_is_known_by_its_name_only_if_so_asked(tmp_path: Path) -> None:
    write_json(tmp_path / "day1" / "a.json", 0, 1)
    source = source_of("json", tmp_path / "day*", fileNameOnly="true")
    run = SourceRun(source, 1, available_now=False)
    assert taken(run) == ["a.json"]
    write_json(tmp_path / "day2" / "a.json", 0, 1)
    assert taken(run) == []


def test_bytes_are_taken_on_as_spark_counts_them(tmp_path: Path) -> None:
    for number in range(4):
        write_json(tmp_path / f"{number}.json", number, 1)
    size = (tmp_path / "0.json").stat().st_size
    run = SourceRun(source_of("json", tmp_path, maxBytesPerTrigger=str(2 * size)), 1, available_now=False)
    assert [taken(run), taken(run), taken(run)] == [["0.json", "1.json"], ["2.json", "3.json"], []]


def test_a_share_of_files_lasts_for_a_checkpoint_interval(tmp_path: Path) -> None:
    import dataclasses

    for number in range(2):
        write_json(tmp_path / f"{number}.json", number, 1)
    clock = ManualClock()
    opened: Any = source_of("json", tmp_path, maxFilesPerTrigger="1", checkpointIntervalMs="1000")
    run = SourceRun(dataclasses.replace(opened, clock=clock), 1, available_now=False)
    assert [taken(run), taken(run)] == [["0.json"], []]
    clock.advance_to(1000.0)
    assert taken(run) == ["1.json"]


def test_a_limited_source_gives_no_more_than_its_rows_a_second(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 0, 1000)
    clock = ManualClock()
    run = SourceRun(LimitedSource(source_of("json", tmp_path), 100, clock), 1)
    run.discover()
    given = []
    for _ in range(200):
        polled = run.readers[0].poll(50)
        if isinstance(polled, NothingNow):
            clock.advance(polled.retry_after_ms)
            continue
        assert isinstance(polled, Rows)
        given.append((clock.monotonic_ms(), polled.rows.num_rows))
    within_a_second = sum(rows for at_ms, rows in given if at_ms <= 1000.0)
    assert 80 <= within_a_second <= 110


def test_a_missing_file_is_skipped_only_if_so_asked(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_json(tmp_path / f"{name}.json", ord(name), 1)
    for options, outcome in (({}, Damaged), ({"ignoreMissingFiles": "true"}, None)):
        run = SourceRun(source_of("json", tmp_path, **options), 1)
        run.discover()
        (tmp_path / "a.json").rename(tmp_path / ".away")
        if outcome is not None:
            with pytest.raises(outcome, match="disappeared"):
                run.drain()
        else:
            assert run.drain() == [(98, "row 98")]
        (tmp_path / ".away").rename(tmp_path / "a.json")


def test_a_state_of_the_first_version_is_understood(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 0, 3)
    stat = (tmp_path / "a.json").stat()
    file = {"path": str(tmp_path / "a.json"), "modified_ns": stat.st_mtime_ns, "size_bytes": stat.st_size}
    state = msgspec.msgpack.encode([{"file": file, "next_row": 1}])
    run = SourceRun(source_of("json", tmp_path), 1, states=[state])
    assert run.drain() == rows_of((1, 2))


# -- malformed and long files


def test_text_is_not_guessed_where_it_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(Damaged, match="not UTF-8"):
        SourceRun(source_of("json", tmp_path), 1).drain()


def test_the_first_malformed_record_fails_the_query_if_so_asked(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n{"id": "x"}\n')
    with pytest.raises(Damaged, match=r"malformed record .*FAILFAST"):
        SourceRun(source_of("json", tmp_path, mode="FAILFAST"), 1).drain()


def test_a_long_file_is_read_in_blocks(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 0, 60_000)
    run = SourceRun(source_of("json", tmp_path), 1)
    run.discover()
    run.poll(0, max_rows=10)
    piece = run.readers[0]._rows._piece  # type: ignore[attr-defined]
    assert piece.rows.num_rows < 20_000
    while not run.ended[0]:
        run.poll(0, max_rows=30_000)
    assert run.rows == rows_of((0, 60_000))


@dataclass
class StandsStillAt:
    """Before its `at`-th change of the disk this process stands still while `meanwhile` happens, then goes on."""

    at: int
    meanwhile: Callable[[], None]
    done: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for owner, name in ((os, "replace"), (os, "fsync"), (os, "mkdir"), (os, "unlink"), (os, "rmdir")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.done += 1
            if self.done == self.at + 1:
                self.meanwhile()
            return call(*args, **kwargs)

        return counted


@pytest.mark.parametrize("newer_merges_after", [2, 100])
def test_a_driver_that_stood_still_while_another_took_over_doubles_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_merges_after: int
) -> None:
    stops = 0
    while True:
        folder = tmp_path / str(stops)
        sink = sink_of("json", folder, sink_compact_epochs="2")
        sink.prepare_location()
        epochs = [epoch(sink, checkpoint) for checkpoint in (1, 2, 3)]
        older = sink.committer()
        newer = sink_of("json", folder, sink_compact_epochs=str(newer_merges_after)).committer()
        assert isinstance(newer, HoldsBack)
        older.commit(epochs[0], permit(1))

        def take_over(newer: SinkCommitter = newer, epochs: list[Sequence[bytes]] = epochs) -> None:
            newer.commit(epochs[1], permit(2))
            newer.discard_uncommitted(epochs[2], Generation(2))

        with monkeypatch.context() as patch:
            pause = StandsStillAt(stops, take_over)
            pause.install(patch)
            # It may complain about what it finds gone: its query then learns from the log that it was superseded.
            with suppress(StorageFailure, Damaged, FileNotFoundError):
                older.commit(epochs[1], permit(2))
        if pause.done <= stops:
            break
        newer.commit(epochs[2], permit(3))
        newer.publish_held()
        assert visible("json", folder) == rows_up_to(3), f"stood still before change {stops}"
        stops += 1
    assert stops > 10, "it never stood still"
