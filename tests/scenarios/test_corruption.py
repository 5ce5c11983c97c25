"""Any file of the newest checkpoint or savepoint is lost or damaged: it is named, no row is lost or comes out twice."""

import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios.numbered_rows import ALIGNED, KEYS, NUMBERED, ROWS, UNALIGNED, NumberedRows, golden
from tests.scenarios.test_groups_on_disk import counted
from tidegate.connectors.memory import read_memory_table
from tidegate.coordinator import checkpoint_files
from tidegate.model.errors import Damaged
from tidegate.model.ids import SlotIndex
from tidegate.operators import rows_on_disk
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Aggregate, AggregateCall, AggregateFunction, Sink
from tidegate.plan.physical import JobPlan
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.restart import FixedDelay
from tidegate.state import changelog
from tidegate.state.contract import ROW_LOG_SECTION
from tidegate.storage import layout
from tidegate.storage.job_log import CheckpointCompleted, CheckpointSkipped, JobLog, RolledBack
from tidegate.storage.manifests import Manifest
from tidegate.storage.state_file import StateFile
from tidegate.storage.store import missing
from tidegate.worker import session
from tidegate.worker.restoring import restore_slot
from tidegate.worker.settings import HeapSnapshots


def delete(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


DAMAGES: list[Callable[[Path], None]] = [delete, truncate, flip]
Row: TypeAlias = dict[str, Any]
BACKENDS: Mapping[str, Mapping[str, Any]] = {
    "heap": {"inline_below_bytes": 0},
    "inline": {},
    "rocksdb": {"state_backend": "rocksdb", "inline_below_bytes": 0},
}
# Without an image on the way, all changes of a run are in files of the changelog.
_CHANGELOG = {"inline_below_bytes": 0, "changelog_image_interval_ms": 60_000.0}
LOGS: Mapping[str, Mapping[str, Any]] = {
    "heap-logs": {**_CHANGELOG, "heap_rows_whole_up_to_bytes": 0},
    "rocksdb-logs": {**_CHANGELOG, "state_backend": "rocksdb", "state_rows_memory_bytes": 1},
}
# Of the files of the newest checkpoint; and of those of operators that have a log of rows.
KINDS = {
    "heap": {".json", ".state", ".channels", ".entries"},
    "inline": {".json"},
    "rocksdb": {".json", ".state", ".channels", ".sst"},
    "heap-logs": {".json", ".state", ".channels", ".entries", ".rows", ".rows of groups"},
    "rocksdb-logs": {".json", ".state", ".channels", ".entries", ".rows", ".rows of groups", ".sst", ".sst of groups"},
}
# Which groups are in memory at a barrier is a matter of time.
_MOST_TRIES = 6


@dataclass(slots=True)
class CheckedRows(NumberedRows):
    def assert_golden(self, path: str) -> None:
        assert [(key, id) for key, id, _ in self.output()] == golden(), path
        # Numbered without a gap: nothing of the state was lost or applied twice.
        per_key = Counter(key for key, _, _ in self.output())
        assert {(key, n) for key, _, n in self.output()} == {
            (key, n) for key, count in per_key.items() for n in range(1, count + 1)
        }

    def assert_goes_on(self, before: Sequence[Row], since: Sequence[Row], path: str) -> bool:
        """Whether rows of `before`, which are out, came once more `since`; other than these, none is there twice."""
        ids = Counter(row["v"] for row in since)
        assert set(ids.values()) == {1}, path
        assert {row["v"] for row in before} | set(ids) == set(range(ROWS)), path
        # The last rows of each key, by their numbers: it went on from the state of a checkpoint.
        of_key: dict[int, list[int]] = {}
        for row in since:
            of_key.setdefault(row["k"], []).append(row["n"])
        for key, numbers in of_key.items():
            count = len(range(key, ROWS, KEYS))
            assert sorted(numbers) == list(range(count - len(numbers) + 1, count + 1)), path
        return len(before) + len(since) > ROWS


@dataclass(slots=True)
class GroupedRows(CheckedRows):
    """The numbers go on to an aggregation: how many keys have had an n-th row, and which, as their sum."""

    def plan(self) -> JobPlan:
        int64 = pa.int64()
        numbered = replace(counted(self.folder), processor=b"number", schema=NUMBERED)
        calls = (
            AggregateCall(AggregateFunction.COUNT_ROWS, (), int64, True),
            AggregateCall(AggregateFunction.SUM, (Column(0, "k", int64),), int64, True),
        )
        schema = pa.schema([("n", int64), ("keys", int64), ("total", int64)])
        results = tuple(Column(at, field.name, field.type) for at, field in enumerate(schema))
        groups = Aggregate(numbered, (Column(2, "n", int64),), calls, results, schema)
        options = {"path": str(self.folder / "out"), "checkpointLocation": self.location}
        sink = Sink(self.sink, options if self.sink == "parquet" else self.sink_options, schema)
        return lower(groups, sink, parallelism=self.slots, max_parallelism=128)

    def assert_golden(self, path: str) -> None:
        self._assert_once_each(rows := pq.read_table(self.folder / "out").to_pylist(), path)
        self._assert_all_there(rows, path)

    def assert_goes_on(self, before: Sequence[Row], since: Sequence[Row], path: str) -> bool:
        self._assert_once_each(since, path)
        self._assert_all_there([*before, *since], path)
        return not {(row["n"], row["keys"]) for row in before}.isdisjoint((row["n"], row["keys"]) for row in since)

    def _assert_once_each(self, rows: Sequence[Row], path: str) -> None:
        """Counts only grow."""
        assert len({(row["n"], row["keys"]) for row in rows}) == len(rows), path

    def _assert_all_there(self, rows: Sequence[Row], path: str) -> None:
        keys_with: dict[int, list[int]] = {}
        for id in range(ROWS):
            keys_with.setdefault(id // KEYS + 1, []).append(id % KEYS)
        # The newest row of a group has the greatest count.
        newest = {n: (keys, total) for n, keys, total in sorted((row["n"], row["keys"], row["total"]) for row in rows)}
        assert newest == {n: (len(keys), sum(keys)) for n, keys in keys_with.items()}, path


def root_of(manifest: Manifest) -> str:
    """The folder below the location that its paths are relative to."""
    return f"{layout.SAVEPOINTS}/{_savepoint(manifest)}/" if manifest.is_savepoint else ""


def _savepoint(manifest: Manifest) -> str:
    return layout.savepoint(manifest.checkpoint, manifest.generation, run="")


def manifest_path(manifest: Manifest) -> str:
    if manifest.is_savepoint:
        return root_of(manifest) + layout.savepoint_manifest()
    return layout.manifest(layout.CheckpointFolder(manifest.checkpoint, manifest.generation))


def files_of(manifest: Manifest) -> set[str]:
    shared = [file.path for slot in manifest.slots for file in slot.shared]
    # What is small is in the manifest itself.
    own = [slot.path for slot in manifest.slots if slot.content is None]
    return {manifest_path(manifest), *(root_of(manifest) + path for path in [*own, *shared])}


@dataclass(slots=True)
class Stopped:
    """A job that was stopped with several checkpoints; `again` puts everything back as it was then.

    `output`: what a table in memory has had by then; that is not put back.
    """

    rows: CheckedRows
    manifests: list[Manifest]
    output: list[Row]

    @classmethod
    def after_some_checkpoints(cls, rows: CheckedRows) -> "Stopped":
        cls._aligned_first(rows)
        rows.stop_after(3, keep=10)
        return cls._kept(rows)

    @classmethod
    def with_a_savepoint(cls, rows: CheckedRows) -> "Stopped":
        cls._aligned_first(rows)
        rows.stop_with_savepoint(2, keep=10)
        return cls._kept(rows)

    @classmethod
    def _aligned_first(cls, rows: CheckedRows) -> None:
        """The first holds nothing in flight, so that it needs none of the files of captured rows."""
        rows.switch_after_ms = ALIGNED
        rows.stop_after(1, keep=10)
        rows.switch_after_ms = UNALIGNED

    @classmethod
    def _kept(cls, rows: CheckedRows) -> "Stopped":
        rows.interval_ms = 500  # From here on runs are to be short.
        shutil.copytree(rows.folder / "chk", rows.folder / "chk.kept")
        if (rows.folder / "out").exists():
            shutil.copytree(rows.folder / "out", rows.folder / "out.kept")
        return cls(rows, rows.retained(), in_table(rows) if rows.sink == "memory" else [])

    @property
    def newest(self) -> Manifest:
        return self.manifests[-1]

    def again(self) -> None:
        for name in ("chk", "out"):
            if (self.rows.folder / f"{name}.kept").exists():
                shutil.rmtree(self.rows.folder / name)
                shutil.copytree(self.rows.folder / f"{name}.kept", self.rows.folder / name)

    def usable_without(self, path: str) -> Manifest | None:
        return next((m for m in reversed(self.manifests) if path not in files_of(m)), None)

    def entries(self, kind: type) -> list[int]:
        log = JobLog(self.rows.store, driver="a reader").read()
        return [entry.checkpoint for entry in log if isinstance(entry, kind)]  # type: ignore[attr-defined]

    def by_kind(self) -> list[str]:
        """The files of the newest."""
        return sorted(files_of(self.newest), key=lambda path: (Path(path).suffix, path))


@pytest.fixture(scope="module")
def stopped_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Stopped]:
    """By its name, its sink and what it was stopped with. Each is made once, whoever asks for it."""

    @cache
    def made(name: str, sink: str = "parquet", newest: str = "checkpoint") -> Stopped:
        stop = Stopped.with_a_savepoint if newest == "savepoint" else Stopped.after_some_checkpoints
        for _ in range(_MOST_TRIES):
            folder = tmp_path_factory.mktemp("stopped")
            # No other job's table has that name.
            options = {"queryName": folder.name} if sink == "memory" else {}
            with pytest.MonkeyPatch.context() as patch:
                # So that some changes are stored ahead of the checkpoint, and some groups leave memory.
                patch.setattr(changelog, "BATCH_MS", 20.0)
                patch.setattr(rows_on_disk, "_LEAST_WRITTEN", 8)
                found = stop(rows_of(name, folder, sink=sink, sink_options=options))
            if found.newest.is_savepoint or kinds_in(found) == KINDS[name]:
                return found
        raise AssertionError(f"In {_MOST_TRIES} tries {name} did not have each kind of file: {kinds_in(found)}")

    return made


def rows_of(name: str, folder: Path, **sink: Any) -> CheckedRows:
    if name in BACKENDS:
        return CheckedRows(folder, settings=dict(BACKENDS[name]), **sink)
    # Long enough that most checkpoints have groups that changed since the one before: those alone are in the log.
    return GroupedRows(folder, settings=dict(LOGS[name]), interval_ms=150, **sink)


@pytest.fixture(params=BACKENDS)
def stopped(request: pytest.FixtureRequest, stopped_job: Callable[..., Stopped]) -> Stopped:
    return stopped_job(request.param)


def kinds_in(stopped: Stopped) -> set[str]:
    return {Path(path).suffix for path in files_of(stopped.newest)} | {
        f"{each} of groups" for each in kinds_of_logged_rows(stopped)
    }


def kinds_of_logged_rows(stopped: Stopped) -> set[str]:
    """Of the files of operators that have a log of rows."""
    rows, path = stopped.rows, manifest_path(stopped.newest)
    restored = [restore_slot(rows.store, path, rows.plan(), SlotIndex(slot)) for slot in range(rows.slots)]
    operators = [sections for slot in restored for task in slot.tasks.values() for sections in task.sections.values()]
    logged = [sections for sections in operators if any(each.name == ROW_LOG_SECTION for each in sections)]
    return {Path(file).suffix for sections in logged for section in sections for file in section.files}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("stopped", [*BACKENDS, *LOGS], indirect=True)
def test_the_file_sink_goes_back_to_the_checkpoint_before_and_ends_with_golden_rows(
    stopped: Stopped, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    went_back = set()
    for path in stopped.by_kind():
        stopped.again()
        damage(stopped.rows.folder / "chk" / path)
        usable = stopped.usable_without(path)
        if usable is None:
            assert f"{path} " in refused(stopped.rows.job().start), "every retained checkpoint needs this file"
            continue
        went_back.add(Path(path).suffix)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tidegate"):
            ended = stopped.rows.finish()
        assert ended.view().state == "finished", path
        stopped.rows.assert_golden(path)
        assert path in caplog.text, "the file is named"
        skipped = [manifest.checkpoint for manifest in stopped.manifests if manifest.checkpoint > usable.checkpoint]
        assert stopped.entries(CheckpointSkipped) == stopped.entries(RolledBack) == skipped
    assert went_back == {Path(path).suffix for path in files_of(stopped.newest)}, "each kind of file was tried"


def test_a_file_that_only_a_slot_cannot_find_is_no_damage(stopped: Stopped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine may have lost the way to the store: the driver, which finds the file, takes nothing back."""
    stopped.again()
    failures = iter([True])

    def restore_for(*args: Any, **kwargs: Any) -> Any:
        if next(failures, False):
            raise missing(stopped.newest.slots[0].path)
        return session.restore_for(*args, **kwargs)

    monkeypatch.setattr("tidegate.worker.main.restore_for", restore_for)
    ended = stopped.rows.finish(restart=FixedDelay(attempts=3, delay_ms=10))
    assert ended.view().state == "finished"
    assert next(failures, None) is None, "it has failed"
    assert [(key, id) for key, id, _ in stopped.rows.output()] == golden()
    assert stopped.entries(CheckpointSkipped) == []


def all_files(stopped: Stopped) -> list[str]:
    return [path for path in stopped.by_kind() if stopped.usable_without(path)]


def one_of_each_kind(stopped: Stopped) -> list[str]:
    return list({Path(path).suffix: path for path in all_files(stopped)}.values())


@pytest.mark.parametrize(
    ("stopped", "chosen"), [*product(BACKENDS, [all_files]), *product(LOGS, [one_of_each_kind])], indirect=["stopped"]
)
def test_damage_that_only_slots_find_makes_the_query_go_back_as_well(
    stopped: Stopped,
    chosen: Callable[[Stopped], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # As if the checkpoint were too large for the driver to read all of it.
    monkeypatch.setattr(checkpoint_files, "_READ_TO_CHECK_BYTES", 0)
    for path in chosen(stopped):
        if path == manifest_path(stopped.newest):
            continue
        stopped.again()
        flip(stopped.rows.folder / "chk" / path)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tidegate"):
            ended = stopped.rows.finish()
        assert ended.view().state == "finished", ended.failure()
        stopped.rows.assert_golden(path)
        # A state file may have a byte flipped that nobody reads; every byte of the others is read.
        if path in caplog.text or not path.endswith(".state"):
            assert path in caplog.text
            assert stopped.newest.checkpoint in stopped.entries(RolledBack)
            assert ended.view().generation >= stopped.newest.generation + 2


@pytest.mark.parametrize("slots", [2, 3])
def test_damage_of_state_that_is_read_as_tasks_are_built_makes_the_query_go_back_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slots: int
) -> None:
    """At another parallelism only those slots find it that take the state."""
    monkeypatch.setattr(checkpoint_files, "_READ_TO_CHECK_BYTES", 0)
    whole = {"inline_below_bytes": 0, "heap_snapshots": HeapSnapshots.WHOLE}
    stopped = Stopped.after_some_checkpoints(CheckedRows(tmp_path, settings=whole))
    path = stopped.newest.slots[1].path
    file = stopped.rows.folder / "chk" / path
    data = file.read_bytes()
    (state, *_) = StateFile.open(data, name=path).sections(kind="state")
    at = data.index(bytes(state.data))
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    stopped.rows.slots = slots
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        ended = stopped.rows.finish()
    assert ended.view().state == "finished", ended.failure()
    stopped.rows.assert_golden(path)
    assert f"{path} is damaged: the checksum of section state" in caplog.text
    assert stopped.newest.checkpoint in stopped.entries(RolledBack)


# -- a savepoint as the newest


@pytest.fixture
def with_savepoint(request: pytest.FixtureRequest, stopped_job: Callable[..., Stopped]) -> Stopped:
    return stopped_job(request.param, "parquet", "savepoint")


@pytest.mark.parametrize("read_to_check_bytes", [1 << 30, 0], ids=["read by the driver", "read by slots alone"])
@pytest.mark.parametrize(
    ("with_savepoint", "damages"),
    [("heap", DAMAGES), ("rocksdb", DAMAGES), *((name, [flip]) for name in LOGS)],
    indirect=["with_savepoint"],
    ids=["heap", "rocksdb", *LOGS],
)
def test_a_damaged_savepoint_is_passed_over_like_a_checkpoint(
    with_savepoint: Stopped,
    damages: Sequence[Callable[[Path], None]],
    read_to_check_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(checkpoint_files, "_READ_TO_CHECK_BYTES", read_to_check_bytes)
    newest, rows = with_savepoint.newest, with_savepoint.rows
    assert newest.is_savepoint and {Path(path).suffix for path in files_of(newest)} >= {".json", ".state"}
    found_by_slots = 0
    for path, damage in product(one_of_each_kind(with_savepoint), damages):
        with_savepoint.again()
        damage(rows.folder / "chk" / path)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="tidegate"):
            ended = rows.finish()
        assert ended.view().state == "finished", (path, damage.__name__, ended.failure())
        rows.assert_golden(path)
        is_unread = damage is flip and read_to_check_bytes == 0 and path.endswith(".state")
        if is_unread and path.removeprefix(root_of(newest)) not in caplog.text:
            continue  # a byte that nobody reads
        assert path.removeprefix(root_of(newest)) in caplog.text, damage.__name__
        assert with_savepoint.entries(CheckpointSkipped) == with_savepoint.entries(RolledBack) == [newest.checkpoint]
        found_by_slots += ended.view().generation > newest.generation + 1
    assert (found_by_slots > 0) == (read_to_check_bytes == 0)


def test_a_savepoint_that_slots_find_damaged_is_refused_as_such_unless_duplicates_are_accepted(
    stopped_job: Callable[..., Stopped], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "_READ_TO_CHECK_BYTES", 0)
    stopped = stopped_job("heap", "memory", "savepoint")
    newest, rows = stopped.newest, stopped.rows
    (path, *_) = [path for path in stopped.by_kind() if path.endswith(".state")]
    flip(rows.folder / "chk" / path)
    for _ in range(2):  # it is refused again at the next start, and nothing has changed
        ended = rows.finish()
        failure = ended.failure()
        assert isinstance(failure, Damaged) and path.removeprefix(root_of(newest)) in str(failure)
        assert ".option('restore.allowDuplicates', 'true')" in str(failure)
        assert stopped.entries(CheckpointSkipped) == []
    before = in_table(rows)
    ended = rows.finish(rollback=SinkRollback.DUPLICATES_ALLOWED)
    assert ended.view().state == "finished", ended.failure()
    rows.assert_goes_on(stopped.output, in_table(rows)[len(before) :], path)
    assert stopped.entries(CheckpointSkipped) == [newest.checkpoint]


@pytest.mark.parametrize("with_savepoint", ["heap"], indirect=True)
def test_what_restore_from_names_and_slots_find_damaged_fails_as_such(
    with_savepoint: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the job's own: there is nothing to go back to, and nobody is to be blamed but the file."""
    monkeypatch.setattr(checkpoint_files, "_READ_TO_CHECK_BYTES", 0)
    with_savepoint.again()
    savepoint = with_savepoint.rows.folder / "chk" / root_of(with_savepoint.newest)
    flip(savepoint / "0.state")
    other = CheckedRows(tmp_path, settings=dict(BACKENDS["heap"]))
    ended = other.finish(restore_from=str(savepoint), restart=FixedDelay(attempts=3, delay_ms=10))
    failure = ended.failure()
    assert isinstance(failure, Damaged) and "0.state" in str(failure)
    assert ended.view().generation == 1, "starting again cannot help"


def refused(start: Callable[[], object]) -> str:
    with pytest.raises(Damaged) as caught:
        start()
    return str(caught.value)


def everything_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_files_that_a_reader_took_away_cannot_be_taken_back(stopped: Stopped) -> None:
    stopped.again()
    own_folder = f"checkpoints/{stopped.newest.checkpoint}-"
    lost = min(path for path in files_of(stopped.newest) if path.startswith(own_folder))
    (stopped.rows.folder / "chk" / lost).unlink()
    newest_output = max((stopped.rows.folder / "out").glob("part-*"))
    newest_output.unlink()
    before = everything_below(stopped.rows.folder)
    message = refused(stopped.rows.job().start)
    assert lost in message and f"{newest_output} is gone" in message
    assert everything_below(stopped.rows.folder) == before, "a refusal changes nothing"
    stopped.rows.finish(rollback=SinkRollback.DUPLICATES_ALLOWED)
    assert {id for _, id, _ in stopped.rows.output()} == set(range(ROWS))
    assert len(stopped.rows.output()) > ROWS


# -- a sink that cannot roll back


@pytest.fixture
def in_memory(request: pytest.FixtureRequest, stopped_job: Callable[..., Stopped]) -> Stopped:
    return stopped_job(request.param, "memory")


@pytest.mark.parametrize("in_memory", ["heap", *LOGS], indirect=True)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_sink_that_cannot_take_back_makes_the_query_refuse_with_the_name_of_the_file(
    in_memory: Stopped, damage: Callable[[Path], None]
) -> None:
    goes_back = []
    for path in in_memory.by_kind():
        in_memory.again()
        damage(in_memory.rows.folder / "chk" / path)
        before = everything_below(in_memory.rows.folder)
        message = refused(in_memory.rows.job().start)
        assert re.search(rf"\[.*{re.escape(path)} .*\]", message), message
        # An image of state may be in every checkpoint that is retained: then there is none to go back to.
        goes_back.append(in_memory.usable_without(path) is not None)
        assert (".option('restore.allowDuplicates', 'true')" in message) == goes_back[-1]
        assert everything_below(in_memory.rows.folder) == before
    assert any(goes_back)


def in_table(rows: CheckedRows) -> list[Row]:
    return read_memory_table(rows.sink_options["queryName"]).to_pylist()


@pytest.mark.parametrize("in_memory", [*BACKENDS, *LOGS], indirect=True)
def test_who_accepts_duplicates_gets_the_skipped_epochs_twice_and_nothing_else(in_memory: Stopped) -> None:
    twice = 0
    for path, damage in zip(one_of_each_kind(in_memory), cycle(DAMAGES), strict=False):
        in_memory.again()
        damage(in_memory.rows.folder / "chk" / path)
        usable = in_memory.usable_without(path)
        assert usable is not None
        before = in_table(in_memory.rows)
        ended = in_memory.rows.finish(rollback=SinkRollback.DUPLICATES_ALLOWED)
        assert ended.view().state == "finished", (path, ended.failure())
        twice += in_memory.rows.assert_goes_on(in_memory.output, in_table(in_memory.rows)[len(before) :], path)
        skipped = [each.checkpoint for each in in_memory.manifests if each.checkpoint > usable.checkpoint]
        assert in_memory.entries(CheckpointSkipped) == skipped
        assert in_memory.entries(RolledBack) == []
        assert in_memory.entries(CheckpointCompleted)[-1] > in_memory.newest.checkpoint
    assert twice, "what was out came once more"
