"""Every `trimtab` command that a page shows is one that the program takes; those that are soon done are run.

A command is run with the sizes of SMALL, on the files of FILES and a recorded ledger, in one process: `make test` has
some twenty seconds for all of them. What takes longer, or needs an account, is parsed by the real parser.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import time_machine
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from agent.commands.main import app
from tests.agent.commands.recorded import START, story
from tests.architecture.product import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(?:(sh|bash|console)|\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`trimtab ([a-z][^`]*)`")
OPERATORS = set("|;&()<>")
PROGRAM = get_command(app)

SMALL = {
    "fit admission": {"--simulated": "1000"},
    "fit make-table": {"--deployments": "300"},
    "simulate admission": {"--years": "0.01"},
    "simulate deferral": {"--seeds": "0"},
    "simulate oversubscription": {"--episodes": "2"},
}
"""Options by command, given or not, and the values that the tests give them in place of the page's."""
PARSED = {
    "approve": "a model on probation",
    "config": "the settings of a fleet",
    "dry-run": "minutes",
    "evaluate": "minutes",
    "explain": "a decision of that number",
    "init": "a region",
    "inputs": "the lines of a port",
    "learn": "days of a record",
    "ledger": "a copy",
    "local-aws": "it serves until it is stopped",
    "pin": "the bounds of the page's fleet",
    "placement": "an agent that runs",
    "preflight": "an account",
    "promote": "a model of one's own, and minutes",
    "rearm": "a pool that was rolled back",
    "rehearse": "minutes",
    "run": "it serves until it is stopped",
    "train": "minutes",
    "tune": "minutes",
    "unpin": "a pin",
}
"""What the commands of a verb need that these tests lack: they are parsed and not run."""
LACKING = {
    "--cluster": "a cluster in the settings or the ledger",
    "--pool": "a pool in the ledger",
    "--subject": "a pool in the settings",
    "FILE.onnx": "a model of one's own",
    "bootstrap:days.parquet": "measured days",
    "deferral/night": "a pool in the settings",
    "jobs.parquet": "a table of one's own",
    "main.csv.gz": "the record of a cluster",
    "night": "a pool in the settings",
    "rates/rates.json": "rates of one's own",
    "self-tune": "days of a record",
    "shield:base=(FILE.onnx),b=0.03": "a model of one's own",
    "static:block_h=6": "a minute",
    "static:bound=markov": "a minute",
    "static:step=0.05": "a minute",
}
"""What a command with a word needs that these tests lack: it is parsed and not run."""
MODEL = next((ROOT / "agent" / "models" / "shipped").glob("b3993710*.onnx"))
WORDS = {
    ".trimtab/dry-run/ledger.db": "ledger.db",
    "/var/lib/trimtab/ledger.db": "ledger.db",
    "START": "cold",
    "SCENARIO": "internal_like",
    "first/ledger.db": "ledger.db",
    "models/MODEL.onnx": str(MODEL),
    "my.swf.gz:hours=24": "benchmarks/logs/NASA-iPSC-1993-3.1-cln.swf.gz:hours=1",
}
"""Words of the pages, and those that the tests give in their place."""
FILES = {
    "days.parquet": "",
    "jobs.csv": "arrival_s,service_s\n0,600\n60,1800\n300,240\n",
    "my.toml": (ROOT / "docs" / "train" / "worlds.md").read_text("utf-8").partition("```toml\n")[2].partition("```")[0],
    "runs/text/run.toml": 'version = 1\ndecision = "autoscaling"\n',
    "small.toml": 'preset = "K"\ncapacity = 400\n',
}


def words_of(line: str) -> Iterator[list[str]]:
    """The words of each command of a line of a shell; what an operator such as > takes is left out."""
    shell = shlex.shlex(line, posix=True, punctuation_chars="".join(OPERATORS))
    shell.whitespace_split, words = True, []
    for word in shell:
        if not OPERATORS.issuperset(word):
            words.append(word)
            continue
        yield words
        words = []
        if not {"<", ">"}.isdisjoint(word):
            next(shell)
    yield words


