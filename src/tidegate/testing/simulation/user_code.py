"""The user code of simulated jobs. What it gives shows every lost, doubled or misplaced row; it raises on disorder."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.operators.contract import CallStyle, ConnectHandle, ProcessorHandle, Times, WaitingFunction
from tidegate.testing.simulation.world import SimulationFailed
from tidegate.testing.threads import NamedUserCode

WINDOW_MS = 30


def hold_back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Gives rows in threes of batches, the rest when the epoch ends."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if len(held) == 3:
            yield from held
            held.clear()
    yield from held


TIMESTAMP = pa.timestamp("us", "UTC")
SESSION = pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP)])
SESSION_GAP_MS = 7
# (key, end of its window in ms, the same as a timestamp, the session that the row makes by itself)
EVENT_TIMES = pa.schema([("k", pa.int64()), ("end", pa.int64()), ("ends", TIMESTAMP), ("session", SESSION)])


def event_times(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """(k, s, v, t) -> what aggregations by event time group by."""
    for batch in batches:
        times_ms = batch.column(3).to_pylist()
        ends_ms = [t - t % WINDOW_MS + WINDOW_MS for t in times_ms]
        sessions = [{"start": t * 1000, "end": (t + SESSION_GAP_MS) * 1000} for t in times_ms]
        ends = pa.array([end * 1000 for end in ends_ms], TIMESTAMP)
        columns = [batch.column(0), pa.array(ends_ms, pa.int64()), ends, pa.array(sessions, SESSION)]
        yield pa.RecordBatch.from_arrays(columns, schema=EVENT_TIMES)


NOTHING_YET = msgspec.msgpack.encode({})


class LastOfSplit:
    """The newest row of each split that a key has seen: the next one must be behind it."""

    def __init__(self, key: tuple[Any, ...], stored: bytes) -> None:
        self._key = key
        self._last = msgspec.msgpack.decode(stored, type=dict[int, int])

    def follow(self, split: int, position: int) -> None:
        if position <= self._last.get(split, -1):
            raise SimulationFailed(
                f"key {self._key}: row {position} of split {split} came behind row {self._last[split]}"
            )
        self._last[split] = position

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self._last)


class CountInOrder:
    """(k, s, v, t) -> (k, n): n numbers the rows of the key. Positions of one split must come in order."""

    checks_order = True

    def init(self, handle: ProcessorHandle) -> None:
        self._seen = handle.value_state("seen", ("n", "last"))

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        stored = self._seen.get()
        n, before = stored or (0, NOTHING_YET)
        last = LastOfSplit(key, before)
        for split, position, _ in rows:
            if self.checks_order:
                last.follow(split, position)
            n += 1
            yield (key[0], n)
        self._seen.update((n, last.encoded()))

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise SimulationFailed(f"key {key} has a timer at {at_ms} that nobody registered")

    def close(self) -> None:
        return


class CountAnyOrder(CountInOrder):
    """Behind an edge that keeps no order."""

    checks_order = False


class CountPairs:
    """(n, k) -> (n, m): the second shuffle of a row's count."""

    def init(self, handle: ProcessorHandle) -> None:
        self._seen = handle.value_state("seen", ("n",))

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        stored = self._seen.get()
        n = 0 if stored is None else stored[0]
        for _ in rows:
            n += 1
            yield (key[0], n)
        self._seen.update((n,))

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise SimulationFailed(f"key {key} has a timer at {at_ms} that nobody registered")

    def close(self) -> None:
        return


class CountWindows:
    """(k, s, v, t) -> (k, window end, n) when event time has passed the window; late rows are left out."""

    def init(self, handle: ProcessorHandle) -> None:
        self._handle = handle
        self._counts = handle.value_state("counts", ("by_window",))

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        counts = self._load()
        for _, _, time_ms in rows:
            end_ms = time_ms - time_ms % WINDOW_MS + WINDOW_MS
            if end_ms - 1 <= times.watermark_ms:
                continue
            if end_ms not in counts:
                self._handle.register_timer(end_ms - 1)
            counts[end_ms] = counts.get(end_ms, 0) + 1
        self._counts.update((msgspec.msgpack.encode(counts),))
        return ()

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        counts = self._load()
        n = counts.pop(at_ms + 1, None)
        if n is None:
            raise SimulationFailed(f"key {key}: the window that ends at {at_ms + 1} fired and holds no row")
        self._counts.update((msgspec.msgpack.encode(counts),))
        yield (key[0], at_ms + 1, n)

    def close(self) -> None:
        return

    def _load(self) -> dict[int, int]:
        stored = self._counts.get()
        return {} if stored is None else msgspec.msgpack.decode(stored[0], type=dict[int, int])


class CountSides:
    """Two keyed inputs -> (k, side, n): both sides change the same key's state."""

    def init(self, handle: ConnectHandle) -> None:
        self._seen = handle.value_state("seen", ("left", "right", "last_left", "last_right"))

    def handle_left(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        return self._count(key, rows, 0)

    def handle_right(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        return self._count(key, rows, 1)

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise SimulationFailed(f"key {key} has a timer at {at_ms} that nobody registered")

    def close(self) -> None:
        return

    def _count(self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], side: int) -> Iterable[tuple[Any, ...]]:
        seen = list(self._seen.get() or (0, 0, NOTHING_YET, NOTHING_YET))
        last = LastOfSplit(key, seen[2 + side])
        for split, position, _ in rows:
            last.follow(split, position)
            seen[side] += 1
            yield (key[0], side, seen[side])
        seen[2 + side] = last.encoded()
        self._seen.update(tuple(seen))


class ApplyRules:
    """A keyed stream beside broadcast rules -> (k, n). A key must never see an older rule behind a newer one."""

    def init(self, handle: ConnectHandle) -> None:
        self._seen = handle.value_state("seen", ("n", "rule", "last"))
        self._rules = handle.broadcast_state("rules")

    def handle_left(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        n, last_rule, before = self._seen.get() or (0, 0, NOTHING_YET)
        last = LastOfSplit(key, before)
        (rule,) = self._rules.get(("rules",)) or (0,)
        if rule < last_rule:
            raise SimulationFailed(f"key {key} is handled by rule {rule} after rule {last_rule}")
        for split, position, _ in rows:
            last.follow(split, position)
            n += 1
            yield (key[0], n)
        self._seen.update((n, rule, last.encoded()))

    def handle_right(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        (rules,) = self._rules.get(("rules",)) or (0,)
        for row in rows:
            # Rules come from one split: each is the next one, or it was lost or came twice.
            if row[2] != rules:
                raise SimulationFailed(f"rule {row[2]} came where rule {rules} was due")
            rules += 1
        self._rules.put(("rules",), (rules,))
        return ()

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise SimulationFailed(f"key {key} has a timer at {at_ms} that nobody registered")

    def close(self) -> None:
        return


# Gives each row back: what is lost, doubled or out of place shows behind it.
LOOK_UP = WaitingFunction(CallStyle.BLOCKING, call=lambda row: row, take=lambda row: [row])


def user_code() -> NamedUserCode:
    return NamedUserCode(
        waiting={"look_up": LOOK_UP},
        functions={"hold_back": hold_back, "event_times": event_times},
        processors={
            "in_order": CountInOrder,
            "any_order": CountAnyOrder,
            "pairs": CountPairs,
            "windows": CountWindows,
        },
        connectors={"sides": CountSides, "rules": ApplyRules},
    )
