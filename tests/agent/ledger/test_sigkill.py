"""SIGKILL at any moment: what was confirmed is there, and no transaction is there by half."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
DEATHS = 40


def test_forty_writers_killed_in_the_middle_of_it_leave_a_whole_ledger(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-m", "tests.agent.ledger.killed_writer", str(tmp_path / "ledger.db"), str(DEATHS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    report = json.loads(killed.stdout)
    assert report["wrong"] == []
    assert report["deaths"] == DEATHS
    assert report["minutes"] >= DEATHS
