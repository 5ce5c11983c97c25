"""Every benchmark by name, in the order in which `make bench` runs them."""

from collections.abc import Mapping

from benchmarks.benchmark import Benchmark
from benchmarks.suite import (
    beyond_memory,
    changelog,
    growth,
    incremental,
    inflight,
    memory,
    peak,
    recovery,
    row_functions,
    seed,
    shortest_interval,
    skew,
    slow_operator,
    slow_store,
    state_on_disk,
    throughput,
)

BENCHMARKS: Mapping[str, Benchmark] = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (
        slow_operator,
        seed,
        inflight,
        peak,
        throughput,
        row_functions,
        skew,
        slow_store,
        recovery,
        shortest_interval,
        growth,
        state_on_disk,
        incremental,
        changelog,
        beyond_memory,
        memory,
    )
}
