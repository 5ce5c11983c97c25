"""Vectorised operators with a changelog: what is stored before the barrier, behind it, and what that costs."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.in_memory import folder_in_memory
from tests.unit import test_groups_on_disk as groups
from tests.unit import test_keys_on_disk as keys
from tests.unit import test_sessions_on_disk as sessions
from tests.unit import timed_rows
from tests.unit.test_channel_state import Slot
from tests.unit.test_state_files import files
from tests.unit.test_stream_join import join
from tests.unit.test_windows_of_groups import batch_of
from tests.unit.tiny_steps import take_tiny_steps
from tidegate.model.ids import CheckpointId, KeyGroupRange, TaskId, VertexId
from tidegate.operators import log_book
from tidegate.operators.build import build_operator
from tidegate.operators.contract import TaskContext
from tidegate.plan.nodes import JoinType
from tidegate.plan.physical import OperatorSpec
from tidegate.state.changelog import BATCH_BYTES
from tidegate.state.contract import RestoredSection, Section
from tidegate.state.rows_ahead import LOOK_MS, WAIT_MS
from tidegate.state.stepwise_file import StepwiseFile
from tidegate.storage import layout
from tidegate.storage.store import Data, LocalFiles
from tidegate.testing.manual_clock import ManualClock
from tidegate.testing.state_suite import restored_from
from tidegate.worker import stored_ahead
from tidegate.worker.settings import HEAP_ROWS_WHOLE_UP_TO_BYTES, SlotSettings
from tidegate.worker.state_backends import ChangelogBackends, HeapBackends, RocksBackends, StateBackends

ALL = KeyGroupRange(0, 128)


@dataclass(frozen=True)
class Kind:
    """An operator, and rows for it that change what it has of these numbers."""

    spec: OperatorSpec
    rows: Callable[[Sequence[int]], pa.RecordBatch]


GROUPS = groups.SPECS["update"]
KINDS = {
    "aggregation": Kind(GROUPS, lambda numbers: groups.numbered(GROUPS, numbers)),
    "deduplication": Kind(keys.SPECS["for ever"], lambda numbers: keys.rows_at([(f"{n}", 0) for n in numbers])),
    "join": Kind(
        join(JoinType.FULL_OUTER),
        lambda numbers: timed_rows.batch([(f"{n}", 100, n) for n in numbers]),
    ),
    "sessions": Kind(
        sessions.COMPLETE, lambda numbers: batch_of(sessions.COMPLETE, [(f"{n}", (0, 10), n) for n in numbers])
    ),
}


@dataclass(frozen=True)
class CountingStore(LocalFiles):
    """How many bytes of files of state were put."""

    put_bytes: dict[str, int] = field(default_factory=dict)

    def put(self, path: str, data: Data) -> None:
        super().put(path, data)
        if path.startswith(layout.SHARED):
            self.put_bytes[path] = (self.root / path).stat().st_size

    def shared_bytes(self) -> int:
        return sum(self.put_bytes.values())


TASK = TaskId(VertexId(1), 0)


def opened(kind: Kind, backends: StateBackends | None, restored: Sequence[RestoredSection] = ()) -> Any:
    """`backends`: None if all of it is in memory, and stored whole."""
    none: Any = None
    context = TaskContext(TASK, 1, 128, ALL, ManualClock(), none, none)
    if backends is not None:
        context = replace(
            context, open_rows=lambda: backends.open_rows(ALL, TASK), open_runs=lambda: backends.open_runs(ALL, TASK)
        )
    operator = build_operator(kind.spec)
    operator.open(context, restored)
    return operator


class Running:
    """One operator in a slot that has `backend`, with a changelog or without one."""

    def __init__(self, kind: Kind, folder: Path, *, backend: str, has_changelog: bool = True) -> None:
        self.kind = kind
        self.store = CountingStore(folder / "chk")
        self.slot = Slot(self.store)
        self.slot.ahead.on_run(CheckpointId(1))
        self.local = folder / "local"
        self.local.mkdir()
        under: StateBackends = RocksBackends(self.local, memory_bytes=8 << 20, rows_memory_bytes=1 << 30)
        if backend == "heap":
            under = HeapBackends(self.local, rows_whole_up_to_bytes=0)
        self.backends: StateBackends = under
        if has_changelog:
            self.backends = ChangelogBackends(
                under, self.local, ahead=self.slot.ahead, clock=self.slot.clock, interval_ms=1e9, slot=0
            )
        self.operator = opened(kind, self.backends)
        self.checkpoint = 0

    def change(self, numbers: Sequence[int]) -> None:
        self.operator.process(self.kind.rows(numbers), lambda rows: None)

    def look(self) -> None:
        """All that is due now, without what is stored beside the loop."""
        now_ms = self.slot.clock.monotonic_ms()
        while (due_ms := self.backends.next_deadline_ms()) is not None and due_ms <= now_ms:
            self.backends.on_time(now_ms)

    def pass_time(self, ms: float) -> None:
        until_ms = self.slot.clock.monotonic_ms() + ms
        while (due_ms := self.backends.next_deadline_ms()) is not None and due_ms <= until_ms:
            self.slot.clock.advance_to(due_ms)
            self.look()
            self.slot.work()
        self.slot.clock.advance_to(until_ms)

    def take_checkpoint(self) -> list[str]:
        """Of a barrier that comes now: the files that it holds, once it is completed."""
        self.checkpoint += 1
        sections = self.operator.snapshot()
        held = files(self.slot.take(self.checkpoint, sections=sections))
        self.complete()
        return held

    def complete(self) -> None:
        self.slot.done(self.checkpoint)
        self.slot.work()

    def log_files(self) -> int:
        return len(self.operator._store.log.files)

    def close(self) -> None:
        self.operator.close()
        self.backends.close()


@pytest.fixture(params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(tmp_path: Path, backend: str) -> Iterator[Callable[..., Running]]:
    opened: list[Running] = []

    def run(kind: str, *, has_changelog: bool = True) -> Running:
        folder = tmp_path / f"{len(opened)}"
        folder.mkdir()
        opened.append(Running(KINDS[kind], folder, backend=backend, has_changelog=has_changelog))
        return opened[-1]

    yield run
    for each in opened:
        each.close()


def bytes_behind_barrier(running: Running) -> int:
    before = running.store.shared_bytes()
    running.take_checkpoint()
    return running.store.shared_bytes() - before


@pytest.mark.parametrize("kind", KINDS)
def test_behind_a_barrier_next_to_nothing_is_left_to_be_stored(run: Callable[..., Running], kind: str) -> None:
    stored: dict[bool, list[int]] = {}
    for has_changelog in (True, False):
        running = run(kind, has_changelog=has_changelog)
        behind = stored[has_changelog] = []
        for epoch in range(3):
            running.change(range(epoch * 6_000, epoch * 6_000 + 10_000))
            running.pass_time(5_000)
            running.change(range(epoch * 6_000 + 9_990, epoch * 6_000 + 10_010))
            behind.append(bytes_behind_barrier(running))
    for with_changelog, without in zip(stored[True], stored[False], strict=True):
        assert 0 < with_changelog < without / 50


@pytest.mark.parametrize("kind", ["aggregation", "sessions"])
def test_what_changes_all_the_time_is_not_written_ahead(run: Callable[..., Running], kind: str) -> None:
    running = run(kind)
    running.change(range(10_000))
    running.pass_time(5_000)
    running.take_checkpoint()
    stored_bytes = running.store.shared_bytes()
    for _ in range(200):
        running.change(range(500))
        running.pass_time(LOOK_MS / 2)
    assert running.store.shared_bytes() - stored_bytes < stored_bytes / 100


@pytest.mark.parametrize(
    ("kind", "most_times"), [("aggregation", 5), ("sessions", 5), ("deduplication", 3), ("join", 3)]
)
def test_what_is_written_again_stays_in_proportion(run: Callable[..., Running], kind: str, most_times: int) -> None:
    """Rows change every two seconds: a batch finds many of the last one changed again, and all files are small."""
    stored: dict[bool, int] = {}
    for has_changelog in (True, False):
        running, random = run(kind, has_changelog=has_changelog), Random(7)
        for _ in range(3):
            for _ in range(100):
                running.change([random.randrange(2_000) for _ in range(100)])
                running.pass_time(LOOK_MS)
            running.take_checkpoint()
        stored[has_changelog] = running.store.shared_bytes()
    assert stored[False] < stored[True] < most_times * stored[False]


@pytest.mark.parametrize(("kind", "most_times"), [("aggregation", 4), ("sessions", 5)])
def test_what_changes_each_time_after_it_was_written_is_not_written_each_time(
    run: Callable[..., Running], kind: str, most_times: int
) -> None:
    stored: dict[bool, int] = {}
    for has_changelog in (True, False):
        running = run(kind, has_changelog=has_changelog)
        for batch in range(100):
            running.change(range(batch % 4, 20_000, 4) if batch < 4 else range(batch % 4, 8_000, 4))
            running.pass_time(LOOK_MS)
        running.take_checkpoint()
        stored[has_changelog] = running.store.shared_bytes()
    assert stored[False] < stored[True] < most_times * stored[False]


@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_batches_leave_few_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not checkpoints come in between, and however little is in each."""
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 3)
    monkeypatch.setattr(log_book, "_FEW_ROWS", 4)
    running, random, most_files = Running(KINDS[kind], tmp_path, backend="heap"), Random(3), 0
    for batch in range(2_000):
        is_new = kind == "deduplication"
        running.change([4 * batch + at if is_new else random.randrange(600) for at in range(4)])
        running.pass_time(LOOK_MS)
        most_files = max(most_files, running.log_files())
        if batch > 1_000 and batch % 100 == 0:
            running.take_checkpoint()
    assert len(running.store.put_bytes) > 450, "some are of several batches"
    assert most_files < 450
    gc.collect()
    assert len(list(running.local.rglob("*.rows"))) <= running.log_files() + 1, "what is written anew is gone"
    assert len(running.slot.ahead._stored) < 300
    running.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_taken_and_not_written_when_the_barrier_comes_is_stored_once(
    run: Callable[..., Running], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_book, "PART_ROWS", 1_000)
    monkeypatch.setattr(log_book, "SMALL_FILE_ROWS", 100)
    running = run(kind)
    running.change(range(5_000))
    running.pass_time(LOOK_MS - 1)
    for _ in range(40):
        # Ever again, since a first look finds what has just changed.
        running.slot.clock.advance(LOOK_MS)
        running.backends.on_time(running.slot.clock.monotonic_ms())
        if running.log_files():
            break
    assert (running.log_files(), running.store.put_bytes) == (1, {})
    running.checkpoint += 1
    running.slot.begin(running.checkpoint, sections=running.operator.snapshot())
    running.slot.snapshots.encode_some(float("inf"))
    running.change(range(5_000, 10_000))
    running.pass_time(2 * WAIT_MS)
    running.complete()
    names = [path.partition(".")[2] for path in running.store.put_bytes]
    assert len(names) == len(set(names)), "by the checkpoint, and not for the next one too"


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_changelog_files_that_are_given_up_are_gone_with_the_next_checkpoints(
    run: Callable[..., Running], kind: str
) -> None:
    running = run(kind, has_changelog=False)
    for batch in range(20):
        running.change(range(batch * 10, batch * 10 + 20))
        running.take_checkpoint()
    gc.collect()
    assert len(list(running.local.rglob("*.rows"))) <= running.log_files() + 1


