"""A checkpoint is not claimed while a query runs on its location; a note that a killed driver left is no query."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_durable import Place, manifest, take_savepoint
from tests.unit.test_ownership import opened, started_from
from tidegate.api.control import FoundByLocation
from tidegate.coordinator import claims
from tidegate.coordinator.durable import DurableSettings
from tidegate.coordinator.views import JobView
from tidegate.model.errors import JobFailure, OptionError
from tidegate.model.ids import CheckpointId
from tidegate.protocol.retention import KeepNumber, RestoreMode
from tidegate.server import control
from tidegate.server.control import control_routes
from tidegate.server.page import QueryPage
from tidegate.storage.job_log import CheckpointRetired
from tidegate.storage.running_query import RunningQuery, note_running, read_running


class NoControl:
    def savepoint(self, folder: str | None, *, unaligned: bool) -> str:
        raise JobFailure("not asked for here")

    def stop(self) -> None:
        raise JobFailure("not asked for here")

    def stop_with_savepoint(self, folder: str | None, *, unaligned: bool) -> str:
        raise JobFailure("not asked for here")


def serve(name: str, location: Path | str) -> QueryPage:
    """As a running query does."""
    page = QueryPage(
        name,
        lambda: JobView(state="running", generation=1),
        host="127.0.0.1",
        port=0,
        routes=lambda: control_routes(
            query=name,
            location=str(location),
            token="secret",
            view=lambda: JobView(state="running", generation=1),
            control=NoControl(),
        ),
    )
    assert page.url is not None
    return page


@pytest.fixture
def owner(tmp_path: Path) -> Place:
    """Of the checkpoint, and of a savepoint."""
    place = Place(tmp_path / "owner")
    job = place.started()
    place.take(job, manifest(1))
    take_savepoint(job, place.folder / "savepoints" / "savepoint-2-g1", 2)
    return place


@pytest.fixture
def page(owner: Place) -> Iterator[QueryPage]:
    """The owner runs."""
    page = serve("totals", owner.folder)
    FoundByLocation("totals").note(owner.store, page.url)
    assert read_running(owner.store) is not None
    yield page
    page.close()


def start(tmp_path: Path, *, path: str = "owner/checkpoints/1-g1", mode: RestoreMode = RestoreMode.CLAIM) -> None:
    """As far as it can be refused."""
    settings = DurableSettings(
        fingerprint=("f",), keep=KeepNumber(2), restore_from=str(tmp_path / path), restore_mode=mode
    )
    opened(Place(tmp_path / "own"), settings).check_compatible()


def test_a_checkpoint_of_a_running_query_is_not_claimed(tmp_path: Path, owner: Place, page: QueryPage) -> None:
    before = owner.store.list()
    with pytest.raises(OptionError) as caught:
        start(tmp_path)
    said = str(caught.value)
    assert "'restore.mode' is 'claim'" in said and "'totals'" in said and str(owner.folder) in said
    assert said.endswith("stop it first, or use no_claim.") and "\n" not in said and ". " not in said
    assert owner.store.list() == before and Place(tmp_path / "own").store.list() == []


def test_it_may_be_started_from_without_a_claim(tmp_path: Path, owner: Place, page: QueryPage) -> None:
    start(tmp_path, mode=RestoreMode.NO_CLAIM)


def test_a_savepoint_of_a_running_query_may_be_claimed(tmp_path: Path, owner: Place, page: QueryPage) -> None:
    start(tmp_path, path="owner/savepoints/savepoint-2-g1")


def test_a_note_that_a_killed_driver_left_is_no_running_query(tmp_path: Path, owner: Place, page: QueryPage) -> None:
    page.close()
    assert read_running(owner.store) is not None
    start(tmp_path)


def test_nor_is_another_query_that_listens_there_now(tmp_path: Path, owner: Place) -> None:
    other = serve("others", tmp_path / "elsewhere")
    try:
        FoundByLocation("totals").note(owner.store, other.url)
        start(tmp_path)
    finally:
        other.close()


def test_a_query_that_has_its_own_checkpoint_makes_no_claim(tmp_path: Path, owner: Place, page: QueryPage) -> None:
    own = Place(tmp_path / "own")
    own.take(own.started(), manifest(7))
    start(tmp_path)


def test_a_location_by_another_name_is_the_same(tmp_path: Path, owner: Place, page: QueryPage) -> None:
    (tmp_path / "link").symlink_to(owner.folder)
    with pytest.raises(OptionError, match="'totals' runs on"):
        start(tmp_path, path="link/checkpoints/1-g1")


def test_nor_does_it_matter_which_of_its_schemes_names_a_bucket() -> None:
    page = serve("totals", "s3a://bucket/chk")
    try:
        assert page.url is not None
        note = RunningQuery(name="totals", url=page.url, token="t")
        assert claims._runs_on(note, "s3://bucket/chk/") and not claims._runs_on(note, "s3://bucket/other")
    finally:
        page.close()


def test_what_can_only_be_seen_on_another_machine_is_said(
    tmp_path: Path, owner: Place, caplog: pytest.LogCaptureFixture
) -> None:
    note_running(owner.store, RunningQuery(name="totals", url="http://127.0.0.1:1", token="t", host="another"))
    with caplog.at_level(logging.WARNING, logger="tidegate"):
        start(tmp_path)
    assert "can only be seen on the machine 'another'" in caplog.text


def test_what_is_claimed_stays_while_a_query_that_was_started_there_again_runs(
    tmp_path: Path, owner: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Its next checkpoints may refer to files of the claimed one."""
    own = Place(tmp_path / "own")
    job = started_from(own, owner.folder / "checkpoints" / "1-g1", RestoreMode.CLAIM, keep=KeepNumber(1))
    page = serve("totals", owner.folder)
    FoundByLocation("totals").note(owner.store, page.url)
    try:
        own.take(job, manifest(10))
        with caplog.at_level(logging.WARNING, logger="tidegate"):
            job.retire(frozenset(), told=CheckpointId(10))
        assert "checkpoints/1-g1/manifest.json" in owner.store.list()
        assert own.logged(CheckpointRetired) == [], "it is tried again"
        assert f"{owner.folder} is not removed as long as query 'totals' runs there" in caplog.text
    finally:
        page.close()
    own.take(job, manifest(11))
    job.retire(frozenset(), told=CheckpointId(11))
    assert "checkpoints/1-g1/manifest.json" not in owner.store.list()
    assert own.logged(CheckpointRetired) == [10, 1]


def test_a_query_is_asked_where_it_answers() -> None:
    assert claims.JOB == control.JOB
