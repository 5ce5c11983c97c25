"""Patterns of paths as Hadoop reads them: `*`, `?`, `[a-c]`, `[^a]`, `{a,b}` and `\\` before what is meant as it is.

Pure but for `matching_paths`, which lists folders. What Python's expressions would read otherwise than Java's is
refused, never guessed.
"""

import os
import re
from functools import lru_cache
from pathlib import Path

from tidegate.model.errors import OptionError

_MARKS = frozenset("{}[]*?\\")
# Java gives these a meaning inside a class, or Hadoop makes something unexpected of them there.
_NOT_IN_CLASSES = frozenset("[{}*?")


def has_marks(text: str) -> bool:
    """Whether Spark takes the path for a pattern."""
    return not _MARKS.isdisjoint(text)


# A pattern is asked for with every file; a query has a few of them.
@lru_cache(maxsize=256)
def glob_regex(glob: str) -> re.Pattern[str]:
    """For the name of one file or folder; to be asked for a full match."""
    parts: list[str] = []
    depth = at = 0
    while at < len(glob):
        letter, taken = glob[at], 1
        if letter == "\\":
            part, taken = re.escape(_escaped(glob, at)), 2
        elif letter == "*":
            part = ".*"
        elif letter == "?":
            part = "."
        elif letter == "[":
            part, taken = _class(glob, at, comma="|" if depth else ",")
        elif letter == "{":
            part, depth = "(?:", depth + 1
        elif letter == "}" and depth:
            part, depth = ")", depth - 1
        else:
            part = "|" if letter == "," and depth else re.escape(letter)
        parts.append(part)
        at += taken
    if depth:
        raise _refused(glob, "has a { without its }")
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise _refused(glob, f"cannot be read ({error})") from None


def alternatives(pattern: str) -> list[str]:
    """The pattern without groups that reach over a slash: `/{a/b,c}/*` means `/a/b/*` and `/c/*`."""
    group = _group_with_slash(pattern)
    if group is None:
        return [pattern]
    start, end = group
    choices = _choices(pattern[start + 1 : end])
    return [found for choice in choices for found in alternatives(pattern[:start] + choice + pattern[end + 1 :])]


def matching_paths(pattern: str) -> list[Path]:
    """Every file and folder that is there and fits, each once, by name."""
    found: set[Path] = set()
    for alternative in alternatives(pattern):
        paths = [Path("/" if alternative.startswith("/") else "")]
        for component in _components(alternative):
            paths = [inner for path in paths for inner in _matching_inside(path, component)]
        found.update(paths)
    return sorted(found)


def matched_part(pattern: str, path: Path) -> Path | None:
    """The folder or file that the pattern means on the way to a path below it; None if it means none of them."""
    parts = [part for part in path.parts if part != path.anchor]
    matched: list[Path] = []
    for alternative in alternatives(pattern):
        components = _components(alternative)
        if len(components) <= len(parts) and all(map(_fits, components, parts)):
            matched.append(Path(path.anchor, *parts[: len(components)]))
    return min(matched, default=None)


def check_pattern(pattern: str) -> None:
    """Raises `OptionError` for what `matching_paths` would not understand."""
    for alternative in alternatives(pattern):
        for component in _components(alternative):
            glob_regex(component)


def _matching_inside(folder: Path, component: str) -> list[Path]:
    if not has_marks(component.replace("\\", "")):
        path = folder / _unescaped(component)
        return [path] if path.exists() else []
    regex = glob_regex(component)
    try:
        return [folder / name for name in os.listdir(folder) if regex.fullmatch(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _fits(component: str, name: str) -> bool:
    return glob_regex(component).fullmatch(name) is not None


def _components(pattern: str) -> list[str]:
    return [component for component in pattern.split("/") if component]


def _unescaped(component: str) -> str:
    return re.sub(r"\\(.)", r"\1", component, flags=re.DOTALL)


def _escaped(glob: str, at: int) -> str:
    following = glob[at + 1 : at + 2]
    if not following:
        raise _refused(glob, "ends with a \\")
    if following.isalnum():
        raise _refused(glob, f"has \\{following}, and only marks can stand behind a \\")
    return following


def _class(glob: str, at: int, *, comma: str) -> tuple[str, int]:
    """A class such as `[a-c]` as an expression, and how many letters of the pattern it takes."""
    start = at
    at += 1
    is_negated = glob[at : at + 1] in ("^", "!")
    at += is_negated
    parts: list[str] = []
    while (letter := glob[at : at + 1]) != "]" or not parts:
        if not letter:
            raise _refused(glob, "has a [ without its ]")
        if letter in _NOT_IN_CLASSES or letter == "]" or glob.startswith(("&&", "--"), at):
            raise _refused(glob, f"has {letter!r} between [ and ]: put a \\ before it")
        if letter == "\\":
            letter = _escaped(glob, at)
            at += 1
            parts.append(re.escape(letter))
        else:
            parts.append("-" if letter == "-" else re.escape(comma if letter == "," else letter))
        at += 1
    return f"[{'^' if is_negated else ''}{''.join(parts)}]", at + 1 - start


def _group_with_slash(pattern: str) -> tuple[int, int] | None:
    """Where the first outermost group begins and ends that has a slash inside."""
    depth = start = at = 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif letter == "{":
            depth += 1
            start = at if depth == 1 else start
        elif letter == "}" and depth:
            depth -= 1
            if depth == 0 and "/" in pattern[start:at]:
                return start, at
        at += 1
    return None


def _choices(inside: str) -> list[str]:
    """What the commas of a group part, but not those of groups inside."""
    choices = [""]
    depth = at = 0
    while at < len(inside):
        letter = inside[at]
        taken = 2 if letter == "\\" else 1
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            choices.append("")
        else:
            choices[-1] += inside[at : at + taken]
        at += taken
    return choices


def _refused(glob: str, why: str) -> OptionError:
    return OptionError(f"The pattern {glob!r} {why}: write it as Hadoop's patterns of paths are written.")
