"""Contenders by default: every baseline of the specification, tuned on seeds that are not reported."""

import pytest

from trainer.autoscaling.evaluation.contenders import baselines, default_contenders, queue_rule
from trainer.autoscaling.evaluation.results import run_episode
from trainer.autoscaling.evaluation.suite import GROUPS, World, suite
from trainer.autoscaling.policy_names import policy_of


@pytest.mark.parametrize("world", list(World))
def test_every_text_is_a_policy_and_the_reference_comes_first(world: World) -> None:
    found = baselines(world)
    assert found[0] == queue_rule(world)
    for contender in found:
        for text in contender.texts.values():
            policy_of(text)


def test_the_queue_rule_takes_part_everywhere_and_the_ramps_on_the_closed_loop() -> None:
    by_label = {contender.label: contender for contender in default_contenders()}
    assert all(queue_rule().text(group) for group in GROUPS)
    assert by_label["ramp to 1, 10, 3"].text("T4") == "fixed-ramp:1,10,3"
    assert by_label["ramp to 1, 10, 3"].text("T1") is None
    assert by_label["best constant fleet"].text("T4") is None
    assert queue_rule().text("recent") == queue_rule().text("T3")


@pytest.mark.parametrize(("group", "least", "most"), [("T1", 19.9, 20.1), ("T2", 5.7, 5.95)])
def test_the_reference_is_as_strong_as_it_was_found_to_be(group: str, least: float, most: float) -> None:
    (case,) = suite([group], short=True, seeds=1)
    text = queue_rule().text(group)
    assert text is not None
    assert least <= run_episode(policy_of(text), case).measures.cost <= most


def test_the_best_constant_fleet_is_that_of_the_specification() -> None:
    constant = next(c for c in baselines() if c.label == "best constant fleet")
    costs = []
    for group in ("T1", "T2"):
        (case,) = suite([group], short=True, seeds=1)
        text = constant.text(group)
        assert text is not None
        costs.append(run_episode(policy_of(text), case).measures.cost)
    assert costs == pytest.approx([22.14, 6.615], abs=0.005)
