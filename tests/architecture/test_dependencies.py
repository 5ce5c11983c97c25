"""pyproject.toml declares what the code imports, and the locks pin what pyproject.toml declares."""

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.sources import ROOT, is_stdlib, modules

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RUNTIME = PYPROJECT["project"]["dependencies"]
EXTRAS = [line for lines in PYPROJECT["project"]["optional-dependencies"].values() for line in lines]
GROUPS = PYPROJECT["dependency-groups"]
# Come with PySpark, and are part of its interface.
WITH_PYSPARK = {"py4j"}


def test_every_imported_package_is_declared() -> None:
    declared = {canonicalize_name(Requirement(line).name) for line in RUNTIME + EXTRAS} | WITH_PYSPARK
    owners = metadata.packages_distributions()
    undeclared = {
        f"{module.name}:{line} imports {name}"
        for module in modules()
        for line, name in module.imports()
        if not (name.startswith(".") or is_stdlib(name) or name.split(".")[0] == "tidegate")
        and module.layer != "testing"
        and not declared & {canonicalize_name(owner) for owner in owners.get(name.split(".")[0], [name.split(".")[0]])}
    }
    assert undeclared == set()


@pytest.mark.parametrize(
    ("lock", "declared"),
    [
        ("requirements.lock", RUNTIME + EXTRAS + GROUPS["dev"]),
        ("requirements-build.lock", GROUPS["build"] + PYPROJECT["build-system"]["requires"]),
    ],
)
def test_a_lock_pins_every_declared_package_to_an_allowed_version(lock: str, declared: list[str]) -> None:
    pinned: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", (ROOT / lock).read_text(encoding="utf-8"), re.MULTILINE):
        pinned.setdefault(canonicalize_name(name), []).append(version)
    wrong = [
        f"{line}, pinned to {versions or 'nothing'}: run  make lock"
        for line in declared
        if not (versions := pinned.get(canonicalize_name(Requirement(line).name), []))
        or not all(Requirement(line).specifier.contains(version) for version in versions)
    ]
    assert wrong == []


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-build.lock"])
def test_every_pin_has_a_hash(lock: str) -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / lock).read_text(encoding="utf-8").strip())
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
