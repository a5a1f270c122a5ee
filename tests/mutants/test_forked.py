"""A trial of a mutant: a test that fails only with it kills it, and the tree is afterwards as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.run import ROOT

RULES = """
LIMIT = 3

def least(a, b):
    return a if a < b else b

def within(size):
    return size <= LIMIT

def endless(count):
    while count > 0:
        count -= 1
    return count
"""
TESTS = """
import time
from pathlib import Path
from small.rules import endless, least, within

def test_least():
    assert least(1, 2) == 1

def test_within():
    assert within(3)
    assert not within(4)

def test_endless():
    assert endless(2) == 0

def test_the_first_time_alone():
    once = Path(__file__).with_name("once")
    new = not once.exists()
    once.touch()
    assert least(5, 5) == 5
    assert new
"""
SCRIPT = """
import json, sys, time
from pathlib import Path
from tests.mutants import forked
from tests.mutants.forked import Trial, Warm, reach
forked.GRACE_S = 2.0
tree = Path(sys.argv[1])
source = (tree / "small/rules.py").read_text()
measured = reach(tree, ["small"], ["tests"])
warm = Warm(tree, ["tests"])
out = {"lines": measured["lines"]["small/rules.py"], "took": measured["took"]}
for name, at_import, tests, old, new in json.loads(sys.argv[2]):
    changed = source.replace(old, new)
    assert not new or changed != source
    usual_s = 0.0 if name == "no end" else 60.0
    trial = Trial(tuple(tests), usual_s, "small/rules.py" if new else "", changed, at_import)
    verdict = warm.run(trial)
    out[name] = [verdict.status, verdict.failed, (tree / "small/rules.py").read_text() == source]
warm.close()
print(json.dumps(out))
"""
HERE = "tests/test_small.py::test_"


def _run(tree: Path, trials: list[tuple[str, bool, list[str], str, str]]) -> dict[str, Any]:
    for name, text in {"small/__init__.py": "", "small/rules.py": RULES, "tests/test_small.py": TESTS}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tree), json.dumps(trials)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.exhaustive
def test_what_becomes_of_changes(tmp_path: Path) -> None:
    all_tests = [f"{HERE}{name}" for name in ("within", "least", "endless")]
    found = _run(
        tmp_path / "tree",
        [
            ("nothing", False, all_tests, "", ""),
            ("in a function", False, all_tests, "a < b", "a > b"),
            ("the same in effect", False, all_tests, "a < b", "a <= b"),
            ("at import", True, all_tests, "LIMIT = 3", "LIMIT = 4"),
            ("at import, of a loaded file", False, all_tests, "LIMIT = 3", "LIMIT = 4"),
            ("no end", False, [f"{HERE}endless"], "count -= 1", "count -= 0"),
            ("no longer a program", True, all_tests, "LIMIT = 3", "LIMIT = nowhere"),
            ("nothing again", False, all_tests, "", ""),
        ],
    )
    assert found["nothing"] == found["nothing again"] == [0, "", True]
    assert found["in a function"] == [1, f"{HERE}least", True]
    assert found["the same in effect"] == [0, "", True]
    assert found["at import"] == [1, f"{HERE}within", True]
    assert found["at import, of a loaded file"] == [1, f"{HERE}within", True]
    assert found["no end"] == [None, "", True]
    status, failed, restored = found["no longer a program"]
    assert status not in (0, None)
    assert failed
    assert restored
    # The test that fails when it runs again is measured once; a later failure of it without a mutant shows it up.
    assert f"{HERE}the_first_time_alone" in found["took"]
    assert found["lines"]["5"] == [f"{HERE}least", f"{HERE}the_first_time_alone"]
    assert found["lines"]["2"] == [""]
