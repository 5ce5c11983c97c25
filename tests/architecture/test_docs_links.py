"""Every relative link in the documents leads to a file, and every anchor to a heading."""

import re
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def documents() -> list[Path]:
    folders = [ROOT / name for name in ("docs", "examples", "benchmarks")]
    return sorted([*ROOT.glob("*.md"), *(path for folder in folders for path in folder.rglob("*.md"))])


def links(text: str) -> list[str]:
    prose = _CODE.sub("", _FENCE.sub("", text))
    targets = (match.group(1) or match.group(2) for match in _LINK.finditer(prose))
    return [target for target in targets if not _ELSEWHERE.match(target)]


def anchors(text: str) -> set[str]:
    """As the usual renderers make them: lower case, words joined by hyphens, punctuation dropped."""
    titles = (
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(_FENCE.sub("", text))
    )
    return set(titles)


def broken_links(document: Path) -> list[str]:
    broken = []
    for link in links(document.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            broken.append(f"{link}: no such heading")
    return broken


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(document: Path) -> None:
    assert broken_links(document) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# The *one* heading, here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#the-one-heading-here) [c](gone.md) [d](there.md#nowhere) [e](https://example.com)\n"
        "`[code](nothing.md)`\n```\n[fenced](nothing.md)\n```\n[ref]: lost.md\n"
    )
    assert broken_links(page) == ["gone.md: no such file", "there.md#nowhere: no such heading", "lost.md: no such file"]
