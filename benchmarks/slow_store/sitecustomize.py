"""Found first on the path of a run with a slow store: every file that Tidegate writes takes as long as at that rate.

Python imports a module of this name by itself in every process, also in Spark's workers, so that the product needs no
hook for it. Writers of one process share the rate, as uploads share a line.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tidegate.storage import store

_BYTES_PER_S = float(os.environ.get("BENCH_STORE_BYTES_PER_S", "inf"))
_line = threading.Lock()


def _slowed(write: Callable[..., None]) -> Callable[..., None]:
    def slowly(self: store.LocalFiles, target: Path, data: store.Data) -> None:
        size = sum(len(piece) for piece in store.pieces_of(data))
        with _line:
            time.sleep(size / _BYTES_PER_S)
        write(self, target, data)

    return slowly


if float("inf") != _BYTES_PER_S:
    store.LocalFiles._write_synced = _slowed(store.LocalFiles._write_synced)  # type: ignore[method-assign]
