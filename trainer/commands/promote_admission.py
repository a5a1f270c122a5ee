"""`trimtab promote admission`: a rule and a population decide for a cluster if they beat the policy in use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from domain.units import HOURS_PER_YEAR
from trainer.commands.options import Bounds, WorkersOption, epilog
from trainer.commands.promote import Promotion, one_of_settings

if TYPE_CHECKING:
    from trainer.promotion.gate import Gate


@dataclass(frozen=True, kw_only=True)
class PromoteAdmission(Promotion):
    """Let a file of a rule and a population decide for a cluster if it fills it more and keeps the promise.

    The file is what `trimtab fit admission` writes, with `rule` beside it. It runs against the rule that decides now
    and the best tuned one, on runs that no rule was tuned on. The cluster's RULE must be `learned`; the agent takes up
    a new champion when it starts.
    """

    DECISION = "admission"
    EPILOG = epilog(
        """
The gate: runs that no rule was tuned on.
  the promise kept for sure; fewer cores idle than by the policy in use, in 95 % of
  paired bootstrap resamples; at most 5 % more than by the best tuned rule.
  Else the policy in use stays, and the exit status is 1.
""",
        calls=(
            "trimtab promote admission main CLUSTER.json",
            "trimtab promote admission main CLUSTER.json --world K --tuned second:2.8",
        ),
    )

    world: Annotated[str, "T|H|K|FILE", "Population of deployments; else that of the file."] = ""
    against: Annotated[str, "RULE", "Policy in use without a champion, as `simulate` takes it."] = ""
    tuned: Annotated[str, "RULE", "The best tuned rule; else it is searched for."] = ""
    observations: Annotated[int, "N", "Prior observations of each arrival.", Bounds(min=0)] = 0
    runs: Annotated[int, "N", "Runs that all are held to.", Bounds(min=2)] = 100
    years: Annotated[float, "YEARS", "Length of a run.", Bounds(min=0.01, max=30.0)] = 3.0
    workers: WorkersOption = 1

    def check(self) -> None:
        """Raise BadInput for a cluster that the settings do not have."""
        cluster_of_settings(self.subject)

    def verify(self, path: Path) -> object:
        """Raise BadInput for a file that no cluster can decide by."""
        from agent.admission.settings import cluster_model_in

        return cluster_model_in(path)

    def gate(self) -> Gate:
        """Return runs of the cluster."""
        from trainer.promotion.admission import cluster_gate
        from trainer.promotion.gate import Limits

        now, sla, capacity = cluster_of_settings(self.subject)
        return cluster_gate(
            Limits(),
            now=self.against or now,
            world=self.world,
            tuned=self.tuned,
            sla=sla,
            capacity=capacity,
            observations=self.observations,
            runs=self.runs,
            hours=self.years * HOURS_PER_YEAR,
            workers=self.workers,
        )


def cluster_of_settings(name: str) -> tuple[str, float | None, int | None]:
    """Return a cluster's rule, promise and cores by the settings; the default rule where they have no clusters."""
    from agent.admission.settings import DEFAULT_KAPPA, LEARNED, SUBJECTS, rules_of
    from agent.settings import load_settings

    clusters = SUBJECTS.of(load_settings(os.environ))
    if not one_of_settings("cluster", name, [*clusters]):
        return f"second:{DEFAULT_KAPPA:g}", None, None
    cluster, rules = clusters[name], rules_of(name, clusters[name])
    text = cluster.rule if cluster.rule not in (None, LEARNED) else None
    marginal = "" if rules.text.startswith("zeroth") else f",marginal={rules.marginal_cores:g}"
    return text or rules.text + marginal, rules.sla, rules.capacity_cores
