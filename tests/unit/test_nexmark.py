"""Nexmark's rows depend on the seed and their numbers alone."""

import itertools

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.nexmark import NexmarkStreamReader, read_options
from tidegate.connectors.nexmark import AUCTIONS, BIDS, PERSONS, SCHEMAS, Site
from tidegate.model.errors import OptionError

SITE = Site(seed=7, begin_ms=0, events_per_s=1000)


@given(table=st.sampled_from(sorted(SCHEMAS)), cuts=st.lists(st.integers(0, 400), min_size=2, max_size=6))
def test_a_range_of_events_can_be_made_in_parts(table: str, cuts: list[int]) -> None:
    cuts = sorted(cuts)
    parts = [SITE.rows(table, a, b) for a, b in itertools.pairwise(cuts)]
    assert pa.concat_batches(parts).equals(SITE.rows(table, cuts[0], cuts[-1]))


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_are_bids() -> None:
    assert [SITE.rows(table, 0, 500).num_rows for table in (PERSONS, AUCTIONS, BIDS)] == [10, 30, 460]


def test_rows_come_in_the_order_of_event_time() -> None:
    for table in SCHEMAS:
        times = SITE.rows(table, 0, 5000).column("date_time").cast(pa.int64()).to_pylist()
        assert times == sorted(times) and times[-1] < 5_000_000


def test_ids_count_and_are_referred_to() -> None:
    auctions, bids = SITE.rows(AUCTIONS, 0, 50_000), SITE.rows(BIDS, 0, 50_000)
    assert auctions.column("id").to_pylist() == list(range(1000, 4000))
    assert pc.all(pc.is_in(bids.column("auction"), auctions.column("id"))).as_py()
    people = SITE.rows(PERSONS, 0, 50_000).column("id")
    assert pc.all(pc.is_in(bids.column("bidder"), people)).as_py()


def test_another_seed_is_another_site() -> None:
    other = Site(seed=8, begin_ms=0, events_per_s=1000)
    assert not other.rows(BIDS, 0, 100).equals(SITE.rows(BIDS, 0, 100))


def test_a_stream_ends_with_its_events() -> None:
    reader = NexmarkStreamReader(read_options({"events": "120", "partitions": "3"}))
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    assert end == {"event": 120} and reader.latestOffset(end, limit) == end
    rows = [batch.num_rows for part in reader.partitions(reader.initialOffset(), end) for batch in reader.read(part)]
    assert sum(rows) == 120 * 46 // 50 - 2


@pytest.mark.parametrize(
    ("options", "named"),
    [({"tabel": "bids"}, "no option 'tabel'"), ({"table": "bid"}, "no table 'bid'"), ({"events": "many"}, "'many'")],
)
def test_a_wrong_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        read_options(options)
