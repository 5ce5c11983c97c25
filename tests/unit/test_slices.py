"""How many rows make a slice."""

from tidegate.worker.slices import MOST_ROWS, ProbingSizer, SliceSizer


def grown(sizer: SliceSizer, *, cost_ms_per_row: float, slices: int) -> int:
    for _ in range(slices):
        sizer.observe(rows=sizer.rows, elapsed_ms=sizer.rows * cost_ms_per_row)
    return sizer.rows


def test_it_begins_small_so_that_an_expensive_function_does_not_hold_the_first_barrier() -> None:
    assert SliceSizer(10.0).rows == 16


def test_rows_that_cost_a_millisecond_come_in_tens() -> None:
    assert grown(SliceSizer(10.0), cost_ms_per_row=1.0, slices=5) == 10


def test_cheap_rows_come_in_whole_batches_within_a_few_slices() -> None:
    assert grown(SliceSizer(10.0), cost_ms_per_row=1e-6, slices=10) == 1 << 16


def test_it_grows_step_by_step() -> None:
    assert grown(SliceSizer(10.0), cost_ms_per_row=0.0, slices=1) == 64


def test_rows_that_become_dear_make_the_next_slice_small() -> None:
    sizer = SliceSizer(10.0)
    grown(sizer, cost_ms_per_row=1e-6, slices=10)
    sizer.observe(rows=1000, elapsed_ms=1000.0)
    assert sizer.rows == 10


def test_one_cheap_slice_does_not_make_the_next_one_long() -> None:
    sizer = SliceSizer(10.0)
    grown(sizer, cost_ms_per_row=1.0, slices=5)
    sizer.observe(rows=10, elapsed_ms=0.0)
    assert sizer.rows == 20


def test_a_slice_has_at_least_one_row() -> None:
    assert grown(SliceSizer(10.0), cost_ms_per_row=500.0, slices=3) == 1


def test_a_slice_without_rows_teaches_nothing() -> None:
    sizer = SliceSizer(10.0)
    sizer.observe(rows=0, elapsed_ms=1000.0)
    assert sizer.rows == 16


# -- user code


def test_a_slice_of_user_code_comes_behind_a_probe() -> None:
    sizer = ProbingSizer(10.0)
    grown(sizer, cost_ms_per_row=1e-3, slices=20)
    sizes = []
    for _ in range(4):
        sizes.append(sizer.rows)
        sizer.observe(rows=sizer.rows, elapsed_ms=sizer.rows * 1e-3)
    assert sorted(set(sizes)) == [10_000 // 8, 10_000]
    assert sizes[0] != sizes[1]


def test_rows_that_become_dear_are_met_by_a_probe_and_not_by_a_slice() -> None:
    sizer = ProbingSizer(10.0)
    grown(sizer, cost_ms_per_row=1e-3, slices=20)
    if sizer.rows == 10_000:
        sizer.observe(rows=10_000, elapsed_ms=10.0)
    assert sizer.rows == 1250
    sizer.observe(rows=1250, elapsed_ms=1250.0)
    assert sizer.rows == 10


def test_what_a_call_costs_whatever_it_is_given_does_not_make_slices_small() -> None:
    sizer = ProbingSizer(10.0)
    for _ in range(80):
        sizer.observe(rows=sizer.rows, elapsed_ms=5.0 + sizer.rows * 1e-5)
    assert sizer.rows in (MOST_ROWS, MOST_ROWS // 8), "a slice or its probe"


def test_dear_rows_need_no_probe() -> None:
    assert grown(ProbingSizer(10.0), cost_ms_per_row=1.0, slices=5) == 10
