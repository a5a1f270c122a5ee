"""SIGKILL between a request and its answer: after a start anew the pool holds what was answered, and nothing twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def report(directory: Path, seed: int, steps: int) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.placement.killed_pool", str(directory), str(seed), str(steps)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_pool_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    found = report(tmp_path, 5, 40)
    assert found["wrong"] == []
    assert isinstance(found["deaths"], int)
    assert found["deaths"] >= 2


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(12))
def test_nor_over_long_histories(tmp_path: Path, seed: int) -> None:
    assert report(tmp_path, seed, 200)["wrong"] == []
