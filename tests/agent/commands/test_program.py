"""The program: what it offers, how quickly it starts, and how it says that something is wrong."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from agent.commands.main import app
from agent.commands.options import duration_s, moment
from agent.kernel.text import duration_text
from domain.errors import BadInput
from tests.agent.commands.conftest import Trimtab

ROOT = Path(__file__).parents[3]
VERBS = ["init", "collect", "status", "explain", "decisions", "replay", "pause", "resume", "pin", "unpin", "config"]
HEAVY = ["sqlalchemy", "pydantic", "numpy", "rich", "boto3", "moto", "simulator", "agent.rehearsal", "agent.ledger"]


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def test_help_lists_every_verb(trimtab: Trimtab) -> None:
    result = trimtab("--help")
    assert result.exit_code == 0
    listed = re.findall(r"^  (\S+)", result.stdout.partition("Commands:")[2], re.MULTILINE)
    assert [verb for verb in listed if verb in VERBS] == VERBS


@pytest.mark.parametrize("group", [[], ["config"], ["ledger"]])
def test_the_list_of_verbs_has_whole_sentences_on_a_terminal_of_80_columns(trimtab: Trimtab, group: list[str]) -> None:
    listed = trimtab(*group, "--help").stdout.partition("Commands:")[2]
    assert "..." not in listed
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize("verb", [*([v] for v in VERBS if v != "config"), ["config", "check"], ["config", "docs"]])
def test_every_verb_says_what_it_does_and_gives_two_examples(trimtab: Trimtab, verb: list[str]) -> None:
    result = trimtab(*verb, "--help")
    assert result.exit_code == 0
    told, _, examples = result.stdout.partition("Examples:")
    assert told.splitlines()[2].strip(), "a sentence follows the usage line"
    assert len([line for line in examples.splitlines() if "trimtab " + " ".join(verb) in line]) == 2


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every verb and every word below one, those of the trainer included."""
    if path:
        yield path
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from verbs(command.get_command(None, name), (*path, name))


@pytest.mark.parametrize("path", list(verbs(get_command(app))), ids=" ".join)
def test_help_has_one_style_for_all_verbs(trimtab: Trimtab, path: tuple[str, ...]) -> None:
    result = trimtab(*path, "--help")
    assert result.exit_code == 0
    usage = result.stdout.partition("\n\n")[0]
    assert usage.startswith("Usage: ")
    assert not set("{}") & set(usage)
    assert "[[" not in usage
    assert not set("╭│") & set(result.stdout), "no boxes"


def test_the_help_of_the_whole_program_loads_nothing_heavy() -> None:
    heavy = [*HEAVY, "asyncio", "http.client", "pydantic_settings", "structlog"]
    code = (
        "import atexit, sys; from agent.commands.main import app\n"
        f"atexit.register(lambda: print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr))\n"
        "app()"
    )
    done = python(code, "--help")
    assert "simulate" in done.stdout
    assert done.stderr.strip() == "[]"


def test_the_command_line_itself_imports_nothing_heavy() -> None:
    code = f"import sys, agent.commands.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(code).stdout == "[]\n"


def test_a_mistake_is_one_message_without_a_traceback_and_status_2() -> None:
    result = python("from agent.commands.main import app; app()", "explain", "last", "--ledger", "ftp://nowhere")
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stdout == ""


def test_a_ledger_that_is_not_there_is_said_and_not_made(trimtab: Trimtab, tmp_path: Path) -> None:
    missing = tmp_path / "none.db"
    for verb in (["status"], ["pause", "all", "--reason", "x"], ["explain", "last"]):
        result = trimtab(*verb, "--ledger", str(missing))
        assert result.exit_code == 1
        assert str(missing) in result.stderr
        assert not missing.exists()


def test_a_package_outside_adds_a_verb_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "extra_verbs.py").write_text(
        "def add(app):\n    @app.command()\n    def greet() -> None:\n        print('hello from outside')\n"
    )
    info = tmp_path / "extra_verbs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-verbs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trimtab.commands]\nextra = extra_verbs:add\n")
    result = python("from agent.commands.main import app; app()", "greet", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (result.stdout, result.returncode) == ("hello from outside\n", 0)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), ("1d", 86_400.0), ("1.5h", 5400.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s("--for", text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 hours", "-1h", "0s", "1e3s", "inf", "9999d", "nan", "1h30m"])
def test_a_duration_that_is_none_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadInput, match="--for is "):
        duration_s("--for", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (90.0, "90 s"), (900.0, "15 min"), (7500.0, "2 h 5 min"), (7200.0, "2 h"), (273_600.0, "3 d 4 h")],
)
def test_durations_as_people_write_them(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_moments_are_utc_unless_they_say_otherwise_or_so_long_ago() -> None:
    assert moment("--from", "2026-03-01T12:00", 0.0) == 1_772_366_400.0
    assert moment("--from", "2026-03-01T13:00+01:00", 0.0) == 1_772_366_400.0
    assert moment("--from", "2h", 10_000.0) == 2_800.0
    with pytest.raises(BadInput, match="--to is 'yesterday'"):
        moment("--to", "yesterday", 0.0)
