"""Durations and sizes as people write them: `10s`, `500ms`, `10 seconds`, `1MiB`, `64 kb`."""

import re

from tidegate.model.errors import OptionError

_MS_PER_UNIT = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "": 1000, "s": 1000, "sec": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_BYTES_PER_UNIT = {
    "": 1, "b": 1,
    "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
    "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_duration_ms(text: str, *, option: str) -> int:
    return _parse(text, units=_MS_PER_UNIT, option=option, example="10s, 500ms or 2 minutes")


def parse_size_bytes(text: str, *, option: str) -> int:
    return _parse(text, units=_BYTES_PER_UNIT, option=option, example="1MiB, 64kb or 4096")


def format_bytes(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("unreachable: the loop ends at GiB")


def format_ms(duration_ms: float) -> str:
    if duration_ms < 1000:
        return f"{duration_ms:.0f} ms"
    return f"{duration_ms / 1000:.2f} s"


def _parse(text: str, *, units: dict[str, int], option: str, example: str) -> int:
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match.group(2).lower() not in units:
        raise OptionError(f"Option {option!r} is {text!r}, which is not a quantity: write for example {example}.")
    return round(float(match.group(1)) * units[match.group(2).lower()])
