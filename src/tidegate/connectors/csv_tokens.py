"""One line of csv, cut into words as Spark's reader (univocity) does: for lines whose quotes are not plain.

Follows univocity step by step, with its rule for a quote where none belongs: the word then is what stands there, quotes
and all, up to the next separator. Owns the grammar of a line; it converts nothing.
"""

from dataclasses import dataclass

from tidegate.model.errors import Damaged

# Java's characters up to this one count as blanks behind a quoted word.
_LAST_BLANK = " "


@dataclass(frozen=True, slots=True)
class Marks:
    """`escape` may be the quote itself, and then two quotes stand for one."""

    separator: str
    quote: str
    escape: str

    @property
    def escape_of_escape(self) -> str:
        return "" if self.escape == self.quote else self.escape


def split_words(line: str, marks: Marks) -> list[str | None]:
    """The words of a line that is not blank; None for nothing between two separators."""
    return _Line(line, marks).words()


class _End(Exception):
    pass


class _Line:
    """A cursor: `letter` is the one in hand, `before` the one that decides what it means within quotes."""

    def __init__(self, line: str, marks: Marks) -> None:
        self._line = line
        self._marks = marks
        self._at = 0
        self._letter = ""
        self._before = ""
        self._word: list[str] = []
        self._is_stray = False
        self._words: list[str | None] = []

    def words(self) -> list[str | None]:
        try:
            self._take()
            while True:
                self._one_word()
        except _End:
            pass
        return self._words

    def _take(self) -> str:
        if self._at >= len(self._line):
            raise _End
        self._letter = self._line[self._at]
        self._at += 1
        return self._letter

    def _one_word(self) -> None:
        """With the word's first letter in hand; afterwards with that of the next."""
        if self._letter == self._marks.separator:
            self._words.append(None)
        elif self._letter == self._marks.quote:
            self._quoted_word()
        else:
            self._bare_word()
        try:
            self._take()
        except _End:
            self._words.append(None)  # the line ends with a separator
            raise

    def _bare_word(self) -> None:
        end = self._line.find(self._marks.separator, self._at)
        word = self._line[self._at - 1 : end if end >= 0 else len(self._line)]
        self._words.append(word)
        if end < 0:
            raise _End
        self._at = end + 1

    def _quoted_word(self) -> None:
        self._word, self._before, self._is_stray = [], "", False
        try:
            self._parse_quoted()
        except _End:
            self._at_the_end()
            self._words.append("".join(self._word))
            raise
        self._words.append("".join(self._word))

    def _parse_quoted(self) -> None:
        marks = self._marks
        if self._before:
            # A quote where none belongs: the rest up to the separator is the word, with the quote that opened it.
            self._word.insert(0, marks.quote)
            self._take()
            self._rest_of_word()
            return
        self._take()
        while True:
            letter, before = self._letter, self._before
            if before == marks.quote and (letter <= _LAST_BLANK or letter == marks.separator):
                break
            if letter not in (marks.quote, marks.escape):
                if before == marks.quote:
                    self._stray_quote()
                    return
                if before == marks.escape:
                    self._word.append(marks.escape)
                self._plain_letters()
                self._before = self._letter
                self._take()
            else:
                self._escaped()
                self._before = self._letter
                self._take()
                if self._is_stray and self._letter == marks.separator:
                    return
        self._blanks_behind()

    def _plain_letters(self) -> None:
        marks = self._marks
        while self._letter not in (marks.quote, marks.escape):
            self._word.append(self._letter)
            self._take()

    def _escaped(self) -> None:
        marks = self._marks
        if self._letter == marks.escape and self._before and self._before == marks.escape_of_escape:
            self._word.append(marks.escape)
            self._letter = "\0"
        elif self._before == marks.escape:
            if self._letter == marks.quote:
                self._word.append(marks.quote)
                self._letter = "\0"
            else:
                self._word.append(self._before)
        elif self._letter == marks.quote and self._before == marks.quote:
            self._word.append(marks.quote)
        elif self._before == marks.quote:
            raise self._unclear()

    def _at_the_end(self) -> None:
        """A quote at the very end that opened a word is the word."""
        if self._letter == self._marks.quote and self._before != self._marks.quote and not self._is_stray:
            self._word.append(self._marks.quote)

    def _stray_quote(self) -> None:
        self._is_stray = True
        self._word.append(self._marks.quote)
        self._word.append(self._letter)
        self._before = self._letter
        self._parse_quoted()

    def _rest_of_word(self) -> None:
        while self._letter != self._marks.separator:
            self._word.append(self._letter)
            self._take()

    def _blanks_behind(self) -> None:
        marks = self._marks
        if self._letter == marks.separator:
            return
        blanks = []
        while self._letter <= _LAST_BLANK and self._letter != marks.separator:
            blanks.append(self._letter)
            self._take()
        if self._letter != marks.separator:
            is_last = self._line.find(marks.separator, self._at) < 0
            if is_last and marks.quote in self._line[self._at :]:
                raise self._unclear()
            self._word += [marks.quote, *blanks, self._letter]
            self._before = self._letter
            self._parse_quoted()

    def _unclear(self) -> Damaged:
        return Damaged(
            f"The csv line {self._line[:100]!r} has a quote behind a quoted word, and what Spark would make of it is "
            f"not known here: correct the line."
        )
