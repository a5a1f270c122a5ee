"""`trimtab approve`, `promote` and `models` for tuned settings of the queue rule."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.models.directory import Then
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from tests.trainer.commands.test_learn_all import described
from tests.trainer.learning.steps import directory_of, trimtab
from tests.trainer.promotion.settings import promoted_rule

WEB = Subject(QUEUE_RULE, "web")
SHORT, LONG = RuleSetting(150.0, 0.0), RuleSetting(480.0, 30.0)


def test_a_proposed_setting_is_approved_listed_and_taken_back(tmp_path: Path) -> None:
    directory, place = directory_of(tmp_path), ("--models-dir", tmp_path / "models", "--json")
    first = promoted_rule(directory, SHORT, "web", 0.0)
    second = promoted_rule(directory, LONG, "web", 60.0, then=Then.APPROVE)
    assert json.loads(trimtab("approve", "queue-rule", "web", *place).stdout)["model"] == second
    listed = json.loads(trimtab("models", "queue-rule", "--models", tmp_path / "models", "--json").stdout)
    assert listed["refusal"] is None
    assert [(row["subject"], row["model"], row["file"]) for row in listed["subjects"]] == [("web", second, "sound")]
    assert [row["horizon_s"] for row in listed["models"]] == [480.0]
    back = trimtab("promote", "queue-rule", "web", "--rollback", *place)
    assert json.loads(back.stdout)["model"] == first
    assert directory.champions()[WEB].model == first


def test_a_setting_that_a_person_gives_is_forced_or_not_used(tmp_path: Path) -> None:
    directory, place = directory_of(tmp_path), ("--models-dir", tmp_path / "models", "--json")
    file = tmp_path / promoted_rule(directory, LONG, "web", 0.0)
    file.write_bytes((tmp_path / "models" / file.name).read_bytes())
    trimtab("promote", "queue-rule", "web", "--rollback", *place)
    assert trimtab("promote", "queue-rule", "web", file, *place).exit_code == 2
    assert not directory.champions()
    assert trimtab("promote", "queue-rule", "all", file, "--force", "a trial", *place).exit_code == 2
    assert trimtab("promote", "queue-rule", "web", file, "--force", "a trial", *place).exit_code == 0
    assert directory.champions()[WEB].model == file.name


def test_a_setting_of_another_fleet_is_not_used(tmp_path: Path) -> None:
    directory, place = directory_of(tmp_path), ("--models-dir", tmp_path / "models")
    file = tmp_path / promoted_rule(directory, LONG, "api", 0.0)
    file.write_bytes((tmp_path / "models" / file.name).read_bytes())
    done = trimtab("promote", "queue-rule", "web", file, "--force", "a trial", *place)
    assert (done.exit_code, "of fleet api" in done.output) == (2, True), done.output
    assert WEB not in directory.champions()


@pytest.mark.parametrize("line", ["IDLE_S", "QUEUE_RULE__HORIZON_S"])
def test_a_fleet_with_a_setting_by_hand_takes_no_other_one(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, place = directory_of(tmp_path), ("--models-dir", tmp_path / "models")
    first = promoted_rule(directory, SHORT, "web", 0.0)
    second = promoted_rule(directory, LONG, "web", 60.0, then=Then.APPROVE)
    for name, value in (described("web") | {f"TRIMTAB_FLEETS__web__{line}": "90"}).items():
        monkeypatch.setenv(name, value)
    file = tmp_path / second
    file.write_bytes((tmp_path / "models" / second).read_bytes())
    for call in (("promote", "queue-rule", "web", file, "--force", "a trial"), ("approve", "queue-rule", "web")):
        done = trimtab(*call, *place)
        assert (done.exit_code, "IDLE_S by hand" in done.output) == (2, True), done.output
    assert directory.champions()[WEB].model == first
    assert trimtab("promote", "queue-rule", "web", "--rollback", *place).exit_code == 0
    monkeypatch.delenv(f"TRIMTAB_FLEETS__web__{line}")
    assert trimtab("promote", "queue-rule", "web", file, "--force", "a trial", *place).exit_code == 0
