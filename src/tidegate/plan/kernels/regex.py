"""Like, RLike, RegExpExtract and RegExpReplace with constant patterns, run by RE2.

Rows that end in a line end are matched by Python when the pattern has a `$`, which RE2 cannot express as Java means it.
"""

import re
from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.model.errors import UnsupportedPlan
from tidegate.plan.expressions import Call
from tidegate.plan.kernels import java_regex
from tidegate.plan.kernels.constants import constant, constants
from tidegate.plan.kernels.java_regex import JavaPattern
from tidegate.plan.kernels.text import constant_integer, constant_text, per_distinct, require_types, require_utf8
from tidegate.plan.kernels.values import Kernel, Value, any_true, as_array, unsupported

TEXT = pa.string()
Apply = Callable[[pa.Array], pa.Array]


def build_like(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, TEXT, TEXT)
    child, given = arguments
    pattern = _like_pattern(constant_text(given, call.function, "pattern"), call.setting("escapeChar") or "\\")
    _require_runnable(pattern)

    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        require_utf8(values, call.function)
        return pc.match_substring_regex(values, pattern=pattern)

    return Kernel(run, pa.bool_(), raises=child.raises)


def build_rlike(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, TEXT, TEXT)
    child, given = arguments
    pattern = java_regex.parse(constant_text(given, call.function, "pattern"))
    searched, fallback = pattern.for_re2(), re.compile(pattern.for_python())
    _require_runnable(searched)

    def exactly(values: pa.Array) -> pa.Array:
        # "y" and "n", because values are made once for each distinct text.
        found = per_distinct(values, lambda text: "y" if fallback.search(text) else "n")
        return pc.equal(found, constant("y", TEXT))

    apply = _with_ends(pattern, lambda values: pc.match_substring_regex(values, pattern=searched), exactly)
    return _kernel(call, child, apply)


def build_extract(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """A group of the first match; nothing if there is no match, or the group took no part in it."""
    require_types(call.function, arguments, TEXT, TEXT, pa.int32())
    child = arguments[0]
    pattern = java_regex.parse(constant_text(arguments[1], call.function, "pattern"))
    group = constant_integer(arguments[2], call.function, "group")
    if not 0 <= group <= pattern.groups:
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} of group {group}, of {pattern.groups}")
    _require_plain_groups(call, pattern, {group})
    searched, fallback = pattern.for_re2([group]), re.compile(pattern.for_python([group]))
    _require_runnable(searched)
    empty = constant("", TEXT)

    def directly(values: pa.Array) -> pa.Array:
        found = pc.struct_field(pc.extract_regex(values, pattern=searched), 0)
        return pc.if_else(values.is_valid(), pc.fill_null(found, empty), constant(None, TEXT))

    def exactly(text: str) -> str:
        found = fallback.search(text)
        return (found.group(f"g{group}") or "") if found else ""

    return _kernel(call, child, _with_ends(pattern, directly, lambda values: per_distinct(values, exactly)))


def build_replace(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    require_types(call.function, arguments, TEXT, TEXT, TEXT, pa.int32())
    child = arguments[0]
    pattern = java_regex.parse(constant_text(arguments[1], call.function, "pattern"))
    template = _template(constant_text(arguments[2], call.function, "replacement"), pattern.groups)
    if constant_integer(arguments[3], call.function, "position") != 1:
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} from another position than 1")
    if pattern.matches_empty:
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} with a pattern that matches nothing at all")
    groups = sorted({part for part in template if isinstance(part, int)})
    _require_plain_groups(call, pattern, set(groups))
    searched = pattern.for_re2(groups)
    _require_runnable(searched)
    # RE2 numbers the groups that are left.
    numbers = {group: number for number, group in enumerate((group for group in groups), start=1)}
    rewrite = "".join(
        part.replace("\\", "\\\\") if isinstance(part, str) else f"\\{numbers[part]}" for part in template
    )
    fallback = re.compile(pattern.for_python(groups))

    def replaced(found: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else found.group(f"g{part}") or "" for part in template)

    return _kernel(
        call,
        child,
        _with_ends(
            pattern,
            lambda values: pc.replace_substring_regex(values, pattern=searched, replacement=rewrite),
            lambda values: per_distinct(values, lambda text: fallback.sub(replaced, text)),
        ),
    )


