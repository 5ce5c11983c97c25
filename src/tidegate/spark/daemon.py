"""PySpark's daemon with Tidegate loaded: `spark.python.daemon.module`, set to `tidegate.spark.daemon` at the start.

Spark forks its Python workers from a daemon that has loaded nothing, so each worker imports everything anew; from this
one the process that replaces a killed slot is there after a fork. Nothing here may start a thread of Python's, which a
fork would not take along (OpenBLAS and jemalloc see to their own), or print: Spark reads the daemon's output.
"""

import gc
import importlib
import os
import sys
from typing import Final

# What a slot imports before it can say that it is here.
OF_A_SLOT: Final = ("tidegate.spark.launch", "tidegate.spark.user_code", "tidegate.worker.build")


def load_slot_code() -> None:
    for module in OF_A_SLOT:
        importlib.import_module(module)


def main() -> None:
    importlib.import_module("pyspark.worker")
    load_slot_code()
    os.register_at_fork(after_in_child=_draw_other_numbers)
    # It stays for good: no worker's collector need look at it, which would also copy the pages that workers share.
    gc.freeze()
    from pyspark.daemon import manager

    manager()


def _draw_other_numbers() -> None:
    """Python reseeds its generator in a fork, numpy does not: all workers would draw the same."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


if __name__ == "__main__":
    main()
