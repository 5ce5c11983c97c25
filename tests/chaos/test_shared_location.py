"""Two drivers on one checkpointLocation, both alive: the older stops with a clear error, and no row comes twice."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.chaos import watching
from tests.chaos.shared_location import FILE_ROWS, NEWER, OLDER, add_files

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_a_driver_that_wakes_up_after_another_took_over_stops_and_disturbs_nothing(tmp_path: Path) -> None:
    add_files(tmp_path, 0, files=60)
    with watching.driver(tmp_path, OLDER, program="tests.chaos.shared_location") as older:
        older.read_until("running")
        watching.until(lambda: (tmp_path / "epochs" / "calls").exists(), what="the first call of foreachBatch")
        # As a whole, with its JVM and its slots: a machine that is suspended.
        os.killpg(older.process.pid, signal.SIGSTOP)
        with watching.driver(tmp_path, NEWER, program="tests.chaos.shared_location") as newer:
            newer.read_until("caught up")
            begun = calls(tmp_path)
            (tmp_path / "epochs" / "go").touch()
            os.killpg(older.process.pid, signal.SIGCONT)
            older.read_until("over")
            add_files(tmp_path, 60 * FILE_ROWS, files=5)
            assert newer.process.stdin is not None
            newer.process.stdin.write("go on\n")
            newer.process.stdin.flush()
            newer.read_until("over")
        ends = [line for line in older.lines if line.startswith("ended")]
        assert sorted(line.split()[1] for line in ends) == ["data-source", "epochs", "ingested", "merged"]
        for line in ends:
            assert "Superseded Another driver" in line, line
    expected = Counter(range(65 * FILE_ROWS))
    assert rows_of_lines(tmp_path / "merged") == expected
    assert rows_of_parquet(tmp_path / "ingested") == expected
    assert Counter(rows_of_files(tmp_path / "data-source")) == expected
    assert_epochs_were_given_out_once(tmp_path / "epochs", begun, expected)


def assert_epochs_were_given_out_once(folder: Path, begun: list[str], expected: Counter[int]) -> None:
    """The epoch in work when the older driver stood still comes again, under its id; the older one begins no other."""
    assert [line for line in calls(folder.parent) if line.startswith("older began")] == [
        line for line in begun if line.startswith("older began")
    ]
    epochs: dict[int, list[int]] = {}
    for path in sorted(folder.glob("*.rows")):
        rows = json.loads(path.read_text())
        batch_id = int(path.stem.split("-")[1])
        assert epochs.setdefault(batch_id, rows) == rows, f"epoch {batch_id} came with other rows"
    assert Counter(row for rows in epochs.values() for row in rows) == expected


def calls(folder: Path) -> list[str]:
    return (folder / "epochs" / "calls").read_text().splitlines()


def rows_of_lines(folder: Path) -> Counter[int]:
    visible = [path for path in folder.rglob("*.json") if not path.relative_to(folder).parts[0].startswith(("_", "."))]
    return Counter(json.loads(line)["v"] for path in visible for line in path.read_text().splitlines())


def rows_of_parquet(folder: Path) -> Counter[int]:
    return Counter(v for path in folder.glob("*.parquet") for v in pq.ParquetFile(path).read().column("v").to_pylist())


def rows_of_files(folder: Path) -> list[int]:
    return [row for path in folder.glob("*.rows") if path.name[0] != "." for row in json.loads(path.read_text())]
