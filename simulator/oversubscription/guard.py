"""From a guard's settings to what compiled code takes: escalation of rates (§12.4) or a filter of machines (§12.6)."""

from __future__ import annotations

import numpy as np

from domain.errors import BadInput
from domain.rules.oversubscription.guards import FILTER as FILTERED
from domain.rules.oversubscription.guards import SHIELD, check_budget
from simulator.oversubscription.layout import ESCALATE, FILTER, UNGUARDED, Guard
from simulator.oversubscription.scenario import Scenario

KINDS = {"none": UNGUARDED, SHIELD: ESCALATE, FILTERED: FILTER}


def unguarded(scenario: Scenario) -> Guard:
    """Return the guard that lets everything pass."""
    return Guard(UNGUARDED, 1.0, np.array(scenario.actions), False, 0.0, 0.0, scenario.mu, scenario.sd)


def guard_of(
    scenario: Scenario,
    kind: str,
    budget: float,
    *,
    posterior: bool = False,
    persistence: float = 0.85,
    shared: float = 0.0,
) -> Guard:
    """Return a guard: `shield` raises the rate of a risky request, `filter` looks for another machine; BadInput.

    budget: expected hot hours of a machine in the next day. posterior: learn each VM's own level from its usage;
    persistence and shared are the shares of the variance that are a VM's offset and its owner's.
    """
    if kind not in KINDS:
        raise BadInput("guard", kind, f"choose one of {', '.join(KINDS)}")
    check_budget("b", budget)
    if not (0.0 <= persistence < 1.0 and 0.0 <= shared < 1.0 and persistence + shared < 1.0):
        raise BadInput("psi", persistence, "give shares of the variance that leave some for the hour's noise")
    levels = np.array(scenario.actions)
    return Guard(KINDS[kind], budget, levels, posterior, persistence, shared, scenario.mu, scenario.sd)
