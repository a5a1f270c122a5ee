"""What the specifications of `trimtab simulate autoscaling` share: the program, and a small trace of the user's."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app

Simulate = Callable[..., Result]


@pytest.fixture
def simulate() -> Simulate:
    """Call `trimtab simulate autoscaling` in this process, with a boot time of 71 s."""

    def call(*arguments: str | Path) -> Result:
        words = ["simulate", "autoscaling", "--boot", "const:71", *map(str, arguments)]
        return CliRunner().invoke(app, words, catch_exceptions=False)

    return call


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Three jobs of ten minutes, a minute apart, as a user would write them."""
    path = tmp_path / "jobs.csv"
    path.write_text("arrival_s,service_s\n0,600\n60,600\n120,600\n", encoding="utf-8")
    return path
