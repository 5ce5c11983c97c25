"""One rule of production code, broken: what a test puts in place of it, and a seed that shows it."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest

Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Variant:
    apply: Callable[[Patch], None]
    found_at: int


def variant(*, found_at: int) -> Callable[[Callable[[Patch], None]], Variant]:
    return lambda apply: Variant(apply, found_at)


def variants_of(module: ModuleType) -> list[Variant]:
    return [found for found in vars(module).values() if isinstance(found, Variant)]
