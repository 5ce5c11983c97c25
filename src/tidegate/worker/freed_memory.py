"""How much freed memory the C library keeps for the next slice, instead of giving it back to the system.

A slice allocates and frees some megabytes. Where they lie at the end of the heap they are given back and asked for
again each time, with a page fault for every 4 KiB, which can cost as much as the rest of a cheap slice. Must never keep
more than a slice needs: state is given back.
"""

import ctypes
import sys

# Larger blocks, which are state and not slices, are mapped one by one and given back as soon as they are free.
_MAPPED_FROM_BYTES = 4 << 20
_KEPT_BYTES = 32 << 20

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """For the life of the process: glibc cannot tell what was set before. Does nothing where it is not glibc."""
    if not sys.platform.startswith("linux"):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
