"""The names for packages and notebooks: enough for the example plug-in and the docs, light, and usable."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.kernel.store import Record, add
from agent.ledger import Ledger, codec
from agent.sdk import load_model, read_decisions
from domain.errors import BadInput, LedgerError
from tests.architecture.product import PACKAGES, ROOT

OPEN = ("agent.sdk", "simulator", "collectors.worker_hook", "domain.rules", "trainer.admission.payment")
"""Worker hooks run on VMs without an agent; simulators, formulas and the tariff have docs pages."""
SOURCES = [*(ROOT / "tests" / "plugin_example").glob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]


def imported(path: Path) -> set[str]:
    text = path.read_text("utf-8")
    blocks = [text] if path.suffix == ".py" else re.findall(r"^( *)```python\n(.*?)^ *```", text, re.S | re.M)
    found = set()
    for block in blocks:
        indent, code = ("", block) if isinstance(block, str) else block
        tree = ast.parse(re.sub(rf"^{indent}", "", code, flags=re.M))
        for node in ast.walk(tree):
            found |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            found |= {one.name for one in node.names} if isinstance(node, ast.Import) else set()
    return {name for name in found if name.partition(".")[0] in PACKAGES}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_example_and_the_docs_import_open_names_alone(path: Path) -> None:
    assert {name for name in imported(path) if not name.startswith(OPEN)} == set()


def test_the_example_uses_the_sdk() -> None:
    assert imported(SOURCES[0]) == {"agent.sdk"}


def test_it_loads_no_heavy_package() -> None:
    code = "import sys, agent.sdk; print([m for m in ('torch', 'numba', 'onnxruntime', 'fastapi') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_ledger_is_read_and_never_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with pytest.raises(LedgerError):
        next(read_decisions(url, "shift"))
    with Ledger.open(url) as ledger, ledger.database.write() as connection:
        bodies = [codec.encode_mapping({"people": n}) for n in (1, 2)]
        add(connection, [Record(f"night-{n}", "shift", "night", float(n), body) for n, body in enumerate(bodies)])
    found = list(read_decisions(url, "shift", "night"))
    assert [(one["decision_id"], one["people"]) for one in found] == [("night-1", 2), ("night-0", 1)]


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"nothing")
    with pytest.raises(BadInput):
        load_model(tmp_path / "a.onnx")
