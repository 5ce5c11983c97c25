"""Jobs whose rows carry ids: each comes out with its key, its id, and which of its key's rows it is."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.coordinator.coordinator import Coordinator
from tidegate.model.ids import CheckpointId, SlotIndex
from tidegate.plan.expressions import Column
from tidegate.plan.lower import lower
from tidegate.plan.nodes import Project, Scan, Sink, TransformWithState
from tidegate.plan.physical import JobPlan
from tidegate.protocol.requests import Afterwards, SavepointAlignment
from tidegate.storage import layout
from tidegate.storage.job_log import JobLog, retained_checkpoints
from tidegate.storage.manifests import Manifest, decode_manifest
from tidegate.storage.store import LocalFiles, open_store
from tidegate.testing.local_jobs import local_job
from tidegate.testing.threads import CountingProcessor, NamedUserCode, ThreadLauncher
from tidegate.worker.restoring import restore_slot
from tidegate.worker.settings import SlotSettings

KEYS = 37
ROWS = 2000
FILES = 4
ALIGNED, UNALIGNED = None, 0.0
_SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NUMBERED = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("n", pa.int64())])


@dataclass(slots=True)
class NumberedRows:
    """A folder with input, checkpoints and output; `settings` go to the slots, `spec` to the job."""

    folder: Path
    slots: int = 2
    switch_after_ms: float | None = UNALIGNED
    interval_ms: float = 30
    sink: str = "parquet"
    sink_options: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    open_job_store: Callable[[str], Any] = open_store

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        for file in range(FILES):
            ids = range(file * ROWS // FILES, (file + 1) * ROWS // FILES)
            table = pa.table({"k": [i % KEYS for i in ids], "v": list(ids)})
            pq.write_table(table, self.folder / "in" / f"{file}.parquet")

    @property
    def location(self) -> str:
        return str(self.folder / "chk")

    @property
    def store(self) -> LocalFiles:
        return LocalFiles(self.folder / "chk")

    def plan(self) -> JobPlan:
        k, v = Column(0, "k", pa.int64()), Column(1, "v", pa.int64())
        keyed = Project(
            Scan("parquet", {"path": str(self.folder / "in")}, _SCHEMA),
            (k, k, v),
            pa.schema([("k", pa.int64()), ("k", pa.int64()), ("v", pa.int64())]),
        )
        options = {"path": str(self.folder / "out"), "checkpointLocation": self.location} | self.sink_options
        sink = Sink(self.sink, options if self.sink == "parquet" else self.sink_options, NUMBERED)
        return lower(
            TransformWithState(keyed, 1, b"number", NUMBERED), sink, parallelism=self.slots, max_parallelism=128
        )

    def job(self, *, before_row: Callable[[], None] = lambda: None, keep: int = 2, **spec: Any) -> Coordinator:
        settings: dict[str, Any] = {"window_bytes": 4096, "state_backend": "heap"} | self.settings
        made = local_job(
            "numbered",
            SlotSettings(plan=self.plan(), checkpoint_location=self.location, **settings),
            interval_ms=self.interval_ms,
            switch_after_ms=self.switch_after_ms,
            keep=keep,
            restart=spec.pop("restart", None),
            available_now=True,
        )
        launcher = ThreadLauncher(self.code(before_row))
        return Coordinator(replace(made, **spec), self.open_job_store(self.location), launcher, versions={})

    def code(self, before_row: Callable[[], None]) -> NamedUserCode:
        return NamedUserCode(
            processors={"number": lambda: CountingProcessor(before_row=before_row, kept=lambda row: row[-1:])}
        )

    def stop_after(self, checkpoints: int, **job: Any) -> None:
        coordinator = self._run_until(checkpoints, **job)
        coordinator.stop()
        assert coordinator.wait(60)

    def stop_with_savepoint(self, after_checkpoints: int, **job: Any) -> str:
        """An unaligned one, at the location; its path."""
        coordinator = self._run_until(after_checkpoints, **job)
        folder = f"{self.location}/{layout.SAVEPOINTS}"
        asked = coordinator.savepoint(folder, alignment=SavepointAlignment.UNALIGNED, afterwards=Afterwards.SUSPEND)
        path = asked.result(60)
        assert coordinator.wait(60)
        return path

    def _run_until(self, checkpoints: int, **job: Any) -> Coordinator:
        coordinator = self.job(before_row=lambda: time.sleep(0.002), **job)
        coordinator.start()
        while coordinator.view().committed_checkpoints < checkpoints:
            assert not coordinator.wait(0.01), "it ended before it could be stopped"
        return coordinator

    def finish(self, **job: Any) -> Coordinator:
        coordinator = self.job(**job)
        coordinator.start()
        assert coordinator.wait(60), f"still {coordinator.view().state}"
        return coordinator

    def output(self) -> list[tuple[int, int, int]]:
        """Key, id, and which of its key's rows it is; sorted."""
        return sorted((row["k"], row["v"], row["n"]) for row in pq.read_table(self.folder / "out").to_pylist())

    def newest_checkpoint(self) -> CheckpointId:
        """By the log alone: while the job runs, a manifest may go between two looks."""
        return retained_checkpoints(JobLog(self.store, driver="a reader").read())[-1].checkpoint

    def retained(self) -> list[Manifest]:
        completed = retained_checkpoints(JobLog(self.store, driver="a reader").read())
        places = [self.store if each.location is None else LocalFiles(Path(each.location)) for each in completed]
        return [
            decode_manifest(place.read(each.manifest), name=each.manifest)
            for place, each in zip(places, completed, strict=True)
        ]

    def captured_ids(self, manifest: Manifest) -> list[int]:
        path = f"checkpoints/{manifest.checkpoint}-g{manifest.generation}/manifest.json"
        restored = [restore_slot(self.store, path, self.plan(), SlotIndex(slot)) for slot in range(self.slots)]
        batches = [a.element for r in restored for channel in r.recovered.values() for a in channel.elements]
        return sorted(id for batch in batches if hasattr(batch, "rows") for id in batch.rows.column("v").to_pylist())


def golden() -> list[tuple[int, int]]:
    """Which of its key's rows each is depends on the order of arrival; that there are so many does not."""
    return sorted((id % KEYS, id) for id in range(ROWS))
