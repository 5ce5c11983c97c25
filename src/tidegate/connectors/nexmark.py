"""Nexmark's auction site: people, auctions and bids, each a function of the seed and the number of the event.

Of 50 events in a row the first is a person, the next three are auctions, the rest are bids. Any range of events can be
made by itself, so that a source needs no other position than a number. No per-row Python.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers: TypeAlias = npt.NDArray[np.int64]

PERSONS: Final = "persons"
AUCTIONS: Final = "auctions"
BIDS: Final = "bids"

_CYCLE = 50
_OFFSETS: Mapping[str, range] = {PERSONS: range(1), AUCTIONS: range(1, 4), BIDS: range(4, _CYCLE)}
_FIRST_ID = 1000
_FIRST_CATEGORY, _CATEGORIES = 10, 5
# Most bids go to few auctions and come from few people, who change every so many ids.
_HOT_EVERY = 100
_HOT_SHARE = 0.9
_RECENT_PEOPLE = 1000
_RECENT_AUCTIONS = 100
_AUCTION_LASTS_MS = 20_000

_TIMESTAMP = pa.timestamp("us", "UTC")
SCHEMAS: Mapping[str, pa.Schema] = {
    PERSONS: pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("email", pa.string()),
            ("credit_card", pa.string()),
            ("city", pa.string()),
            ("state", pa.string()),
            ("date_time", _TIMESTAMP),
            ("extra", pa.string()),
        ]
    ),
    AUCTIONS: pa.schema(
        [
            ("id", pa.int64()),
            ("item_name", pa.string()),
            ("description", pa.string()),
            ("initial_bid", pa.int64()),
            ("reserve", pa.int64()),
            ("date_time", _TIMESTAMP),
            ("expires", _TIMESTAMP),
            ("seller", pa.int64()),
            ("category", pa.int64()),
            ("extra", pa.string()),
        ]
    ),
    BIDS: pa.schema(
        [
            ("auction", pa.int64()),
            ("bidder", pa.int64()),
            ("price", pa.int64()),
            ("channel", pa.string()),
            ("url", pa.string()),
            ("date_time", _TIMESTAMP),
            ("extra", pa.string()),
        ]
    ),
}

_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
_STATES = ("AZ", "CA", "CA", "ID", "OR", "OR", "WA", "WA", "WA")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_WORDS = ("amber", "brass", "cedar", "denim", "ebony", "flint", "glass", "hazel", "ivory", "jade", "khaki", "linen")


@dataclass(frozen=True, slots=True)
class Site:
    """`events_per_s`: in event time, from `begin_ms` on."""

    seed: int
    begin_ms: int
    events_per_s: int

    def rows(self, table: str, first: int, last: int) -> pa.RecordBatch:
        """The rows of a table among the events from `first` to before `last`, in the order of event time."""
        return _MAKERS[table](self, _events(table, first, last))

    def time_us(self, events: Numbers) -> Numbers:
        return self.begin_ms * 1000 + events * 1_000_000 // self.events_per_s


def _events(table: str, first: int, last: int) -> Numbers:
    """The numbers of a table's events in a range."""
    cycles = np.arange(first // _CYCLE, -(-last // _CYCLE), dtype=np.int64)
    offsets = np.array(_OFFSETS[table], dtype=np.int64)
    every = (cycles[:, None] * _CYCLE + offsets[None, :]).ravel()
    return every[(every >= first) & (every < last)]


def _persons(site: Site, events: Numbers) -> pa.RecordBatch:
    dice = _Dice(site.seed, events)
    first, last = _picked(dice, "first name", _FIRST_NAMES), _picked(dice, "last name", _LAST_NAMES)
    at = dice.below("city", len(_CITIES))
    columns = [
        _int64(_FIRST_ID + events // _CYCLE),
        _joined([first, last], " "),
        _joined([_lower(first), pc.cast(_int64(dice.below("mail", 10_000)), pa.string())], "@mail"),
        _digits(dice, "card", groups=4),
        _of(_CITIES, at),
        _of(_STATES, at),
        _timestamps(site.time_us(events)),
        _phrase(dice, "extra", words=2),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[PERSONS])


def _auctions(site: Site, events: Numbers) -> pa.RecordBatch:
    dice = _Dice(site.seed, events)
    initial = _price(dice, "initial bid")
    opened = site.time_us(events)
    lasts = (dice.share("lasts") * 2 * _AUCTION_LASTS_MS * 1000).astype(np.int64) + 1
    columns = [
        _int64(_auction_ids(events)),
        _phrase(dice, "item", words=2),
        _phrase(dice, "description", words=5),
        _int64(initial),
        _int64(initial + _price(dice, "reserve")),
        _timestamps(opened),
        _timestamps(opened + lasts),
        _int64(_people(dice, "seller", events)),
        _int64(_FIRST_CATEGORY + dice.below("category", _CATEGORIES)),
        _phrase(dice, "extra", words=3),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[AUCTIONS])


def _bids(site: Site, events: Numbers) -> pa.RecordBatch:
    dice = _Dice(site.seed, events)
    channel = _channels(dice)
    columns = [
        _int64(_bid_on(dice, events)),
        _int64(_people(dice, "bidder", events)),
        _int64(_price(dice, "price")),
        channel,
        _joined([_phrase(dice, "url", words=3, by="/"), channel], "/item.htm?channel="),
        _timestamps(site.time_us(events)),
        _phrase(dice, "extra", words=2),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[BIDS])


_MAKERS: Mapping[str, Callable[[Site, Numbers], pa.RecordBatch]] = {
    PERSONS: _persons,
    AUCTIONS: _auctions,
    BIDS: _bids,
}


class _Dice:
    """Random numbers that belong to an event and a purpose, whatever range the event is made in."""

    def __init__(self, seed: int, events: Numbers) -> None:
        self._events = events.astype(np.uint64)
        self._seed = np.uint64(seed % (1 << 64))

    def raw(self, purpose: str) -> npt.NDArray[np.uint64]:
        salt = np.uint64(int.from_bytes(purpose.encode()[:8].ljust(8, b"."), "little"))
        with np.errstate(over="ignore"):
            return _splitmix(self._events + _splitmix(np.array([salt ^ self._seed], dtype=np.uint64)))

    def below(self, purpose: str, bound: int) -> Numbers:
        return (self.raw(purpose) % np.uint64(bound)).astype(np.int64)

    def share(self, purpose: str) -> npt.NDArray[np.float64]:
        """At least 0, below 1."""
        return (self.raw(purpose) >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _splitmix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _auction_ids(events: Numbers) -> Numbers:
    """Of auction events: three in each cycle."""
    return _FIRST_ID + events // _CYCLE * 3 + events % _CYCLE - 1


def _last_auction(events: Numbers) -> Numbers:
    """The newest auction, counted from 0, when a bid is made: bids come behind the auctions of their cycle."""
    return events // _CYCLE * 3 + 2


def _bid_on(dice: _Dice, events: Numbers) -> Numbers:
    newest = _last_auction(events)
    hot = newest // _HOT_EVERY * _HOT_EVERY
    recent = newest - dice.below("auction", _RECENT_AUCTIONS)
    return _FIRST_ID + np.where(dice.share("hot auction") < _HOT_SHARE, hot, np.maximum(recent, 0))


def _people(dice: _Dice, purpose: str, events: Numbers) -> Numbers:
    newest = events // _CYCLE
    hot = newest // _HOT_EVERY * _HOT_EVERY
    recent = newest - dice.below(purpose, _RECENT_PEOPLE)
    return _FIRST_ID + np.where(dice.share(f"{purpose[:4]}hot") < _HOT_SHARE, hot, np.maximum(recent, 0))


def _price(dice: _Dice, purpose: str) -> Numbers:
    """In cents, spread evenly over its orders of magnitude."""
    return np.rint(np.power(10.0, dice.share(purpose) * 6.0) * 100.0).astype(np.int64)


def _channels(dice: _Dice) -> pa.Array:
    known = _of(_CHANNELS, dice.below("channel", len(_CHANNELS)))
    others = _joined([pa.scalar("channel"), pc.cast(_int64(dice.below("other", 10_000)), pa.string())], "-")
    is_known = pc.less(_int64(dice.below("known", 2)), pa.scalar(1, pa.int64()))
    return pc.if_else(is_known, known, others)


def _phrase(dice: _Dice, purpose: str, *, words: int, by: str = " ") -> pa.Array:
    return _joined([_of(_WORDS, dice.below(f"{at}{purpose}", len(_WORDS))) for at in range(words)], by)


def _digits(dice: _Dice, purpose: str, *, groups: int) -> pa.Array:
    numbers = [_int64(1000 + dice.below(f"{at}{purpose}", 9000)) for at in range(groups)]
    return _joined([pc.cast(number, pa.string()) for number in numbers], " ")


def _picked(dice: _Dice, purpose: str, words: tuple[str, ...]) -> pa.Array:
    return _of(words, dice.below(purpose, len(words)))


def _of(words: tuple[str, ...], at: Numbers) -> pa.Array:
    return pa.array(words, pa.string()).take(_int64(at))


def _lower(words: pa.Array) -> pa.Array:
    return pc.ascii_lower(words)


def _joined(parts: list[pa.Array | pa.Scalar], by: str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, by)


def _int64(values: Numbers) -> pa.Array:
    # Not by pa.array, which would import pandas.
    packed = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(packed), [None, pa.py_buffer(packed)])


def _timestamps(values_us: Numbers) -> pa.Array:
    packed = np.ascontiguousarray(values_us, dtype=np.int64)
    return pa.Array.from_buffers(_TIMESTAMP, len(packed), [None, pa.py_buffer(packed)])
