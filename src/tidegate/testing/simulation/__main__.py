"""`python -m tidegate.testing.simulation --seeds 200`, or `--seed 17 --trace` for one."""

import argparse
import logging
import sys
import time

from tidegate.testing.simulation import RunFailure, run_seed


def main() -> int:
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)  # failures are what is simulated
    parser = argparse.ArgumentParser(prog="python -m tidegate.testing.simulation")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="play this one alone and show what happened")
    arguments = parser.parse_args()
    seeds = (
        [arguments.seed] if arguments.seed is not None else range(arguments.first, arguments.first + arguments.seeds)
    )
    started_s = time.monotonic()
    failures = checkpoints = starts = rescales = 0
    for seed in seeds:
        outcome = run_seed(seed)
        if isinstance(outcome, RunFailure):
            failures += 1
            _say(str(outcome))
            continue
        checkpoints += outcome.checkpoints
        starts += outcome.starts
        rescales += outcome.rescales
        if arguments.seed is not None:
            _say("\n".join(outcome.trace))
    took_s = time.monotonic() - started_s
    _say(
        f"{len(seeds)} seeds, {failures} failed; {checkpoints} checkpoints, {starts} starts, "
        f"{rescales} at another parallelism; {took_s:.1f} s, {len(seeds) / took_s:.1f} seeds/s"
    )
    return 1 if failures else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