def calls_of(text: str) -> list[list[str]]:
    """The calls of the program in a text, without its name."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if re.search(r"\btrimtab [a-z]", line)]
    calls = []
    for words in (words for line in lines for words in words_of(line)):
        while words and ("=" in words[0] or words[0] == "sudo"):
            words.pop(0)
        if words and Path(words[0]).name == "trimtab":
            calls.append([WORDS.get(word, word) for word in words[1:]])
    return calls


def blocks(page: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """The blocks of a page for a shell, with their calls of the program, without its name."""
    for _, language, block in BLOCK.findall(page.read_text("utf-8")):
        if not language and "trimtab" not in block.split(maxsplit=1)[:1]:
            continue
        yield block, calls_of(block)


WITH_CALLS = [page for page in PAGES if any(calls for _, calls in blocks(page))]


def command_of(words: list[str]) -> tuple[Any, Any, list[str]]:
    """The command that words name, or the group, with its context and the words that follow."""
    command, words = PROGRAM, [*words]
    context = Context(command, info_name="trimtab")
    while isinstance(command, TyperGroup) and words and (found := command.get_command(context, words[0])) is not None:
        command, context = found, Context(found, info_name=words.pop(0), parent=context)
    return command, context, words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A newcomer's folder, with the files that pages name and the ledger of an agent."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.setenv("TRIMTAB_LEDGER__URL", story(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse(call: list[str]) -> None:
    command, context, words = command_of(call)
    assert not isinstance(command, TyperGroup), call
    command.make_context(context.info_name, words, parent=context.parent)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", WITH_CALLS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_program_takes_every_command_of_a_page(page: Path) -> None:
    for _, calls in blocks(page):
        for call in calls:
            parse(call)


def examples(command: Any) -> Iterator[list[str]]:
    """The examples of a command's help, or of all commands of a group."""
    yield from calls_of((command.epilog or "").partition("Examples:")[2])
    if isinstance(command, TyperGroup):
        context = Context(command)
        for name in command.list_commands(context):
            yield from examples(command.get_command(context, name))


@pytest.mark.usefixtures("folder")
def test_the_program_takes_the_examples_of_its_help() -> None:
    found = list(examples(PROGRAM))
    assert len(found) > 100
    for call in found:
        parse(call)


def test_the_program_has_every_option_that_a_sentence_names() -> None:
    unknown = []
    for page in PAGES:
        for span in SPAN.findall(page.read_text("utf-8")):
            command, context, words = command_of(span.split())
            within = (
                map(command.commands.get, command.list_commands(context)) if isinstance(command, TyperGroup) else ()
            )
            known = {opt for one in (command, *within) for parameter in one.params for opt in parameter.opts}
            named = {word.partition("=")[0] for word in words if word.startswith("--")}
            unknown += [(page.name, span, option) for option in named - known - {"--help"}]
    assert unknown == []


def short(call: list[str]) -> list[str] | None:
    """A call with the sizes of SMALL; None for one that is parsed alone."""
    if (call[0] in PARSED and "--plan" not in call) or not LACKING.keys().isdisjoint(call):
        return None
    words = [*call]
    for option, value in SMALL.get(" ".join(call[:2]), {}).items():
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    return words


@pytest.mark.parametrize("page", WITH_CALLS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_short_commands_of_a_page_do_their_work(page: Path, folder: Path) -> None:
    with time_machine.travel(START + 200.0):
        for block, calls in blocks(page):
            if block.startswith(("awk ", "cat >")):
                subprocess.run(["bash", "-ec", block], cwd=folder, check=True)
            for words in filter(None, map(short, calls)):
                done = CliRunner().invoke(app, words)
                assert done.exit_code == 0, f"{shlex.join(words)}\n{done.output}"