def _kernel(call: Call, child: Kernel, apply: Apply) -> Kernel:
    def run(rows: pa.RecordBatch) -> Value:
        values = as_array(child.run(rows), rows.num_rows)
        require_utf8(values, call.function)
        return apply(values)

    return Kernel(run, call.type, raises=child.raises)


def _with_ends(pattern: JavaPattern, directly: Apply, exactly: Apply) -> Apply:
    if not pattern.has_end:
        return directly

    def apply(values: pa.Array) -> pa.Array:
        ends = pc.match_substring_regex(values, pattern=java_regex.LINE_END_AT_END)
        if not any_true(ends):
            return directly(values)
        return pc.if_else(ends, exactly(values), directly(values))

    return apply


def _require_plain_groups(call: Call, pattern: JavaPattern, groups: set[int]) -> None:
    """What a group holds after several rounds of a repetition is not the same everywhere."""
    if groups & pattern.repeated_groups:
        raise UnsupportedPlan(f"Tidegate has no kernel for {call.function} of a group within a repetition")


def _require_runnable(pattern: str) -> None:
    try:
        pc.match_substring_regex(constants([""], TEXT), pattern=pattern)
    except pa.ArrowInvalid as refused:
        raise UnsupportedPlan(f"RE2 does not take the regular expression ({refused})") from refused


def _like_pattern(pattern: str, escape: str) -> str:
    """`%` is any text and `_` any character, line ends too; the escape stands before one of the three."""
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise UnsupportedPlan(f"The pattern {pattern!r} has an escape character with nothing to escape")
            parts.append(rf"\x{{{ord(escaped):x}}}")
        elif character in "%_":
            parts.append("(?s:.*)" if character == "%" else "(?s:.)")
        else:
            parts.append(rf"\x{{{ord(character):x}}}")
    return r"\A" + "".join(parts) + r"\z"


def _template(replacement: str, groups: int) -> list[str | int]:
    """Texts and group numbers of Java's replacement: `$1` is a group, a backslash takes the next one as it is."""
    parts: list[str | int] = []
    at = 0
    while at < len(replacement):
        character = replacement[at]
        following = replacement[at + 1 : at + 2]
        if character == "$":
            digits = re.match(r"[0-9]+", replacement[at + 1 :])
            if digits is None or len(digits.group()) > 1 or int(digits.group()) > groups:
                raise UnsupportedPlan(f"Tidegate has no kernel for RegExpReplace with the replacement {replacement!r}")
            parts.append(int(digits.group()))
            at += 2
        elif character == "\\":
            if not following:
                raise UnsupportedPlan(f"The replacement {replacement!r} ends with a backslash")
            parts.append(following)
            at += 2
        else:
            parts.append(character)
            at += 1
    return parts


def build_like_list(call: Call, arguments: tuple[Kernel, ...]) -> Kernel:
    """LikeAll, NotLikeAll, LikeAny, NotLikeAny: a null among the patterns leaves the answer open."""
    child, *patterns = arguments
    if not patterns:
        raise unsupported(call.function, child.type)
    negated, all_of = call.function.startswith("Not"), call.function.endswith("All")
    matches = [build_like(call, (child, pattern)) for pattern in patterns]
    join = pc.and_kleene if all_of else pc.or_kleene

    def run(rows: pa.RecordBatch) -> Value:
        answers = [match.run(rows) for match in matches]
        if negated:
            answers = [pc.invert(answer) for answer in answers]
        result = answers[0]
        for answer in answers[1:]:
            result = join(result, answer)
        return result

    return Kernel(run, pa.bool_(), raises=child.raises)


BUILDERS: Mapping[str, Callable[[Call, tuple[Kernel, ...]], Kernel]] = {
    "Like": build_like,
    **dict.fromkeys(("LikeAll", "NotLikeAll", "LikeAny", "NotLikeAny"), build_like_list),
    "RLike": build_rlike,
    "RegExpExtract": build_extract,
    "RegExpReplace": build_replace,
}
