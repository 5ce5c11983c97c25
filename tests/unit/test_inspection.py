"""Looking at a location from outside: what is there, whether it is intact, what nobody needs."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from tests.unit.test_durable import STATE, Place, manifest, take_savepoint
from tidegate.cli.main import app
from tidegate.coordinator.inspection import Location, StoredCheckpoint, open_path, verify
from tidegate.coordinator.orphans import find_orphans, remove
from tidegate.coordinator.stored_views import stored_views
from tidegate.model.errors import UserError
from tidegate.model.ids import CheckpointId, Generation
from tidegate.protocol.orphans import Belongs, Needed, WrittenFile, orphans
from tidegate.storage.job_log import JobLog
from tidegate.storage.statistics import open_location, read_statistics

FOREVER_MS = 1 << 60
CHANNELS, TABLE = "shared/1-g1-s0.channels", "shared/1-g1-s0.0a1b-7.sst"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "chk")


def two_checkpoints(place: Place) -> None:
    job = place.started()
    place.take(job, manifest(1, shared=[CHANNELS, TABLE]))
    place.take(job, manifest(2, shared=[TABLE]))


def location(place: Place) -> Location:
    found = open_path(str(place.folder))
    assert isinstance(found, Location)
    return found


# -- what is there


def test_a_path_is_a_location_a_checkpoint_or_a_savepoint(place: Place, tmp_path: Path) -> None:
    two_checkpoints(place)
    job = place.open()
    job.start_generation(at_ms=0)
    take_savepoint(job, tmp_path / "mine", 3)
    assert [completed.checkpoint for completed in location(place).retained()] == [1, 2, 3]
    for path, root, id in [
        ("chk/checkpoints/2-g1", "chk", 2),
        ("chk/checkpoints/2-g1/manifest.json", "chk", 2),
        ("mine/", "mine", 3),
    ]:
        found = open_path(str(tmp_path / path))
        assert isinstance(found, StoredCheckpoint)
        assert (found.root, found.manifest.checkpoint) == (str(tmp_path / root), id)


@pytest.mark.parametrize("path", ["nowhere", "chk/checkpoints", "chk/checkpoints/9-g1"])
def test_what_is_neither_is_refused_and_nothing_is_made(place: Place, tmp_path: Path, path: str) -> None:
    two_checkpoints(place)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="name a"):
        open_path(str(tmp_path / path))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("is_gone", ["its folder", "its files"])
def test_a_savepoint_that_its_owner_took_away_is_said_to_be_missing_and_not_made_again(
    place: Place, tmp_path: Path, is_gone: str
) -> None:
    two_checkpoints(place)
    job = place.open()
    job.start_generation(at_ms=0)
    savepoint = Path(take_savepoint(job, tmp_path / "mine", 3))
    shutil.rmtree(savepoint)
    if is_gone == "its files":
        savepoint.mkdir()
    before = sorted(tmp_path.rglob("*"))
    views = {view.id: view for view in stored_views(str(place.folder))}
    assert [views[CheckpointId(id)].status for id in (1, 2, 3)] == ["completed", "completed", "damaged"]
    assert str(savepoint) in (views[CheckpointId(3)].failure_reason or "")
    assert [facts.checkpoint for facts in read_statistics(open_location(str(place.folder)))] == []
    assert len(verify(location(place)).damage) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_location_is_looked_at_without_the_right_to_write_there(place: Place) -> None:
    two_checkpoints(place)
    with patch("os.access", return_value=False):  # not by chmod: root may write everywhere
        assert [completed.checkpoint for completed in location(place).retained()] == [1, 2]
        assert open_location(str(place.folder)).list("log")
        assert isinstance(open_path(str(place.folder / "checkpoints" / "2-g1")), StoredCheckpoint)


# -- whether it is intact


def test_every_file_is_read_once_and_found_to_be_as_its_manifest_says(place: Place) -> None:
    two_checkpoints(place)
    result = verify(location(place))
    assert (result.files, result.damage) == (6, ())
    assert result.size_bytes > 4 * len(STATE)


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("checkpoints/2-g1/0.state", None, "is missing"),
        ("checkpoints/2-g1/0.state", STATE[:-1], "bytes where the manifest says"),
        (TABLE, bytes([STATE[0] ^ 1]) + STATE[1:], "its checksum is not the one in the manifest"),
        (CHANNELS, b"", "bytes where the manifest says"),
        ("checkpoints/1-g1/manifest.json", b"{}", "cannot be used"),
    ],
)
def test_a_damaged_file_is_named(place: Place, path: str, content: bytes | None, reason: str) -> None:
    two_checkpoints(place)
    if content is None:
        (place.folder / path).unlink()
    else:
        (place.folder / path).write_bytes(content)
    (said,) = verify(location(place)).damage
    assert path in said and reason in said
    answer = CliRunner().invoke(app, ["inspect", str(place.folder), "--verify"])
    assert answer.exit_code == 1 and path in answer.output and "1 damaged" in answer.output


# -- what nobody needs


def written(
    path: str,
    checkpoint: int,
    generation: int,
    belongs: Belongs = Belongs.TO_ONE_CHECKPOINT,
    *,
    run: str | None = None,
) -> WrittenFile:
    return WrittenFile(
        path=path, checkpoint=CheckpointId(checkpoint), generation=Generation(generation), belongs=belongs, run=run
    )


def found_paths(
    files: Sequence[WrittenFile],
    needs: Needed,
    *,
    starts: Mapping[Generation, int],
    before_ms: int,
    runs: frozenset[str] = frozenset(),
) -> list[str]:
    return [file.path for file in orphans(files, needs, starts=starts, runs=runs, before_ms=before_ms)]


def needed(*checkpoints: tuple[int, int], named: tuple[str, ...] = (), unknown_up_to: int = 0) -> Needed:
    ids = frozenset((CheckpointId(id), Generation(generation)) for id, generation in checkpoints)
    return Needed(checkpoints=ids, named=frozenset(named), unknown_up_to=CheckpointId(unknown_up_to))


STARTS = {Generation(1): 0, Generation(2): 1_000, Generation(3): 5_000}


def test_files_of_a_generation_that_may_run_are_never_orphans() -> None:
    files = [written(f"of {generation}", 9, generation) for generation in (1, 2, 3, 4)]
    found = found_paths(files, needed(), starts=STARTS, before_ms=FOREVER_MS)
    assert found == ["of 1", "of 2"], "the third is the newest, of the fourth nothing is known"
    found = found_paths(files, needed(), starts={Generation(3): 5_000}, before_ms=FOREVER_MS)
    assert found == ["of 1", "of 2"], "a shortened log knows the newest alone"


def test_a_generation_is_over_when_the_next_one_has_been_started_for_long_enough() -> None:
    files = [written("of 1", 9, 1), written("of 2", 9, 2)]
    for before_ms, expected in [(999, []), (1_000, ["of 1"]), (4_999, ["of 1"]), (5_000, ["of 1", "of 2"])]:
        assert found_paths(files, needed(), starts=STARTS, before_ms=before_ms) == expected


def test_of_savepoints_only_those_of_this_jobs_own_runs_are_orphans() -> None:
    files = [written(f"{run} of {generation}", 9, generation, run=run) for run in ("a", "b") for generation in (1, 3)]
    for runs, expected in [("", []), ("a", ["a of 1"]), ("ab", ["a of 1", "b of 1"])]:
        assert found_paths(files, needed(), starts=STARTS, before_ms=FOREVER_MS, runs=frozenset(runs)) == expected
    assert found_paths(files, needed(), starts=STARTS, before_ms=999, runs=frozenset("ab")) == []
    assert found_paths(files, needed((9, 1)), starts=STARTS, before_ms=FOREVER_MS, runs=frozenset("ab")) == []


def test_a_savepoint_without_a_run_in_its_name_is_left_for_a_day() -> None:
    files, day_ms = [written("of 1", 9, 1, run=""), written("of 3", 9, 3, run="")], 24 * 3_600_000
    for before_ms, expected in [(day_ms, []), (day_ms + 999, []), (day_ms + 1_000, ["of 1"]), (FOREVER_MS, ["of 1"])]:
        assert found_paths(files, needed(), starts=STARTS, before_ms=before_ms) == expected


def test_what_a_kept_checkpoint_has_or_names_is_no_orphan() -> None:
    shared = Belongs.TO_WHOEVER_NAMES_IT
    files = [
        written("own", 1, 1),
        written("same id", 1, 2),
        written("named", 1, 1, shared),
        written("not", 1, 1, shared),
    ]
    found = found_paths(files, needed((1, 1), named=("named",)), starts=STARTS, before_ms=FOREVER_MS)
    assert found == ["same id", "not"]


def test_a_damaged_manifest_may_name_any_shared_file_that_was_there_when_it_was_written() -> None:
    files = [written(str(id), id, 1, Belongs.TO_WHOEVER_NAMES_IT) for id in (3, 4, 5)]
    assert found_paths(files, needed(unknown_up_to=4), starts=STARTS, before_ms=FOREVER_MS) == ["5"]


def crashed(place: Place) -> list[str]:
    """Generation 1 was killed in the midst of a checkpoint and a savepoint; gives what it left.

    Another query takes a savepoint just now, which looks like one of that generation.
    """
    place.run = "5f2c9a1b"
    two_checkpoints(place)
    left = ["checkpoints/3-g1/0.state", "savepoints/savepoint-4-g1-5f2c9a1b/0.state", "shared/3-g1-s0.0c-1.sst"]
    others = ["checkpoints/5-g2/0.state", "savepoints/savepoint-4-g1-00c0ffee/0.state"]
    for path in [*left, "shared/3-g1-s1.channels", *others]:
        place.store.put(path, STATE)
    for path in ["mine.txt", "shared/notes", "savepoints/mine/0.state", "staging/source-0/1", "statistics/failed.json"]:
        place.store.put(path, b"not a checkpoint's")
    return [*left, "shared/3-g1-s1.channels"]


def test_what_a_crashed_generation_left_is_found_once_the_next_has_started(place: Place) -> None:
    left = crashed(place)
    log = JobLog(place.store, driver="another")
    assert find_orphans(place.store, log.read(), before_ms=FOREVER_MS) == [], "it may still be running"
    log.start_generation(parallelism=1, at_ms=7_000)
    assert find_orphans(place.store, log.read(), before_ms=6_999) == []
    assert sorted(find_orphans(place.store, log.read(), before_ms=7_000)) == sorted(left)


def test_a_shared_file_that_a_checkpoint_under_way_may_need_is_no_orphan(place: Place) -> None:
    """The newest generation has retired the last one that names it, and that was there when another was triggered."""
    two_checkpoints(place)
    running = place.open()
    running.start_generation(at_ms=7_000)
    for checkpoint in (10, 11):
        place.take(running, manifest(checkpoint, generation=2))
    running.retire(frozenset({CheckpointId(12)}), told=CheckpointId(11))
    log = JobLog(place.store, driver="another")
    assert TABLE in place.store.list(), "it waits for checkpoint 12"
    assert find_orphans(place.store, log.read(), before_ms=FOREVER_MS) == []
    place.store.put("checkpoints/9-g1/0.state", STATE)  # that belongs to none but its own
    assert find_orphans(place.store, log.read(), before_ms=FOREVER_MS) == ["checkpoints/9-g1/0.state"]
    log.start_generation(parallelism=1, at_ms=8_000)
    assert TABLE in find_orphans(place.store, log.read(), before_ms=FOREVER_MS), "no checkpoint is under way any more"


def test_a_savepoint_that_is_whole_is_the_users_even_if_the_log_does_not_know_it(place: Place) -> None:
    place.run = "5f2c9a1b"
    two_checkpoints(place)
    for name in ("manifest.json", "0.state"):
        place.store.put(f"savepoints/savepoint-3-g1-5f2c9a1b/{name}", STATE)
    JobLog(place.store, driver="another").start_generation(parallelism=1, at_ms=0)
    assert find_orphans(place.store, JobLog(place.store, driver="x").read(), before_ms=FOREVER_MS) == []


def test_removing_orphans_leaves_all_that_is_needed(place: Place) -> None:
    left = crashed(place)
    JobLog(place.store, driver="another").start_generation(parallelism=1, at_ms=0)
    before = place.store.list()
    listed = CliRunner().invoke(app, ["inspect", str(place.folder), "--orphans"])
    assert listed.exit_code == 0 and all(path in listed.output for path in left)
    assert "generation 2, which may be running, are left alone" in listed.output
    assert place.store.list() == before, "listing removes nothing"
    young = CliRunner().invoke(app, ["inspect", str(place.folder), "--orphans", "--remove", "--older-than", "100000d"])
    assert young.exit_code == 0 and place.store.list() == before
    assert CliRunner().invoke(app, ["inspect", str(place.folder), "--orphans", "--remove"]).exit_code == 0
    assert place.store.list() == [path for path in before if path not in left]
    assert verify(location(place)).damage == ()


def test_a_manifest_goes_before_the_files_it_names(place: Place) -> None:
    class Watched:
        def __init__(self) -> None:
            self.deleted: list[str] = []

        def delete(self, path: str) -> None:
            self.deleted.append(path)

    watched = Watched()
    remove(watched, ["checkpoints/1-g1/0.state", "checkpoints/1-g1/manifest.json"])  # type: ignore[arg-type]
    assert watched.deleted[0].endswith("manifest.json")


# -- the command


def test_inspect_shows_a_location_and_a_checkpoint(place: Place) -> None:
    two_checkpoints(place)
    shown = CliRunner().invoke(app, ["inspect", str(place.folder)]).output
    assert "1-g1" in shown and "2-g1" in shown and "checkpoints/2-g1" in shown
    shown = CliRunner().invoke(app, ["inspect", str(place.folder / "checkpoints" / "2-g1")]).output
    assert "Checkpoint 2 of generation 1, aligned" in shown and TABLE in shown and "2 files" in shown


def test_inspect_refuses_in_one_sentence(place: Place, tmp_path: Path) -> None:
    two_checkpoints(place)
    answer = CliRunner().invoke(app, ["inspect", str(tmp_path / "nowhere")])
    assert answer.exit_code == 1 and "There is nothing at" in answer.output
    answer = CliRunner().invoke(app, ["inspect", str(place.folder / "checkpoints" / "2-g1"), "--orphans"])
    assert answer.exit_code == 1 and "name the checkpointLocation" in answer.output
    assert CliRunner().invoke(app, ["inspect", str(place.folder), "--remove"]).exit_code == 2
