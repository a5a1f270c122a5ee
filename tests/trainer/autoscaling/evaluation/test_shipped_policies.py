"""What the policies for use that come with the agent promise: VMs that no job needs are gone within 15 minutes."""

from __future__ import annotations

import pytest

from agent.models.shipped import ShippedModel, shipped_models
from simulator.autoscaling.world_file import preset
from trainer.autoscaling.evaluation.results import run_episode
from trainer.autoscaling.evaluation.suite import Case, suite
from trainer.autoscaling.policy_names import policy_of
from trainer.autoscaling.scorer import GENERAL, LSTM, Recipe
from trainer.autoscaling.scorer_runs import read_model
from trainer.autoscaling.tasks import load_of

LIVE = preset("live-like")
WORLDS = {"scorer": LIVE, "lstm": LIVE}
PROMISED_MIN = 15.0


def idle_cases(name: str) -> list[Case]:
    """Loads with hours of nothing in them, on seeds that nothing was trained or chosen on."""
    world = WORLDS[name]
    cases = [Case(f"idle {k}", "idle", name, world, load_of("idle", k, world.max_cores), k) for k in range(3)]
    reported = [case for case in suite(("T6",), seeds=2) if case.family == "T6 idle day"]
    return cases + reported if world is LIVE else cases


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", [m for m in shipped_models() if m.name in WORLDS], ids=lambda model: model.name)
def test_the_minimum_fleet_is_reached_within_a_quarter_of_an_hour_of_an_empty_queue(model: ShippedModel) -> None:
    policy = policy_of(str(model.path))
    for case in idle_cases(model.name):
        idle = run_episode(policy, case).idle
        assert idle.stretches, case.name
        assert idle.released, case.name
        assert idle.worst_min is not None
        assert idle.worst_min <= PROMISED_MIN, case.name


@pytest.mark.parametrize(("name", "recipe"), [("scorer", GENERAL), ("lstm", LSTM)])
def test_a_bundled_scorer_is_made_by_the_recipe_that_training_takes_by_default(name: str, recipe: Recipe) -> None:
    found = read_model(next(m.path for m in shipped_models() if m.name == name))
    assert (found.recipe, found.seed) == (recipe, 0)
    assert 0.0 < found.figures["held_out/ratio"] < 1.0
