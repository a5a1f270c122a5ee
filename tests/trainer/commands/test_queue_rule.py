"""`trimtab approve`, `promote` and `models` for tuned settings of the queue rule."""

from __future__ import annotations

import json
from pathlib import Path

from agent.models.directory import Then
from domain.rules.autoscaling import RuleSetting
from domain.subject import QUEUE_RULE, Subject
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
