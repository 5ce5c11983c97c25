"""What the sinks of files refuse before the start, and how many files they make."""

import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conformance.test_file_formats import sink_of, visible_files
from tidegate.connectors import beside_loop, file_sink, partition_folders
from tidegate.connectors.committable import FileCommittable
from tidegate.connectors.partition_folders import Folders, RowsByFolder
from tidegate.connectors.sink_encodings import ParquetEncoding
from tidegate.model.errors import OptionError
from tidegate.model.ids import CheckpointId, Generation
from tidegate.testing.sink_suite import FIRST, SCHEMA, permit, prepare


@pytest.mark.parametrize("format_", ["parquet", "json", "csv"])
@pytest.mark.parametrize(
    ("names", "message"),
    [(("id", "id"), "the column 'id' twice: give one"), (("id", "ID"), "the column 'id' also as 'ID': give one")],
)
def test_two_columns_of_one_name_are_refused_by_the_name(
    tmp_path: Path, format_: str, names: tuple[str, str], message: str
) -> None:
    schema = pa.schema([(names[0], pa.int64()), ("text", pa.string()), (names[1], pa.int64())])
    with pytest.raises(OptionError, match=message):
        sink_of(format_, tmp_path, schema)


def partitioned_rows(count: int, partitions: int) -> pa.RecordBatch:
    texts = [f"p{i % partitions}" for i in range(count)]
    return pa.record_batch([pa.array(range(count), pa.int64()), pa.array(texts, pa.string())], schema=SCHEMA)


def written_ids(folder: Path) -> dict[str, list[int]]:
    """The ids below each folder, in the order of its files."""
    ids: dict[str, list[int]] = {}
    for path in visible_files(folder):
        ids.setdefault(path.parent.name, []).extend(pq.ParquetFile(path).read().column("id").to_pylist())
    return ids


def test_an_epoch_makes_one_file_for_each_partition_whatever_the_slices(tmp_path: Path) -> None:
    sink = sink_of("parquet", tmp_path, partitionBy="text")
    writer = sink.writer(task=FIRST, generation=Generation(1))
    for _ in range(4):
        writer.write(partitioned_rows(600, 100))
    committables = prepare(writer, 1)
    assert len(committables) == 100
    sink.committer().commit(committables, permit(1))
    per_slice = {f"text=p{p}": list(range(p, 600, 100)) for p in range(100)}
    assert written_ids(tmp_path) == {folder: ids * 4 for folder, ids in per_slice.items()}


@pytest.mark.parametrize("format_", ["parquet", "json", "csv"])
def test_rows_beyond_memory_go_to_the_largest_folders_first_and_none_is_lost(
    tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "_MOST_GATHERED_BYTES", 20_000)
    monkeypatch.setattr(file_sink, "_MOST_OPEN_FILES", 3)
    sink = sink_of(format_, tmp_path, partitionBy="text")
    writer = sink.writer(task=FIRST, generation=Generation(1))
    skewed = pa.concat_batches([partitioned_rows(1000, 1), partitioned_rows(50, 10)])
    for _ in range(6):
        writer.write(skewed)
        assert writer._gathered.size_bytes <= 20_000  # type: ignore[attr-defined]
        assert len(writer._open) <= 3  # type: ignore[attr-defined]
    committables = prepare(writer, 1)
    assert len(committables) < 20, "small folders wait in memory until the epoch ends"
    sink.committer().commit(committables, permit(1))
    rows = Counter(path.parent.name for path in visible_files(tmp_path) for _ in rows_in(format_, path))
    assert rows == Counter({"text=p0": 6 * 1005, **{f"text=p{p}": 30 for p in range(1, 10)}})


def rows_in(format_: str, path: Path) -> list[object]:
    return pq.ParquetFile(path).read().to_pylist() if format_ == "parquet" else list(path.read_text().splitlines())


def test_rows_that_could_not_be_written_at_the_end_of_an_epoch_never_count_as_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of("parquet", tmp_path, partitionBy="text")
    writer = sink.writer(task=FIRST, generation=Generation(1))
    writer.write(partitioned_rows(10, 2))
    prepared = writer.prepare(CheckpointId(1))

    def fails(_: RowsByFolder) -> object:
        raise OSError("No space left")

    with monkeypatch.context() as broken:
        broken.setattr(RowsByFolder, "parts", fails)
        with pytest.raises(OSError, match="No space left"):
            prepared.make_durable()
    with pytest.raises(OSError, match="No space left"):
        prepared.make_durable()


