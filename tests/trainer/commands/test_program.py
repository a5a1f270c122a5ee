"""The trainer's verbs: the same for every decision, with a refusal that says what to do, and the old forms."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.settings.plug_ins import DECISIONS, installed
from trainer.commands.program import VERBS, absent

RUNNER = CliRunner()


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
    else:
        answer = call(verb, decision, "--help")
        assert answer.exit_code == 0
        assert f"trimtab {verb} {decision}" in answer.stdout


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
