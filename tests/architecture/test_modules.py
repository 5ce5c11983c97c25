"""What every module of the package keeps to."""

import ast

from tests.architecture.sources import modules

LONGEST_MODULE_LINES = 600
MAY_PRINT = {"connectors/console.py"}


def test_no_module_is_too_long_to_keep_in_mind() -> None:
    assert [module.name for module in modules() if module.text.count("\n") > LONGEST_MODULE_LINES] == []


def test_every_module_says_what_it_is() -> None:
    assert [module.name for module in modules() if not ast.get_docstring(module.tree)] == []


def test_only_the_command_line_and_the_console_sink_print() -> None:
    prints = [
        f"{module.name}:{node.lineno}"
        for module in modules()
        if module.layer != "cli" and module.name not in MAY_PRINT
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []
