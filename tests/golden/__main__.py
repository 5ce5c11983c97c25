"""Plays the golden method: the full product in the order of a seed, so many of it, or one case by its name."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.golden.cases import Mode, Place, full_product, pairwise, parse_case, rescaled, shuffled
from tests.golden.running import golden


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.golden", description=__doc__)
    parser.add_argument("--case", help="one case, by the name that its line has")
    parser.add_argument("--seed", type=int, default=None, help="the order, and how often a moment passes by")
    parser.add_argument("--cases", type=int, default=None, help="stop after so many")
    parser.add_argument("--place", type=Place, choices=list(Place), default=None, help="only there")
    parser.add_argument("--pairwise", action="store_true", help="the small selection instead of the full product")
    parser.add_argument("--rescaled", action="store_true", help="restores with other numbers of slots instead")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    if given.case:
        cases = [parse_case(given.case)]
    elif given.rescaled:
        cases = rescaled()
    else:
        cases = pairwise(seed) if given.pairwise else shuffled(full_product(), seed)
    cases = [case for case in cases if given.place in (None, case.place)][: given.cases]
    folder = Path(tempfile.mkdtemp(prefix="tidegate-golden-"))
    say(f"{len(cases)} cases, seed {seed}, in {folder}")
    failed, begun_s = 0, time.monotonic()
    with golden(folder) as running:
        for number, case in enumerate(cases, 1):
            try:
                outcome = running.play(case, seed)
            except AssertionError as error:
                failed += 1
                say(f"{number}/{len(cases)} FAILED {case}: {error}")
                say(f"  replay with: make golden CASE={case} SEED={seed}")
            else:
                shutil.rmtree(folder / f"{case}-{seed}")
                say(f"{number}/{len(cases)} {case}: {outcome}")
    say(f"{len(cases) - failed} of {len(cases)} as undisturbed, in {time.monotonic() - begun_s:.0f} s")
    unaligned = [restored for case, restored in running.restored.items() if case.job.mode is Mode.UNALIGNED]
    with_rows = sum(restored.rows_in_flight > 0 for restored in unaligned)
    say(f"{with_rows} of {len(unaligned)} unaligned ones went on from a checkpoint with rows in flight")
    if not failed:
        shutil.rmtree(folder)
    return 1 if failed else 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
