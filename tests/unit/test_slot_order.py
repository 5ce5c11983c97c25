"""What becomes of a slot before it can speak to its coordinator."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.unit.driver_by_hand import Hand
from tidegate.model.ids import SlotIndex
from tidegate.network.connection import ConnectionLost
from tidegate.worker import main
from tidegate.worker.main import SlotOrder, run_slot


def test_a_slot_that_cannot_reach_the_driver_fails_its_task_with_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Spark would count it as done, and the driver could only say that slots returned too early."""
    monkeypatch.setattr(main, "_DIAL_TIMEOUT_MS", 100.0)
    settings = Hand().spec.slot_settings
    nobody: Any = None
    order = SlotOrder(
        job="job",
        launch=1,
        coordinator_host="127.0.0.1",
        coordinator_port=1,
        secret=b"secret",
        settings=settings_at(settings, tmp_path),
        bind_host="127.0.0.1",
        advertised_host=None,
        ports="any",
        versions={},
    )
    with pytest.raises(ConnectionLost, match="127.0.0.1:1"):
        run_slot(order, SlotIndex(0), nobody)


def settings_at(settings: main.SlotSettings, folder: Path) -> main.SlotSettings:
    return dataclasses.replace(settings, checkpoint_location=str(folder))
