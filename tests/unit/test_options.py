"""What the options of a query mean, and which contradict each other."""

import sys
from pathlib import Path

import pytest

from tidegate.api.options import QueryOptions, read_options, split_options
from tidegate.model.errors import OptionError
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.kinds import CheckpointStorage, Guarantee
from tidegate.protocol.recovery import SinkRollback
from tidegate.protocol.retention import KeepFor, KeepNumber
from tidegate.worker.local_copies import LocalRecovery
from tidegate.worker.settings import HeapSnapshots
from tidegate.worker.state_backends import NEEDS_ROCKSDICT, open_backends


def read(**given: str) -> QueryOptions:
    """Names with `_` for the dot."""
    own, sink = split_options({name.replace("_", "."): value for name, value in given.items()})
    assert sink == {}
    return read_options(own, {})


def refusal(**given: str) -> str:
    with pytest.raises(OptionError) as caught:
        read(**given)
    return str(caught.value)


def test_what_a_query_gets_that_says_nothing() -> None:
    options = read()
    assert (options.guarantee, options.switch_after_ms) == (Guarantee.EXACTLY_ONCE, 1_000)
    assert options.keep == KeepNumber(3)
    assert options.active_backpressure is ActiveBackpressure.ON
    assert (options.window_bytes, options.debloat_target_ms) == (1 << 20, 1_000)
    assert (options.restore_from, options.rollback) == (None, SinkRollback.NONE)


@pytest.mark.parametrize(
    ("given", "switch_after_ms"),
    [
        ({"checkpoint_unaligned": "false"}, None),
        ({"checkpoint_unaligned": "true"}, 0.0),
        ({"checkpoint_unaligned": "auto", "checkpoint_alignedTimeout": "20ms"}, 20),
        ({"checkpoint_mode": "at_least_once"}, None),
        ({"checkpoint_mode": "at_least_once", "checkpoint_unaligned": "auto"}, None),
        ({"checkpoint_mode": "AT_LEAST_ONCE", "checkpoint_unaligned": "false"}, None),
    ],
)
def test_when_a_checkpoint_switches(given: dict[str, str], switch_after_ms: float | None) -> None:
    assert read(**given).switch_after_ms == switch_after_ms


def test_at_least_once_is_never_unaligned() -> None:
    said = refusal(checkpoint_mode="at_least_once", checkpoint_unaligned="true")
    assert said.startswith("Option 'checkpoint.mode' is at_least_once, which is never unaligned")
    assert read(checkpoint_mode="at_least_once").guarantee is Guarantee.AT_LEAST_ONCE
    assert "exactly_once, at_least_once" in refusal(checkpoint_mode="twice")


@pytest.mark.parametrize(
    ("text", "keep"),
    [("1", KeepNumber(1)), (" 7 ", KeepNumber(7)), ("1h", KeepFor(3_600_000)), ("90 seconds", KeepFor(90_000))],
)
def test_checkpoints_are_kept_by_number_or_by_time(text: str, keep: KeepNumber | KeepFor) -> None:
    assert read(checkpoint_retained=text).keep == keep


def test_a_number_of_checkpoints_that_is_none_is_refused() -> None:
    for text in ("0", "-1", "1.5", "many", ""):
        assert "a number of checkpoints, at least 1, or a time such as 1h" in refusal(checkpoint_retained=text)


@pytest.mark.parametrize("mode", ActiveBackpressure)
def test_active_backpressure_has_three_ways(mode: ActiveBackpressure) -> None:
    assert read(source_activeBackpressure=mode.value).active_backpressure is mode


def test_windows_follow_the_target_unless_debloating_is_off() -> None:
    assert read(network_target="250ms").debloat_target_ms == 250
    assert read(network_debloat="false", network_target="250ms").debloat_target_ms is None
    assert refusal(network_target="0s") == "Option 'network.target' must be more than 0."
    assert "true, false" in refusal(network_debloat="maybe")


def test_where_to_start_from() -> None:
    options = read(restore_from="chk/checkpoints/7-g1", restore_allowDuplicates="true")
    assert (options.restore_from, options.rollback) == ("chk/checkpoints/7-g1", SinkRollback.DUPLICATES_ALLOWED)
    assert "is empty" in refusal(restore_from=" ")
    assert "did you mean 'restore.from'?" in refusal(restore_form="chk")


def test_state_in_rocksdb_without_its_package_is_refused_on_the_driver_and_on_an_executor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read(state_backend="RocksDB").state_backend == "rocksdb"
    # As Python leaves it when a package is not there.
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    monkeypatch.delitem(sys.modules, "tidegate.state.rocksdb_options", raising=False)
    assert refusal(state_backend="rocksdb") == NEEDS_ROCKSDICT
    assert "pip install rocksdict," in NEEDS_ROCKSDICT
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with pytest.raises(OptionError, match="needs the package rocksdict"):
        open_backends("rocksdb")
    assert list(tmp_path.iterdir()) == []


def test_slots_keep_copies_where_that_helps_unless_told_otherwise() -> None:
    assert read().local_recovery is LocalRecovery.WHERE_IT_HELPS
    assert read(state_localRecovery="false").local_recovery is LocalRecovery.OFF


def test_state_in_memory_is_stored_by_what_changed_unless_that_is_turned_off() -> None:
    assert read().heap_snapshots is HeapSnapshots.INCREMENTAL
    assert read(state_incremental="false").heap_snapshots is HeapSnapshots.WHOLE


def test_changes_of_state_are_stored_all_along_if_asked_for_and_not_without_files() -> None:
    assert read().changelog_image_interval_ms is None
    assert read(state_changelog_materializeInterval="1m").changelog_image_interval_ms is None
    assert read(state_changelog="true").changelog_image_interval_ms == 600_000
    assert read(state_changelog="true", state_changelog_materializeInterval="1m").changelog_image_interval_ms == 60_000
    with pytest.raises(OptionError, match="leave one of both out"):
        read(state_changelog="true", checkpoint_storage="driver")


def test_checkpoints_are_in_files_unless_told_otherwise() -> None:
    assert read().checkpoint_storage is CheckpointStorage.FILES
    assert read(checkpoint_storage="driver").checkpoint_storage is CheckpointStorage.DRIVER
    assert "files, driver" in refusal(checkpoint_storage="jobmanager")


def test_a_checkpoint_without_its_rows_in_flight_is_named_by_its_number() -> None:
    assert read().without_captured_rows is None
    assert read(checkpoint_recoverWithoutChannelState="17").without_captured_rows == 17
    assert "write a whole number of at least 1" in refusal(checkpoint_recoverWithoutChannelState="chk-17")