def test_many_values_in_many_partition_columns_keep_their_folders_apart() -> None:
    count = 7000
    columns = {f"k{c}": pa.array([f"{i * (c + 1) % count}" for i in range(count)]) for c in range(6)}
    rows = pa.RecordBatch.from_pydict({**columns, "id": pa.array(range(count), pa.int64())})
    split = Folders(list(columns), zone="UTC").of_first_rows(rows, count)
    found = {part.column("id")[0].as_py(): folder for folder, part in split.parts()}
    assert found == {i: "".join(f"k{c}={i * (c + 1) % count}/" for c in range(6)) for i in range(count)}


def test_the_end_of_an_epoch_looks_only_at_the_last_rows_for_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A barrier waits for it; sorting all rows of the epoch is done beside the stream."""
    writer = sink_of("parquet", tmp_path, partitionBy="text").writer(task=FIRST, generation=Generation(1))
    looked_at: list[int] = []

    of_first_rows = Folders.of_first_rows

    def noting(self: Folders, rows: pa.RecordBatch, most_folders: int) -> RowsByFolder:
        looked_at.append(rows.num_rows)
        return of_first_rows(self, rows, most_folders)

    monkeypatch.setattr(Folders, "of_first_rows", noting)
    monkeypatch.setattr(partition_folders, "_BLOCK_ROWS", 100)
    for _ in range(25):
        writer.write(partitioned_rows(30, 3))
    before = len(looked_at)
    prepared = writer.prepare(CheckpointId(1))
    assert looked_at[before:] == [25 * 30 % 120]
    monkeypatch.setattr(Folders, "of_first_rows", None)
    prepared.make_durable()
    read = sorted(pq.ParquetFile(path).metadata.num_rows for path in (tmp_path / file_sink.HIDDEN).glob("*.parquet"))
    assert read == [250, 250, 250]


def test_folders_that_are_met_in_another_order_later_get_their_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_folders, "_BLOCK_ROWS", 10)
    sink = sink_of("parquet", tmp_path, partitionBy="text")
    writer = sink.writer(task=FIRST, generation=Generation(1))
    texts = [f"p{(later * 3 + i) % 5}" for later in range(7) for i in range(10)]
    for first in range(0, len(texts), 10):
        ids, ten = pa.array(range(first, first + 10), pa.int64()), pa.array(texts[first : first + 10])
        writer.write(pa.record_batch([ids, ten], schema=SCHEMA))
    committables = prepare(writer, 1)
    counted = [msgspec.msgpack.decode(committable, type=FileCommittable).rows for committable in committables]
    assert sum(counted) == len(texts)
    sink.committer().commit(committables, permit(1))
    of_folder = {f"text=p{p}": [i for i, text in enumerate(texts) if text == f"p{p}"] for p in range(5)}
    assert written_ids(tmp_path) == of_folder


class HeldEncoding(ParquetEncoding):
    """Its files are opened once they may be."""

    may_open: ClassVar[threading.Event]

    def open(self, path: Path, schema: pa.Schema) -> Any:
        assert threading.current_thread() is not threading.main_thread(), "a slice would wait for it"
        assert self.may_open.wait(10)
        return super().open(path, schema)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set no file is written."""
    HeldEncoding.may_open = threading.Event()
    monkeypatch.setattr(file_sink, "_MOST_GATHERED_BYTES", 2000)
    monkeypatch.setattr(file_sink, "_MOST_OF_ONE_FOLDER_BYTES", 2000)
    monkeypatch.setattr(beside_loop, "_MOST_WAITING_BYTES", 4000)
    return HeldEncoding.may_open


def ids_and_texts(ids: range, texts: list[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([texts[i % len(texts)] for i in ids])], schema=SCHEMA)


@pytest.mark.parametrize("partition_by", ["", "text"])
def test_neither_rows_nor_a_barrier_wait_for_row_groups_to_be_encoded(
    tmp_path: Path, held: threading.Event, partition_by: str
) -> None:
    """The rows of an epoch are those before its barrier, in their order, whenever they reach their files."""
    sink = replace(sink_of("parquet", tmp_path, partitionBy=partition_by), encoding=HeldEncoding("none"))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    epochs, at, texts = [], 0, ["large", "large", "large", "s1", "s2"]
    for checkpoint in (1, 2):
        while writer.has_room():
            writer.write(ids_and_texts(range(at, at + 10), texts))
            at += 10
        epochs.append((at, writer.prepare(CheckpointId(checkpoint))))
        if partition_by:
            break  # of the second epoch nothing could be taken apart yet
    room = threading.Semaphore(0)
    writer.call_when_done(room.release)
    durable = threading.Thread(target=epochs[0][1].make_durable)
    durable.start()
    durable.join(0.05)
    assert durable.is_alive(), "its rows are not in their files"
    held.set()
    durable.join(10)
    assert room.acquire(timeout=10)
    seen: dict[str, list[int]] = {}
    for number, (until, prepared) in enumerate(epochs):
        prepared.make_durable()
        counted = [msgspec.msgpack.decode(file, type=FileCommittable).rows for file in prepared.committables]
        assert sum(counted) == until - sum(map(len, seen.values()))
        sink.committer().commit(prepared.committables, permit(number + 1))
        seen = written_ids(tmp_path)
        assert sorted(id for ids in seen.values() for id in ids) == list(range(until))
        assert all(ids == sorted(ids) for ids in seen.values())
    if partition_by:
        assert list(seen) == ["text=large", "text=s1", "text=s2"]
    writer.close()


