"""`trimtab config`: effective values and their sources, all mistakes at once, and the reference page."""

import itertools
import json
from pathlib import Path

import pytest

from agent.kernel.decision import Part
from agent.kernel.parts import kinds
from agent.settings import load_settings
from agent.settings.names import page
from tests.agent.commands.conftest import Trimtab
from tests.agent.commands.recorded import story


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


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of settings that the environment names."""
    file = tmp_path / "agent.toml"
    file.write_text(FILE.format(tmp_path))
    monkeypatch.setenv("TRIMTAB_CONFIG", str(file))
    return file


FILE = """\
mode = "act"
state_directory = "{}"

[fleets.web.groups.small]
vm_type = "m5a.large"
cores = 2
memory_gb = 8
price_per_hour = 0.1
min = 1
max = 4
"""


def test_check_prints_file_and_line_of_a_value_or_the_variable_before_it(
    trimtab: Trimtab, settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_MODE", "observe")
    brief, result = trimtab("config", "check"), trimtab("config", "check", "--all")
    assert brief.stdout.startswith("no mistakes: 8 of ")
    assert f"7 in {settings_file}; the ledger is sqlite:///{settings_file.parent}/ledger.db" in brief.stdout
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.count("  ")}
    assert rows["TRIMTAB_MODE"] == ["observe", "environment"]
    assert rows["TRIMTAB_FLEETS__web__GROUPS__small__CORES"] == ["2", f"{settings_file}:6"]
    found = json.loads(trimtab("config", "check", "--json").stdout)["settings"]
    cores = {"name": "TRIMTAB_FLEETS__web__GROUPS__small__CORES", "value": "2", "source": f"{settings_file}:6"}
    assert cores in found


def test_what_a_decision_refuses_is_named_by_its_place_in_the_file(trimtab: Trimtab, settings_file: Path) -> None:
    groups = FILE.partition("[")[2].partition("\n")[2]
    with settings_file.open("a") as file:
        file.write("".join(f"[fleets.web.groups.small{number}]\n{groups}" for number in range(13)))
        file.write('[fleets.web]\npolicy = "learned"\n')
    lines = len(settings_file.read_text().splitlines())
    result = trimtab("config", "check")
    assert (result.exit_code, f"{settings_file}:{lines}: fleets.web.policy=learned: " in result.stderr) == (1, True)


@pytest.mark.parametrize("verb", [("config", "check"), ("run",), ("preflight",), ("status",), ("decisions",)])
def test_a_file_that_cannot_be_read_ends_every_verb_with_status_2(
    trimtab: Trimtab, settings_file: Path, verb: tuple[str, ...]
) -> None:
    settings_file.write_text('mode = "act"\n[fleets.web\n')
    result = trimtab(*verb)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"TRIMTAB_CONFIG is '{settings_file}'" in result.stderr
    assert "line 2" in result.stderr


def test_the_verbs_find_the_ledger_by_the_file(trimtab: Trimtab, settings_file: Path) -> None:
    story(settings_file.parent / "ledger.db")
    result = trimtab("decisions")
    assert result.exit_code == 0, result.output
    assert "web-" in result.stdout


def test_a_bundle_for_support_says_that_the_file_is_broken(trimtab: Trimtab, settings_file: Path) -> None:
    settings_file.write_text("[")
    target = settings_file.with_name("bundle.tar.gz")
    result = trimtab("support-bundle", "--output", str(target))
    assert (result.exit_code, target.exists()) == (0, True), result.output


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
