"""`trimtab config`: effective values and their sources, all mistakes at once, and the reference page."""

import itertools
import json
from pathlib import Path

import pytest

from agent.kernel.part import Part
from agent.kernel.parts import kinds
from agent.settings import load_settings
from agent.settings.names import page
from tests.agent.commands.conftest import Trimtab


def test_check_prints_each_value_and_where_it_came_from(
    trimtab: Trimtab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "trimtab_ledger__url").write_text("postgresql+psycopg://trimtab:geheim@db/ledger")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("TRIMTAB_AWS__REGION", "eu-west-1")
    brief, result = trimtab("config", "check"), trimtab("config", "check", "--all")
    assert (brief.exit_code, result.exit_code, len(brief.stdout.splitlines())) == (0, 0, 1)
    assert brief.stdout.startswith("no mistakes: 2 of ")
    assert result.stdout.startswith("no mistakes: 2 of ")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.count("  ")}
    assert rows["TRIMTAB_MODE"] == ["observe", "default"]
    assert rows["TRIMTAB_AWS__REGION"] == ["eu-west-1", "environment"]
    assert rows["trimtab_ledger__url"] == ["postgresql+psycopg://trimtab:***@db/ledger", "credentials"]
    assert "geheim" not in result.output


def test_check_lists_every_mistake_and_exits_1(trimtab: Trimtab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_MODE", "on")
    monkeypatch.setenv("TRIMTAB_LISTNER__PORT", "1")
    result = trimtab("config", "check")
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 3)
    result = trimtab("config", "check", "--json")
    assert result.exit_code == 1
    found = [(one["name"], one["value"]) for one in json.loads(result.stdout)["mistakes"]]
    assert found == [("TRIMTAB_LISTNER__PORT", "1"), ("TRIMTAB_MODE", "on")]


def test_a_quiet_check_prints_mistakes_only(trimtab: Trimtab, monkeypatch: pytest.MonkeyPatch) -> None:
    result = trimtab("config", "check", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    monkeypatch.setenv("TRIMTAB_MODE", "on")
    quiet, loud = trimtab("config", "check", "--quiet"), trimtab("config", "check")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (1, "", loud.stderr)


def test_check_as_json(trimtab: Trimtab) -> None:
    data = json.loads(trimtab("config", "check", "--json").stdout)
    assert data["mistakes"] == []
    assert {"name": "TRIMTAB_MODE", "value": "observe", "source": "default"} in data["settings"]


def test_docs_writes_the_page_and_tells_a_stale_one(trimtab: Trimtab, tmp_path: Path) -> None:
    target = tmp_path / "configuration.md"
    assert trimtab("config", "docs", "--check", "--output", str(target)).exit_code == 1
    assert trimtab("config", "docs", "--output", str(target)).exit_code == 0
    assert target.read_text("utf-8") == page() == trimtab("config", "docs", "--output", "-").stdout
    assert trimtab("config", "docs", "--check", "--output", str(target)).exit_code == 0
    target.write_text(page() + "more\n")
    result = trimtab("config", "docs", "--check", "--output", str(target))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{target} is stale")


def test_a_place_that_cannot_be_written_is_said_without_a_traceback(trimtab: Trimtab, tmp_path: Path) -> None:
    result = trimtab("config", "docs", "--output", str(tmp_path / "none" / "page.md"))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: [Errno 2] ")


@pytest.mark.parametrize("role", ["POLICY", "SHADOW"])
def test_check_refuses_a_learned_policy_for_a_fleet_that_no_model_fits_and_says_why(
    trimtab: Trimtab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: str
) -> None:
    group = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MIN": "1", "MAX": "4"}
    for number, (name, value) in itertools.product(range(13), group.items()):
        monkeypatch.setenv(f"TRIMTAB_FLEETS__web__GROUPS__small{number}__{name}", value)
    monkeypatch.setenv("TRIMTAB_LEARNED__MODELS_DIR", str(tmp_path))
    assert trimtab("config", "check").exit_code == 0
    monkeypatch.setenv(f"TRIMTAB_FLEETS__web__{role}", "learned")
    result = trimtab("config", "check")
    assert result.exit_code == 1
    assert f"TRIMTAB_FLEETS__web__{role}=learned: " in result.stderr
    assert "12 types; web has 13" in result.stderr


def test_check_lets_a_damaged_champion_be_for_the_agent_to_tell(
    trimtab: Trimtab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MIN": "1", "MAX": "4"}
    for name, value in group.items():
        monkeypatch.setenv(f"TRIMTAB_FLEETS__web__GROUPS__small__{name}", value)
    monkeypatch.setenv("TRIMTAB_FLEETS__web__POLICY", "learned")
    monkeypatch.setenv("TRIMTAB_LEARNED__MODELS_DIR", str(tmp_path))
    (tmp_path / "champion.json").write_text("{")
    assert trimtab("config", "check").exit_code == 0


def test_an_agent_with_nothing_to_decide_refuses_to_run_and_creates_nothing(
    trimtab: Trimtab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("TRIMTAB_STATE_DIRECTORY", str(state))
    result = trimtab("run")
    assert (result.exit_code, state.exists()) == (2, False)
    assert "trimtab init" in result.output


def test_each_decision_says_whether_the_settings_give_it_a_subject() -> None:
    deciding = {"TRIMTAB_DISCOVERY__ENABLED": "true", "TRIMTAB_AWS__REGION": "eu-west-1"}
    assert [kind.name for kind in kinds() if kind.decides(load_settings(deciding))] == ["autoscaling"]
    assert not any(kind.decides(load_settings({})) for kind in kinds())


def test_a_decision_of_a_package_whose_subjects_no_setting_describes_may_run_alone() -> None:
    class Lunch(Part):
        name = "lunch"

    assert Lunch.decides(load_settings({}))
