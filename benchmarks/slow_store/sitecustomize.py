"""Found first on the path of a run with a slow store: every file that Tidegate writes takes as long as at that rate.

Python imports a module of this name by itself in every process, also in Spark's workers, so that the product needs no
hook for it. Writers of one process share the rate, as uploads share a line.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

from tidegate.storage import store

_BYTES_PER_S = float(os.environ.get("BENCH_STORE_BYTES_PER_S", "inf"))
_open_store = store.open_store
_line = threading.Lock()


class SlowFiles(store.LocalFiles):
    def _write_synced(self, target: Path, data: store.Data) -> None:
        size = sum(len(piece) for piece in store.pieces_of(data))
        with _line:
            time.sleep(size / _BYTES_PER_S)
        super()._write_synced(target, data)


def open_slowly(location: str, *given: Any, **named: Any) -> store.Store:
    opened = _open_store(location, *given, **named)
    return SlowFiles(opened.root) if isinstance(opened, store.LocalFiles) else opened


if float("inf") != _BYTES_PER_S:
    # Before any other module has taken the name.
    store.open_store = open_slowly
