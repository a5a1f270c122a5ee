"""The gate of deferral: a model against what decides now, the rolling plan and FIFO that skips, on unseen episodes.

The cost of an episode is the offered work that a policy does not earn, in core-steps: revenue of all jobs less the
total of §1.2, delay and violation charged. A model must cost less than what decides now and less than the rolling
plan, each with a confidence of 95 %, and no more than FIFO that skips in the mean of any scenario (A11): the
plan needs no training, so a model leads only where it is surely better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from domain.errors import BadInput
from trainer.deferral.evaluation import REFERENCE, Contender, Evaluation, Subject, evaluate
from trainer.kit.jobs import HERE, Workers, in_turn
from trainer.kit.progress import phases
from trainer.promotion.gate import CHALLENGER, CHAMPION, Gate, Limits, PolicyCosts, Verdict, verdict

PLAN: Final = "rolling"
FIRST_SEED: Final = 500_000
"""Episodes of a scenario are drawn from here on; no training, choice or report plays those."""
LEAST: Final = 8
"""Episodes; of fewer nothing is said."""


def deferral_gate(
    subjects: Sequence[Subject],
    episodes: int,
    limits: Limits,
    *,
    workers: Workers = HERE,
    facts: Mapping[str, object] | None = None,
    quiet: bool = True,
) -> Gate:
    """Return the gate: so many episodes of each subject; a trace has only its own, which it plays all.

    facts: for the report. quiet: shows no progress. BadInput without subjects, or for fewer than LEAST episodes in all.
    """
    seeds = {
        one.name: range(FIRST_SEED, FIRST_SEED + episodes) if one.scenario is not None else range(len(one.episodes))
        for one in subjects
    }
    if (there := sum(map(len, seeds.values()))) < LEAST:
        raise BadInput("episodes", there, f"give a scenario or a trace to judge on, {LEAST} episodes at least")

    def gate(challenger: Path, champion: Path | None) -> Verdict:
        texts = {REFERENCE: REFERENCE, PLAN: PLAN, CHALLENGER: str(challenger)}
        if champion is not None:
            texts[CHAMPION] = str(champion)
        contenders = [Contender(label, (text,)) for label, text in texts.items()]
        found: dict[str, list[float]] = {label: [] for label in texts}
        families: list[str] = []

        def played(subject: Subject) -> Evaluation:
            with phases(quiet) as on_phase:
                drawn = list(seeds[subject.name])
                return evaluate(subject, contenders, drawn, workers=workers, on_progress=on_phase)

        for subject, done in zip(subjects, in_turn(played, subjects), strict=True):
            families += [subject.name] * len(done.seeds)
            offered = [int(subject.episode(seed).jobs.revenue.sum()) for seed in done.seeds]
            for one in done.figures:
                found[one.label] += (np.array(offered) - one.totals).tolist()
        now = CHAMPION if champion is not None else PLAN
        cases = [f"{family}, {k}" for k, family in enumerate(families)]
        costs = {label: PolicyCosts(tuple(zip(families, cases, row, strict=True))) for label, row in found.items()}
        about = {"suite": {"episodes": cases, **(facts or {})}}
        return verdict("deferral", costs, limits, now, about, now=now)

    return gate
