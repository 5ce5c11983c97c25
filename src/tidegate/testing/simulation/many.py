"""Many seeds on several processes. A module of its own, because a spawned process imports what it is to call."""

import gc
import logging
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context

from tidegate.testing.simulation.run import RunFailure, RunReport, run_seed
from tidegate.testing.simulation.states import StateDice

# Handing over a seed is nothing beside playing it; this few, so that no process is left with the rest.
_SEEDS_AT_A_TIME = 5
# What is simulated makes few cycles: looking for them all the time costs a tenth of it.
_COLLECT_EVERY = 100_000

Outcome = RunReport | RunFailure


@contextmanager
def outcomes_of(seeds: Sequence[int], *, processes: int, dice: StateDice) -> Iterator[Iterator[Outcome]]:
    """As they come, in any order. Leaving early ends the processes."""
    if processes == 1:
        prepare_process()
        yield (run_seed(seed, dice=dice) for seed in seeds)
        return
    # Spawned, not forked: a fork has the locks of threads that it does not have. And it breaks if a process dies.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_prepare_child)
    try:
        parts = [seeds[at : at + _SEEDS_AT_A_TIME] for at in range(0, len(seeds), _SEEDS_AT_A_TIME)]
        yield _flat(pool.submit(_play, part, dice) for part in parts)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def prepare_process() -> None:
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)  # failures are what is simulated
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)


def _prepare_child() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends them once they are done with what they play
    prepare_process()


def _play(seeds: Sequence[int], dice: StateDice) -> list[Outcome]:
    return [run_seed(seed, dice=dice) for seed in seeds]


def _flat(parts: "Iterator[Future[list[Outcome]]]") -> Iterator[Outcome]:
    for part in as_completed(list(parts)):
        yield from part.result()
