"""No module imports itself by way of others, imports within functions included: a file can be read after its own."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.product import MODULES, dotted, syntax_tree

PACKAGES = ("domain", "collectors", "actuators", "agent", "simulator", "trainer")
LATE = {("agent.settings.plug_ins", "agent.settings.model")}
"""Where a plug-in's settings are compared with the names of the agent's own."""


def imports(tree: ast.AST) -> set[str]:
    """What a module imports when it runs, by full names: of modules, and of names in modules."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        else:
            found |= imports(node)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circle_of_imports(package: str) -> None:
    modules = {dotted(module): module for module in MODULES if module.parts[0] == package}
    plain = {name: module for name, module in modules.items() if module.name != "__init__.py"}
    graph = {
        name: {other for other in imports(syntax_tree(module)) & plain.keys() if (name, other) not in LATE} - {name}
        for name, module in plain.items()
    }
    assert sum(map(len, graph.values())) >= len(graph) // 2
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
