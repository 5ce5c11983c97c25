"""How much memory this process may hope for, as the operating system tells it."""

import os
from pathlib import Path

_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # of older systems
)


def machine_memory_bytes() -> int | None:
    """The machine's memory, or the container's limit if that is less."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
    for file in _LIMITS:
        try:
            limit = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if limit.isdigit():
            found = min(found, int(limit))
    return found
