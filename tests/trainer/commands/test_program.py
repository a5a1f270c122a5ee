"""The trainer's verbs: one contract for all rows, and a refusal with a remedy where a decision does not take a verb."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.settings.plug_ins import DECISIONS, installed
from tests.agent.commands.recorded import story
from trainer.commands.endings import NOT_WRITTEN, STATUSES_OF_GATE
from trainer.commands.learn import Learning
from trainer.commands.options import CHECKED_FOLDER
from trainer.commands.program import VERBS, absent, rows
from trainer.commands.verb import Verb

RUNNER = CliRunner()
ROWS = [(group, name, row) for group, found in rows().items() for name, row in found.items()]
COMMANDS = [pytest.param(group, name, row, id=f"{group} {name}") for group, name, row in ROWS]
CHOICES = re.compile(r"[a-z0-9-]+(\|[a-z0-9-]+)+")


def call(*words: str) -> Result:
    return RUNNER.invoke(app, [*words])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("decision", installed(DECISIONS))
def test_every_verb_takes_every_decision_or_says_what_to_do_instead(verb: str, decision: str) -> None:
    if verb in absent(decision):
        answer = call(verb, decision)
        assert answer.exit_code == 2
        assert f"`trimtab {verb}` does not take it" in answer.stderr
        assert "`trimtab " in absent(decision)[verb] or "settings" in absent(decision)[verb]
        assert f"Not for {decision}" in call(verb, decision, "--help").stdout
    else:
        answer = call(verb, decision, "--help")
        assert answer.exit_code == 0
        assert f"trimtab {verb} {decision}" in answer.stdout
        assert verb != "promote" or STATUSES_OF_GATE.splitlines()[1] in answer.stdout


def parameters(group: str, name: str) -> dict[str, typer.core.TyperOption]:
    """The options of a command, by their fields."""
    command = typer.main.get_command(app)
    for word in (group, name):
        command = command.get_command(typer.Context(command), word)
    return {str(one.name): one for one in command.params if one.param_type_name == "option"}


@pytest.mark.parametrize(("group", "name", "row"), COMMANDS)
def test_help_teaches_every_option_with_examples(group: str, name: str, row: type[Verb]) -> None:
    answer = RUNNER.invoke(app, [group, name, "--help"], env={"COLUMNS": "100"})
    assert answer.exit_code == 0
    assert f"trimtab {group} {name}" in answer.stdout.partition("Examples:")[2]
    shown = parameters(group, name)
    assert {*shown} <= {field.name for field in fields(row)}
    for option in shown.values():
        assert option.help
        assert option.hidden or max(option.opts, key=len) in answer.stdout
    assert "--json" in answer.stdout


@pytest.mark.parametrize(("group", "name", "row"), COMMANDS)
def test_an_option_that_there_is_not_is_refused(group: str, name: str, row: type[Verb]) -> None:
    assert call(group, name, "--no-such-option").exit_code == 2


@pytest.mark.parametrize(
    ("group", "name", "option"),
    [
        pytest.param(group, name, option, id=f"{group} {name} {option.opts[0]}")
        for group, name, _ in ROWS
        for option in parameters(group, name).values()
        if CHOICES.fullmatch(option.metavar or "")
    ],
)
def test_a_word_that_is_no_choice_is_refused_with_the_choices(
    group: str, name: str, option: typer.core.TyperOption
) -> None:
    answer = call(group, name, option.opts[0], "no-such-word")
    assert answer.exit_code == 2
    assert answer.stderr.startswith(f"error: {max(option.opts, key=len)} is 'no-such-word'")
    assert all(word in answer.stderr for word in str(option.metavar).split("|"))


@pytest.mark.parametrize("row", [row for _, _, row in ROWS])
def test_a_row_holds_what_was_given_and_does_not_change(row: type[Verb]) -> None:
    needed = {field.name: None for field in fields(row)}
    with pytest.raises(FrozenInstanceError):
        row(**needed).as_json = True  # type: ignore[misc]


def test_a_method_without_a_network_is_refused_by_train_which_names_tune() -> None:
    refused = call("train", "oversubscription", "--method", "static")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: --method is 'static'")
    assert "trimtab tune oversubscription" in refused.stderr


def test_the_price_of_a_deployment_that_holds_still_falls_to_that_of_its_cores() -> None:
    answer = call(
        "price", "admission", "--size", "4", "--core", "0.05", "--variance", "0.002", "--at", "1,24,720", "--json"
    )
    rows = json.loads(answer.stdout)["hours"]
    assert [row["hours"] for row in rows] == [0.0, 1.0, 24.0, 720.0]
    for row in rows:
        assert row["for_cores"] == pytest.approx(0.2)
        assert row["for_uncertainty"] == pytest.approx(0.002 * row["variance"])
        assert row["price"] == pytest.approx(row["for_cores"] + row["for_uncertainty"])
    prices = [row["price"] for row in rows]
    assert prices == sorted(prices, reverse=True)
    capped = call("price", "admission", "--size", "4", "--cap", "0.1", "--at", "1", "--json")
    assert {row["price"] for row in json.loads(capped.stdout)["hours"]} == {0.1}


@pytest.mark.parametrize("words", [("--at", "soon"), ("--ahead", "0"), ("--preset", "nowhere.toml")])
def test_a_price_that_cannot_be_had_names_what_was_given(words: tuple[str, ...]) -> None:
    answer = call("price", "admission", "--size", "4", *words)
    assert answer.exit_code == 2
    assert words[1] in answer.stderr


@pytest.mark.parametrize(
    ("words", "option", "status"),
    [
        (("autoscaling", "web", "--out", "file"), "--out", 2),
        (("autoscaling", "web", "--out", "file/round"), "--out", NOT_WRITTEN),
        (("autoscaling", "web", "--export", "file/web.tar"), "--export", NOT_WRITTEN),
        (("placement", "main", "--models-dir", "file"), "--models-dir", NOT_WRITTEN),
        (("admission", "main", "--models-dir", "file/models"), "--models-dir", NOT_WRITTEN),
    ],
)
def test_a_folder_that_learn_cannot_make_is_named(
    words: tuple[str, ...], option: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    answer = call("learn", *words, "--ledger", story(tmp_path / "ledger.db"))
    assert (answer.exit_code, answer.stderr.startswith(f"error: {option} is 'file")) == (status, True), answer.output


FOLDERS = [
    pytest.param(group, name, id=f"{group} {name}")
    for group, name, row in ROWS
    for option in [parameters(group, name).get("out")]
    if not issubclass(row, Learning) and option is not None and option.metavar in ("FOLDER", "DIR", "DIRECTORY")
]


@pytest.mark.parametrize(("group", "name"), FOLDERS)
def test_a_folder_that_cannot_be_made_is_refused_with_its_option(group: str, name: str) -> None:
    answer = call(group, name, "--out", "/proc/none/here")
    assert answer.exit_code == 2
    assert "--out is '/proc/none/here': " in answer.stderr


def test_a_folder_that_can_be_made_is_not_there_after_the_check(tmp_path: Path) -> None:
    place = tmp_path / "new" / "folder"
    assert CHECKED_FOLDER.holds(place)
    assert not place.parent.exists()
    (tmp_path / "file").write_text("")
    assert not CHECKED_FOLDER.holds(tmp_path / "file" / "folder")
