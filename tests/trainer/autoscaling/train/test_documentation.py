"""The users' page on training: its settings and tasks are those of the program, and its commands are understood."""

import re
import shlex
from dataclasses import fields

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from agent.commands.main import app
from tests.architecture.product import ROOT
from trainer.autoscaling.configuration import PRESETS, PPOConfig
from trainer.autoscaling.tasks import TASKS

PAGE = (ROOT / "docs" / "train" / "train.md").read_text("utf-8")
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith("trimtab train")
]


def text(value: object) -> str:
    """A value as the table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def test_the_table_lists_every_setting_with_what_the_presets_give_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?)\|", PAGE[PAGE.index("## Settings") :], re.MULTILINE)
    default, published = PRESETS["default"], PRESETS["published"]
    wanted = []
    for known in fields(PPOConfig):
        ours, theirs = text(getattr(default, known.name)), text(getattr(published, known.name))
        wanted.append((known.name, ours, "" if ours == theirs else theirs))
    assert [(name, ours, theirs.strip()) for name, ours, theirs in rows] == wanted


def test_the_table_lists_every_task() -> None:
    tasks = PAGE[PAGE.index("## Tasks") : PAGE.index("## Output")]
    assert re.findall(r"^\| `([\w-]+)` \|", tasks, re.MULTILINE) == list(TASKS)
    shown = CliRunner().invoke(app, ["train", "autoscaling", "--help"]).output
    assert [task for task in TASKS if task not in shown] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_on_the_page_are_understood(words: list[str]) -> None:
    command = get_command(app)
    for place, word in enumerate(words[1:3], start=2):
        command = command.get_command(command.make_context("trimtab", [], resilient_parsing=True), word)
        assert command is not None, words[:place]
    command.make_context(words[2], words[3:])
