"""SIGKILL at any moment of a turn: the next process raises what was admitted once, and believes the same."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]


def report(directory: Path, seed: int, acts: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.admission.gate.killed_gate", str(directory), str(seed), str(acts)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=1000,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_a_gate_killed_again_and_again_raises_each_group_once_and_forgets_none(tmp_path: Path) -> None:
    found = report(tmp_path, 5, 2)
    assert found["wrong"] == {}
    # Killed between intent and call, between call and record, before and after what that writes first, and some more.
    assert found["died"]["send SetDesiredCapacity"] == found["died"]["answer SetDesiredCapacity"] == 1
    assert found["died"]["any step"] >= 2
    assert found["deaths"] >= 4
    assert ["g00", 1] in found["raises"]


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(6))
def test_nor_over_long_stories(tmp_path: Path, seed: int) -> None:
    found = report(tmp_path, seed, 10)
    assert found["wrong"] == {}
    assert found["deaths"] >= 5
