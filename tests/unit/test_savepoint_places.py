"""Where a savepoint goes and how it is taken, as far as that can be said before the job is asked."""

from pathlib import Path

import pytest

from tidegate.api.places import checkpoint_path
from tidegate.api.savepoints import SavepointPlace
from tidegate.model.errors import OptionError
from tidegate.protocol.kinds import Guarantee
from tidegate.protocol.requests import SavepointAlignment

EXACTLY = Guarantee.EXACTLY_ONCE


def test_a_savepoint_goes_below_the_checkpoint_location_unless_a_folder_is_named() -> None:
    place = SavepointPlace("/data/chk/", EXACTLY)
    assert place.folder(None) == "/data/chk/savepoints"
    assert place.folder("/mine/") == place.folder(Path("/mine")) == place.folder("file:///mine") == "/mine"
    assert place.folder("s3://bucket/mine/") == "s3://bucket/mine"
    assert SavepointPlace("s3://bucket/chk", EXACTLY).folder(None) == "s3://bucket/chk/savepoints"


def test_a_relative_folder_means_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert SavepointPlace("/chk", EXACTLY).folder("mine") == str(tmp_path / "mine")
    assert checkpoint_path("mine/savepoint-1-g1") == str(tmp_path / "mine" / "savepoint-1-g1")


def test_a_location_that_goes_with_the_query_takes_no_savepoint() -> None:
    place = SavepointPlace(None, EXACTLY)
    with pytest.raises(OptionError, match=r"name a folder, as in query.savepoint\('a/folder'\)"):
        place.folder(None)
    assert place.folder("/mine") == "/mine"


@pytest.mark.parametrize("path", ["", "  ", 7, b"mine"])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(OptionError, match="write a path, or leave it out"):
        SavepointPlace("/chk", EXACTLY).folder(path)  # type: ignore[arg-type]


def test_a_savepoint_is_aligned_unless_asked_otherwise_and_never_unaligned_at_least_once() -> None:
    assert SavepointPlace("/chk", EXACTLY).alignment(unaligned=False) is SavepointAlignment.ALIGNED
    assert SavepointPlace("/chk", EXACTLY).alignment(unaligned=True) is SavepointAlignment.UNALIGNED
    at_least_once = SavepointPlace("/chk", Guarantee.AT_LEAST_ONCE)
    assert at_least_once.alignment(unaligned=False) is SavepointAlignment.ALIGNED
    with pytest.raises(OptionError, match="at_least_once has no unaligned savepoints"):
        at_least_once.alignment(unaligned=True)


def test_a_checkpoint_location_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "chk" / "log").mkdir(parents=True)
    with pytest.raises(OptionError, match="is a checkpointLocation: name one checkpoint in its folder 'checkpoints'"):
        checkpoint_path(str(tmp_path / "chk"))
    assert checkpoint_path(str(tmp_path / "chk" / "checkpoints" / "7-g1")).endswith("chk/checkpoints/7-g1")
    assert checkpoint_path("s3://bucket/chk/checkpoints/7-g1") == "s3://bucket/chk/checkpoints/7-g1"
