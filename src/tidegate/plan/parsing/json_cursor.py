"""A cursor over one JSON text that stands where Jackson's would, also after an error.

Spark goes on behind some errors of a record, and what it then reads depends on where its parser stands. So this owns
the grammar, the stack of open objects and arrays, and the position after each kind of error. It converts nothing.
"""

import re
import unicodedata
from dataclasses import dataclass
from enum import Enum, auto


class Token(Enum):
    START_OBJECT = auto()
    END_OBJECT = auto()
    START_ARRAY = auto()
    END_ARRAY = auto()
    NAME = auto()
    STRING = auto()
    INTEGER = auto()
    FLOAT = auto()
    TRUE = auto()
    FALSE = auto()
    NULL = auto()


class JsonError(Exception):
    """Not JSON here; the cursor may be asked for the next token all the same."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What is allowed beyond strict JSON."""

    single_quotes: bool = True
    non_numeric_numbers: bool = True
    control_characters: bool = False
    any_escape: bool = False


# The functions on JSON strings take others than the readers do, for Hive's sake.
READER_GRAMMAR = Grammar()
FUNCTION_GRAMMAR = Grammar(non_numeric_numbers=False, control_characters=True)

_BLANKS = " \t\r\n"
_BLANK = re.compile(f"[{_BLANKS}]*")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]*'), "'": re.compile(r"[^'\\\x00-\x1f]*")}
_DIGITS = re.compile(r"[0-9]*")
_HEX = re.compile(r"[0-9a-fA-F]{0,4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"t": ("true", Token.TRUE), "f": ("false", Token.FALSE), "n": ("null", Token.NULL)}
_NOT_NUMBERS = {"N": "NaN", "I": "Infinity"}
_STARTS = {"{": Token.START_OBJECT, "[": Token.START_ARRAY}
_STRUCTURES = (Token.START_OBJECT, Token.START_ARRAY)
# Jackson's own limits.
_MOST_NESTED = 1000
_MOST_DIGITS = 1000
_LONGEST_WORD_REPORTED = 256
_IDENTIFIER_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Nd", "Sc", "Pc", "Mc", "Mn", "Cf"})


class _Scope:
    """An open object, array, or the root."""

    __slots__ = ("closing", "count", "name")

    def __init__(self, closing: str) -> None:
        self.closing = closing
        self.count = 0
        self.name: str | None = None

    def expects_comma(self) -> bool:
        self.count += 1
        return self.closing != "" and self.count > 1


class JsonCursor:
    """`token` is the present one; `start` and `at` are where it began and where the cursor stands."""

    __slots__ = ("_complete", "_grammar", "_pending", "_quote", "_scopes", "_text", "at", "start", "token", "value")

    def __init__(self, text: str, grammar: Grammar) -> None:
        self._text = text
        self._grammar = grammar
        self._scopes = [_Scope("")]
        self._pending: Token | None = None
        self._quote = ""
        self._complete = True
        self.token: Token | None = None
        self.value = ""
        self.start = 0
        self.at = 0

    # -- what Jackson's callers ask

    def next(self) -> Token | None:
        """The next token; None at the end of the input, and behind a name whose value could not be read."""
        if self.token is Token.NAME:
            token, self._pending = self._pending, None
            if token in _STRUCTURES:
                self._open(token)
            self.token = token
            return token
        if not self._complete:
            self.text()
        letter = self._skip_blank()
        if letter == "":
            if len(self._scopes) > 1:
                raise JsonError
            self.token = None
            return None
        if letter in "]}":
            return self._close(letter)
        scope = self._scopes[-1]
        if scope.expects_comma():
            letter = self._behind(",", letter)
        if scope.closing != "}":
            token = self._value(letter)
            if token in _STRUCTURES:
                self._open(token)
            self.token = token
            return token
        scope.name = self._name(letter)
        self.token = Token.NAME
        self._pending = self._value(self._behind(":", self._skip_blank()))
        return self.token

    def name(self) -> str | None:
        """Of the field that the present token belongs to; None within an array."""
        if self.token in _STRUCTURES and len(self._scopes) > 1:
            return self._scopes[-2].name
        return self._scopes[-1].name

    def text(self) -> str:
        """A string's content, a number's letters."""
        if not self._complete:
            self._complete = True
            self.value = self._string(self._quote)
        return self.value

    def skip_children(self) -> None:
        if self.token not in _STRUCTURES:
            return
        depth = 1
        while depth:
            match self.next():
                case None:
                    raise JsonError
                case Token.START_OBJECT | Token.START_ARRAY:
                    depth += 1
                case Token.END_OBJECT | Token.END_ARRAY:
                    depth -= 1

    def raw(self) -> str:
        """The letters of the present value as they stand, the whole of it if it is an object or array."""
        start = self.start
        self.skip_children()
        return self._text[start : self.at]

    # -- tokens

    def _open(self, token: Token | None) -> None:
        self._scopes.append(_Scope("}" if token is Token.START_OBJECT else "]"))
        if len(self._scopes) - 1 > _MOST_NESTED:
            raise JsonError

    def _close(self, letter: str) -> Token:
        if self._scopes[-1].closing != letter:
            raise JsonError
        self._scopes.pop()
        self.token = Token.END_OBJECT if letter == "}" else Token.END_ARRAY
        return self.token

    def _behind(self, mark: str, letter: str) -> str:
        if letter != mark:
            raise JsonError
        found = self._skip_blank()
        if found == "":
            raise JsonError
        return found

    def _skip_blank(self) -> str:
        """The first letter that is no blank, with the cursor behind it."""
        blank = _BLANK.match(self._text, self.at)
        assert blank is not None, "the pattern fits the empty string"
        self.at = blank.end()
        if self.at == len(self._text):
            return ""
        letter = self._text[self.at]
        self.at += 1
        if letter < " ":
            raise JsonError
        return letter

    def _name(self, letter: str) -> str:
        if letter == '"' or (letter == "'" and self._grammar.single_quotes):
            return self._string(letter)
        raise JsonError

    def _value(self, letter: str) -> Token:
        self.start = self.at - 1
        if letter == '"':
            # Jackson reads the content only when it is asked for, or at the next token: so errors come then.
            self._quote, self._complete = letter, False
            return Token.STRING
        if letter in _STARTS:
            return _STARTS[letter]
        if letter in _WORDS:
            word, token = _WORDS[letter]
            self._word(word, 1)
            self.value = word
            return token
        if letter in "-0123456789":
            return self._number(letter)
        return self._odd_value(letter)

    def _odd_value(self, letter: str) -> Token:
        if letter == "'" and self._grammar.single_quotes:
            self.value = self._string(letter)
            return Token.STRING
        if letter in _NOT_NUMBERS:
            return self._not_a_number(_NOT_NUMBERS[letter], 1)
        if letter == "+":
            return self._signed_infinity(letter)
        if _is_identifier_part(letter):
            self._skip_identifier(1)
        raise JsonError

    def _word(self, word: str, matched: int) -> None:
        while matched < len(word):
            if self._letter() != word[matched]:
                self._skip_identifier(matched)
                raise JsonError
            self.at += 1
            matched += 1
        following = self._letter()
        if following >= "0" and following not in "]}" and _is_identifier_part(following):
            self._skip_identifier(matched)
            raise JsonError

    def _skip_identifier(self, length: int) -> None:
        """Jackson's message names the whole word, so it is read."""
        while length < _LONGEST_WORD_REPORTED and self._letter() and _is_identifier_part(self._letter()):
            self.at += 1
            length += 1

    def _not_a_number(self, word: str, matched: int) -> Token:
        self._word(word, matched)
        if not self._grammar.non_numeric_numbers:
            raise JsonError
        self.value = word
        return Token.FLOAT

    def _signed_infinity(self, sign: str) -> Token:
        """`at` stands behind the sign."""
        first = self._letter()
        self.at += 1
        if first == "I":
            second = self._letter()
            self.at += 1
            if second in ("N", "n"):
                return self._not_a_number(sign + ("INF" if second == "N" else "Infinity"), 3)
        raise JsonError

    def _number(self, letter: str) -> Token:
        start = self.at - 1
        if letter == "-":
            following = self._letter()
            if not ("0" <= following <= "9"):
                return self._signed_infinity(letter)
            letter = following
            self.at += 1
        if letter == "0":
            if "0" <= self._letter() <= "9":
                raise JsonError
        else:
            self._digits()
        is_float = self._letter() in (".", "e", "E")
        if is_float:
            self._fraction_and_exponent()
        self.value = self._text[start : self.at]
        is_apart = len(self._scopes) > 1 or self._letter() in ("", *_BLANKS)
        if len(self.value) > _MOST_DIGITS or not is_apart:
            raise JsonError
        return Token.FLOAT if is_float else Token.INTEGER

    def _fraction_and_exponent(self) -> None:
        # Jackson stands behind the first mark while it reads on.
        behind_mark = self.at + 1
        is_complete = True
        if self._letter() == ".":
            self.at += 1
            is_complete = self._digits()
        if is_complete and self._letter() in ("e", "E"):
            self.at += 1
            if self._letter() in ("+", "-"):
                self.at += 1
            is_complete = self._digits()
        if not is_complete:
            self.at = behind_mark
            raise JsonError

    def _digits(self) -> bool:
        found = _DIGITS.match(self._text, self.at)
        assert found is not None, "the pattern fits the empty string"
        self.at = found.end()
        return found.group() != ""

    def _letter(self) -> str:
        return self._text[self.at] if self.at < len(self._text) else ""

    def _string(self, quote: str) -> str:
        pieces: list[str] = []
        while True:
            plain = _PLAIN[quote].match(self._text, self.at)
            assert plain is not None, "the pattern fits the empty string"
            pieces.append(plain.group())
            self.at = plain.end()
            letter = self._letter()
            self.at += 1
            if letter == quote:
                return _joined(pieces)
            if letter == "\\":
                pieces.append(self._escape())
            elif letter and self._grammar.control_characters:
                pieces.append(letter)
            else:
                raise JsonError

    def _escape(self) -> str:
        letter = self._letter()
        self.at += 1
        if letter == "u":
            return self._unicode_escape()
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        if letter and (self._grammar.any_escape or (letter == "'" and self._grammar.single_quotes)):
            return letter
        raise JsonError

    def _unicode_escape(self) -> str:
        digits = _HEX.match(self._text, self.at)
        assert digits is not None, "the pattern fits the empty string"
        self.at = digits.end()
        if len(digits.group()) < 4:
            self.at += 1
            raise JsonError
        return chr(int(digits.group(), 16))


def is_surrogate(letter: str) -> bool:
    return "\ud800" <= letter <= "\udfff"


def _joined(pieces: list[str]) -> str:
    """Halves of a surrogate pair become one letter; a half alone stays one, and is the caller's to judge."""
    joined = "".join(pieces)
    if any(map(is_surrogate, joined)):
        return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return joined


def _is_identifier_part(letter: str) -> bool:
    """Java's Character.isJavaIdentifierPart."""
    if letter < "\x80":
        return letter.isalnum() or letter in "_$" or letter <= "\x08" or "\x0e" <= letter <= "\x1b" or letter == "\x7f"
    return letter <= "\x9f" or unicodedata.category(letter) in _IDENTIFIER_CATEGORIES
