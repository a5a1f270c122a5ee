"""`trimtab promote` as people and machines call it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.models.directory import EVERY_FLEET, read_model_file
from agent.models.file import load_model
from tests.agent.models.making import ADD_S, preferring, reported
from tests.trainer.promotion.arena import idler, spender
from trainer.promotion.directory import ModelsWriter

RUNNER = CliRunner()
FEW = ("--traces", "T2", "--short", "--seeds", "2")
KEY = "0123456789abcdef"


def promote(models: Path, *arguments: str, fleet: str = "all", **environment: str) -> Result:
    given = ["promote", "autoscaling", fleet, *arguments, "--models-dir", str(models)]
    return RUNNER.invoke(app, given, env={"PROMOTION_KEY": None, **environment})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A models directory whose champion adds a large VM every minute."""
    models = tmp_path / "models"
    models.mkdir()
    report = reported(models, spender(tmp_path).name)
    at, champion = "2026-01-01T00:00:00Z", read_model_file(spender(tmp_path))
    ModelsWriter(models).promote(champion, EVERY_FLEET, report, at, load_model)
    return models


def champion(models: Path) -> str:
    return str(json.loads((models / "champion.json").read_text())["model"])


def test_a_better_model_is_promoted_and_rolled_back(tmp_path: Path, models: Path) -> None:
    better = preferring(tmp_path, ADD_S)
    answer = promote(models, str(better), *FEW)
    assert answer.exit_code == 0, answer.output
    assert "of autoscaling all now" in answer.stdout
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
    answer = RUNNER.invoke(
        app, ["promote", "autoscaling", "all", "--status"], env={"TRIMTAB_LEARNED__MODELS_DIR": str(models)}
    )
    assert spender(tmp_path).stem[:12] in answer.stdout


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
    answer = promote(models, str(better), *FEW, fleet="web", **FLEET)
    assert answer.exit_code == 0, answer.output
    assert "of autoscaling web now" in answer.stdout
    assert champion(models) == spender(tmp_path).name
    status = json.loads(promote(models, "--status", "--json").stdout)
    assert {fleet: one["model"] for fleet, one in status["champions"].items()} == {
        "": spender(tmp_path).name,
        "web": better.name,
    }
    back = promote(models, "--rollback", fleet="web")
    assert "web; that of all decides" in back.stdout


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
    answer = promote(models, str(preferring(tmp_path, ADD_S)), *FEW, fleet=fleet, **environment)
    assert answer.exit_code == 2
    assert words in answer.stderr
    assert "fleets" not in json.loads((models / "champion.json").read_text())


def test_a_rollback_the_agent_would_refuse_for_want_of_a_signature_changes_nothing(
    tmp_path: Path, models: Path
) -> None:
    promote(models, str(preferring(tmp_path, ADD_S)), *FEW)
    answer = promote(models, "--rollback", TRIMTAB_LEARNED__PROMOTION_KEY=KEY)
    assert answer.exit_code == 2
    assert "LEARNED__PROMOTION_KEY" in answer.stderr
    assert champion(models) == preferring(tmp_path, ADD_S).name


def test_a_model_is_forced_with_its_reason_recorded(tmp_path: Path, models: Path) -> None:
    model = preferring(tmp_path, ADD_S)
    assert promote(models, str(model), "--force", " ").exit_code == 2
    answer = promote(models, str(model), "--force", "the suite has no such trace")
    assert answer.exit_code == 0, answer.output
    assert "the suite has no such" in answer.stdout
    status = json.loads(promote(models, "--status", "--json").stdout)
    assert (champion(models), status["champion"]["by"]) == (model.name, "forced: the suite has no such trace")


POOL = {
    f"TRIMTAB_POOLS__main__{name}": value
    for name, value in {
        "MACHINES": "24",
        "MACHINE_CORES": "96",
        "MACHINE_MEMORY_GB": "1536",
        "POLICY": "learned",
        "SUBSCRIBERS__web__INTERNAL": "true",
    }.items()
}
CLUSTER = {"TRIMTAB_CLUSTERS__main__CAPACITY_CORES": "400", "TRIMTAB_CLUSTERS__main__RULE": "learned"}


@pytest.mark.parametrize(
    ("decision", "content", "settings"),
    [
        ("oversubscription", {"kind": "oversubscription-rates", "rates": {"web": 0.5}}, POOL),
        ("admission", {"preset": "T", "rule": "second:3"}, CLUSTER),
    ],
)
def test_files_of_pools_and_clusters_take_the_same_road(
    tmp_path: Path, decision: str, content: dict[str, object], settings: dict[str, str]
) -> None:
    models, file = tmp_path / "models", tmp_path / "file.json"
    file.write_text(json.dumps(content))

    def call(*given: str, subject: str = "main") -> Result:
        named = ["promote", decision, subject, *given, "--models-dir", str(models)]
        return RUNNER.invoke(app, named, env={"PROMOTION_KEY": None, **settings})

    unknown = call(str(file), "--force", "a trial", subject="other")
    assert (unknown.exit_code, "of the settings: main" in unknown.stderr) == (2, True)
    assert call(str(file), "--force", "a trial").exit_code == 0
    held = json.loads((models / "champion.json").read_text())["subjects"][decision]["main"]
    assert held["model"].endswith(".json")
    status = json.loads(call("--status", "--json").stdout)["champions"]["main"]
    assert (status["file"], status["seal"], status["by"]) == ("sound", "unsigned", "forced: a trial")
    assert call("--rollback").exit_code == 0
    assert not (models / "champion.json").exists()


def test_a_rule_meets_that_of_the_settings_in_a_world_of_the_clusters_size(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"preset": "K", "arrival_rate": 5.0, "rule": "zeroth:150"}))
    settings = {"RULE": "learned", "POLICY": "zeroth", "THRESHOLD_CORES": "100", "SLA": "0.1"}
    settings = {f"TRIMTAB_CLUSTERS__main__{name}": value for name, value in settings.items()}
    few = (
        "--runs",
        "12",
        "--years",
        "0.5",
        "--tuned",
        "zeroth:150",
        "--json",
        "--models-dir",
        str(tmp_path / "models"),
    )
    answer = RUNNER.invoke(
        app, ["promote", "admission", "main", str(file), *few], env={"PROMOTION_KEY": None, **CLUSTER, **settings}
    )
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    assert (report["champion"]["rule"], report["promoted"]) == ("zeroth:100", True)
    assert report["limits"]["sla"] == 0.1
