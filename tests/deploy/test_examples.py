"""The example settings: every name is a setting, every value is one that it takes, also those commented out."""

from __future__ import annotations

import re

import pytest

from agent.settings import load_settings
from agent.settings.fleet import PolicyName
from domain.decisions import Mode
from tests.architecture.product import ROOT

TOKEN = {"TRIMTAB_HTTP__TOKEN": "a-token-of-enough-letters"}


def example(name: str, *, all_of_it: bool) -> dict[str, str]:
    """The assignments of an example as systemd reads them, those commented out included when asked for."""
    text = (ROOT / "deploy" / f"{name}.env.example").read_text("utf-8")
    lines = re.findall(r"^#?(TRIMTAB_\w+)=(.*)$" if all_of_it else r"^(TRIMTAB_\w+)=(.*)$", text, re.MULTILINE)
    return dict(lines)


@pytest.mark.parametrize("name", ["agent", "collect"])
@pytest.mark.parametrize("all_of_it", [False, True])
def test_the_example_loads(name: str, all_of_it: bool) -> None:
    given = example(name, all_of_it=all_of_it)
    settings = load_settings(given | (TOKEN if all_of_it else {}))
    assert settings.mode is Mode.OBSERVE


def test_the_agents_example_describes_a_fleet() -> None:
    settings = load_settings(example("agent", all_of_it=False))
    assert settings.fleets["web"].policy is PolicyName.QUEUE_RULE
    assert settings.fleet("web").groups[0].name == "web-workers-s"


def test_the_agents_example_opens_no_door() -> None:
    for all_of_it in (False, True):
        settings = load_settings(example("agent", all_of_it=all_of_it) | (TOKEN if all_of_it else {}))
        assert settings.http.host == "127.0.0.1"
    listener = load_settings(example("agent", all_of_it=False)).listener
    assert (listener.host, listener.networks) == ("127.0.0.1", "127.0.0.0/8,::1/128")


def test_the_collectors_example_names_a_group_of_the_agents() -> None:
    collect = load_settings(example("collect", all_of_it=False)).collect
    agent = load_settings(example("agent", all_of_it=False))
    assert collect.fleet in agent.fleets
    assert collect.group in agent.fleets[str(collect.fleet)].groups


@pytest.mark.parametrize("name", ["agent", "collect"])
def test_the_example_holds_no_secret(name: str) -> None:
    assert [key for key in example(name, all_of_it=True) if re.search("TOKEN|AUTHORIZATION|WEBHOOK|LEDGER", key)] == []
