"""SIGKILL before and after every call and every write: no job is lost, none starts twice on a FIFO queue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def report(directory: Path, every: int, queue: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.agent.deferral.killed_pool", str(directory), str(every), queue],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("queue", ["fifo", "standard"])
def test_a_killed_pool_loses_no_job_and_starts_none_twice(tmp_path: Path, queue: str) -> None:
    found = report(tmp_path, 1, queue)
    assert found["wrong"] == {}
    assert isinstance(found["points"], int)
    assert found["deaths"] == found["points"] >= 4
