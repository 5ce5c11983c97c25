"""What the documents say about the code is what the code says: options, names, states, functions, commands."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT
from tests.architecture.test_docs_links import documents
from tidegate.api.options import OPTIONS
from tidegate.cli.main import app
from tidegate.connectors.registry import SINK_FORMATS, SOURCE_FORMATS
from tidegate.coordinator.views import CheckpointView, TaskCheckpointView
from tidegate.model import errors
from tidegate.network import messages
from tidegate.plan.kernels import supported_functions
from tidegate.protocol.checkpoints import FailureReason
from tidegate.protocol.job import JobState, diagram
from tidegate.spark import catalyst, types

DOCS = ROOT / "docs"
_NOTHING = "–"
_STEP = re.compile(r"\[`([\w/]+\.py)`\]\(src/tidegate/([\w/]+\.py)\) `([\w.]+)`")


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    level, _, _ = heading.partition(" ")
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"there is no heading {heading!r}"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, without headers."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    ruled = {at for at, cells in enumerate(tables) if re.fullmatch(r"[-:]+", "".join(cells))}
    return [cells for at, cells in enumerate(tables) if at not in ruled and at + 1 not in ruled]


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def unquoted(cell: str) -> str | None:
    return None if cell == _NOTHING else cell.strip("`")


# -- README and examples


def test_the_readme_shows_the_first_example_as_it_is() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", read("README.md"), re.MULTILINE | re.DOTALL)
    assert blocks == [read("examples/first_job.py")]


def test_the_readme_gives_the_options_their_defaults() -> None:
    table = rows(section(read("README.md"), "## The options most people touch"))
    said = {unquoted(name): default for name, default, _ in table}
    assert len(said) > 3
    assert {name: default for name, default in said.items() if name is None or name.lower() not in OPTIONS} == {}
    real = {name: OPTIONS[str(name).lower()].default for name in said}
    assert {name: default.strip("`") for name, default in said.items() if real[name] is not None} == {
        name: default for name, default in real.items() if default is not None
    }


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    commands = {info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands}
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)) <= targets
    assert set(re.findall(r"(?:^|[`/])tidegate ([a-z]+)", text, re.MULTILINE)) <= commands
    assert [name for name in re.findall(r"examples/\w+\.py", text) if not (ROOT / name).is_file()] == []


def test_every_page_is_in_the_index() -> None:
    index = read("docs/README.md")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\((?!\.\.)([\w/.-]+\.md)\)", index))


# -- ARCHITECTURE.md


@pytest.mark.parametrize("walk", ["## The way of a row", "## The way of a barrier"])
def test_every_step_of_a_walk_names_a_function_that_exists(walk: str) -> None:
    steps = re.findall(r"^\d+\. .*", section(read("ARCHITECTURE.md"), walk), re.MULTILINE)
    assert len(steps) > 10
    assert [step for step in steps if len(_STEP.findall(step)) != 1] == []
    named = [_STEP.findall(step)[0] for step in steps]
    assert [shown for shown, linked, _ in named if shown != linked] == []
    assert [f"{path} {name}" for path, _, name in named if name not in functions_of(PACKAGE / path)] == []


def functions_of(path: Path) -> set[str]:
    """Functions by name, methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return found


def test_architecture_shows_every_layer_from_the_top() -> None:
    layers = re.findall(r"^\*\*\[(\w+)\]\(src/tidegate/\w+\)\*\*", read("ARCHITECTURE.md"), re.MULTILINE)
    listed = re.search(r"layers = \[(.*?)\]", read("pyproject.toml"), re.DOTALL)
    assert listed is not None
    assert layers == re.findall(r'"(\w+)"', listed.group(1))


# -- reference


def test_options_are_listed_with_their_defaults_and_flinks_keys() -> None:
    written = [
        (unquoted(name), unquoted(default), meaning, unquoted(flink))
        for name, default, meaning, flink in rows(read("docs/reference/options.md"))
    ]
    assert written == [(spec.name, spec.default, spec.meaning, spec.flink) for spec in OPTIONS.values()]


def test_supported_plan_nodes_are_listed() -> None:
    listed = [names(cells[0])[0] for cells in rows(section(read("docs/reference/supported.md"), "## Plan nodes"))]
    assert sorted(listed) == sorted(catalyst._READERS)


def test_supported_expressions_are_listed_once() -> None:
    listed = [name for cells in rows(section(read("docs/reference/supported.md"), "## Expressions")) for name in cells]
    assert sorted(name for cell in listed for name in names(cell)) == sorted(supported_functions())


def test_column_types_are_listed() -> None:
    text = section(read("docs/reference/supported.md"), "## Column types")
    assert sorted(names(text)) == sorted([*types._SIMPLE, "decimal", "interval", "array", "map", "struct"])


def test_sources_and_sinks_are_listed() -> None:
    formats = {cells[0]: names(cells[1]) for cells in rows(read("docs/reference/supported.md")) if len(cells) == 2}
    assert formats["sources"] == sorted(SOURCE_FORMATS)
    assert formats["sinks"] == sorted(SINK_FORMATS)
    page = read("docs/reference/connectors.md")
    for heading, known in (("## Sources", SOURCE_FORMATS), ("## Sinks", SINK_FORMATS)):
        described = re.findall(r"^### `(\w+)`", section(page, heading), re.MULTILINE)
        assert sorted(described) == sorted(known)
    for heading, known in (("source", SOURCE_FORMATS), ("sink", SINK_FORMATS)):
        promised = rows(read("README.md").partition(f"| {heading} |")[2].partition("\n\n")[0])
        assert {names(cells[0])[0] for cells in promised} == set(known)


def test_errors_are_listed_with_what_they_are() -> None:
    table = [cells for cells in rows(read("docs/reference/errors.md")) if len(cells) == 3]
    defined = {
        name: kind.__bases__[0].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.TidegateError)
    }
    assert {names(name)[0]: names(base)[0] for name, base, _ in table} == defined


def test_the_guide_explains_every_field_and_reason_of_a_checkpoint() -> None:
    page = read("docs/guides/reading-checkpoints.md")
    explained = [name for cells in rows(page) for name in names(cells[0])]
    fields = [*CheckpointView.__dataclass_fields__, *TaskCheckpointView.__dataclass_fields__]
    assert sorted(explained) == sorted([*fields, *(reason.value for reason in FailureReason)])


# -- internals and decisions


def test_the_diagram_of_job_states_is_the_table_of_transitions() -> None:
    page = read("docs/internals/job-states.md")
    drawn = re.search(r"^```mermaid\n(.*?)\n```", page, re.MULTILINE | re.DOTALL)
    assert drawn is not None
    assert drawn.group(1) == diagram()
    assert [names(cells[0])[0] for cells in rows(page)] == [state.value for state in JobState]


def test_every_message_is_explained() -> None:
    explained = [name for cells in rows(section(read("docs/internals/protocol.md"), "## Messages")) for name in cells]
    unions = (messages.PeerMessage, messages.ToSlot, messages.FromSlot)
    sent = sorted(kind.__name__ for union in unions for kind in union.__args__)
    assert sorted(name for cell in explained for name in names(cell)) == sent


def test_decisions_are_numbered_and_say_context_choice_and_consequence() -> None:
    pages = sorted((DOCS / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"# {int(page.name[:4])}. "), page.name
        assert re.findall(r"^## (.*)", text, re.MULTILINE) == ["Context", "Choice", "Consequence"], page.name
