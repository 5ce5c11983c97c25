"""The order of what is durable: manifest, log entry, commit, and nothing out of the log's order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidegate.coordinator.durable import DurableJob
from tidegate.model.errors import DidNotHappen
from tidegate.model.ids import CheckpointId, Generation, TaskId, VertexId
from tidegate.protocol.commit import CommitPermit
from tidegate.storage.job_log import CheckpointCompleted, CheckpointRetired, Committed, Entry, JobLog
from tidegate.storage.manifests import Manifest, TaskCommittables
from tidegate.storage.store import LocalFiles, Store


@dataclass
class Committer:
    """Notes what it commits; the next `failures` calls fail."""

    failures: int = 0
    committed: list[tuple[int, list[bytes]]] = field(default_factory=list)

    def commit(self, committables: Sequence[bytes], permit: CommitPermit) -> None:
        if self.failures:
            self.failures -= 1
            raise DidNotHappen("the sink is away")
        self.committed.append((permit.checkpoint, list(committables)))

    def discard_uncommitted(self, keep: Sequence[bytes], generation: Generation) -> None:
        return


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return LocalFiles(tmp_path)


def open_job(store: Store, committer: Committer, *, retained: int = 2) -> DurableJob:
    return DurableJob(store, committer, fingerprint=["f"], parallelism=1, max_parallelism=8, retained=retained)


def manifest(checkpoint: int, generation: int = 1) -> Manifest:
    return Manifest(
        checkpoint=CheckpointId(checkpoint),
        generation=Generation(generation),
        kind="aligned",
        is_savepoint=False,
        triggered_at_ms=0,
        duration_ms=1.0,
        plan_fingerprint=["f"],
        parallelism=1,
        max_parallelism=8,
        slots=[],
        committables=[TaskCommittables(TaskId(VertexId(1), 0), [b"epoch %d" % checkpoint])],
    )


def entries(store: Store, kind: type[Entry]) -> list[int]:
    return [e.checkpoint for e in JobLog(store, driver="check").read() if isinstance(e, kind)]  # type: ignore[union-attr]


def test_a_checkpoint_is_committed_and_the_log_says_so(store: Store) -> None:
    committer = Committer()
    job = open_job(store, committer)
    job.start_generation(at_ms=0)
    job.complete(manifest(1))
    job.commit(CheckpointId(1), manifest(1))
    assert committer.committed == [(1, [b"epoch 1"])]
    assert entries(store, Committed) == [1]


def test_a_commit_that_failed_is_done_before_the_next_one(store: Store) -> None:
    committer = Committer(failures=1)
    job = open_job(store, committer)
    job.start_generation(at_ms=0)
    job.complete(manifest(1))
    with pytest.raises(DidNotHappen):
        job.commit(CheckpointId(1), manifest(1))
    job.complete(manifest(2))
    job.commit(CheckpointId(2), manifest(2))
    assert committer.committed == [(1, [b"epoch 1"]), (2, [b"epoch 2"])]
    assert entries(store, Committed) == [1, 2]


def test_a_new_generation_first_commits_what_the_old_one_left(store: Store) -> None:
    old = open_job(store, Committer())
    old.start_generation(at_ms=0)
    old.complete(manifest(1))
    old.complete(manifest(2))
    committer = Committer()
    basis = open_job(store, committer).start_generation(at_ms=1)
    assert committer.committed == [(1, [b"epoch 1"]), (2, [b"epoch 2"])]
    assert (basis.generation, basis.restored_checkpoint, basis.next_checkpoint) == (2, 2, 3)


def test_an_uncommitted_checkpoint_is_not_retired(store: Store) -> None:
    committer = Committer()
    job = open_job(store, committer, retained=1)
    job.start_generation(at_ms=0)
    for checkpoint in (1, 2, 3):
        job.complete(manifest(checkpoint))
    job.retire()
    assert entries(store, CheckpointRetired) == []
    job.commit(CheckpointId(3), manifest(3))
    job.retire()
    assert entries(store, CheckpointRetired) == [1, 2]
    assert entries(store, CheckpointCompleted) == [1, 2, 3]
    assert store.list("checkpoints") == ["checkpoints/3-g1/manifest.json"]
