"""checkpoint.recoverWithoutChannelState: the captured rows are lost, exactly these, and it is said."""

import logging
from collections import Counter
from pathlib import Path

import pytest

from tests.scenarios.numbered_rows import ALIGNED, ROWS, NumberedRows, golden
from tidegate.coordinator.views import DroppedView
from tidegate.model.errors import Damaged, OptionError
from tidegate.storage import layout
from tidegate.storage.manifests import Manifest


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
