"""What happens on fixed seeds in virtual time, projected to what a change of structure must leave alone.

A projection is a list of rows. A row holds subject, time, inputs, proposal, guards, effect, AWS calls and figures. It
holds neither ids of decisions nor sentences, and VMs are numbered in the order in which they appear. `python -m
tests.parity.projection NAME...` writes the named projections anew, all without a name.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from agent.admission.state import AdmissionStore
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.models.shipped import shipped_models
from agent.oversubscription.state import OversubscriptionStore
from agent.rehearsal.admissions import STAGING as CLUSTER
from agent.rehearsal.admissions import play_admissions
from agent.rehearsal.oversubscription import RESEARCH as POOL
from agent.rehearsal.oversubscription import play_oversubscription
from agent.rehearsal.virtual_time import FLEET, START, Rehearsal, quiet_logs, rail_set
from domain.rules.admission.rule import rule_of
from domain.workload import make_trace
from simulator.admission import cluster_of, draw_run
from simulator.admission import play as play_admission
from simulator.autoscaling.world_file import preset
from simulator.oversubscription.scenario import scenario_of
from tests.faults.world import Plan, World
from trainer.autoscaling.evaluation.contenders import contenders_of
from trainer.autoscaling.evaluation.results import Results, evaluate
from trainer.autoscaling.evaluation.suite import suite
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import Task, policy_of

HERE = Path(__file__).parent
DIGITS = 12
"""Significant digits of a float: what differs beyond them is the processor, not the structure."""

Rows = list[dict[str, Any]]


def rehearsed_fleet(directory: Path) -> Rows:
    """Return the minutes of three policies on ninety minutes of bursts, by the real loop on a simulated cloud."""
    arrivals = np.repeat([0.0, 900.0, 1810.0, 2400.0, 4000.0], [40, 75, 20, 110, 30])
    trace = make_trace("bursts", arrivals, np.tile([45.0, 120.0, 360.0, 200.0, 75.0], 55))
    rows: Rows = []
    network = next(model.path for model in shipped_models() if model.name == "ppo-lstm-published")
    plans = [("queue-rule", "default"), ("threshold", "default"), ("target-tracking", "paper"), ("learned", "default")]
    for number, (policy, rails) in enumerate(plans):
        shelf = ModelShelf(None)
        text = f"model:{network}" if policy == "learned" else policy
        rehearsal = Rehearsal(
            text, trace, preset("train-text"), rail_set(rails), shelf, directory / f"{number}.db", seed=3
        )
        result = rehearsal.run(rails)
        rows += fleet_rows(rehearsal.ledger, FLEET)
        rows.append({"policy": policy, "rails": rails, "measures": asdict(result.measures)})
        rehearsal.close()
    return rows


def fleet_on_aws(directory: Path) -> Rows:
    """Return an hour of the loop against the local AWS: growth, a shortage, throttling, idle VMs, calls."""
    world = World(directory, Plan(protect_busy=True))
    try:
        world.submit(30)
        world.tick(4)
        world.fault("capacity", instance_type="m5a.2xlarge", duration_s=300.0)
        world.submit(40)
        world.tick(6)
        world.waiting = 0
        world.fault("throttle", operations=["TerminateInstanceInAutoScalingGroup"], duration_s=130.0)
        world.tick(12)
        rows = fleet_rows(world.ledger, "web")
        return [*rows, *({"call": operation, "group": group} for operation, group in world.mutations)]
    finally:
        world.close()


def fleet_rows(ledger: Ledger, fleet: str) -> Rows:
    """Return every decision of a fleet with its inputs, guards, intents and outcomes, and every event."""
    rows: Rows = []
    for row in FleetStore(ledger).decisions(fleet, newest_first=False, limit=100_000):
        record = FleetStore(ledger).decision(row.decision.decision_id)
        inputs, decision = record.inputs, record.decision
        seen = inputs.snapshot
        rows.append(
            {
                "subject": decision.fleet,
                "at": decision.at - START,
                "inputs": None if seen is None else {"obs7": seen.obs7, "obs_v2": seen.obs_v2},
                "proposal": [decision.proposal.policy, decision.proposal.reason.value, *decision.proposal.desired],
                "guards": [
                    [e.rail, e.verdict.value, *e.after] for e in decision.effects if e.verdict.value != "passed"
                ],
                "desired": list(decision.desired),
                "reason": decision.reason.value,
                "effect": [
                    {
                        "group": intent.intent.group,
                        "direction": intent.intent.direction.value,
                        "from": intent.intent.before,
                        "to": intent.intent.target,
                        "vms": list(intent.intent.victims),
                        "outcomes": [
                            [o.status.value, o.reason.value, o.achieved, o.at - START] for o in intent.outcomes
                        ],
                    }
                    for intent in record.intents
                ],
            }
        )
    events = [entry for entry in ledger.journal(limit=100_000) if entry.kind.value == "event"]
    return [*rows, *({"event": e.reason, "subject": e.subject.name, "at": e.at - START, "vm": e.ref} for e in events)]


def admissions(directory: Path) -> Rows:
    """Return a day before a cluster's quota, by the real gate on the local AWS, and three months of the simulator."""
    told: list[Any] = []
    found = play_admissions(directory, 1993, "act", {}, told.append, hours=12)
    with Ledger.open(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        decisions = reversed(AdmissionStore(ledger).newest(CLUSTER, 10_000))
        rows: Rows = [
            {
                "subject": one.deployment_id,
                "cores": one.cores,
                "admit": one.admit,
                "reason": one.reason.value,
                "policy": one.policy,
                "total": one.total_cores,
                "expected": one.expected_cores,
                "sd": one.sd_cores,
                "slack": one.slack_cores,
                "binding_h": one.binding_hours,
            }
            for one in decisions
        ]
    rows += [{"event": e.reason.value, "subject": e.about} for e in told]
    rows.append({"admitted": found.admitted, "refused": dict(found.refused), "peak": found.peak_cores})
    run = draw_run(cluster_of("T"), 5, hours=2200.0)
    for rule in ("zeroth:0.8", "first:0.9", "second:2.5"):
        played = play_admission(run, rule_of(rule))
        rows.append(
            {
                "rule": rule,
                "utilisation": played.utilisation,
                "requests": played.requests.tolist(),
                "failures": played.failures.tolist(),
                "admitted": played.admitted,
                "events": played.events,
            }
        )
    return rows


def oversubscription(directory: Path) -> Rows:
    """Return four days of a pool, by the real agent on the local AWS, and three policies on the simulator."""
    told: list[Any] = []
    found = play_oversubscription(directory, 7, "act", {}, told.append, hours=96)
    rows: Rows = [{"event": e.reason.value, "subject": e.subject.name} for e in told]
    with Ledger.open(f"sqlite:///{directory / 'ledger.db'}") as ledger:
        for one in reversed(OversubscriptionStore(ledger).newest(POOL, 10_000, "hour")):
            rates = [[row.subscriber, row.rate, row.source.value] for row in one.subscribers]
            rows.append({"hour": one.hour, "rates": rates, "risk": one.risk.violation, "frozen": one.frozen})
    rows.append(
        {
            "requests": found.requests,
            "saved": found.saved_share,
            "shielded": found.shielded,
            "rejected": found.rejected,
            "happened": dict(found.happened),
            "final": dict(found.final),
        }
    )
    scenario = scenario_of("internal_like")
    task = Task(scenario, scenario.week("s0"), "cold")
    for policy in ("grid:0.5", "ma", "rates:0.7,0.5,1,1,1,1,1,1,1,1,1,1"):
        rows.append({"policy": policy, **judge(policy_of(policy), task, episodes=20).as_data()})
    return rows


def evaluation_rows(directory: Path) -> Rows:
    """Return the evaluation's rows of three rules on a few cases of T1, T3 and T6."""
    cases = suite(("T1", "T3", "T6"), short=True, seeds=1)
    done = evaluate(contenders_of(["queue-rule", "threshold", "constant:3,1,1"]), cases, Results(None))
    return [{k: v for k, v in asdict(row).items() if k not in ("code", "case_key")} for row in done.rows]


PROJECTIONS: dict[str, Callable[[Path], Rows]] = {
    made.__name__: made for made in (rehearsed_fleet, fleet_on_aws, admissions, oversubscription, evaluation_rows)
}


def text_of(name: str) -> str:
    """Return the projection of this name as canonical JSON lines."""
    with tempfile.TemporaryDirectory() as directory, quiet_logs():
        rows = PROJECTIONS[name](Path(directory))
    lines = [json.dumps(_plain(row), separators=(",", ":"), sort_keys=True) for row in rows]
    return _numbered("\n".join(lines)) + "\n"


def _numbered(text: str) -> str:
    """Number VMs by their first appearance: AWS draws their ids anew each time."""
    names: dict[str, str] = {}
    return re.sub(r"\bi-[0-9a-f]{17}\b", lambda found: names.setdefault(found.group(), f"vm{len(names)}"), text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def committed(name: str) -> Path:
    """Return where the committed projection of this name lies."""
    return HERE / f"{name}.jsonl"


def main(names: Iterable[str]) -> None:
    """Write projections anew."""
    for name in names or PROJECTIONS:
        committed(name).write_text(text_of(name), "utf-8")
        print(f"{committed(name)}: {committed(name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
