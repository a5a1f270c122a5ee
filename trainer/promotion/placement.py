"""The gate of placement pools: a policy's file against what decides now and best fit, on what was recorded lately.

The cost is the mean number of open hosts (`trainer.placement.evaluation`), on windows of the record that nothing was
learnt from, each as recorded and with its requests in other orders. A challenger must open fewer hosts than what
decides now with a confidence of 95 %, no more than best fit, and break no rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.placement.choosing import read_policy
from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import BF, Policy
from trainer.placement.evaluation import Case, FigureWrong
from trainer.promotion.gate import CHALLENGER, CHAMPION, Gate, Limits, PolicyCosts, Verdict, verdict

AS_RECORDED, REORDERED = "as recorded", "reordered"
ORDERS: Final = 3
"""Other orders of each window."""
LEAST: Final = 4
"""Windows, which are the cases."""
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
        played = {CHAMPION: costs_of(before, windows, check), BF.name: costs_of(BF, windows, check)}
        wrong = ""
        try:
            played[CHALLENGER] = costs_of(ours, windows, check)
        except FigureWrong as error:
            wrong, played[CHALLENGER] = f"it breaks a rule: {error}", played[CHAMPION]
        places = [(window.name, family) for window in windows for family, _ in window.cases]
        names = tuple(name for name, _ in places)
        costs = {
            label: PolicyCosts(
                tuple((family, f"{name}, {family}", cost) for (name, family), cost in zip(places, row, strict=True)),
                clusters=names,
                fault=wrong if label == CHALLENGER else "",
            )
            for label, row in played.items()
        }
        about = {
            "suite": {"windows": [window.name for window in windows], "orders": ORDERS, **(facts or {})},
            "challenger": {"policy": ours.name, "digest": ours.digest},
            "champion": {"policy": before.name, "digest": before.digest},
        }
        return verdict("placement", costs, limits, before.name, about)

    return gate


def digest_of_cases(windows: Sequence[HeldOut]) -> str:
    """Return the SHA-256 (hex) of the windows that a gate judges on."""
    return hashlib.sha256(repr([[case.instance for _, case in one.cases] for one in windows]).encode()).hexdigest()
