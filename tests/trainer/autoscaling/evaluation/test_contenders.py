"""Contenders: policies by text, by label, or from a file with one policy per group."""

import json
from pathlib import Path

import pytest

from domain.errors import BadInput
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_text
from trainer.autoscaling.evaluation.contenders import contenders_of
from trainer.autoscaling.evaluation.results import Results, evaluate
from trainer.autoscaling.evaluation.suite import Case


def test_a_text_is_its_own_label_unless_one_is_given() -> None:
    plain, labelled = contenders_of(["threshold:high=0.8,low=0.5", "steady=constant:5,5,5"])
    assert (plain.label, plain.text("T1")) == ("threshold:high=0.8,low=0.5",) * 2
    assert (labelled.label, labelled.text("T3")) == ("steady", "constant:5,5,5")


def test_a_file_may_name_another_policy_for_each_group(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    path.write_text(
        json.dumps({"rule": {"T1": "queue-rule:horizon_s=700", "*": "queue-rule"}, "idle": {"T2": "nothing"}})
    )
    rule, idle = contenders_of([f"@{path}"])
    assert (rule.text("T1"), rule.text("T5")) == ("queue-rule:horizon_s=700", "queue-rule")
    assert (idle.text("T2"), idle.text("T1")) == ("nothing", None)


@pytest.mark.parametrize("content", ["[]", "{", '{"a": {"T9": "nothing"}}', '{"a": 5}', '{"a": {}}'])
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "policies.json"
    path.write_text(content)
    with pytest.raises(BadInput):
        contenders_of([f"@{path}"])


def test_two_policies_under_one_label_are_a_mistake() -> None:
    with pytest.raises(BadInput, match="another label"):
        contenders_of(["a=nothing", "a=queue-rule"])


def test_a_policy_that_does_not_fit_is_reported_as_absent_with_the_reason() -> None:
    case = Case("T1 boot 0", "T1", "training", preset("train-text"), train_text(), 0)
    found = evaluate(contenders_of(["nothing", "pair=constant:2,2"]), [case], Results(None))
    assert [row.policy for row in found.rows] == ["nothing"]
    (absence,) = found.absences
    assert (absence.label, absence.case) == ("pair", "T1 boot 0")
    assert "3 sizes" in absence.reason


def test_an_unknown_policy_is_refused_before_anything_runs() -> None:
    with pytest.raises(BadInput, match="queue-rule"):
        evaluate(
            contenders_of(["magic"]),
            [Case("c", "T1", "training", preset("train-text"), train_text(), 0)],
            Results(None),
        )
