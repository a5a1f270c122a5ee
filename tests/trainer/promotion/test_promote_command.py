"""`trimtab promote` as people and machines call it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from tests.agent.models.making import ADD_S, preferring, reported
from tests.trainer.promotion.arena import idler, spender
from trainer.promotion.models_directory import ModelsDirectory

RUNNER = CliRunner()
FEW = ("--traces", "T2", "--short", "--seeds", "2")
KEY = "0123456789abcdef"


def promote(models: Path, *arguments: str, **environment: str) -> Result:
    return RUNNER.invoke(
        app, ["promote", *arguments, "--models-dir", str(models)], env={"PROMOTION_KEY": None, **environment}
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A models directory whose champion adds a large VM every minute."""
    models = tmp_path / "models"
    models.mkdir()
    report = reported(models, spender(tmp_path).name)
    ModelsDirectory(models).promote(spender(tmp_path), report, "2026-01-01T00:00:00Z")
    return models


def champion(models: Path) -> str:
    return str(json.loads((models / "champion.json").read_text())["model"])


def test_a_better_model_is_promoted_and_rolled_back(tmp_path: Path, models: Path) -> None:
    better = preferring(tmp_path, ADD_S)
    answer = promote(models, str(better), *FEW)
    assert answer.exit_code == 0, answer.output
    assert "passed: it is the champion now" in answer.stdout
    assert "not signed" in answer.stdout
    assert champion(models) == better.name
    back = promote(models, "--rollback")
    assert (back.exit_code, champion(models)) == (0, spender(tmp_path).name)
    assert f"back to {spender(tmp_path).name}" in back.stdout


def test_a_worse_model_leaves_the_champion_and_the_status_says_so(tmp_path: Path, models: Path) -> None:
    promote(models, str(preferring(tmp_path, ADD_S)), *FEW)
    answer = promote(models, str(spender(tmp_path)), *FEW, "--json")
    data = json.loads(answer.stdout)
    assert answer.exit_code == 1
    assert (data["passed"], data["promoted"]) == (False, False)
    assert any("on T2" in reason for reason in data["reasons"])
    assert champion(models) == preferring(tmp_path, ADD_S).name


def test_with_a_key_the_report_is_signed_and_status_checks_it(tmp_path: Path, models: Path) -> None:
    promote(models, str(preferring(tmp_path, ADD_S)), *FEW, PROMOTION_KEY=KEY)
    seals = {
        key: json.loads(promote(models, "--status", "--json", **({"PROMOTION_KEY": key} if key else {})).stdout)[
            "champion"
        ]["seal"]
        for key in (KEY, "another-key-of-16", "")
    }
    assert seals == {KEY: "signed", "another-key-of-16": "changed", "": "key needed"}


def test_a_trial_changes_nothing(tmp_path: Path, models: Path) -> None:
    answer = promote(models, str(preferring(tmp_path, ADD_S)), *FEW, "--try")
    assert answer.exit_code == 0
    assert "nothing is changed" in answer.stdout
    assert champion(models) == spender(tmp_path).name


def test_a_spoilt_file_is_one_message_and_the_champion_stays(tmp_path: Path, models: Path) -> None:
    cut = idler(tmp_path)
    cut.write_bytes(cut.read_bytes()[:-100])
    answer = promote(models, str(cut), *FEW)
    assert answer.exit_code == 2
    assert "damaged or was renamed" in answer.stderr
    assert champion(models) == spender(tmp_path).name


def test_rolling_back_the_first_champion_leaves_none(models: Path) -> None:
    answer = promote(models, "--rollback")
    assert answer.exit_code == 0
    assert "there was none before it" in answer.stdout
    assert "no champion" in promote(models, "--status").stdout


def test_without_a_champion_there_is_nothing_to_roll_back(tmp_path: Path) -> None:
    answer = promote(tmp_path / "empty", "--rollback")
    assert (answer.exit_code, answer.stdout) == (2, "")


def test_status_tells_a_damaged_champion(tmp_path: Path, models: Path) -> None:
    (models / spender(tmp_path).name).write_bytes(b"damaged")
    next(models.glob("report-*.json")).write_text("{}")
    found = json.loads(promote(models, "--status", "--json").stdout)["champion"]
    assert "damaged" in found["file"]
    assert found["seal"] == "changed"


def test_the_directory_is_that_of_the_settings(tmp_path: Path, models: Path) -> None:
    answer = RUNNER.invoke(app, ["promote", "--status"], env={"TRIMTAB_LEARNED__MODELS_DIR": str(models)})
    assert spender(tmp_path).stem in answer.stdout


@pytest.mark.parametrize("arguments", [(), ("--rollback", "--status"), ("a.onnx", "--rollback")])
def test_one_thing_at_a_time(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    answer = promote(tmp_path, *arguments)
    assert answer.exit_code == 2
    assert "--rollback or --status" in answer.stderr


FLEET = {
    f"TRIMTAB_FLEETS__web__GROUPS__{key}__{name}": value
    for key, cores, price in (("s", "2", "0.2"), ("m", "4", "0.4"), ("l", "8", "0.8"))
    for name, value in (
        ("VM_TYPE", f"m5a.{key}arge"),
        ("CORES", cores),
        ("MEMORY_GB", "8"),
        ("PRICE_PER_HOUR", price),
        ("MAX", "10"),
    )
}
THREES = {name: "3" if name.endswith("MAX") else value for name, value in FLEET.items()}


def test_a_champion_of_one_fleet_leaves_that_of_the_others(tmp_path: Path, models: Path) -> None:
    better = preferring(tmp_path, ADD_S)
    answer = promote(models, str(better), *FEW, "--fleet", "web", **FLEET)
    assert answer.exit_code == 0, answer.output
    assert "passed: it is the champion of web now" in answer.stdout
    assert champion(models) == spender(tmp_path).name
    status = json.loads(promote(models, "--status", "--json").stdout)
    assert {fleet: one["model"] for fleet, one in status["champions"].items()} == {
        "": spender(tmp_path).name,
        "web": better.name,
    }
    back = promote(models, "--rollback", "--fleet", "web")
    assert "is no longer the champion of web; the champion of every fleet decides" in back.stdout


@pytest.mark.parametrize(
    ("fleet", "environment", "words"),
    [
        ("web", THREES, "the fleet web has 3 of 2 cores"),
        ("shop", FLEET, "choose one of the fleets of the settings: web"),
        ("Web!", {}, "give the key of a fleet"),
    ],
)
def test_a_champion_must_fit_its_fleet_and_the_fleet_must_be_one_of_the_settings(
    tmp_path: Path, models: Path, fleet: str, environment: dict[str, str], words: str
) -> None:
    answer = promote(models, str(preferring(tmp_path, ADD_S)), *FEW, "--fleet", fleet, **environment)
    assert answer.exit_code == 2
    assert words in answer.stderr
    assert "fleets" not in json.loads((models / "champion.json").read_text())


def test_a_rollback_the_agent_would_refuse_for_want_of_a_signature_changes_nothing(
    tmp_path: Path, models: Path
) -> None:
    promote(models, str(preferring(tmp_path, ADD_S)), *FEW)
    answer = promote(models, "--rollback", TRIMTAB_LEARNED__PROMOTION_KEY=KEY)
    assert answer.exit_code == 2
    assert "it is not signed with TRIMTAB_LEARNED__PROMOTION_KEY" in answer.stderr
    assert champion(models) == preferring(tmp_path, ADD_S).name
