"""What the users' pages name exists: settings, verbs and their options, reasons, files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from agent.commands.main import app
from agent.rails.base import RailLimits
from agent.settings.fleet import FleetSettings
from agent.settings.names import NOT_SETTINGS, known, path_of
from domain.decisions import Reason
from tests.architecture.product import ROOT
from tests.deploy.test_monitoring import anchors

PAGES = [
    *(ROOT / "docs" / "operate" / f"{name}.md" for name in ("install", "instrument", "operating", "troubleshooting")),
    *(ROOT / "docs" / "operate" / f"{name}.md" for name in ("threat-model", "worker-hook")),
    ROOT / "docs" / "decide" / "learned-policy.md",
    ROOT / "docs" / "train" / "rehearse.md",
]
GROUP: Any = typer.main.get_command(app)
VERBS = {verb: GROUP.get_command(None, verb) for verb in GROUP.list_commands(None)}
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@by_page
def test_settings_exist(page: Path) -> None:
    names = re.findall(r"\bTRIMTAB_[A-Za-z_<>]*[A-Za-z](?![\w.]*\.\.\.)", page.read_text("utf-8"))
    concrete = {name.replace("<fleet>", "web").replace("<group>", "s") for name in names}
    sections = {name for name in concrete if name.endswith(("__RAILS", "_ALARMS"))}
    assert [name for name in sorted(concrete - sections) if not known(path_of(name)) and name not in NOT_SETTINGS] == []


@by_page
def test_commands_exist_with_their_options(page: Path) -> None:
    text = page.read_text("utf-8")
    for verb, rest in re.findall(r"\btrimtab ([a-z]+(?:-[a-z]+)*)\b([^`\n#]*)", text):
        if verb not in VERBS:
            assert not re.search(rf"(?:`|bin/|^)trimtab {verb}", text, re.MULTILINE), verb
            continue
        command = VERBS[verb]
        inner = rest.split()[:1]
        if hasattr(command, "commands") and inner and inner[0] in command.commands:
            command = command.commands[inner[0]]
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"(?<=\s)--[a-z]+", rest)) <= options, (verb, rest)


def test_reasons_and_log_events_in_the_troubleshooting_page_exist() -> None:
    text = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text("utf-8")
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text))
    code = "".join(path.read_text("utf-8") for path in (ROOT / "agent").rglob("*.py"))
    logged = set(re.findall(r'\blog\.\w+\(\s*"([a-z_]+)"', code))
    assert words - {reason.value for reason in Reason} - logged - {"decision_id"} == set()


def test_settings_of_a_fleet_in_the_troubleshooting_page_exist() -> None:
    text = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text("utf-8")
    names = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", text))
    others = {"PRICE_PER_HOUR", "HTTPS_PROXY", "VM_TYPE", "MEMORY_GB"}
    known = {*RailLimits.__dataclass_fields__, *FleetSettings.model_fields}
    assert {name.lower() for name in names - others if not name.startswith("TRIMTAB_")} <= known


@by_page
def test_links_into_pages_lead_to_a_heading(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]+\.md)#([^)\s]+)\)", page.read_text("utf-8")):
        assert anchor in anchors((page.parent / target).read_text("utf-8"))
