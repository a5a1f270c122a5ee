"""Reads the types of the libraries into mypy's cache before it checks our own: `python -m tests.library_types`.

`make setup` runs this when the libraries have changed: mypy takes as long for them as for all of our modules.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from pathlib import Path

from mypy import api

ROOT = Path(__file__).parent.parent
PACKAGES = ("domain", "simulator", "collectors", "actuators", "agent", "trainer", "benchmarks")


def imported() -> set[str]:
    """Return the modules of others that our packages import."""
    names: set[str] = set()
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module)
    return {name for name in names if name.partition(".")[0] not in PACKAGES}


def main() -> int:
    """Let mypy check a module that imports them; whatever it finds is no concern of ours."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "libraries.py")
        file.write_text("".join(f"import {name}\n" for name in sorted(imported())))
        _, errors, status = api.run([str(file)])
    print(errors, end="", file=sys.stderr)
    return status if status > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
