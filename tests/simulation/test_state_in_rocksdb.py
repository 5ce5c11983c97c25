"""Whole jobs under a seeded scheduler with state in RocksDB: the same rows, no file too many and none too few.

What slots keep on disk is real; it is in memory where the system offers a folder for that, because RocksDB syncs it.
"""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.in_memory import folder_in_memory
from tidegate.testing.simulation import RunFailure, RunReport, run_seed
from tidegate.testing.simulation.topologies import Topology

# Each topology once: seeds take them in turn.
_SEEDS = range(len(Topology))


@pytest.fixture
def local_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)  # failures are what is simulated
    with folder_in_memory() as folder:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
        yield folder


@pytest.mark.slow
def test_every_seed_commits_each_row_exactly_once_and_leaves_nothing_on_disk(local_folder: Path) -> None:
    outcomes = [run_seed(seed, state_backend="rocksdb") for seed in _SEEDS]
    failures = [str(outcome) for outcome in outcomes if isinstance(outcome, RunFailure)]
    assert failures == [], "replay with  python -m tidegate.testing.simulation --state-backend rocksdb --seed ..."
    reports = [outcome for outcome in outcomes if isinstance(outcome, RunReport)]
    assert {report.topology for report in reports} == {topology.value for topology in Topology}
    # Runs in which nothing happened would prove nothing.
    assert sum(report.rescales for report in reports) > 5
    gc.collect()
    assert list(local_folder.iterdir()) == []
