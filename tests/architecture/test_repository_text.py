"""No file of the repository names the machine it was written on, or where packages come from."""

import re
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, repository_files

# Put together from pieces, so that this file passes its own test.
_FOLDERS = "home|root|Users|work|opt|mnt"
_REGISTRIES = "|".join(["py" + r"pi\.org", "python" + "hosted", "registry" + r"\.npm", "deb" + r"\.debian"])
FORBIDDEN = {
    "a path of somebody's machine": re.compile(rf"(?<![\w.:/~)}}\]*-])/(?:{_FOLDERS})/[\w.-]+"),
    "a package registry": re.compile(_REGISTRIES),
    "where to find packages": re.compile("--(?:extra-)?index" + "-url|--find" + "-links|^-[if] "),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in repository_files()
        for number, line in enumerate(_lines(path), start=1)
        if FORBIDDEN[what].search(line)
    ]
    assert found == []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []
