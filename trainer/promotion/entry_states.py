"""Runs both policies from the same states: from the reset, and from the middle of the champion's own run (§12.4).

Where a state is taken both begin with empty memory, as the agent begins after a change of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from domain.errors import BadInput
from trainer.autoscaling.episodes import begin
from trainer.autoscaling.evaluation.contenders import Contender
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy
from trainer.autoscaling.policies.registry import policy_of
from trainer.promotion.gate import Trial

ENTRY_SHARES: tuple[float, ...] = (0.25, 0.5, 0.75)
"""Where in the champion's run states are taken, as shares of its steps."""

Told = Callable[[int], None]


class _Restorable(AnySimulation, Protocol):
    """A simulation that takes and gives snapshots, as both simulators do."""

    def state(self) -> Any:
        """Return a snapshot."""
        ...

    def restore(self, saved: Any) -> None:
        """Go on from a snapshot."""
        ...


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One run from an entry on: dollars from there, seconds since the start of the trace, steps since it."""

    cost: float
    run_time_s: float
    steps: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    """A snapshot and the cost until then; None: the reset."""

    step: int
    saved: Any
    cost_before: float


def trials(
    champion: Contender,
    challenger: Contender,
    cases: Sequence[Case],
    *,
    shares: Sequence[float] = ENTRY_SHARES,
    told: Told = lambda _: None,
) -> list[Trial]:
    """Run every case from its reset and from the entries; `told` hears of each case that is done.

    Raises BadInput when one of them does not fit a case, or brings a world of its own (a constant fleet).
    """
    made: list[Trial] = []
    for case in cases:
        old, new = (policy_of(_text(contender, case)) for contender in (champion, challenger))
        for policy in (old, new):
            if policy.world(case.config) != case.config:
                raise BadInput("policy", policy.name, "it begins with a fleet of its own: no entry state is its own")
        first = _run(old, case, None)
        entries = _entries(old, case, sorted({round(first.steps * share) for share in shares} - {0, first.steps}))
        for entry in [None, *entries]:
            theirs = first if entry is None else _run(old, case, entry)
            ours = _run(new, case, entry)
            made.append(
                Trial(
                    case=case.name,
                    family=case.family,
                    case_key=case.key,
                    entry_step=0 if entry is None else entry.step,
                    champion_cost=theirs.cost,
                    challenger_cost=ours.cost,
                    champion_run_time_s=theirs.run_time_s,
                    challenger_run_time_s=ours.run_time_s,
                    challenger_truncated=ours.truncated,
                )
            )
        told(1)
    return made


def _text(contender: Contender, case: Case) -> str:
    text = contender.text(case.group)
    if text is None:
        raise BadInput("policy", contender.label, f"it has no form for {case.family}")
    return text


def _start(policy: SimulatedPolicy, case: Case) -> _Restorable:
    return cast(_Restorable, begin(policy, case.config, case.trace, case.seed))


def _run(policy: SimulatedPolicy, case: Case, entry: _Entry | None) -> _Outcome:
    simulation = _start(policy, case)
    if entry is not None:
        simulation.restore(entry.saved)
    while not (simulation.finished or simulation.truncated):
        simulation.step_orders(policy.choose(simulation))
    measures = simulation.measures()
    before = 0.0 if entry is None else entry.cost_before
    return _Outcome(measures.cost - before, measures.run_time_s, measures.steps, simulation.truncated)


def _entries(policy: SimulatedPolicy, case: Case, steps: Sequence[int]) -> list[_Entry]:
    """Run the champion once more and take snapshots before these steps."""
    simulation = _start(policy, case)
    found = []
    for step in range(max(steps, default=-1) + 1):
        if step in steps:
            found.append(_Entry(step, simulation.state(), simulation.measures().cost))
        if step < max(steps):
            simulation.step_orders(policy.choose(simulation))
    return found
