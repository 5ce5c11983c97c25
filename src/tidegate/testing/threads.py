"""Runs a job without Spark: each slot a thread of this process, over real sockets. For tests of the runtime."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.coordinator.launch import Ended, LaunchExit
from tidegate.model.ids import SlotIndex
from tidegate.operators.contract import ConnectProcessor, ProcessorHandle, Times, UserProcessor, WaitingFunction
from tidegate.worker.main import SlotOrder, run_slot

MapFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class NamedUserCode:
    """User code by name: a command is the name's bytes, so that plans need no pickling."""

    functions: Mapping[str, MapFunction] = field(default_factory=dict)
    processors: Mapping[str, Callable[[], UserProcessor]] = field(default_factory=dict)
    connectors: Mapping[str, Callable[[], ConnectProcessor]] = field(default_factory=dict)
    waiting: Mapping[str, WaitingFunction] = field(default_factory=dict)

    def map_function(self, command: bytes) -> MapFunction:
        return self.functions[command.decode()]

    def processor(self, command: bytes, *, value_names: Sequence[str], output_names: Sequence[str]) -> UserProcessor:
        return self.processors[command.decode()]()

    def connect_processor(self, command: bytes) -> ConnectProcessor:
        return self.connectors[command.decode()]()

    def udfs(self, calls: bytes) -> MapFunction:
        return self.functions[calls.decode()]

    def waiting_function(
        self, command: bytes, *, input_names: Sequence[str], output_names: Sequence[str]
    ) -> WaitingFunction:
        return self.waiting[command.decode()]


class CountingProcessor:
    """For each row (key..., n): n counts the rows of the key, so that a lost or doubled row shows in the result.

    `kept`: what of the row stands between the two.
    """

    def __init__(
        self,
        *,
        before_row: Callable[[], None] = lambda: None,
        kept: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda row: (),
    ) -> None:
        self._before_row = before_row
        self._kept = kept

    def init(self, handle: ProcessorHandle) -> None:
        self._count = handle.value_state("count", ("n",))

    def handle_rows(
        self, key: tuple[Any, ...], rows: Iterator[tuple[Any, ...]], times: Times
    ) -> Iterable[tuple[Any, ...]]:
        stored = self._count.get()
        n = 0 if stored is None else stored[0]
        for row in rows:
            self._before_row()
            n += 1
            yield (*key, *self._kept(row), n)
        self._count.update((n,))

    def handle_timer(self, key: tuple[Any, ...], at_ms: int, times: Times) -> Iterable[tuple[Any, ...]]:
        raise AssertionError(f"The timer of key {key!r} at {at_ms} ms was never registered.")

    def close(self) -> None:
        return


class ThreadLauncher:
    def __init__(self, user_code: NamedUserCode) -> None:
        self._user_code = user_code

    def launch(self, order: SlotOrder, *, slots: int, on_exit: Callable[[LaunchExit], None]) -> "_ThreadLaunch":
        threads = [
            threading.Thread(target=run_slot, args=(order, SlotIndex(i), self._user_code), daemon=True)
            for i in range(slots)
        ]
        for thread in threads:
            thread.start()

        def watch() -> None:
            for thread in threads:
                thread.join()
            on_exit(Ended())

        threading.Thread(target=watch, daemon=True).start()
        return _ThreadLaunch()

    def room(self) -> int | None:
        return None


class _ThreadLaunch:
    def cancel(self) -> None:
        """Threads cannot be ended by force; they leave when the coordinator closes their connections."""

    def running_slots(self) -> int | None:
        return None
