"""SIGKILL at any moment: what was confirmed is there, and no transaction is there by half."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("deaths", [6, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_writers_killed_in_the_middle_of_it_leave_a_whole_ledger(tmp_path: Path, deaths: int) -> None:
    killed = subprocess.run(
        [sys.executable, "-m", "tests.agent.ledger.killed_writer", str(tmp_path / "ledger.db"), str(deaths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    report = json.loads(killed.stdout)
    assert report["wrong"] == []
    assert report["deaths"] == deaths
    assert report["minutes"] >= deaths
