"""What the specifications of the verbs share: a program to call, an environment without settings, a recorded ledger."""

from collections.abc import Callable
from pathlib import Path

import pytest
import time_machine
from typer.testing import CliRunner, Result

from agent.commands.main import app
from tests.agent.commands.recorded import START, story

Trimtab = Callable[..., Result]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test sets; a known user; output as to a pipe."""
    import os

    for name in [name for name in os.environ if name.upper().startswith("TRIMTAB_")]:
        monkeypatch.delenv(name)
    for name in ("CREDENTIALS_DIRECTORY", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", "ada")


@pytest.fixture
def trimtab() -> Trimtab:
    """Call the program in this process."""

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)

    return call


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The recorded ledger, which the settings name."""
    url = story(tmp_path / "ledger.db")
    monkeypatch.setenv("TRIMTAB_LEDGER__URL", url)
    return url


@pytest.fixture
def at_200_s() -> object:
    """The clock stands 200 s after the story's beginning."""
    with time_machine.travel(START + 200.0, tick=False):
        yield
