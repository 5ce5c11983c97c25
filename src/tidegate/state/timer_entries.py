"""A timer, and the entry of keyed state that it is: its time and its key, in bytes that sort as timers do."""

import struct
from typing import NamedTuple

from tidegate.model.errors import Damaged
from tidegate.protocol.watermarks import MIN_WATERMARK_MS

NO_VALUE = b""
TIME_BYTES = 8

_TIME = struct.Struct(">Q")
# Makes the unsigned bytes sort as the signed times do.
_SIGN = 1 << 63


class Timer(NamedTuple):
    """In the order in which timers fire."""

    at_ms: int
    key_group: int
    key: bytes


def no_floor(key_group: int) -> int:
    return MIN_WATERMARK_MS


def encode_time(at_ms: int) -> bytes:
    return _TIME.pack(at_ms + _SIGN)


def decode_time(stored: bytes) -> int:
    at_ms: int = _TIME.unpack(stored)[0] - _SIGN
    return at_ms


def encode_timer(at_ms: int, key: bytes) -> bytes:
    return _TIME.pack(at_ms + _SIGN) + key


def decode_timer(entry: bytes) -> tuple[int, bytes]:
    """Its time and its key."""
    if len(entry) < TIME_BYTES:
        raise Damaged(f"A stored timer has only {len(entry)} bytes: restore from an older checkpoint.")
    return _TIME.unpack_from(entry)[0] - _SIGN, entry[TIME_BYTES:]
