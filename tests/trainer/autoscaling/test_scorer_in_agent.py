"""What a scorer sees in the agent is what it saw in training, minute by minute, over an idle stretch too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.scorer import CandidateScores, ScorerPolicy, Sight
from agent.autoscaling.snapshot.aggregate import EPISODE_GAP_S
from agent.rehearsal.virtual_time import Rehearsal, quiet_logs, rail_set
from domain.observations.autoscaling_scorer import STATE_FEATURES
from domain.rules.queue_rule import RuleSetting
from domain.workload import Trace, make_trace
from simulator.autoscaling.branching import BranchedEpisodes
from simulator.autoscaling.world_file import preset
from tests.agent.models.making import scorer
from trainer.promotion.directory import ModelsWriter

WORLD = preset("live-like")
RULE = RuleSetting(150.0, 120.0)
HOURS, SEED = 1.4, 3


def two_batches() -> Trace:
    """Thirty jobs after two minutes and after fifty, and one later: the fleet is idle for half an hour."""
    rng = np.random.default_rng(1)
    arrivals = np.concatenate([batch + rng.uniform(0.0, 60.0, 30) for batch in (120.0, 3_000.0)] + [[4_500.0]])
    return make_trace("two-batches", np.sort(arrivals), np.full(arrivals.size, 90.0))


def test_the_agent_gives_a_scorer_the_features_of_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scorer(tmp_path, {"is_rule": 1.0})
    ModelsWriter(tmp_path / "models").store(model.read_bytes(), model.name)
    seen: list[list[float]] = []
    weigh = ScorerPolicy.weigh

    def noted(
        self: ScorerPolicy, sight: Sight, remembered: list[float], carried: dict[str, np.ndarray]
    ) -> CandidateScores:
        found = weigh(self, sight, remembered, carried)
        seen.append(found.state)
        return found

    monkeypatch.setattr(ScorerPolicy, "weigh", noted)
    # The cool-down of the world; the agent begins a new episode in the idle stretch.
    rails = replace(rail_set("paper", WORLD.cooldown_s), episode_gap_s=EPISODE_GAP_S)
    shelf, ledger = ModelShelf(tmp_path / "models"), tmp_path / "ledger.db"
    name = f"learned:{model.stem}"
    with quiet_logs():
        rehearsal = Rehearsal(
            name,
            two_batches(),
            WORLD,
            rails,
            shelf,
            ledger,
            seed=SEED,
            hours=HOURS,
            idle_s=RULE.idle_s,
            horizon_s=RULE.horizon_s,
        )
        for _ in rehearsal.minutes(round(HOURS * 60)):
            pass
        rehearsal.close()
    # The scorer chooses as the queue rule does, so that both live the same minutes.
    played = BranchedEpisodes(WORLD, two_batches(), RULE)
    trained = played.play(SEED, branch_share=1.0, most=500, through_time=True).minutes
    ours = np.array(seen[: len(trained)])
    assert len(trained) > 60
    # The agent's first VMs have reported before the first decision: they are idle then, and not yet in training.
    ours[0, STATE_FEATURES.index("idle_of_ready")] = trained[0, STATE_FEATURES.index("idle_of_ready")]
    np.testing.assert_allclose(ours, trained, atol=1e-3)
