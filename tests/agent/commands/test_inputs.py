"""`trimtab inputs try`: what lines become under a map, before the map is used."""

import json
from pathlib import Path

import pytest

from tests.agent.commands.conftest import Trimtab

RULES = '[[series]]\nfrom = "collectd.{host}.busy"\nto = "cpu_percent"\n'
LINES = "collectd.web-1.busy 71 1000\ncollectd.web-2.busy 10 1000\nother.thing 1 1000\ncollectd.web-1.busy x 1000\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    rules, lines = tmp_path / "inputs.toml", tmp_path / "lines.txt"
    rules.write_text(RULES)
    lines.write_text(LINES)
    return str(lines), str(rules)


def test_each_line_is_shown_with_what_becomes_of_it(trimtab: Trimtab, files: tuple[str, str]) -> None:
    lines, rules = files
    shown = trimtab("inputs", "try", lines, "--map", rules, "--host", "web-1=web.workers.i-0abc", "--json")
    found = json.loads(shown.stdout)
    assert found["readings"] == [{"path": "trimtab.web.workers.i-0abc.cpu_percent", "value": 71.0, "at": 1000.0}]
    assert found["refused"] == {"bad_value": 1, "foreign_path": 1, "unknown_vm": 1}
    assert "not in the inventory" in found["becomes"]["collectd.web-2.busy"]
    assert found["becomes"]["other.thing"] == "no rule takes it"


def test_a_map_under_which_nothing_arrives_has_exit_status_1(trimtab: Trimtab, files: tuple[str, str]) -> None:
    lines, rules = files
    shown = trimtab("inputs", "try", lines, "--map", rules)
    assert shown.exit_code == 1
    assert "readings: 0 of 4 lines" in shown.stdout


def test_without_a_map_it_says_how_to_give_one(trimtab: Trimtab, files: tuple[str, str]) -> None:
    shown = trimtab("inputs", "try", files[0])
    assert shown.exit_code == 2
    assert "--map" in shown.stderr
