"""The gate of placement pools: a policy's file against what decides now and best fit, on what was recorded lately.

The cost is the mean number of open hosts (`trainer.placement.evaluation`), on windows of the record that nothing was
learnt from, each as recorded and with its requests in other orders. A challenger must open fewer hosts than what
decides now in 95 % of the resamples, no more than best fit, and break no rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from agent.placement.choosing import read_policy
from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import BF, Policy
from trainer.kit.intervals import compare
from trainer.placement.evaluation import Case, FigureWrong
from trainer.promotion.gate import Gate, Judgement, Limits, Trial, Verdict, digest, judge

AS_RECORDED, REORDERED = "as recorded", "reordered"
ORDERS: Final = 3
"""Other orders of each window."""
LEAST: Final = 4
"""Windows, which are what is resampled."""
FIRST_ORDER: Final = 50_000
"""Their seeds begin here; what is learnt knows those below."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A window that policies are judged on, with its other orders: family, and the case."""

    name: str
    cases: tuple[tuple[str, Case], ...]


def held_out(
    windows: Sequence[Instance], length_s: float, reorder: Callable[[Instance, int], Instance], orders: int = ORDERS
) -> list[HeldOut]:
    """Return windows with their other orders. length_s: of each window."""
    found = []
    for window in windows:
        others = [reorder(window, FIRST_ORDER + k) for k in range(orders)]
        cases = [(AS_RECORDED, window), *((REORDERED, one) for one in others)]
        found.append(HeldOut(window.name, tuple((family, Case.of(one, length_s)) for family, one in cases)))
    return found


def costs_of(policy: Policy, windows: Sequence[HeldOut], check: Callable[[], None] = lambda: None) -> list[float]:
    """Return the cost of every case, window by window; FigureWrong for a placement that breaks a rule."""
    found = []
    for window in windows:
        for _, case in window.cases:
            check()
            found.append(case.checked_cost(policy))
    return found


def placement_gate(
    windows: Sequence[HeldOut],
    limits: Limits,
    *,
    now: Policy,
    facts: Mapping[str, object] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Gate:
    """Return the gate of placement pools. now: what decides where there is no champion. facts: for the report.

    check: called before each case. BadInput for fewer windows than LEAST: of one nothing is sure.
    """
    if len(windows) < LEAST:
        raise BadInput("windows", len(windows), f"give a record or an instance to judge on, {LEAST} windows at least")

    def gate(challenger: Path, champion: Path | None) -> Verdict:
        before = now if champion is None else read_policy(champion)
        ours = read_policy(challenger)
        reference = costs_of(before, windows, check)
        best_fit = costs_of(BF, windows, check)
        wrong = ""
        try:
            theirs = costs_of(ours, windows, check)
        except FigureWrong as error:
            wrong, theirs = f"it breaks a rule: {error}", reference
        places = [(window.name, family) for window in windows for family, _ in window.cases]
        trials = [
            Trial(f"{name}, {family}", family, name, 0, cost, other)
            for (name, family), cost, other in zip(places, reference, theirs, strict=True)
        ]
        judged = judge(trials, limits)
        reasons = [wrong, *judged.reasons] if wrong else list(judged.reasons)
        if (more := float(np.mean(theirs) - np.mean(best_fit))) > 0.0:
            reasons.append(f"it opens {more:.2f} hosts more than best fit")
        played = {"challenger": theirs, "champion": reference, BF.name: best_fit}
        clusters = [name for name, _ in places]
        against = {BF.name: asdict(compare(theirs, best_fit, clusters=clusters))}
        kept = {
            "limits": asdict(limits),
            "suite": {"windows": [window.name for window in windows], "orders": ORDERS, **(facts or {})},
            "against": against,
            "results": {"sha256": digest(played), "played": played},
            "challenger": {"policy": ours.name, "digest": ours.digest},
            "champion": {"policy": before.name, "digest": before.digest},
        }
        return Verdict(Judgement(not reasons, tuple(reasons), judged.overall, judged.families), before.name, kept)

    return gate


def digest_of_cases(windows: Sequence[HeldOut]) -> str:
    """Return the SHA-256 (hex) of the windows that a gate judges on."""
    return hashlib.sha256(repr([[case.instance for _, case in one.cases] for one in windows]).encode()).hexdigest()