def test_a_writer_without_room_waits_with_what_would_be_too_much(tmp_path: Path, held: threading.Event) -> None:
    sink = replace(sink_of("parquet", tmp_path, partitionBy="text"), encoding=HeldEncoding("none"))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    texts = [f"p{i}" for i in range(7)]

    def write() -> None:
        for first in range(0, 2000, 10):
            writer.write(ids_and_texts(range(first, first + 10), texts))

    writing = threading.Thread(target=write)
    writing.start()
    writing.join(0.1)
    assert writing.is_alive()
    assert writer._gathered.size_bytes < 3000
    held.set()
    writing.join(10)
    sink.committer().commit(prepare(writer, 1), permit(1))
    assert written_ids(tmp_path) == {f"text={text}": list(range(i, 2000, 7)) for i, text in enumerate(texts)}


def test_what_was_taken_apart_counts_again_as_gathered() -> None:
    gathered = partition_folders.GatheredRows(("text",), "UTC", Future(), Counter({"text=a/": 3}))
    rows = ids_and_texts(range(3), ["a"])
    gathered.add(rows)
    assert (gathered.size_bytes, gathered.counts()) == (rows.nbytes, {"text=a/": 6})
    assert gathered.earlier is not None
    gathered.earlier.set_result(Folders(("text",), zone="UTC").of_first_rows(rows, 1))
    gathered.add(rows)
    assert (gathered.size_bytes, gathered.counts()) == (3 * rows.nbytes, {"text=a/": 9})
    assert gathered.whole().rows.num_rows == 9


def test_files_of_many_folders_are_closed_before_others_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "_MOST_GATHERED_BYTES", 2000)
    monkeypatch.setattr(file_sink, "_MOST_OPEN_FILES", 3)
    opened: list[Any] = []
    most_open = 0

    class Counting(ParquetEncoding):
        def open(self, path: Path, schema: pa.Schema) -> Any:
            nonlocal most_open
            opened.append(super().open(path, schema))
            most_open = max(most_open, sum(not file._file.closed for file in opened))
            return opened[-1]

    sink = replace(sink_of("parquet", tmp_path, partitionBy="text"), encoding=Counting("none"))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    for _ in range(20):
        writer.write(partitioned_rows(60, 30))
    sink.committer().commit(prepare(writer, 1), permit(1))
    assert len(opened) > 30
    assert most_open <= 4
    assert written_ids(tmp_path) == {f"text=p{p}": [p, p + 30] * 20 for p in range(30)}


def test_rows_that_were_handed_over_go_with_a_writer_that_is_closed(tmp_path: Path, held: threading.Event) -> None:
    sink = replace(sink_of("parquet", tmp_path), encoding=HeldEncoding("none"))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    while writer.has_room():
        writer.write(partitioned_rows(10, 2))
    held.set()
    writer.close()
    assert list((tmp_path / file_sink.HIDDEN).iterdir()) == []


def test_a_writer_whose_disk_hangs_leaves_its_files_to_the_next_generation(
    tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside_loop, "_LEAVE_WITHIN_S", 0.02)
    sink = replace(sink_of("parquet", tmp_path), encoding=HeldEncoding("none"))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    while writer.has_room():
        writer.write(partitioned_rows(10, 2))
    thread = next(one for one in threading.enumerate() if one.name.startswith("tidegate-sink"))
    writer.close()
    held.set()
    thread.join(10)
    assert len(list((tmp_path / file_sink.HIDDEN).iterdir())) == 1
    sink.committer().discard_uncommitted([], Generation(2))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_row_group_that_cannot_be_written_fails_the_epoch_and_the_next_rows(
    tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: ParquetEncoding, path: Path, schema: pa.Schema) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(HeldEncoding, "open", failing)
    sink = replace(sink_of("parquet", tmp_path), encoding=HeldEncoding("none"))
    writer = sink.writer(task=FIRST, generation=Generation(1))
    failed = threading.Event()
    writer.call_when_done(failed.set)
    for _ in range(15):
        writer.write(partitioned_rows(10, 2))
    assert failed.wait(10)
    with pytest.raises(OSError, match="no space left"):
        writer.prepare(CheckpointId(1))
    with pytest.raises(OSError, match="no space left"):
        for _ in range(20):
            writer.write(partitioned_rows(10, 2))
    writer.close()
