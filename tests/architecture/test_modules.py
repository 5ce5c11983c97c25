"""What every module of the package keeps to."""

import ast
from collections.abc import Iterator

from tests.architecture.sources import ROOT, modules

LONGEST_MODULE_LINES = 600
MAY_PRINT = {"connectors/console.py"}


def test_no_module_is_too_long_to_keep_in_mind() -> None:
    lengths = {module.name: module.text.count("\n") for module in modules()}
    tests = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "tests").rglob("*.py")}
    lengths |= {name: path.read_text(encoding="utf-8").count("\n") for name, path in tests.items()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE_LINES} == {}


def test_every_module_says_what_it_is() -> None:
    assert [module.name for module in modules() if not ast.get_docstring(module.tree)] == []


def test_only_the_command_line_the_console_sink_and_explain_print() -> None:
    prints = [
        f"{module.name}:{line}"
        for module in modules()
        if module.layer != "cli" and module.name not in MAY_PRINT
        for line in _print_lines(module.tree)
    ]
    assert prints == []


def _print_lines(node: ast.AST) -> Iterator[int]:
    """Leaves out functions named `explain`, which print as PySpark's do."""
    if isinstance(node, ast.FunctionDef) and node.name == "explain":
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
        yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _print_lines(child)
