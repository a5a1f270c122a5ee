"""`trimtab promote` as people and machines call it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from tests.models.making import ADD_S, preferring
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
    ModelsDirectory(tmp_path / "models").promote(spender(tmp_path), "none.json", "2026-01-01T00:00:00Z")
    return tmp_path / "models"


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
    (models / "none.json").write_text("{}")
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
