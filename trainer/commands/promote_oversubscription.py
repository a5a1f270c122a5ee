"""`trimtab promote oversubscription`: a model or rates decide for a pool if they beat the policy in use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trainer.commands.options import Bounds, StartOption, epilog, words_of
from trainer.commands.promote import Promotion, one_of_settings

if TYPE_CHECKING:
    from domain.rules.oversubscription.pool import PoolRules
    from trainer.promotion.gate import Gate


@dataclass(frozen=True, kw_only=True)
class PromoteOversubscription(Promotion):
    """Let a model, or a file of rates, decide for a pool if it reserves less and keeps the promise on held-out weeks.

    It runs behind the agent's shield, against the policy in use and the best tuned rates, on weeks of the pool's own
    usage (--scenario FOLDER) or of a packaged scenario. The pool's policy must be `learned`; the
    agent takes up a new champion with the next hour.
    """

    DECISION = "oversubscription"
    EPILOG = epilog(
        """
The gate: weeks that no model was trained on, behind the guard of the agent.
  the promise kept for sure; fewer cores reserved than by the policy in use, in 95 %
  of paired bootstrap resamples; at most 5 % more than the best tuned rates.
  Else the policy in use stays, and the exit status is 1.
""",
        calls=(
            "trimtab promote oversubscription main MODEL.onnx --scenario FOLDER",
            "trimtab promote oversubscription main --rollback",
        ),
    )

    scenario: Annotated[str, "NAME|FOLDER", "internal_like, azure_like, or a folder of the pool's own usage."] = (
        "internal_like"
    )
    held_out: Annotated[str, "WEEK,...", "Weeks of the scenario that no model was trained on."] = ""
    weeks: Annotated[int, "Weeks redrawn from the scenario's requests.", Bounds(min=1)] = 8
    episodes: Annotated[int, "Usage drawn for each week.", Bounds(min=1)] = 300
    evaluations: Annotated[int, "Weeks assessed to find the best tuned rule.", Bounds(min=1)] = 1_500
    start: StartOption = "cold"
    against: Annotated[str, "POLICY", "Policy in use without a champion, as `simulate` takes it; else MA."] = "ma"

    def check(self) -> None:
        """Raise BadInput for a pool that the settings do not have."""
        pool_of_settings(self.subject)

    def directory_of_settings(self) -> Path:
        """Return the directory of the pool's policy where that names one."""
        return pool_of_settings(self.subject)[1] or super().directory_of_settings()

    def verify(self, path: Path) -> object:
        """Raise BadInput or ModelRefused for a file that the pool cannot decide by."""
        from agent.oversubscription.rate_model import open_rate_model
        from agent.oversubscription.rate_policies import verify_rates
        from agent.oversubscription.settings import read_rates

        rules, _ = pool_of_settings(self.subject)
        if rules is not None:
            return verify_rates(path, rules)
        return open_rate_model(path) if path.suffix == ".onnx" else read_rates(path)

    def gate(self) -> Gate:
        """Return weeks of the scenario."""
        from domain.rules.oversubscription.rates import NO_MARGIN, USUAL_BUDGET
        from simulator.oversubscription.scenario import scenario_of
        from trainer.promotion.gate import Limits
        from trainer.promotion.oversubscription import pool_gate

        rules, _ = pool_of_settings(self.subject)
        return pool_gate(
            scenario_of(self.scenario),
            Limits(),
            now=self.against,
            budget=USUAL_BUDGET if rules is None else rules.budget(None),
            margin=NO_MARGIN if rules is None else rules.margin,
            alpha=0.95 if rules is None else rules.alpha,
            start=self.start,
            weeks=words_of(self.held_out),
            drawn=self.weeks,
            episodes=self.episodes,
            evaluations=self.evaluations,
        )


def pool_of_settings(name: str) -> tuple[PoolRules | None, Path | None]:
    """Return the rules of a pool and the directory of its models, None for both where the settings have no pools."""
    from agent.oversubscription.settings import SUBJECTS, pool_rules_of
    from agent.settings import load_settings

    settings = load_settings(os.environ)
    pools = SUBJECTS.of(settings)
    if not one_of_settings("pool", name, [*pools]):
        return None, None
    rules = pool_rules_of(name, pools[name])
    kind, _, given = rules.policy.partition(":")
    own = Path(given) if kind == "model" and not given.endswith(".onnx") else settings.models_directory
    return rules, own
