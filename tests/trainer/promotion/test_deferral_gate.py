"""The gate of deferral: a model leads only where it surely earns more than the rolling plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.deferral.ladder import LearnedRung
from agent.deferral.settings import DeferralSettings
from domain.errors import BadInput
from simulator.deferral.scenarios import scenario_of
from trainer.deferral.evaluation import Subject
from trainer.promotion.deferral import deferral_gate
from trainer.promotion.directory import ModelsWriter
from trainer.promotion.gate import RULES, Limits

(SHIPPED,) = (Path(__file__).parents[3] / "agent" / "deferral" / "shipped").glob("*.onnx")


def promote(models: Path) -> Result:
    arguments = ["promote", "deferral", "main", str(SHIPPED), "--models-dir", str(models), "--episodes", "8", "--json"]
    return CliRunner().invoke(app, [*arguments, "--scenario", "valley"], catch_exceptions=False)


@pytest.mark.exhaustive
def test_the_shipped_model_does_not_lead_as_the_plan_earns_more(tmp_path: Path) -> None:
    refused = promote(tmp_path)
    assert refused.exit_code == 1
    assert "rolling plan" in refused.stdout
    assert ModelsWriter(tmp_path).champions() == {}


@pytest.mark.exhaustive
def test_a_model_that_earns_more_is_in_use_with_the_pools_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside first come, first served in place of the plan the model is surely better.
    monkeypatch.setattr("trainer.promotion.deferral.PLAN", "fifo")
    checks = {"fifo" if label == "rolling" else label: check for label, check in RULES["deferral"].items()}
    monkeypatch.setattr("trainer.promotion.gate.RULES", {"deferral": checks})
    done = promote(tmp_path)
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["promoted"] is True
    rung = LearnedRung("main", DeferralSettings(capacity="http"), ModelsWriter(tmp_path))
    rung.look()
    assert rung.problem == ""
    assert rung.digest == SHIPPED.stem


def test_fewer_than_eight_episodes_say_nothing() -> None:
    with pytest.raises(BadInput, match="8 episodes at least"):
        deferral_gate([Subject("valley", scenario_of("valley"))], 7, Limits())
