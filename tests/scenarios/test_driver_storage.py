"""checkpoint.storage=driver: what slots store is in the manifest, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.numbered_rows import ALIGNED, UNALIGNED, NumberedRows, golden
from tidegate.protocol.kinds import CheckpointStorage
from tidegate.worker.local_copies import LocalRecovery


def numbered(folder: Path, **settings: Any) -> NumberedRows:
    return NumberedRows(folder, settings={"checkpoint_storage": CheckpointStorage.DRIVER} | settings)


def stored(rows: NumberedRows) -> set[str]:
    """Names of what is stored beside the job log."""
    return {Path(path).name for path in rows.store.list() if not path.startswith("log/")}


@pytest.mark.parametrize("switch_after_ms", [ALIGNED, UNALIGNED])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("slots", [2, 3])
def test_a_job_goes_on_from_manifests_alone(
    tmp_path: Path, backend: str, switch_after_ms: float | None, slots: int
) -> None:
    rows = numbered(tmp_path, state_backend=backend, inline_below_bytes=0)
    rows.switch_after_ms = switch_after_ms
    rows.stop_after(2)
    newest = rows.retained()[-1]
    assert all(slot.content is not None and not slot.shared for slot in newest.slots)
    assert bool(rows.captured_ids(newest)) == (switch_after_ms is UNALIGNED)
    assert stored(rows) == {"manifest.json"}
    rows.slots = slots
    rows.finish()
    assert [(key, id) for key, id, _ in rows.output()] == golden()
    assert stored(rows) == {"manifest.json"}


def test_a_query_may_change_where_its_checkpoints_are(tmp_path: Path) -> None:
    files = {"inline_below_bytes": 0}
    NumberedRows(tmp_path, settings=files).stop_after(2)
    numbered(tmp_path).stop_after(2)
    rows = NumberedRows(tmp_path, settings=files)
    rows.finish()
    assert [(key, id) for key, id, _ in rows.output()] == golden()


def test_no_copies_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    seen: list[Path] = []
    rows = numbered(tmp_path, local_recovery=LocalRecovery.ALWAYS, inline_below_bytes=0)
    rows.finish(before_row=lambda: seen.extend(local.rglob("*")))
    assert seen == []
