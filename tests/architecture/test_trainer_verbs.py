"""The trainer's verbs: there for who asks, not loaded for who does not, and clear about a missing extra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.product import ROOT

PRELUDE = "from agent.commands.main import app\n"
ASK = """
import sys
try:
    app()
finally:
    print([m for m in sys.modules if m.split(".")[0] in ("trainer", "torch", "numba")])
"""


def python(code: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{path}:{ROOT}" if path else str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_agents_own_verbs_do_not_load_the_trainer() -> None:
    assert python(PRELUDE + ASK, "status", "--help").stdout.endswith("[]\n")


def test_help_lists_the_trainers_verbs_and_loads_neither_torch_nor_numba() -> None:
    shown = python(PRELUDE + ASK, "--help").stdout
    assert "  simulate " in shown
    assert "'torch'" not in shown
    assert "'numba'" not in shown


@pytest.mark.parametrize(("missing", "extra"), [("torch", "train"), ("numba", "train"), ("ray", "distributed")])
def test_a_missing_extra_is_answered_with_the_line_that_installs_it(tmp_path: Path, missing: str, extra: str) -> None:
    (tmp_path / "extra_verbs.py").write_text(
        "def add(app):\n    @app.command()\n    def ponder() -> None:\n"
        f"        raise ModuleNotFoundError('No module', name='{missing}.nn')\n"
    )
    info = tmp_path / "extra_verbs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-verbs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trimtab.commands]\nextra = extra_verbs:add\n")
    answered = python(PRELUDE + "app()", "ponder", path=tmp_path)
    assert answered.returncode == 1
    assert answered.stderr.endswith(f"install it with pip install 'trimtab[{extra}]'\n")
    assert "Traceback" not in answered.stderr


def test_a_module_missing_for_another_reason_is_a_mistake_of_ours_and_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "extra_verbs.py").write_text(
        "def add(app):\n    @app.command()\n    def ponder() -> None:\n        import nowhere_to_be_found\n"
    )
    info = tmp_path / "extra_verbs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-verbs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trimtab.commands]\nextra = extra_verbs:add\n")
    assert (
        "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
        in python(PRELUDE + "app()", "ponder", path=tmp_path).stderr
    )
