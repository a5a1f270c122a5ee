"""The first decision of a fleet, simulated from its settings and its groups before any agent runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agent.autoscaling.decide import DecisionInputs, decide
from agent.autoscaling.fleets import managed_fleets
from agent.autoscaling.policies.fallback import Proposer, evaluate_within
from agent.autoscaling.sentence import plain_sentence
from agent.autoscaling.snapshot.aggregate import BIN_S, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.rails.state import LoopState
from collectors.inventory import Inventory
from domain.controls import Controls
from domain.decisions import Mode
from domain.fleet import Fleet
from domain.observed import GroupObserved, Instance, Lifecycle, Observed
from domain.samples import QueueMetric, QueueSeries, Sample

if TYPE_CHECKING:
    from agent.settings import Settings
    from collectors.aws import AwsSession

POLICY_DEADLINE_S = 5.0


def first_decision(settings: Settings, name: str, session: AwsSession | None, waiting: int, now: float) -> str:
    """Return the sentence of the decision that an observing agent would make at the end of this minute.

    session: reads the groups; without it each has its minimum. waiting: jobs in the queue. now: epoch seconds. Groups
    that cannot be read are named instead. ConfigurationError for a policy of a package that cannot be used.
    """
    managed = next(one for one in managed_fleets(settings) if one.fleet.name == name)
    fleet, aggregation = managed.fleet, managed.aggregation
    end = math.ceil(now / BIN_S) * BIN_S
    decided_at = end + aggregation.grace_s
    store = SeriesStore(watched=[fleet])
    for metric, count in ((QueueMetric.WAITING, waiting), (QueueMetric.RUNNING, 0)):
        store.append_samples([Sample(QueueSeries(name, metric), float(count), end)], end)
    names = [group.name for group in fleet.groups]
    observed = at_minimum(fleet, end) if session is None else Inventory(session).observe(names, end)
    if observed.failures:
        return "; ".join(f"{group} cannot be read: {one.detail}" for group, one in observed.failures.items())
    folded = Aggregator(store).snapshot(fleet, observed, LoopState(), aggregation, decided_at)
    inputs = DecisionInputs(
        decision_id=f"{name}-1",
        now=decided_at,
        fleet=fleet,
        snapshot=folded.snapshot,
        state=folded.state,
        controls=Controls(),
        limits=managed.limits,
        mode=Mode.OBSERVE,
        leader=True,
        epoch=1,
        policy=managed.policy,
    )
    return plain_sentence(decide(inputs, Proposer(evaluate_within(POLICY_DEADLINE_S))).decision, inputs)


def at_minimum(fleet: Fleet, now: float) -> Observed:
    """Return the fleet's groups with as many VMs in service as each has at least, an hour old."""
    return Observed(
        now,
        {
            group.name: GroupObserved(
                group.name,
                group.minimum,
                group.minimum,
                group.maximum,
                instances=tuple(
                    Instance(f"{group.key}-{k}", "", Lifecycle.IN_SERVICE, launched_at=now - 3600.0)
                    for k in range(group.minimum)
                ),
            )
            for group in fleet.groups
        },
    )
