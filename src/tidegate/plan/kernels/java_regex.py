"""Reads Java's regular expressions and writes those whose meaning is surely the same for RE2 and for Python.

A pattern is parsed into a small tree; every class of characters becomes explicit ranges, so that no engine's idea of
`.`, `\\s` or letter case is left in it. Whatever is not in the tree (look-around, back-references, possessive and
word-boundary operators, flags other than a leading `(?i)` or `(?s)`) is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from tidegate.model.errors import UnsupportedPlan

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x85, 0x85), (0x2028, 0x2029))
# Java's `$` also matches before the line end that closes the text, and never inside a \r\n.
_END_IN_PYTHON = "(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\\Z)"
LINE_END_AT_END = "[\n\r\x85\u2028\u2029]$"
_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_CONTROLS = {"t": 0x09, "n": 0x0A, "r": 0x0D, "f": 0x0C}
# Java's POSIX classes are those of ASCII.
_POSIX: dict[str, Ranges] = {
    "Digit": _DIGITS,
    "Alpha": ((0x41, 0x5A), (0x61, 0x7A)),
    "Alnum": ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)),
    "Upper": ((0x41, 0x5A),),
    "Lower": ((0x61, 0x7A),),
    "Punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "Space": _SPACE,
    "XDigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
    "ASCII": ((0x00, 0x7F),),
}
# RE2 refuses more.
_MOST_REPEATS = 1000


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character of these ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class End:
    pass


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Either:
    branches: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Node"
    least: int
    most: int | None
    suffix: str


@dataclass(frozen=True, slots=True)
class Group:
    part: "Node"
    number: int


Node: TypeAlias = OneOf | Begin | End | Sequence | Either | Repeat | Group


@dataclass(frozen=True, slots=True)
class JavaPattern:
    node: Node
    groups: int
    repeated_groups: frozenset[int]

    @property
    def has_end(self) -> bool:
        return any(isinstance(node, End) for node in _walk(self.node))

    @property
    def has_begin(self) -> bool:
        return any(isinstance(node, Begin) for node in _walk(self.node))

    @property
    def matches_empty(self) -> bool:
        return _least_length(self.node) == 0

    def for_re2(self, captured: Iterable[int] = ()) -> str:
        """With the wanted groups, named `g` and their number; group 0 is the whole match."""
        return _write(self.node, _RE2, frozenset(captured))

    def for_python(self, captured: Iterable[int] = ()) -> str:
        return _write(self.node, _PYTHON, frozenset(captured))


def parse(pattern: str) -> JavaPattern:
    """The pattern, or a refusal that says what in it may differ."""
    reader = _Reader(pattern)
    node = reader.read()
    repeated = {
        inner.number
        for outer in _walk(node)
        if isinstance(outer, Repeat) and outer.most != 1
        for inner in _walk(outer.part)
        if isinstance(inner, Group)
    }
    return JavaPattern(node, reader.groups, frozenset(repeated))


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self.groups = 0
        self._ignores_case = False
        self._dot = _complement(_LINE_ENDS)

    def read(self) -> Node:
        self._flags()
        node = self._alternatives()
        if self._at < len(self._text):
            raise self._refusal(f"a {self._peek()!r} without its opening")
        return node

    def _flags(self) -> None:
        while self._text.startswith(("(?i)", "(?s)"), self._at):
            if self._text[self._at + 2] == "i":
                self._ignores_case = True
            else:
                self._dot = ((0, _LAST),)
            self._at += 4

    def _alternatives(self) -> Node:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Either(tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            part = self._quantified(self._atom())
            if parts and isinstance(parts[-1], End):
                raise self._refusal("something behind `$`")
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self) -> Node:
        character = self._take()
        match character:
            case "(":
                return self._group()
            case "[":
                return OneOf(self._class())
            case ".":
                return OneOf(self._dot)
            case "^":
                return Begin()
            case "$":
                return End()
            case "\\":
                return OneOf(self._cased(self._escape()))
            case "*" | "+" | "?" | "{" | "}" | "]":
                raise self._refusal(f"a bare {character!r}")
        return OneOf(self._cased(_single(ord(character))))

    def _group(self) -> Node:
        if self._text.startswith("?:", self._at):
            self._at += 2
            part = self._alternatives()
        elif self._peek() == "?":
            raise self._refusal("a group that begins with `(?`")
        else:
            self.groups += 1
            number = self.groups
            part = Group(self._alternatives(), number)
        if self._peek() != ")":
            raise self._refusal("a group that is not closed")
        self._at += 1
        if any(isinstance(node, End) for node in _walk(part)) and self._peek() not in ("", ")", "|"):
            raise self._refusal("something behind `$`")
        return part

    def _quantified(self, part: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return part
        least, most, text = bounds
        if _least_length(part) == 0:
            raise self._refusal("a repetition of what may be empty")
        suffix = text
        if self._peek() == "?":
            self._at += 1
            suffix += "?"
        if self._peek() in ("*", "+", "?", "{") and self._peek():
            raise self._refusal("a possessive or repeated quantifier")
        return Repeat(part, least, most, suffix)

    def _bounds(self) -> tuple[int, int | None, str] | None:
        match self._peek():
            case "*":
                found: tuple[int, int | None, str] = (0, None, "*")
            case "+":
                found = (1, None, "+")
            case "?":
                found = (0, 1, "?")
            case "{":
                return self._counted()
            case _:
                return None
        self._at += 1
        return found

    def _counted(self) -> tuple[int, int | None, str]:
        end = self._text.find("}", self._at)
        inner = self._text[self._at + 1 : end] if end > 0 else ""
        least, comma, most = inner.partition(",")
        if not (least.isascii() and least.isdigit()) or not (most == "" or (most.isascii() and most.isdigit())):
            raise self._refusal("such a number of repetitions")
        lowest = int(least)
        highest = int(most) if most else (None if comma else lowest)
        if max(lowest, highest or 0) > _MOST_REPEATS or (highest is not None and highest < max(lowest, 1)):
            raise self._refusal("such a number of repetitions")
        self._at = end + 1
        upper = "" if highest is None else str(highest)
        return lowest, highest, f"{{{lowest}{',' if comma else ''}{upper if comma else ''}}}"

    def _class(self) -> Ranges:
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while True:
            character = self._take("a class that is not closed")
            if character == "]" and ranges:
                break
            if character in ("[", "]", "^") or character + self._peek() in ("&&", "--"):
                raise self._refusal(f"{character!r} within a class")
            low = self._escape() if character == "\\" else _single(ord(character))
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                ranges.append(self._range(low))
            else:
                ranges += low
        found = self._cased(tuple(ranges))
        return _complement(found) if negated else found

    def _range(self, low: Ranges) -> tuple[int, int]:
        character = self._take()
        high = self._escape() if character == "\\" else _single(ord(character))
        ends = (low[0][0], high[0][0])
        if character in ("[", "&") or low != _single(ends[0]) or high != _single(ends[1]) or ends[0] > ends[1]:
            raise self._refusal("such a range within a class")
        return ends

    def _escape(self) -> Ranges:
        character = self._take("a backslash at the end")
        if character in _CONTROLS:
            return _single(_CONTROLS[character])
        if character in "dDwWsS":
            ranges = {"d": _DIGITS, "w": _WORD, "s": _SPACE}[character.lower()]
            return ranges if character.islower() else _complement(ranges)
        if character == "p" and self._peek() == "{":
            name, closed, _ = self._text[self._at + 1 :].partition("}")
            if closed and name in _POSIX and not self._ignores_case:
                self._at += len(name) + 2
                return _POSIX[name]
        if character.isascii() and not character.isalnum():
            return _single(ord(character))
        raise self._refusal(f"`\\{character}`")

    def _cased(self, ranges: Ranges) -> Ranges:
        """Without regard to case Java compares letters of ASCII only."""
        if not self._ignores_case:
            return ranges
        added = []
        for low, high in ranges:
            for first, last, shift in ((0x41, 0x5A, 32), (0x61, 0x7A, -32)):
                if low <= last and high >= first:
                    added.append((max(low, first) + shift, min(high, last) + shift))
        return (*ranges, *added)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, otherwise: str = "an end too early") -> str:
        if self._at >= len(self._text):
            raise self._refusal(otherwise)
        self._at += 1
        return self._text[self._at - 1]

    def _refusal(self, what: str) -> UnsupportedPlan:
        return UnsupportedPlan(
            f"Tidegate cannot run the regular expression {self._text!r} surely as Java does, because of {what}"
        )


def _single(code: int) -> Ranges:
    return ((code, code),)


def _complement(ranges: Ranges) -> Ranges:
    found, next_free = [], 0
    for low, high in sorted(ranges):
        if low > next_free:
            found.append((next_free, low - 1))
        next_free = max(next_free, high + 1)
    return (*found, (next_free, _LAST)) if next_free <= _LAST else tuple(found)


def _walk(node: Node) -> Iterable[Node]:
    yield node
    match node:
        case Sequence(parts=parts) | Either(branches=parts):
            for part in parts:
                yield from _walk(part)
        case Repeat(part=part) | Group(part=part):
            yield from _walk(part)
        case OneOf() | Begin() | End():
            return
        case _:
            assert_never(node)


def _least_length(node: Node) -> int:
    match node:
        case OneOf():
            return 1
        case Begin() | End():
            return 0
        case Sequence(parts=parts):
            return sum(map(_least_length, parts))
        case Either(branches=branches):
            return min(map(_least_length, branches))
        case Repeat(part=part, least=least):
            return least * _least_length(part)
        case Group(part=part):
            return _least_length(part)
        case _:
            assert_never(node)


@dataclass(frozen=True, slots=True)
class _Dialect:
    begin: str
    end: str
    code: str


_RE2 = _Dialect(begin=r"\A", end=r"\z", code=r"\x{{{:x}}}")
_PYTHON = _Dialect(begin=r"\A", end=_END_IN_PYTHON, code=r"\U{:08x}")


def _write(node: Node, dialect: _Dialect, captured: frozenset[int]) -> str:
    body = _written(node, dialect, captured)
    return f"(?P<g0>{body})" if 0 in captured else body


def _written(node: Node, dialect: _Dialect, captured: frozenset[int]) -> str:
    match node:
        case OneOf(ranges=ranges):
            return "[" + "".join(_range_text(low, high, dialect) for low, high in ranges) + "]"
        case Begin():
            return dialect.begin
        case End():
            return dialect.end
        case Sequence(parts=parts):
            return "".join(_written(part, dialect, captured) for part in parts)
        case Either(branches=branches):
            return "(?:" + "|".join(_written(branch, dialect, captured) for branch in branches) + ")"
        case Repeat(part=part, suffix=suffix):
            return f"(?:{_written(part, dialect, captured)}){suffix}"
        case Group(part=part, number=number):
            opening = f"(?P<g{number}>" if number in captured else "(?:"
            return f"{opening}{_written(part, dialect, captured)})"
        case _:
            assert_never(node)


def _range_text(low: int, high: int, dialect: _Dialect) -> str:
    first, last = dialect.code.format(low), dialect.code.format(high)
    return first if low == high else f"{first}-{last}"
