"""Doubles as Java prints them. Before version 19 it gives some of them more digits than they need; both are here.

`Digits.EARLIER` follows the steps of the older Java exactly, in integers of any size, one value at a time.
"""

import math
import struct
from decimal import Decimal
from enum import Enum


class Digits(Enum):
    SHORTEST = "shortest"
    EARLIER = "earlier"


_FRACTION_BITS = 52
_LOG10_2 = 0.301029995663981
# The older Java counts in words of so many bits where the numbers fit, and its margin may overflow there.
_WORDS_BITS = (32, 64)
_BITS_OF_POWERS_OF_5 = (
    0, 3, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28, 31, 33, 35, 38, 40, 42, 45, 47, 49, 52, 54, 56, 59, 61,
)  # fmt: skip


def double_text(value: float, digits: Digits) -> str:
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value):
        return f"{sign}Infinity"
    if value == 0:
        return f"{sign}0.0"
    figures, exponent = _shortest(abs(value)) if digits is Digits.SHORTEST else _earlier(abs(value))
    return sign + _written(figures, exponent)


def _written(figures: str, exponent: int) -> str:
    """`exponent`: the value is 0.FIGURES times ten to this power."""
    if 0 < exponent < 8:
        whole = figures[:exponent].ljust(exponent, "0")
        return f"{whole}.{figures[exponent:] or '0'}"
    if -3 < exponent <= 0:
        return f"0.{'0' * -exponent}{figures}"
    return f"{figures[0]}.{figures[1:] or '0'}E{exponent - 1}"


def _shortest(value: float) -> tuple[str, int]:
    _sign, figures, power = Decimal(repr(value)).as_tuple()
    assert isinstance(power, int), "an infinity is written elsewhere"
    text, exponent = "".join(map(str, figures)).rstrip("0"), len(figures) + power
    if len(text) == 1 and not -3 < exponent < 8:
        # Java looks for the nearest two digits where one would do, which differs among the smallest numbers.
        text = f"{value:.1e}".partition("e")[0].replace(".", "").rstrip("0")
    return text, exponent


def _earlier(value: float) -> tuple[str, int]:
    bits = struct.unpack(">q", struct.pack(">d", value))[0]
    exponent, fraction = (bits >> _FRACTION_BITS) & 0x7FF, bits & ((1 << _FRACTION_BITS) - 1)
    if exponent == 0:
        # A subnormal number is shifted until its highest bit stands where it does in others.
        shift = _FRACTION_BITS + 1 - fraction.bit_length()
        fraction <<= shift
        return _figures(fraction, 1 - shift - 1023, _FRACTION_BITS + 1 - shift)
    return _figures(fraction | 1 << _FRACTION_BITS, exponent - 1023, _FRACTION_BITS + 1)


def _figures(fraction: int, exponent: int, significant_bits: int) -> tuple[str, int]:
    """The value is `fraction` / 2**52 * 2**`exponent`, with the highest bit of 53 set."""
    tail = (fraction & -fraction).bit_length() - 1
    width = _FRACTION_BITS + 1 - tail
    tiny = max(0, width - exponent - 1)
    if -21 <= exponent <= 62 and tiny == 0:
        return _whole(fraction, exponent, significant_bits)
    power = _estimated_power(fraction, exponent)
    b5, s5 = max(0, -power), max(0, power)
    b2, s2 = b5 + tiny + exponent, s5 + tiny
    m2 = b2 - significant_bits
    fraction >>= tail
    b2 -= width - 1
    common = min(b2, s2)
    b2, s2, m2 = b2 - common, s2 - common, m2 - common
    if width == 1:
        # Below a power of two the next number is only half as far away.
        m2 -= 1
    if m2 < 0:
        b2, s2, m2 = b2 - m2, s2 - m2, 0
    b_bits = width + b2 + _bits_of_power(b5)
    s_bits = s2 + 1 + _bits_of_power(s5 + 1)
    word_bits = next((bits for bits in _WORDS_BITS if max(b_bits, s_bits) < bits), None)
    rest, unit, margin = fraction * 5**b5 << b2, 5**s5 << s2, 5**b5 << m2
    return _generate(rest, unit, margin, power=power, word_bits=word_bits)


def _generate(rest: int, unit: int, margin: int, *, power: int, word_bits: int | None) -> tuple[str, int]:
    tens = unit * 10
    figure, rest = divmod(rest, unit)
    rest, margin = rest * 10, margin * 10
    low, high = _ends(rest, margin, tens, word_bits)
    figures: list[int] = []
    if figure == 0 and not high:
        power -= 1
    else:
        figures.append(figure)
    if power < -3 or power >= 8:
        # With an exponent there is always a digit behind the point.
        low = high = False
    while not low and not high:
        figure, rest = divmod(rest, unit)
        rest, margin = rest * 10, margin * 10
        low, high = _ends(rest, margin, tens, word_bits)
        figures.append(figure)
    if high and (not low or _rounds_up(2 * rest - tens, figures[-1])):
        power += _round_up(figures)
    return _trimmed(figures), power + 1


def _ends(rest: int, margin: int, tens: int, word_bits: int | None) -> tuple[bool, bool]:
    if word_bits is None:
        return rest < margin, rest + margin >= tens
    margin = _wrapped(margin, word_bits)
    if margin <= 0:
        return True, True
    return rest < margin, _wrapped(rest + margin, word_bits) > tens


def _wrapped(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def _rounds_up(difference: int, last: int) -> bool:
    return difference > 0 or (difference == 0 and last % 2 == 1)


def _round_up(figures: list[int]) -> int:
    """Adds one at the end; gives 1 if all were nines."""
    at = len(figures) - 1
    while at >= 0 and figures[at] == 9:
        figures[at] = 0
        at -= 1
    if at < 0:
        figures.insert(0, 1)
        figures.pop()
        return 1
    figures[at] += 1
    return 0


def _trimmed(figures: list[int]) -> str:
    return "".join(map(str, figures)).rstrip("0") or "0"


def _whole(fraction: int, exponent: int, significant_bits: int) -> tuple[str, int]:
    """An integer that fits a long: its digits, without those that its precision does not reach."""
    shift = exponent - _FRACTION_BITS
    value = fraction << shift if shift >= 0 else fraction >> -shift
    extra_bits = exponent - significant_bits - 1 if exponent > significant_bits else 0
    insignificant = math.floor(extra_bits * math.log10(2)) if extra_bits > 1 else 0
    if insignificant:
        unit = 10**insignificant
        value, rest = divmod(value, unit)
        if rest >= unit // 2:
            value += 1
    text = str(value)
    return text.rstrip("0") or "0", len(text) + insignificant


def _estimated_power(fraction: int, exponent: int) -> int:
    """At most one too high; a double's arithmetic as Java does it."""
    near: float = struct.unpack(">d", struct.pack(">Q", 1023 << 52 | fraction & ~(1 << 52)))[0]
    return math.floor((near - 1.5) * 0.289529654 + 0.176091259 + exponent * _LOG10_2)


def _bits_of_power(power: int) -> int:
    return _BITS_OF_POWERS_OF_5[power] if power < len(_BITS_OF_POWERS_OF_5) else power * 3
