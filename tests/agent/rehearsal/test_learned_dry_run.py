"""The dry run has the policy of any new fleet, or a learned one, and computes what the others would have cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.rails.base import RailLimits
from agent.rehearsal.scenario import FLEET, POLICY, beside_learned, environment
from agent.rehearsal.summary import FleetParameters, compare, run_agent
from agent.settings import Settings, load_settings
from agent.settings.fleet import FleetSettings, PolicyName
from domain.workload import make_trace
from tests.agent.models.making import ADD_M, NOTHING, preferring, promote
from tests.oracles.lstm_model import write_model

LIMITS = (3, 3, 3)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[], Settings]:
    """The dry run's settings, with the models directory of a test."""

    def load() -> Settings:
        models = {"TRIMTAB_LEARNED__MODELS_DIR": str(tmp_path)}
        return load_settings(environment(tmp_path, "http://127.0.0.1:1", "", "", "act", models))

    return load


def test_the_dry_run_has_the_policy_of_any_new_fleet(settings: Callable[[], Settings], tmp_path: Path) -> None:
    promote(tmp_path, preferring(tmp_path, NOTHING, limits=LIMITS))
    new = FleetSettings.model_fields["policy"].default
    assert settings().fleets[FLEET].policy == new == PolicyName.QUEUE_RULE
    assert beside_learned({}) == beside_learned({POLICY: "queue-rule"}) == {}
    rule = f"TRIMTAB_FLEETS__{FLEET}__QUEUE_RULE"
    assert beside_learned({POLICY: "learned"}) == {f"{rule}__JOB_CORE_S": "240", f"{rule}__HORIZON_S": "150"}


def test_the_summary_compares_learned_policy_and_queue_rule(settings: Callable[[], Settings], tmp_path: Path) -> None:
    promote(tmp_path, preferring(tmp_path, ADD_M, NOTHING, limits=LIMITS))
    parameters = FleetParameters(settings().fleet(FLEET), RailLimits(), 120.0)
    trace = make_trace("burst", [0.0] * 30, [60.0] * 30)
    shelf = ModelShelf(tmp_path)

    def names(policy: str) -> list[str]:
        return [o.name for o in compare(parameters, policy, trace, (1, 0, 0), 900.0, 0, shelf)][:3]

    rules = ["queue-rule", "learned", "75 % threshold"]
    assert names("queue-rule") == rules
    assert names("learned") == [rules[1], rules[0], rules[2]]


def test_a_learned_policy_is_simulated_knowing_of_jobs_what_the_agent_knows(
    settings: Callable[[], Settings], tmp_path: Path
) -> None:
    """Until a job has finished it uses the expected size: its observation does not depend on the jobs."""
    path = write_model(tmp_path, 2, hidden=8, scale=1.0, limits=LIMITS, observation="obs-v2", action_set="act-multi")

    def cost(job_core_s: float, service_s: float) -> float:
        parameters = FleetParameters(settings().fleet(FLEET), RailLimits(), 120.0, job_core_s)
        trace = make_trace("burst", [0.0] * 60, [service_s] * 60)
        return run_agent(f"model:{path}", parameters, trace, (1, 0, 0), 900.0, 0, ModelShelf(tmp_path)).cost

    assert cost(120.0, 5000.0) == cost(120.0, 9000.0)
    assert cost(120.0, 5000.0) != cost(12_000.0, 5000.0)


def test_a_learned_policy_is_simulated_with_its_observations_and_masks(
    settings: Callable[[], Settings], tmp_path: Path
) -> None:
    parameters = FleetParameters(settings().fleet(FLEET), RailLimits(), 120.0)
    trace = make_trace("burst", [0.0] * 60, [120.0] * 60)
    shelf = ModelShelf(tmp_path)
    kinds: tuple[dict[str, Any], ...] = ({}, {"observation": "obs-v2", "action_set": "act-multi"})
    for options in kinds:
        path = write_model(tmp_path, 2, hidden=8, scale=1.0, limits=LIMITS, **options)
        found = run_agent(f"model:{path}", parameters, trace, (1, 0, 0), 1800.0, 0, shelf)
        queue_rule = run_agent("queue-rule", parameters, trace, (1, 0, 0), 1800.0, 0)
        assert found.policy == f"model:{path}"
        assert (found.rent, found.waiting_cost) != (queue_rule.rent, queue_rule.waiting_cost)
