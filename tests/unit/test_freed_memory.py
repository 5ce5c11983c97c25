"""What a slice frees is there for the next one, without asking the system again."""

import subprocess
import sys

import pytest

# A slice's arrays live together and are freed together, which leaves the end of the heap free.
SLICES = """
import resource, sys
import numpy as np
from tidegate.worker.freed_memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def faults(slices):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(slices):
        arrays = [np.ones(1 << 16) for _ in range(8)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(20)
print(faults(100))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is set is an option of glibc")
def test_a_slice_takes_the_memory_of_the_one_before() -> None:
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", SLICES, how], check=True, capture_output=True, text=True).stdout)
        for how in ("kept", "given back")
    )
    assert kept < 1_000
    assert given_back > 10 * kept
