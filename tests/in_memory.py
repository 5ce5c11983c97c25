"""Where tests write: in memory if the system offers a folder for that, because stores and RocksDB sync every file."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OFFERED = "/dev/shm"
# What a whole run leaves behind, many times over; in containers it is often a few megabytes.
_ENOUGH_BYTES = 4 << 30


def _find_folder() -> str | None:
    if not os.access(_OFFERED, os.W_OK) or shutil.disk_usage(_OFFERED).free < _ENOUGH_BYTES:
        return None
    return _OFFERED


# None: where the system keeps its temporary files.
IN_MEMORY = _find_folder()


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)