def test_a_store_that_is_slow_slows_the_tasks_until_it_has_caught_up(
    run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ahead, "MOST_UNSTORED_BYTES", 50_000)
    running = run("deduplication")
    assert running.backends.has_room()
    for batch in range(20):
        running.change(range(batch * 5_000, batch * 5_000 + 5_000))
        for _ in range(3):
            running.slot.clock.advance(LOOK_MS)
            running.look()
        if not running.backends.has_room():
            break
    else:
        raise AssertionError("it never had enough")
    running.slot.work()
    assert running.backends.has_room()


def test_what_is_taken_counts_as_unstored_until_it_is_in_the_store(run: Callable[..., Running]) -> None:
    running = run("aggregation")
    running.change(range(5_000))
    for _ in range(3):
        running.slot.clock.advance(LOOK_MS)
        running.look()
    assert running.backends.unstored_bytes(TASK) > 5_000
    running.slot.work()
    assert running.backends.unstored_bytes(TASK) == 0


def test_state_in_memory_does_not_need_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From the next look on it is stored whole, though no checkpoint has failed."""

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    running = Running(KINDS["aggregation"], tmp_path, backend="heap")
    running.change(range(5_000))
    monkeypatch.setattr(StepwiseFile, "_write", full)
    running.pass_time(5_000)
    assert [record.message for record in caplog.records if "stored whole from now on" in record.message]
    assert running.operator._on_disk is None
    assert running.take_checkpoint() == []
    running.close()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_on_disk_or_due_once_it_is_closed(run: Callable[..., Running], kind: str) -> None:
    running = run(kind)
    running.change(range(5_000))
    running.slot.clock.advance(LOOK_MS)
    running.look()
    running.change(range(5_000, 9_000))
    running.operator.close()
    assert running.backends.next_deadline_ms() is None
    running.slot.work()
    gc.collect()
    assert list(running.local.rglob("*.rows")) == []


def test_with_a_changelog_a_log_begins_at_the_size_of_a_batch() -> None:
    none: Any = None
    slot = SlotSettings(plan=none, checkpoint_location="", window_bytes=1, state_backend="heap")
    assert slot.rows_whole_up_to_bytes() == HEAP_ROWS_WHOLE_UP_TO_BYTES
    assert replace(slot, changelog_image_interval_ms=1.0).rows_whole_up_to_bytes() == BATCH_BYTES


# -- at any moment

steps = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.lists(st.integers(0, 40), min_size=1, max_size=20)),
        st.tuples(st.just("change"), st.lists(st.integers(0, 40), min_size=1, max_size=20)),
        st.tuples(st.just("time"), st.sampled_from([LOOK_MS, LOOK_MS, WAIT_MS])),
        st.tuples(st.just("step"), st.integers(1, 5)),
        st.tuples(st.just("store"), st.none()),
        st.tuples(st.just("barrier"), st.none()),
        st.tuples(st.just("complete"), st.none()),
        st.tuples(st.just("abort"), st.none()),
    ),
    min_size=8,
    max_size=40,
)


class Checked:
    """Beside the same operator, stored whole. Files of settled checkpoints are deleted, as by a driver."""

    def __init__(self, kind: Kind, folder: Path, backend: str) -> None:
        self.running = Running(kind, folder, backend=backend)
        self.twin = opened(kind, None)
        self.under_way: tuple[list[Section], list[RestoredSection]] | None = None

    def change(self, numbers: Sequence[int]) -> None:
        for operator in (self.running.operator, self.twin):
            operator.process(self.running.kind.rows(numbers), lambda rows: None)

    def barrier(self) -> None:
        if self.under_way is None:
            self.running.checkpoint += 1
            taken, whole = self.running.operator.snapshot(), restored_from(self.twin.snapshot())
            self.under_way = taken, whole
            self.running.slot.begin(self.running.checkpoint, sections=taken)

    def complete(self) -> None:
        if self.under_way is None:
            return
        (taken, whole), self.under_way = self.under_way, None
        slot, store = self.running.slot, self.running.store
        slot.snapshots.encode_some(float("inf"))
        slot.work()
        held = set(files(slot.said[-1]))
        self.running.complete()
        self._delete(lambda path: path not in held)
        restored = [
            RestoredSection(each.name, each.key_groups, memoryview(each.encode()), stored_files(each, held, store))
            for each in taken
        ]
        assert shown(self.running, restored) == shown(self.running, whole)

    def abort(self) -> None:
        if self.under_way is not None:
            self.under_way = None
            self.running.slot.snapshots.on_abort(CheckpointId(self.running.checkpoint))
            known = {stored.path for stored in self.running.slot.ahead._known.values()}
            self._delete(lambda path: path not in known)

    def _delete(self, is_not_needed: Callable[[str], bool]) -> None:
        """Of checkpoints that are settled."""
        store = self.running.store
        for path in list(store.put_bytes):
            checkpoint = int(path.removeprefix("shared/").partition("-")[0])
            if checkpoint <= self.running.checkpoint and is_not_needed(path):
                store.delete(path)
                del store.put_bytes[path]


def stored_files(section: Section, held: set[str], store: LocalFiles) -> dict[str, Callable[[Path], object]]:
    """As the checkpoint holds them."""
    paths = {path.partition(".")[2]: path for path in held}
    names = [] if section.files is None else [file.name for file in section.files()]
    return {name: lambda to, name=name: to.write_bytes((store.root / paths[name]).read_bytes()) for name in names}  # type: ignore[misc]


def shown(running: Running, restored: Sequence[RestoredSection]) -> Counter[str]:
    """What one that is restored from these gives for more rows."""
    with folder_in_memory() as folder:
        backends = RocksBackends(folder, memory_bytes=8 << 20, rows_memory_bytes=1 << 30)
        operator, out = opened(running.kind, backends, restored), list[pa.RecordBatch]()
        process = getattr(operator, "process_right", operator.process)
        process(running.kind.rows(range(41)), out.append)
        operator.before_barrier(out.append)
        operator.close()
        backends.close()
    return Counter(_in_order(row) for rows in out for row in rows.to_pylist())


def _in_order(row: dict[str, Any]) -> str:
    return repr([sorted(value) if isinstance(value, list) else value for value in row.values()])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(drawn=steps, backend=st.sampled_from(["heap", "rocksdb"]))
def test_a_checkpoint_holds_what_one_that_stores_all_of_it_does(kind: str, drawn: list[Any], backend: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch, folder_in_memory() as folder:
        take_tiny_steps(monkeypatch)
        checked = Checked(KINDS[kind], folder, backend)
        running = checked.running
        for step, what in [*drawn, ("barrier", None), ("complete", None)]:
            match step:
                case "change":
                    checked.change(what)
                case "time":
                    running.slot.clock.advance(what)
                    running.look()
                case "step":
                    running.slot.clock.advance(LOOK_MS)
                    for _ in range(what):
                        running.backends.on_time(running.slot.clock.monotonic_ms())
                case "store":
                    running.slot.work()
                case "barrier":
                    checked.barrier()
                case "complete":
                    checked.complete()
                case "abort":
                    checked.abort()
        running.close()
