"""`trimtab promote admission`: a rule and a population decide for a cluster if they beat the policy in use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from typer import Option

from agent.commands.options import JsonOption
from domain.errors import BadInput
from domain.units import HOURS_PER_YEAR
from trainer.commands.options import (
    WorkersOption,
    epilog,
)
from trainer.commands.promote import (
    ChallengerArgument,
    DirectoryOption,
    ForceOption,
    KeyOption,
    RollbackOption,
    StatusOption,
    SubjectArgument,
    TryOption,
    Wish,
    carry_out,
)

if TYPE_CHECKING:
    from trainer.promotion.gate import Gate


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


def admission(
    subject: SubjectArgument,
    challenger: ChallengerArgument = None,
    models_dir: DirectoryOption = None,
    world: Annotated[str, Option(metavar="T|H|K|FILE", help="Population of deployments; else that of the file.")] = "",
    against: Annotated[
        str, Option(metavar="RULE", help="Policy in use without a champion, as `simulate` takes it.")
    ] = "",
    tuned: Annotated[str, Option(metavar="RULE", help="The best tuned rule; else it is searched for.")] = "",
    observations: Annotated[int, Option(metavar="N", min=0, help="Prior observations of each arrival.")] = 0,
    runs: Annotated[int, Option(metavar="N", min=2, help="Runs that all are held to.")] = 100,
    years: Annotated[float, Option(metavar="YEARS", min=0.01, max=30.0, help="Length of a run.")] = 3.0,
    key_file: KeyOption = None,
    try_only: TryOption = False,
    force: ForceOption = None,
    rollback: RollbackOption = False,
    status: StatusOption = False,
    workers: WorkersOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Let a file of a rule and a population decide for a cluster if it fills it more and keeps the promise.

    The file is what `trimtab fit admission` writes, with `rule` beside it. It runs against the rule that decides now
    and the best tuned one, on runs that no rule was tuned on. The cluster's RULE must be `learned`; the agent takes up
    a new champion when it starts.
    """
    from agent.admission.settings import cluster_model_in

    now, sla, capacity = cluster_of_settings(subject)

    def gate() -> Gate:
        from trainer.promotion.admission import cluster_gate
        from trainer.promotion.gate import Limits

        return cluster_gate(
            Limits(),
            now=against or now,
            world=world,
            tuned=tuned,
            sla=sla,
            capacity=capacity,
            observations=observations,
            runs=runs,
            hours=years * HOURS_PER_YEAR,
            workers=workers,
        )

    wish = Wish(challenger, key_file, force, rollback, status, try_only, as_json)
    carry_out("admission", subject, models_dir, cluster_model_in, gate, wish)


def cluster_of_settings(name: str) -> tuple[str, float | None, int | None]:
    """Return a cluster's rule, promise and cores by the settings; the default rule where they have no clusters."""
    from agent.admission.settings import DEFAULT_KAPPA, LEARNED, SUBJECTS, rules_of
    from agent.settings import load_settings

    clusters = SUBJECTS.of(load_settings(os.environ))
    if not clusters:
        return f"second:{DEFAULT_KAPPA:g}", None, None
    if name not in clusters:
        raise BadInput("cluster", name, f"choose one of the clusters of the settings: {', '.join(sorted(clusters))}")
    cluster, rules = clusters[name], rules_of(name, clusters[name])
    text = cluster.rule if cluster.rule not in (None, LEARNED) else None
    marginal = "" if rules.text.startswith("zeroth") else f",marginal={rules.marginal_cores:g}"
    return text or rules.text + marginal, rules.sla, rules.capacity_cores
