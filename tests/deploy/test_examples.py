"""The example settings: every name is a setting, every value is one that it takes, also those commented out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.settings import load_settings, read_settings
from agent.settings.fleet import PolicyName
from domain.decisions import Mode
from tests.architecture.product import ROOT

TOKEN = {"TRIMTAB_HTTP__TOKEN": "a-token-of-enough-letters"}


@pytest.fixture
def example(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of an example as installed, what is commented out included when asked for."""

    def read(name: str, *, all_of_it: bool) -> dict[str, str]:
        text = (ROOT / "deploy" / f"{name}.env.example").read_text("utf-8").replace("@CONFIG@", str(tmp_path))
        if (toml := ROOT / "deploy" / f"{name}.toml.example").exists():
            shown = re.sub(r"^#(?=[\w\[])", "", toml.read_text("utf-8"), flags=re.MULTILINE) if all_of_it else None
            (tmp_path / f"{name}.toml").write_text(shown or toml.read_text("utf-8"), "utf-8")
        lines = re.findall(r"^#?(TRIMTAB_\w+)=(.*)$" if all_of_it else r"^(TRIMTAB_\w+)=(.*)$", text, re.MULTILINE)
        return dict(lines)

    return read


Example = Callable[..., dict[str, str]]


@pytest.mark.parametrize("name", ["agent", "collect"])
@pytest.mark.parametrize("all_of_it", [False, True])
def test_the_example_loads(example: Example, name: str, all_of_it: bool) -> None:
    given = example(name, all_of_it=all_of_it)
    loaded = read_settings(given | (TOKEN if all_of_it else {}))
    assert loaded.settings.mode is Mode.OBSERVE
    assert len(loaded.given) >= (18 if all_of_it else 12) or name == "collect"


def test_the_agents_example_describes_a_fleet(example: Example) -> None:
    settings = load_settings(example("agent", all_of_it=False))
    assert settings.fleets["web"].policy is PolicyName.QUEUE_RULE
    assert settings.fleet("web").groups[0].name == "web-workers-s"


def test_the_agents_example_opens_no_door(example: Example) -> None:
    for all_of_it in (False, True):
        settings = load_settings(example("agent", all_of_it=all_of_it) | (TOKEN if all_of_it else {}))
        assert settings.http.host == "127.0.0.1"
    listener = load_settings(example("agent", all_of_it=False)).listener
    assert (listener.host, listener.networks) == ("127.0.0.1", "127.0.0.0/8,::1/128")


def test_the_collectors_example_names_a_group_of_the_agents(example: Example) -> None:
    collect = load_settings(example("collect", all_of_it=False)).collect
    agent = load_settings(example("agent", all_of_it=False))
    assert collect.fleet in agent.fleets
    assert collect.group in agent.fleets[str(collect.fleet)].groups


def test_the_collectors_example_holds_no_secret(example: Example) -> None:
    names = example("collect", all_of_it=True)
    assert [key for key in names if re.search("TOKEN|AUTHORIZATION|WEBHOOK|LEDGER", key)] == []
