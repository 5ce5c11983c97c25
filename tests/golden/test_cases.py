"""The golden method's own rules: which cases there are, which are played every day, and what counts as wrong."""

import itertools
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.golden.cases import (
    PHASE_OF,
    RESCALED,
    SLOTS,
    Backend,
    Case,
    Mode,
    Operator,
    Phase,
    Place,
    Sink,
    Source,
    Victim,
    full_product,
    pairs_of,
    pairwise,
    parse_case,
    possible_pairs,
    rescaled,
    rescaled_every_day,
)
from tests.golden.running import check_restored, check_rows, committed_rows, settled
from tests.golden.strike import RESTORED, Kill, Restored, Stumble, blows_of
from tidegate.testing import Step

EVERY_DAY = pairwise(0)
WINDOWS = parse_case("local-worker-LOGGED-aligned-native-parquet-window-heap-2")
EPOCHS = parse_case("local-worker-LOGGED-aligned-native-foreachBatch-window-heap-2")
COUNTS = parse_case("local-worker-LOGGED-aligned-native-parquet-aggregation-heap-2")


def test_every_pair_of_choices_occurs_in_about_twenty_cases() -> None:
    assert set().union(*map(pairs_of, EVERY_DAY)) == possible_pairs()
    assert len(EVERY_DAY) <= 24


def test_a_killed_drivers_job_goes_on_with_every_number_of_slots_on_every_backend() -> None:
    cases = rescaled()
    assert {(case.job.backend, case.job.mode, case.slots) for case in cases} == set(
        itertools.product(Backend, (Mode.ALIGNED, Mode.UNALIGNED), RESCALED)
    )
    assert {(case.job.backend, case.job.operator) for case in cases} == set(itertools.product(Backend, Operator))
    assert {*cases} <= {*full_product()}


def test_every_day_each_backend_goes_on_with_other_slots_and_each_mode_on_several() -> None:
    few = rescaled_every_day()
    assert len(few) <= 6
    assert {case.job.backend for case in few} == set(Backend)
    assert {case.slots for case in few} == {*RESCALED} - {SLOTS}
    for mode in (Mode.ALIGNED, Mode.UNALIGNED):
        assert len({case.job.backend for case in few if case.job.mode is mode}) >= 3
    assert {case.job.operator for case in few} == set(Operator)
    assert {case.job.source for case in few} == set(Source) and {case.job.sink for case in few} == set(Sink)
    aggregation_by_what_changed = (Backend.HEAP_CHANGELOG, Operator.AGGREGATION)
    assert aggregation_by_what_changed in {(case.job.backend, case.job.operator) for case in few}


def test_most_moments_are_struck_every_day_and_all_by_the_full_product() -> None:
    assert len({case.moment for case in EVERY_DAY}) >= 18
    assert {case.moment for case in full_product()} == PHASE_OF.keys()


def test_every_step_of_the_barrier_path_is_a_moment() -> None:
    # Nothing is aborted unless something fails first.
    assert set(Step) - PHASE_OF.keys() == {Step.ABORT_HEARD}


def test_executors_are_killed_where_they_are_processes_of_their_own() -> None:
    assert {case.place for case in full_product() if case.victim is Victim.EXECUTOR} == {Place.CLUSTER}


@pytest.mark.parametrize("case", EVERY_DAY, ids=str)
def test_a_case_is_replayed_by_its_name(case: Case) -> None:
    assert parse_case(str(case)) == case


def test_a_job_stumbles_before_it_is_killed_while_it_restores() -> None:
    for case in full_product():
        blows = blows_of(case, 7)
        assert isinstance(blows[-1], Kill) and blows[-1].moment is case.moment
        assert [type(blow) for blow in blows[:-1]] == ([Stumble] if PHASE_OF[case.moment] is Phase.RESTORING else [])


