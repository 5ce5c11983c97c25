"""A query whose input Spark ingests moves: by its savepoint, with all that nobody has read, and by nothing else."""

import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.conformance.test_staged_source import SCHEMA, FixedFeed, rows_of, source_of, stage, staging_of
from tests.unit.test_restoring import Job
from tidegate.connectors.staged_source import StagingFolder, feed_from
from tidegate.coordinator.checkpoint_files import check_files
from tidegate.coordinator.staged_inputs import (
    check_staged_inputs,
    copy_staged_inputs,
    lay_out_staged_inputs,
    with_staged_inputs,
)
from tidegate.model.errors import Damaged, IncompatibleCheckpoint
from tidegate.model.ids import TaskId, VertexId
from tidegate.plan.lower import fingerprint, lower
from tidegate.plan.matching import PlanMatch, match_stored
from tidegate.plan.nodes import Scan, Sink
from tidegate.plan.physical import JobPlan
from tidegate.protocol.recovery import CapturedRows
from tidegate.storage.manifests import Manifest
from tidegate.storage.store import LocalFiles
from tidegate.testing.source_suite import SourceRun

FILES = [(0, 11), (40, 15), (60, 12)]


def plan_on(staging: Path) -> JobPlan:
    return lower(
        Scan("staged", {"path": str(staging)}, SCHEMA), Sink("noop", {}, SCHEMA), parallelism=2, max_parallelism=8
    )


def match_of(plan: JobPlan, manifest: Manifest) -> PlanMatch:
    match = match_stored(plan, fingerprint(plan), stored=manifest.plan_fingerprint, stored_names={})
    assert match is not None
    return match


class Saved:
    """A savepoint that was taken after some rows were read, and what its query had read by then."""

    def __init__(self, folder: Path, *, polls: int = 3) -> None:
        staging, _ = staging_of(folder / "staging" / "source-0")
        for batch, files in enumerate(FILES):
            stage(staging, batch, files)
        staging.spark_checkpoint.mkdir()
        run = SourceRun(source_of(staging.path), 2)
        assert run.polls(polls) == polls
        self.read = list(run.rows)
        self.states = run.snapshot()
        self.plan = plan_on(staging.path)
        self.store = LocalFiles(folder / "savepoint")
        sources = {TaskId(VertexId(0), subtask): state for subtask, state in enumerate(self.states)}
        self.checkpoint = Job(self.store, self.plan, sources=sources).write()
        self.manifest = with_staged_inputs(self.checkpoint, self.plan, self.store)

    def lay_out(self, staging: Path) -> None:
        plan = plan_on(staging)
        lay_out_staged_inputs(plan, match_of(plan, self.manifest), self.manifest, self.store)


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path / "old")


def test_another_place_goes_on_at_the_row(saved: Saved, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "old" / "staging")
    check_files(saved.store, saved.manifest, CapturedRows.DELIVER)
    new = tmp_path / "new" / "source-7"
    new.parent.mkdir()
    saved.lay_out(new)
    feed_from(new, FixedFeed(new))
    after = SourceRun(source_of(new), 2, states=saved.states).drain()
    assert sorted([*saved.read, *after]) == rows_of(*FILES)


def test_a_second_generation_of_the_start_finds_what_the_first_laid_out(saved: Saved, tmp_path: Path) -> None:
    new = tmp_path / "source-0"
    saved.lay_out(new)
    before = StagingFolder(new).id()
    stage(StagingFolder(new), 3, (100, 5))
    saved.lay_out(new)
    assert StagingFolder(new).id() == before and StagingFolder(new).batches()[-1] == 3


def test_a_savepoint_that_is_written_from_it_has_it_too(saved: Saved, tmp_path: Path) -> None:
    written = LocalFiles(tmp_path / "written")
    copy_staged_inputs(saved.manifest, saved.store, written)
    assert written.list() == [path for path in saved.store.list() if path.startswith("staging/")] != []


def test_where_another_start_has_ingested_it_is_refused(saved: Saved, tmp_path: Path) -> None:
    other, _ = staging_of(tmp_path / "source-0")
    stage(other, 0, (500, 3))
    with pytest.raises(IncompatibleCheckpoint, match="for another start of the query.* use a new checkpointLocation"):
        saved.lay_out(other.path)
    assert other.batches() == [0]


def test_without_a_copy_it_goes_on_in_its_own_place_alone(saved: Saved, tmp_path: Path) -> None:
    """A checkpoint, and a savepoint of an older version."""
    own = saved.plan
    check_staged_inputs(own, match_of(own, saved.checkpoint), saved.checkpoint, saved.store)
    elsewhere = plan_on(tmp_path / "source-0")
    with pytest.raises(IncompatibleCheckpoint, match="or from a savepoint in a new one"):
        check_staged_inputs(elsewhere, match_of(elsewhere, saved.checkpoint), saved.checkpoint, saved.store)


def test_what_was_taken_before_anything_was_read_begins_anew_anywhere(tmp_path: Path) -> None:
    saved = Saved(tmp_path / "old", polls=0)
    elsewhere = plan_on(tmp_path / "source-0")
    check_staged_inputs(elsewhere, match_of(elsewhere, saved.checkpoint), saved.checkpoint, saved.store)


@pytest.mark.parametrize("part", ["data/", "batches/", "origins"])
def test_damage_is_named_and_nothing_is_laid_out(saved: Saved, tmp_path: Path, part: str) -> None:
    file = next(file for kept in saved.manifest.staged for file in kept.files if part in file.path)
    content = saved.store.read(file.path)
    saved.store.put(file.path, content[:-1] + bytes([content[-1] ^ 1]))
    for damaging in (
        lambda: check_files(saved.store, saved.manifest, CapturedRows.DELIVER),
        lambda: saved.lay_out(tmp_path / "new" / "source-0"),
    ):
        with pytest.raises(Damaged, match=file.path):
            damaging()
    assert not list((tmp_path / "new").glob("*"))


def test_a_query_that_spark_ingests_nothing_for_is_left_alone(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    plan = lower(Scan("parquet", {"path": "in"}, schema), Sink("noop", {}, schema), parallelism=1, max_parallelism=8)
    manifest = Job(LocalFiles(tmp_path), plan).write()
    assert with_staged_inputs(manifest, plan, LocalFiles(tmp_path)) is manifest
    assert msgspec.structs.asdict(manifest)["staged"] == []
