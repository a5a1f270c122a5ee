"""`trimtab approve` for a decision that records no proposals of a model on probation."""

from __future__ import annotations

import json
from pathlib import Path

from agent.models.directory import Then
from agent.placement.choosing import read_policy
from domain.rules.placement.policies import RESERVE, policy_document
from domain.subject import Subject
from tests.trainer.learning.steps import directory_of, tried, trimtab

MAIN = Subject("placement", "main")


def test_the_model_decides_and_no_ledger_is_read(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(policy_document(RESERVE)))
    directory = directory_of(tmp_path)
    tried(directory, policy, MAIN, 0.0, 24.0, read_policy, Then.APPROVE)
    place = ("--models-dir", tmp_path / "models", "--ledger", tmp_path / "none.db")
    answer = trimtab("approve", "placement", "main", *place, "--json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert found["divergence"] == ""
    assert directory.champions()[MAIN].model == found["model"]
    assert not (tmp_path / "none.db").exists()
