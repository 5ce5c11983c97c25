"""checkpoint.recoverWithoutChannelState: the captured rows are lost, exactly these, and it is said."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scenarios.numbered_rows import ALIGNED, NUMBERED, ROWS, NumberedRows, golden
from tidegate.coordinator.views import DroppedView
from tidegate.model.elements import Batch
from tidegate.model.errors import Damaged, OptionError
from tidegate.model.ids import EdgeId, SlotIndex, TaskId, VertexId
from tidegate.operators.broadcast_state import decode_states
from tidegate.operators.contract import ConnectHandle, Times
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Connect, Project, Repartition, RightSide, Scan, Sink, Spread, TransformWithState
from tidegate.plan.physical import JobPlan, kind_of
from tidegate.protocol.rescale import EdgeKind
from tidegate.state.codec import decode
from tidegate.storage import layout
from tidegate.storage.manifests import Manifest
from tidegate.testing.threads import NamedUserCode
from tidegate.worker.restoring import StoredFiles, restore_slot


def stopped_with_rows_in_flight(rows: NumberedRows) -> Manifest:
    rows.stop_after(3)
    manifest = rows.retained()[-1]
    assert rows.captured_ids(manifest), "nothing was in flight: this run says nothing"
    return manifest


def dropped(view: DroppedView | None) -> DroppedView:
    assert view is not None
    return view


@pytest.mark.parametrize("slots", [2, 3, 1])
def test_exactly_the_captured_rows_are_missing_and_they_are_counted(
    tmp_path: Path, slots: int, caplog: pytest.LogCaptureFixture
) -> None:
    rows = NumberedRows(tmp_path)
    restored = stopped_with_rows_in_flight(rows)
    lost = rows.captured_ids(restored)
    before = rows.output()
    rows.slots = slots
    with caplog.at_level(logging.ERROR, logger="tidegate"):
        ended = rows.finish(without_captured_rows=restored.checkpoint)
    out = rows.output()
    assert sorted(id for _, id, _ in out) == sorted(set(range(ROWS)) - set(lost))
    # What was committed before stays as it was, and each key's rows are numbered on without a gap.
    assert set(before) <= set(out)
    per_key = Counter(key for key, _, _ in out)
    assert sorted((key, n) for key, _, n in out) == sorted((k, n) for k, m in per_key.items() for n in range(1, m + 1))
    said = dropped(ended.view().dropped)
    assert (said.checkpoint, said.rows, said.unread_bytes) == (restored.checkpoint, len(lost), 0)
    assert said.size_bytes > 0 and [edge.rows for edge in said.edges] == [len(lost)]
    (message,) = caplog.messages
    assert f"ROWS ARE LOST in query 'numbered': {len(lost)} rows" in message


def test_a_later_checkpoint_and_one_of_another_number_restore_everything(tmp_path: Path) -> None:
    rows = NumberedRows(tmp_path)
    restored = stopped_with_rows_in_flight(rows)
    lost = rows.captured_ids(restored)
    rows.stop_after(2, without_captured_rows=restored.checkpoint)
    later = rows.retained()[-1]
    assert later.checkpoint > restored.checkpoint
    ended = rows.finish(without_captured_rows=restored.checkpoint)
    assert sorted(id for _, id, _ in rows.output()) == sorted(set(range(ROWS)) - set(lost))
    assert ended.view().dropped is None


def test_a_number_that_is_not_restored_is_refused_or_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = NumberedRows(tmp_path)
    with pytest.raises(OptionError, match="names checkpoint 7, but there is no checkpoint to restore"):
        rows.job(without_captured_rows=7).start()
    restored = stopped_with_rows_in_flight(rows)
    with pytest.raises(OptionError, match=f"but the query starts from checkpoint {restored.checkpoint}: write that"):
        rows.job(without_captured_rows=restored.checkpoint + 1).start()
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        rows.finish(without_captured_rows=restored.checkpoint - 1)
    assert f"starts from checkpoint {restored.checkpoint}: all of it is restored" in caplog.text
    assert [(k, id) for k, id, _ in rows.output()] == golden()


def test_an_aligned_checkpoint_has_nothing_to_lose(tmp_path: Path) -> None:
    rows = NumberedRows(tmp_path, switch_after_ms=ALIGNED)
    rows.stop_after(2)
    ended = rows.finish(without_captured_rows=rows.retained()[-1].checkpoint)
    assert [(k, id) for k, id, _ in rows.output()] == golden()
    assert dropped(ended.view().dropped).rows == 0


def test_a_damaged_file_of_captured_rows_no_longer_stops_the_query(tmp_path: Path) -> None:
    rows = NumberedRows(tmp_path, settings={"inline_below_bytes": 0})
    restored = stopped_with_rows_in_flight(rows)
    lost = set(rows.captured_ids(restored))
    shared = {file.path: file for slot in restored.slots for file in slot.shared}
    channels = [file for path, file in shared.items() if layout.parse_channel_file(path) is not None]
    for file in channels:
        (tmp_path / "chk" / file.path).unlink()
    with pytest.raises(Damaged, match=r"\.channels is missing"):
        rows.job().start()
    ended = rows.finish(without_captured_rows=restored.checkpoint)
    assert sorted(id for _, id, _ in rows.output()) == sorted(set(range(ROWS)) - lost)
    assert dropped(ended.view().dropped).rows == 0
    assert 0 < dropped(ended.view().dropped).unread_bytes <= sum(file.length for file in channels)


# -- every kind of edge

MARKS = 1500
INT64 = pa.int64()
ROW = pa.schema([("k", INT64), ("v", INT64)])
MARK = pa.schema([("mark", INT64)])
EDGES = {EdgeKind.REBALANCE, EdgeKind.POINTWISE, EdgeKind.BROADCAST, EdgeKind.HASH}
# How far each slot is at a barrier is a matter of time.
MOST_TRIES = 8


class Marks:
    """Rows pass; how many marks have come is broadcast state. Each costs as much as `cost` rows elsewhere."""

    def __init__(self, before_row: Callable[[], None], cost: int) -> None:
        self._before_row = before_row
        self._cost = cost

    def init(self, handle: ConnectHandle) -> None:
        self._marks = handle.broadcast_state("marks")

    def handle_left(self, key: Any, rows: Iterator[tuple[Any, ...]], times: Times) -> Iterable[tuple[Any, ...]]:
        for row in rows:
            self._before_row()
            yield row

    def handle_right(self, key: Any, rows: Iterator[tuple[Any, ...]], times: Times) -> Iterable[tuple[Any, ...]]:
        for _ in rows:
            for _ in range(self._cost):
                self._before_row()
            (before,) = self._marks.get((0,)) or (0,)
            self._marks.put((0,), (before + 1,))
        return ()

    def handle_timer(self, key: Any, at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise AssertionError("no timer was registered")

    def close(self) -> None:
        return


@dataclass(slots=True)
class MarkedRows(NumberedRows):
    """Rows go by a rebalance, a pointwise and a hash edge, past marks that are broadcast to every slot."""

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        super(MarkedRows, self).__post_init__()
        (self.folder / "marks").mkdir(exist_ok=True)
        for file in range(3):
            pq.write_table(pa.table({"mark": list(range(MARKS // 3))}), self.folder / "marks" / f"{file}.parquet")

    def plan(self) -> JobPlan:
        k, v = Column(0, "k", INT64), Column(1, "v", INT64)
        orders = Scan("parquet", {"path": str(self.folder / "in")}, ROW)
        marks = Scan("parquet", {"path": str(self.folder / "marks")}, MARK)
        dealt = Repartition(orders, Spread.EVENLY, (), None, ROW)
        marked = Connect(dealt, marks, b"marks", RightSide.BROADCAST, 0, 0, ROW)
        keyed = Project(marked, (k, k, v), pa.schema([("k", INT64), *ROW]))
        sink = Sink("parquet", {"path": str(self.folder / "out"), "checkpointLocation": self.location}, NUMBERED)
        numbered = TransformWithState(keyed, 1, b"number", NUMBERED)
        return lower(numbered, sink, parallelism=self.slots, max_parallelism=128)

    def code(self, before_row: Callable[[], None]) -> NamedUserCode:
        # One slot is quicker than the others.
        costs = chain([1], repeat(3))
        made = super(MarkedRows, self).code(before_row)
        return replace(made, connectors={"marks": lambda: Marks(before_row, next(costs))})

    def kinds(self) -> dict[EdgeId, EdgeKind]:
        return {edge.id: kind_of(edge.partitioning) for edge in self.plan().edges}

    def captured(self, manifest: Manifest) -> dict[EdgeId, list[list[int]]]:
        """By edge and receiver: the values in the last column of its rows in flight."""
        path = layout.manifest(layout.CheckpointFolder(manifest.checkpoint, manifest.generation))
        found: dict[EdgeId, list[list[int]]] = {edge: [[] for _ in range(self.slots)] for edge in self.kinds()}
        for slot in range(self.slots):
            restored = restore_slot(self.store, path, self.plan(), SlotIndex(slot))
            for channel, recovered in restored.recovered.items():
                for element in (arrived.element for arrived in recovered.elements):
                    if isinstance(element, Batch):
                        found[channel.edge][slot] += element.rows.columns[-1].to_pylist()
        return found

    def marks_seen(self) -> list[int]:
        """By each subtask, in the newest checkpoint."""
        (vertex,) = [edge.receiver for edge in self.plan().edges if self.kinds()[edge.id] is EdgeKind.BROADCAST]
        manifest = self.retained()[-1]
        files = StoredFiles(self.store, manifest)
        return [self._marks_of(files, vertex, subtask) for subtask in range(manifest.vertex_parallelism[vertex])]

    def _marks_of(self, files: StoredFiles, vertex: VertexId, subtask: int) -> int:
        (section,) = files.sections_of(TaskId(vertex, subtask), "broadcast", operator=0)
        return sum(decode(value)[0] for value in decode_states(section).get("marks", {}).values())


def stopped_with_rows_on_every_edge(folder: Path, settings: dict[str, Any]) -> MarkedRows:
    """In the checkpoint that is restored, some marks have come to no slot, and one slot is further than the other."""
    for attempt in range(MOST_TRIES):
        rows = MarkedRows(folder / str(attempt), settings=settings)
        rows.stop_after(4)
        captured, kinds = rows.captured(rows.retained()[-1]), rows.kinds()
        (marks,) = [receivers for edge, receivers in captured.items() if kinds[edge] is EdgeKind.BROADCAST]
        in_flight = {kinds[edge] for edge, receivers in captured.items() if any(receivers)}
        if in_flight == EDGES and all(marks) and len(set(rows.marks_seen())) > 1:
            return rows
    raise AssertionError(f"in {MOST_TRIES} runs no checkpoint had rows in flight on every edge")


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_on_every_kind_of_edge_each_lost_row_is_counted_once_and_all_slots_see_the_same_broadcast(
    tmp_path: Path, backend: str, slots: int
) -> None:
    rows = stopped_with_rows_on_every_edge(tmp_path, {"state_backend": backend})
    restored = rows.retained()[-1]
    captured, kinds = rows.captured(restored), rows.kinds()
    rows.slots = slots
    ended = rows.finish(without_captured_rows=restored.checkpoint)
    assert ended.view().state == "finished", ended.failure()
    seen = rows.marks_seen()
    assert len(seen) == slots and len(set(seen)) == 1, "no slot has seen what another has not"
    (marks,) = [receivers for edge, receivers in captured.items() if kinds[edge] is EdgeKind.BROADCAST]
    assert MARKS - seen[0] in [len(receiver) for receiver in marks], "what one of them had left"
    lost = {
        edge: [id for receiver in receivers for id in receiver]
        for edge, receivers in captured.items()
        if kinds[edge] is not EdgeKind.BROADCAST
    }
    ids = {id for edge in lost.values() for id in edge}
    assert sorted(id for _, id, _ in rows.output()) == sorted(set(range(ROWS)) - ids)
    said = [edge.rows for edge in dropped(ended.view().dropped).edges]
    assert said == [len(lost[edge]) if edge in lost else MARKS - seen[0] for edge in sorted(captured)]
