"""PyFlink's side of the benchmark of row functions: a Python function per row, or a count kept per key by one.

Runs in PyFlink's own environment, so it imports nothing of the project but how it tells. A local cluster in the JVM
that PyFlink starts. Rows are counted by the last Python function, which writes its number to a file of its process.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway

from benchmarks.systems.arguments import arguments
from benchmarks.systems.telling import tell

_WRITE_EVERY_ROWS = 100


class Counted:
    """Adds rows to the file of its process, now and then."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / f"rows-{os.getpid()}-{id(self)}"
        self._rows = 0

    def add(self) -> None:
        self._rows += 1
        if self._rows % _WRITE_EVERY_ROWS == 0:
            self._path.write_text(str(self._rows))


class Mixed(MapFunction):
    def __init__(self, keys: int) -> None:
        self._keys = keys

    def map(self, value: int) -> tuple[int, int]:
        return value % self._keys, (value * 31 + 7) % 1_000_003


class Keyed(MapFunction):
    def __init__(self, keys: int) -> None:
        self._keys = keys

    def map(self, value: int) -> tuple[int, int]:
        return value % self._keys, value


class Totals(KeyedProcessFunction):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, context: RuntimeContext) -> None:
        self._count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._counted = Counted(self._folder)

    def process_element(
        self, value: tuple[int, int], context: KeyedProcessFunction.Context
    ) -> Iterator[tuple[int, int]]:
        n = (self._count.value() or 0) + 1
        self._count.update(n)
        self._counted.add()
        yield value[0], n


def rows_so_far(folder: str) -> int:
    return sum(int(text) for path in Path(folder).glob("rows-*") if (text := path.read_text()))


def main() -> None:
    given = arguments()
    keys = given.number("keys", 10_000)
    folder = given.text("folder")
    configuration = Configuration()
    for name, value in {
        "execution.checkpointing.interval": f"{given.number('interval_ms', 1000)} ms",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "state.backend.type": "hashmap",
        "python.executable": sys.executable,
        "python.client.executable": sys.executable,
        "rest.bind-address": "127.0.0.1",
        "jobmanager.bind-host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        **given.options("flink."),
    }.items():
        configuration.set_string(name, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(given.number("slots", 2))
    numbers = NumberSequenceSource(0, 1 << 60)
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])
    keyed = env.from_source(numbers, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()).map(
        Mixed(keys) if given.text("kind") == "function" else Keyed(keys), pair
    )
    totals = keyed.key_by(lambda row: row[0], Types.LONG()).process(Totals(folder), pair)
    totals.sink_to(Sink(get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()))
    client = env.execute_async("rows")
    while rows_so_far(folder) == 0:
        time.sleep(0.02)
    time.sleep(given.real("warm_up_s"))
    first, began_s = rows_so_far(folder), time.monotonic()
    tell("measuring")
    time.sleep(given.real("measure_s"))
    last, seconds = rows_so_far(folder), time.monotonic() - began_s
    tell("measured", rows=last - first, seconds=seconds, checkpoints=[])
    client.cancel().result()


if __name__ == "__main__":
    main()
