"""The trainer's verbs: there for who asks, not loaded for who does not, and clear about a missing extra."""

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.product import ROOT
from tests.plug_ins import package

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


VERBS = """
def add(app):
    def verb(name):
        @app.command(name)
        def ponder() -> None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=f"{name}.nn")
    for name in ("torch", "numba", "ray", "nowhere"):
        verb(name)
"""
EACH = """
import sys
for name in ("torch", "numba", "ray", "nowhere"):
    sys.argv[1:] = [name]
    try:
        app()
    except BaseException as ended:
        print(repr(ended), file=sys.stderr)
"""


def test_a_missing_extra_is_answered_with_the_line_that_installs_it_and_no_other_module(tmp_path: Path) -> None:
    (tmp_path / "extra_verbs.py").write_text(VERBS)
    package(tmp_path, "extra-verbs", {"trimtab.commands": {"extra": "extra_verbs:add"}})
    answered = python(PRELUDE + EACH, path=tmp_path).stderr
    *missing, other = [line for line in answered.splitlines() if "pip install" in line or "No module named" in line]
    extras = ["'.[train]'", "'.[train]'", "'.[distributed]'"]
    assert [line.partition("pip install ")[2] for line in missing] == extras
    assert answered.count("SystemExit(1)") == 3
    assert other == """ModuleNotFoundError("No module named 'nowhere'")"""
