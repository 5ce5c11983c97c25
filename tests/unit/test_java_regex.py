"""Which of Java's regular expressions are taken, and what they become: the same for RE2 and Python, or a refusal."""

import re

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.kernels import java_regex

TAKEN = [
    "abc", "a|b|", "(a|b)c", "a*b+c?", "a{2}b{1,3}c{0,}", "a+?", "[a-f]", "[^a-f]", "[-a]", "[a-]", r"[\d\-x]",
    r"\w\s\S", ".", "^a", "a$", "(a$)|b", "(?i)aB", "(?s).", r"\.\\", r"\p{Alpha}", "(?:ab)+", "é",
]  # fmt: skip
REFUSED = [
    r"\b", r"\1", "(?=a)", "(?!a)", "(?<=a)b", "(?<n>a)", "(?m)a", "a(?i)b", "a++", "a?+", "a**", "(a*)*", "(a|)+",
    "(^)*", "[a[b]]", "[a&&b]", "[]a]", "[b-a]", r"[\d-z]", "a{2,1}", "a{,2}", "a{1001}", "a{x}", "a$b", "(a$)b",
    "(a$)?", "(a", "a)", "*", "[a", "a\\", r"\p{L}", r"\Qa\E", r"\x41", "]", "}",
]  # fmt: skip
TEXTS = st.text(st.sampled_from("abcABC01 .-é\n\r\u2028\u0085_\U0001f30a"), max_size=8)


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_may_mean_something_else_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPlan, match="surely as Java does"):
        java_regex.parse(pattern)


@settings(max_examples=30)
@given(texts=st.lists(TEXTS, min_size=1, max_size=50))
def test_both_engines_find_the_same(texts: list[str]) -> None:
    plain = [text for text in texts if not re.search(r"[\n\r\x85\u2028\u2029]\Z", text)]
    for pattern in TAKEN:
        parsed = java_regex.parse(pattern)
        given_texts = plain if parsed.has_end else texts
        found = pc.match_substring_regex(pa.array(given_texts, pa.string()), pattern=parsed.for_re2())
        assert found.to_pylist() == [re.search(parsed.for_python(), text) is not None for text in given_texts], pattern


@pytest.mark.parametrize(
    ("text", "matches"),
    [("a", True), ("a\n", True), ("a\r\n", True), ("a\u2028", True), ("a\n\n", False), ("a\n\r", False), ("ab", False)],
)
def test_the_end_may_stand_before_a_last_line_end(text: str, matches: bool) -> None:
    assert (re.search(java_regex.parse("a$").for_python(), text) is not None) == matches


def test_the_end_is_not_inside_a_carriage_return_and_line_feed() -> None:
    assert re.search(java_regex.parse(r"\r$").for_python(), "a\r\n") is None
    assert re.search(java_regex.parse(r"\r$").for_python(), "a\r") is not None


def test_a_point_is_no_line_end_and_case_is_that_of_ascii() -> None:
    texts = pa.array(["\n", "\r", "\x85", "\u2028", "x"])
    assert pc.match_substring_regex(texts, pattern=java_regex.parse(".").for_re2()).to_pylist() == [False] * 4 + [True]
    kelvin = pa.array(["k", "K", "\u212a"])
    found = pc.match_substring_regex(kelvin, pattern=java_regex.parse("(?i)k").for_re2())
    assert found.to_pylist() == [True, True, False]


def test_groups_are_counted_and_those_in_repetitions_are_known() -> None:
    parsed = java_regex.parse("(a)(?:b)((c)|d)+(e)?")
    assert parsed.groups == 4
    assert parsed.repeated_groups == {2, 3}
