"""Options of the chaos tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay a chaos test that chose where to strike")
