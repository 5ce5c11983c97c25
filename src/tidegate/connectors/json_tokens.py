"""One JSON record, taken apart as Spark's reader (Jackson) does: for records that are not plain, one at a time.

Owns the grammar: strict JSON, plus single quotes and the words for what is no number. It converts nothing.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from tidegate.model.errors import Damaged


class Kind(Enum):
    STRING = auto()
    INTEGER = auto()
    FLOAT = auto()
    TRUE = auto()
    FALSE = auto()
    NULL = auto()
    NESTED = auto()
    BROKEN = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is a string's content, and the source's own letters for everything else; a broken string has none."""

    kind: Kind
    text: str


# Names and values in order: of two values for one name the last readable one counts.
Record: TypeAlias = list[tuple[str, Token]]


class Malformed(Exception):
    """Not JSON up to the end of the first value."""


class _BrokenString(Malformed):
    """An escape or a control character that no string may have; Jackson stands at `at` then."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at


_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"(?:true|false|null|NaN|Infinity|[+-](?:INF|Infinity))(?!\w)")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")
_WORDS = {"true": Kind.TRUE, "false": Kind.FALSE, "null": Kind.NULL}
# Jackson's own limit.
_MOST_NESTED = 1000


def read_records(text: str, wanted: Collection[str]) -> list[Record] | None:
    """The records of one line: one object, or the objects of an array; None for a blank line.

    What stands behind the first value is not looked at, as in Spark. A broken string costs only its own field, if
    that is one of `wanted` and the record goes on behind it.
    """
    at = _skip(text, 0)
    if at == len(text):
        return None
    if text[at] == "{":
        return [_object(text, at, wanted)[0]]
    if text[at] == "[":
        return _array_of_objects(text, at, wanted)
    raise Malformed


def _array_of_objects(text: str, at: int, wanted: Collection[str]) -> list[Record]:
    records: list[Record] = []
    at = _skip(text, at + 1)
    if _letter(text, at) == "]":
        return records
    while True:
        if _letter(text, at) != "{":
            _value(text, at, 1)
            raise Malformed
        record, at = _object(text, at, wanted)
        records.append(record)
        at = _skip(text, at)
        if _letter(text, at) == "]":
            return records
        at = _skip(text, _expect(text, at, ","))


def _object(text: str, at: int, wanted: Collection[str]) -> tuple[Record, int]:
    record: Record = []
    at = _skip(text, at + 1)
    if _letter(text, at) == "}":
        return record, at + 1
    while True:
        name, at = _string(text, at)
        at = _skip(text, _expect(text, _skip(text, at), ":"))
        token, at = _field(text, at) if name in wanted else _value(text, at, 1)
        record.append((name, token))
        at = _skip(text, at)
        if _letter(text, at) == "}":
            return record, at + 1
        at = _skip(text, _expect(text, at, ","))


def _field(text: str, at: int) -> tuple[Token, int]:
    try:
        return _value(text, at, 1)
    except _BrokenString as broken:
        if text[at] in "{[":
            raise Damaged(
                f"A string within the field {text[at : at + 60]!r} has an escape or control character that JSON does "
                f"not allow, and what Spark would make of the record is not known here: correct the record."
            ) from None
        return Token(Kind.BROKEN, ""), broken.at


def _value(text: str, at: int, depth: int) -> tuple[Token, int]:
    letter = _letter(text, at)
    if letter in "\"'":
        content, end = _string(text, at)
        return Token(Kind.STRING, content), end
    if letter in "{[":
        end = _skip_nested(text, at, depth)
        return Token(Kind.NESTED, text[at:end]), end
    word = _WORD.match(text, at)
    if word is not None:
        return Token(_WORDS.get(word.group(), Kind.FLOAT), word.group()), word.end()
    number = _NUMBER.match(text, at)
    if number is None:
        raise Malformed
    fraction, exponent = number.groups()
    return Token(Kind.FLOAT if fraction or exponent else Kind.INTEGER, number.group()), number.end()


def _skip_nested(text: str, at: int, depth: int) -> int:
    """The end of an object or array; without recursion, because the depth is the input's choice."""
    closing = ["}" if text[at] == "{" else "]"]
    at = _skip(text, at + 1)
    is_first = True
    while closing:
        if len(closing) + depth > _MOST_NESTED:
            raise Malformed
        if _letter(text, at) == closing[-1]:
            closing.pop()
            at, is_first = at + 1, False
            if not closing:
                return at
            at = _skip(text, at)
            continue
        if not is_first:
            at = _skip(text, _expect(text, at, ","))
        if closing[-1] == "}":
            _, at = _string(text, at)
            at = _skip(text, _expect(text, _skip(text, at), ":"))
        letter = _letter(text, at)
        if letter in "{[":
            closing.append("}" if letter == "{" else "]")
            at, is_first = _skip(text, at + 1), True
            continue
        _, at = _value(text, at, depth)
        at, is_first = _skip(text, at), False
    return at


def _string(text: str, at: int) -> tuple[str, int]:
    quote = _letter(text, at)
    if quote not in _PLAIN:
        raise Malformed
    pieces: list[str] = []
    at += 1
    while True:
        plain = _PLAIN[quote].match(text, at)
        assert plain is not None, "the pattern fits the empty string"
        pieces.append(plain.group())
        at = plain.end()
        letter = _letter(text, at)
        if letter == quote:
            return _joined(pieces), at + 1
        if letter != "\\":
            raise _BrokenString(at + 1)
        escaped = _letter(text, at + 1)
        if escaped == "u":
            digits = _HEX.match(text, at + 2)
            assert digits is not None, "the pattern fits the empty string"
            if len(digits.group()) < 4:
                raise _BrokenString(digits.end() + 1)
            pieces.append(chr(int(digits.group(), 16)))
            at += 6
        elif escaped in _ESCAPES:
            pieces.append(_ESCAPES[escaped])
            at += 2
        else:
            raise _BrokenString(at + 2)


def _joined(pieces: list[str]) -> str:
    """Halves of a surrogate pair become one letter; half a pair alone becomes a question mark, as in Java."""
    joined = "".join(pieces)
    if any("\ud800" <= letter <= "\udfff" for letter in joined):
        joined = joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        joined = joined.encode("utf-8", "replace").decode("utf-8")
    return joined


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    assert blank is not None, "the pattern fits the empty string"
    return blank.end()


def _letter(text: str, at: int) -> str:
    if at >= len(text):
        raise Malformed
    return text[at]


def _expect(text: str, at: int, letter: str) -> int:
    if _letter(text, at) != letter:
        raise Malformed
    return at + 1
