"""What the architecture tests read: the repository's files, and each module of the package as a syntax tree."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tidegate"


@dataclass(frozen=True, slots=True)
class Module:
    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """As in `protocol/commit.py`, so that a failure can be clicked on."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def layer(self) -> str:
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""

    def imports(self) -> Iterator[tuple[int, str]]:
        """Line and dotted name of every import, wherever in the module it stands."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.lineno, "." * node.level + (node.module or "")


def modules(layer: str | None = None) -> list[Module]:
    found = []
    for path in sorted((PACKAGE / layer if layer else PACKAGE).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Module(path, text, ast.parse(text, str(path))))
    assert found, f"no module under {layer or 'the package'}: this check would check nothing"
    return found


def is_stdlib(dotted: str) -> bool:
    return dotted.split(".")[0] in sys.stdlib_module_names


def repository_files() -> list[Path]:
    """What git tracks or would track; without git (a source archive), everything that is not hidden or a cache."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, check=True,
        ).stdout.decode()  # fmt: skip
        files = [ROOT / name for name in listing.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = [path for path in ROOT.rglob("*") if not _is_generated(path)]
    return sorted(path for path in files if path.is_file())


def _is_generated(path: Path) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)
