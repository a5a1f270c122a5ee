"""Where the product's code stands, for the tests that read it as text."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("domain", "simulator", "collectors", "actuators", "agent", "trainer")
MODULES = sorted(
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "__pycache__" not in path.parts
)


def dotted(module: Path) -> str:
    """The import name of a module given by its path from the root."""
    parts = module.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def syntax_tree(module: Path) -> ast.Module:
    """The module, given by its path from the root, parsed."""
    return ast.parse((ROOT / module).read_text("utf-8"))


def imported_by(nodes: Iterable[ast.AST]) -> set[str]:
    """The dotted names of the modules that these import statements name."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@cache
def imported_anywhere(module: Path) -> frozenset[str]:
    """The top-level names of everything that a module imports, inside functions too."""
    return frozenset(name.partition(".")[0] for name in imported_by(ast.walk(syntax_tree(module))))
