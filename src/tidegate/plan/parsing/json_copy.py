"""A JSON value written anew, as Jackson's generator copies it from a parser: no blanks, numbers as Java prints them."""

import re

from tidegate.plan.parsing.java_doubles import Digits, double_text
from tidegate.plan.parsing.json_cursor import JsonCursor, JsonError, Token, is_surrogate

# Into bytes Jackson writes what lies outside of the 16 bits of a Java character as two escapes.
_MUST_ESCAPE = re.compile(r'["\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_NOT_NUMBERS = {
    "NaN": '"NaN"', "Infinity": '"Infinity"', "+Infinity": '"Infinity"', "+INF": '"Infinity"',
    "-Infinity": '"-Infinity"', "-INF": '"-Infinity"',
}  # fmt: skip


def copy_of(cursor: JsonCursor, digits: Digits) -> str:
    """The present value, whole; the cursor stands at its last token then."""
    pieces: list[str] = []
    depth = 0
    # Whether a comma is due before the next value or name of the present object or array.
    is_due = False
    token = cursor.token
    while True:
        if token is None or (depth == 0 and token in (Token.END_OBJECT, Token.END_ARRAY)):
            raise JsonError
        if token in (Token.END_OBJECT, Token.END_ARRAY):
            pieces.append("}" if token is Token.END_OBJECT else "]")
            depth -= 1
            is_due = True
        else:
            if is_due:
                pieces.append(",")
            is_due = token not in (Token.START_OBJECT, Token.START_ARRAY, Token.NAME)
            depth += token in (Token.START_OBJECT, Token.START_ARRAY)
            pieces.append(_spelled(cursor, token, digits))
        if depth == 0:
            return "".join(pieces)
        token = cursor.next()


def quoted(text: str) -> str:
    return f'"{_MUST_ESCAPE.sub(_escape, text)}"'


def java_text(text: str) -> str:
    """As Java makes bytes of it: half a pair of surrogates becomes a question mark."""
    return text.encode("utf-8", "replace").decode() if any(map(is_surrogate, text)) else text


def _escape(found: re.Match[str]) -> str:
    letter = found.group()
    if letter in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[letter]
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02X}{low:02X}" for high, low in zip(units[::2], units[1::2], strict=True))


def _spelled(cursor: JsonCursor, token: Token, digits: Digits) -> str:
    match token:
        case Token.START_OBJECT:
            return "{"
        case Token.START_ARRAY:
            return "["
        case Token.NAME:
            return f"{quoted(cursor.name() or '')}:"
        case Token.STRING:
            return quoted(cursor.text())
        case Token.INTEGER:
            return str(int(cursor.text()))
        case Token.FLOAT:
            return _float(cursor.text(), digits)
        case _:
            return cursor.text()


def _float(text: str, digits: Digits) -> str:
    if text in _NOT_NUMBERS:
        return _NOT_NUMBERS[text]
    value = float(text)
    if value in (float("inf"), float("-inf")):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return double_text(value, digits)