def test_a_lost_a_doubled_and_a_changed_row_are_found() -> None:
    rows = [(1, 0, 5), (2, 0, 7)]
    check_rows(WINDOWS, rows, rows)
    with pytest.raises(AssertionError, match=r"doubled: 1 rows, first \[\(2, 0, 7\)\]"):
        check_rows(WINDOWS, [*rows, rows[1]], rows)
    with pytest.raises(AssertionError, match=r"lost: 1 rows, first \[\(1, 0, 5\)\]; wrong: 0 rows"):
        check_rows(WINDOWS, rows[1:], rows)
    with pytest.raises(AssertionError, match=r"lost: 1 rows, .*; wrong: 1 rows, first \[\(1, 0, 6\)\]"):
        check_rows(WINDOWS, [(1, 0, 6), rows[1]], rows)


def test_in_update_mode_the_last_row_of_a_group_counts_and_no_change_may_come_twice() -> None:
    changes = [(1, 1, 10), (2, 1, 4), (1, 3, 30)]
    assert settled(Operator.AGGREGATION, changes) == [(1, 3, 30), (2, 1, 4)]
    check_rows(COUNTS, changes, [(1, 3, 30), (2, 1, 4)])
    with pytest.raises(AssertionError, match="doubled"):
        check_rows(COUNTS, [*changes, (1, 1, 10)], [(1, 3, 30), (2, 1, 4)])


def went_on(folder: Path, generation: int, *, rows_in_flight: int = 0, suffixes: tuple[str, ...] = ()) -> None:
    (folder / "strike").mkdir(exist_ok=True)
    restored = Restored(generation, rows_in_flight, list(suffixes))
    (folder / "strike" / f"{RESTORED}{generation:03d}").write_bytes(msgspec.json.encode(restored))


def test_what_the_last_generation_went_on_from_counts(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no generation has gone on"):
        check_restored(WINDOWS, tmp_path)
    went_on(tmp_path, 2, rows_in_flight=7)
    with pytest.raises(AssertionError, match="an aligned checkpoint held rows in flight"):
        check_restored(WINDOWS, tmp_path)
    unaligned = parse_case("local-worker-LOGGED-unaligned-native-parquet-window-heap-2")
    assert check_restored(unaligned, tmp_path).rows_in_flight == 7
    went_on(tmp_path, 10)
    assert check_restored(WINDOWS, tmp_path).checkpoint == 10


@pytest.mark.parametrize("backend", ["heapChangelog", "rocksdbChangelog"])
def test_a_changelog_in_which_nothing_was_is_found(tmp_path: Path, backend: str) -> None:
    rows = parse_case(f"local-driver-LOGGED-aligned-native-parquet-window-{backend}-3")
    entries = parse_case(f"local-driver-LOGGED-aligned-native-parquet-timers-{backend}-3")
    went_on(tmp_path, 2, suffixes=(".channels", ".rows"))
    check_restored(rows, tmp_path)
    with pytest.raises(AssertionError, match="no changes were stored in .entries"):
        check_restored(entries, tmp_path)
    went_on(tmp_path, 2, suffixes=(".channels", ".entries"))
    check_restored(entries, tmp_path)
    with pytest.raises(AssertionError, match="no changes were stored in .rows"):
        check_restored(rows, tmp_path)


def test_an_epoch_that_is_given_out_again_counts_once_and_must_be_the_same(tmp_path: Path) -> None:
    def give_out(epoch: int, call: str, values: list[int]) -> None:
        (tmp_path / "out" / str(epoch)).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"v": values}), tmp_path / "out" / str(epoch) / f"{call}.parquet")

    give_out(1, "a", [1, 2])
    give_out(1, "b", [2, 1])
    give_out(2, "c", [3])
    assert committed_rows(EPOCHS, tmp_path) == [(1,), (2,), (3,)]
    give_out(2, "d", [4])
    with pytest.raises(AssertionError, match="epoch 2 was given out with other rows"):
        committed_rows(EPOCHS, tmp_path)
