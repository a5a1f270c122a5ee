"""Commands of a rehearsal: processes that are held to their exit status and to the history of models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.models.directory import PROMOTED, ModelsDirectory
from agent.rehearsal.commands import Commands, LearningFailed, Started
from domain.subject import QUEUE_RULE, Subject


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def commands(tmp_path: Path, lines: list[str]) -> Commands:
    return Commands(tmp_path, lines.append, ModelsDirectory(tmp_path / "models"), Subject(QUEUE_RULE, "web"))


def test_a_command_that_ends_otherwise_stops_it_with_what_it_printed(
    commands: Commands, tmp_path: Path, lines: list[str]
) -> None:
    def started(status: int) -> Started:
        log = tmp_path / "some.log"
        with log.open("wb") as file:
            program = f"print('a reason'); print('a stage ...'); raise SystemExit({status})"
            return Started("some", 7, subprocess.Popen([sys.executable, "-c", program], stdout=file), log, 0.0)

    assert commands.end(started(6), 6, "it is taken back").splitlines()[0] == "a reason"
    assert ["(exit status 6):" in lines[0], lines[1:]] == [True, ["  a reason"]]
    with pytest.raises(LearningFailed, match=r"status 1, not 0:\na reason"):
        commands.end(started(1), 0, "")
    with pytest.raises(LearningFailed, match="no model is promoted"):
        commands.end(started(0), 0, "", PROMOTED)
    assert [(step.after, step.status) for step in commands.steps] == [(7, 6), (7, 1), (7, 0)]


def test_a_command_has_the_settings_of_the_rehearsal_and_no_others(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_FLEETS__web__POLICY", "threshold")
    commands.environ = {"TRIMTAB_FLEETS__web__SELF_TUNE": "on"}
    monkeypatch.setattr(
        "agent.rehearsal.commands.PROGRAM",
        "import os; print(sorted(k + '=' + v for k, v in os.environ.items() if k.startswith('TRIMTAB_')))",
    )
    assert commands.end(commands.start("some", 1, []), 0, "") == "['TRIMTAB_FLEETS__web__SELF_TUNE=on']\n"
