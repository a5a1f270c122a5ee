"""The gate of fleets: both policies from the same states of the suite's traces, and of recent production (§12.4).

A run begins at the reset, or in the middle of the champion's own run. Where a state is taken both begin with empty
memory, as the agent begins after a change of models. Before the first promotion the champion is the tuned queue rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.models.file import load_model
from domain.errors import BadInput
from simulator.autoscaling.batch import FastState
from simulator.autoscaling.view import Measures
from trainer.autoscaling.evaluation.contenders import Contender, model_contender, queue_rule
from trainer.autoscaling.evaluation.suite import GROUPS, Case, World
from trainer.autoscaling.policies import SimulatedPolicy, begin
from trainer.autoscaling.policy_names import policy_of
from trainer.kit.jobs import HERE, Pool, Workers
from trainer.promotion.gate import Gate, Limits, Trial, Verdict, digest, judge

ENTRY_SHARES: tuple[float, ...] = (0.25, 0.5, 0.75)
"""Where in the champion's run states are taken, as shares of its steps."""

CHUNK = 8
"""Cases of one job of a process."""
OnProgress = Callable[[int], None]
"""Called with how many more cases are done."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A snapshot and the cost until then; None: the reset."""

    step: int
    saved: FastState
    cost_before: float


def fleet_gate(
    cases: Sequence[Case],
    limits: Limits,
    *,
    facts: Mapping[str, Any],
    world: World = World.LIVE_LIKE,
    own: Sequence[Trial] = (),
    rule: Callable[[], Contender] | None = None,
    workers: Workers = HERE,
    on_progress: OnProgress = lambda _: None,
) -> Gate:
    """Return the gate of fleets over these cases. facts: how they were chosen. world: of T3, T5 and T6.

    own: runs of both on loads of the fleet, under its own limits. rule: the rule that decides before the first
    promotion and that complements a scorer, else the queue rule tuned for the suite.
    """

    def gate(challenger: Path, champion: Path | None) -> Verdict:
        of_rule = rule() if rule else queue_rule(world)
        before = of_rule if champion is None else model_contender(champion, of_rule, "champion")
        runs = _runs(before, model_contender(challenger, of_rule, "challenger"), cases, workers, on_progress)
        clusters = clusters_of(cases)
        runs = [*own, *(replace(run, case_key=clusters[run.case_key]) for run in runs)]
        training = load_model(challenger).card.training
        found: dict[str, Any] = {
            "challenger": {"training": None if training is None else json.loads(json.dumps(training, default=str))},
            "champion": {"policies": dict(before.texts)} if champion is None else {},
            "limits": asdict(limits),
            "suite": {**facts, "entry_shares": list(ENTRY_SHARES), "sha256": digest(_suite(cases))},
            "cases": _suite(cases),
            "results": {"sha256": digest([asdict(run) for run in runs]), "trials": [asdict(run) for run in runs]},
        }
        return Verdict(judge(runs, limits, vetoes=vetoes_of(runs)), before.label, found)

    return gate


def clusters_of(cases: Sequence[Case]) -> dict[str, str]:
    """Return the cluster of each case by its key: its trace; in a family of a single trace each boot seed is one."""
    traces: dict[str, set[str]] = {}
    for case in cases:
        traces.setdefault(case.family, set()).add(case.trace.digest)
    return {case.key: case.trace.digest if len(traces[case.family]) > 1 else case.key for case in cases}


def vetoes_of(runs: Sequence[Trial]) -> set[str]:
    """Return the families of the suite where there are loads of one's own too: against forgetting, no evidence."""
    families = {run.family for run in runs if run.family.split()[0] in GROUPS}
    return families if any(run.family not in families for run in runs) else set()


def _suite(cases: Sequence[Case]) -> list[dict[str, Any]]:
    return [
        {
            "case": c.name,
            "family": c.family,
            "world": c.world,
            "trace_sha256": c.trace.digest,
            "seed": c.seed,
            "key": c.key,
        }
        for c in cases
    ]


def _runs(
    champion: Contender, challenger: Contender, cases: Sequence[Case], workers: Workers, on_progress: OnProgress
) -> list[Trial]:
    made: list[Trial] = []
    with Pool(partial(trials, champion, challenger), workers, name=lambda part: part[0].name) as pool:
        chunks = [tuple(cases[k : k + CHUNK]) for k in range(0, len(cases), CHUNK)]
        for chunk, found in zip(chunks, pool.run(chunks), strict=True):
            made += found
            on_progress(len(chunk))
    return made


def trials(
    champion: Contender,
    challenger: Contender,
    cases: Sequence[Case],
    *,
    shares: Sequence[float] = ENTRY_SHARES,
) -> list[Trial]:
    """Run every case from its reset and from the entries.

    Raises BadInput when one of them does not fit a case, or brings a world of its own (a constant fleet).
    """
    made: list[Trial] = []
    for case in cases:
        old, new = (policy_of(_text(contender, case)) for contender in (champion, challenger))
        for policy in (old, new):
            if policy.world(case.config) != case.config:
                raise BadInput(
                    "policy", policy.name, "it starts with its own fleet: its entry state is not the fleet's"
                )
        first, _ = _run(old, case, None)
        entries = _entries(old, case, sorted({round(first.steps * share) for share in shares} - {0, first.steps}))
        for entry in [None, *entries]:
            theirs = first if entry is None else _run(old, case, entry)[0]
            ours, truncated = _run(new, case, entry)
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
                    challenger_truncated=truncated,
                )
            )
    return made


def _text(contender: Contender, case: Case) -> str:
    text = contender.text(case.group)
    if text is None:
        raise BadInput("policy", contender.label, f"it has no form for {case.family}")
    return text


def _run(policy: SimulatedPolicy, case: Case, entry: _Entry | None) -> tuple[Measures, bool]:
    """Return the figures of a run, its cost from the entry on, and whether it was cut off."""
    simulation = begin(policy, case.config, case.trace, case.seed)
    if entry is not None:
        simulation.restore(entry.saved)
    while not (simulation.finished or simulation.truncated):
        simulation.step_orders(policy.choose(simulation))
    measures = simulation.measures()
    before = 0.0 if entry is None else entry.cost_before
    return replace(measures, cost=measures.cost - before), simulation.truncated


def _entries(policy: SimulatedPolicy, case: Case, steps: Sequence[int]) -> list[_Entry]:
    """Run the champion once more and take snapshots before these steps."""
    simulation = begin(policy, case.config, case.trace, case.seed)
    found = []
    for step in range(max(steps, default=-1) + 1):
        if step in steps:
            found.append(_Entry(step, simulation.state(), simulation.measures().cost))
        if step < max(steps):
            simulation.step_orders(policy.choose(simulation))
    return found
