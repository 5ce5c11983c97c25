"""Hadoop's patterns of paths, as its `GlobPattern` and `GlobExpander` read them."""

from pathlib import Path

import pytest

from tidegate.connectors.hadoop_glob import alternatives, check_pattern, glob_regex, matched_part, matching_paths
from tidegate.model.errors import OptionError


@pytest.mark.parametrize(
    ("glob", "fitting", "others"),
    [
        ("*.json", ["a.json", ".json", ".x.json"], ["a.jsonl", "a_json"]),
        ("a?c", ["abc", "a.c"], ["ac", "abbc"]),
        ("{a,b}.json", ["a.json", "b.json"], ["c.json", "{a,b}.json"]),
        ("part-{1,2{3,4}}*", ["part-1", "part-23.x", "part-24"], ["part-2", "part-25"]),
        ("{,x}a", ["a", "xa"], ["ya"]),
        ("a,b", ["a,b"], ["a", "b"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "-x"]),
        ("[^a]x", ["bx", "^x"], ["ax"]),
        ("[!a]x", ["bx", "!x"], ["ax"]),
        ("[a,b]x", ["ax", ",x"], ["|x"]),
        ("[.+$]", [".", "+", "$"], ["a"]),
        ("[a\\]]", ["a", "]"], ["b"]),
        ("[-a]", ["-", "a"], ["b"]),
        ("\\*.json", ["*.json"], ["a.json"]),
        ("\\{a,b\\}", ["{a,b}"], ["a"]),
        ("a}", ["a}"], ["a"]),
        ("a^(b)|c+$.", ["a^(b)|c+$."], ["a^(b)|cc$x"]),
    ],
)
def test_a_name_fits_a_pattern_as_in_hadoop(glob: str, fitting: list[str], others: list[str]) -> None:
    regex = glob_regex(glob)
    assert [name for name in [*fitting, *others] if regex.fullmatch(name)] == fitting


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("/d/{a,b}/*", ["/d/{a,b}/*"]),
        ("/{a/b,c}/*", ["/a/b/*", "/c/*"]),
        ("/{a/{x,y},c}/{1/2,3}", ["/a/{x,y}/1/2", "/a/{x,y}/3", "/c/1/2", "/c/3"]),
        ("/\\{a/b\\}", ["/\\{a/b\\}"]),
    ],
)
def test_groups_that_reach_over_a_slash_become_several_patterns(pattern: str, expected: list[str]) -> None:
    assert alternatives(pattern) == expected


@pytest.mark.parametrize("pattern", ["/d/{a", "/d/[a", "/d/a\\", "/d/\\d", "/d/[a&&b]", "/d/[z-a]", "/d/[]", "/d/[a*]"])
def test_a_pattern_that_cannot_be_understood_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(OptionError, match="The pattern '") as refusal:
        check_pattern(pattern)
    assert str(refusal.value).count("\n") == 0


def test_paths_are_found_by_every_part_of_a_pattern_and_each_once(tmp_path: Path) -> None:
    for name in ("a/x.json", "a/.y.json", "b/x.json", "c/deep/x.json", "a*/x.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def found(pattern: str) -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in matching_paths(f"{tmp_path}/{pattern}")]

    assert found("{a,b}/*.json") == ["a/.y.json", "a/x.json", "b/x.json"]
    assert found("{a,a}/x*") == ["a/x.json"]
    assert found("{b,c/deep}/*") == ["b/x.json", "c/deep/x.json"]
    assert found("a\\*/*") == ["a*/x.json"]
    assert found("a/x.json/*") == found("no/*") == []


def test_the_folder_that_a_pattern_means_is_told_by_the_names_alone() -> None:
    assert matched_part("/d/*", Path("/d/a/k=1/f")) == Path("/d/a")
    assert matched_part("/d/{a,b/c}", Path("/d/b/c/f")) == Path("/d/b/c")
    assert matched_part("/d/*/f", Path("/d/a/f")) == Path("/d/a/f")
    assert matched_part("/d/*/f", Path("/d/a")) is None
    assert matched_part("/d/[^a]*", Path("/d/a/f")) is None
