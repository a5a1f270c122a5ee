"""The evidence on a cluster's models: requests under its champion, and the answers of its challenger.

The agent recorded the answers of the challenger with its own. They do not show their cost, as the growth of a refused
deployment is unknown: for that both play the world that is fitted to the newest part of the record, each with its own
belief of the population, as in a round (`trainer.learning.cluster`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.admission.records import AdmissionDecision, EventKind
from agent.admission.settings import cluster_model_in
from agent.admission.state import AdmissionStore
from agent.models.directory import Champion, Probationer
from domain.rules.admission.population import Population
from trainer.learning.cluster import ClusterRound
from trainer.learning.ledgers import reading
from trainer.learning.round import Budget
from trainer.learning.trial import LEAST_SHARE, Promise, PromiseReplay

LEAST_REQUESTS: Final = 50
"""Requests for more cores under a champion for a judgement."""
_REQUESTS: Final = (EventKind.SCALED, EventKind.REFUSED)
WORDS: Final = "requests for more cores were refused"
COST: Final = "cores idle"


def lived(source: str, cluster: str, champion: Champion, rule: str, sla: float) -> Promise | str:
    """Return the requests for more cores that were refused since a champion decides, or why they are not known.

    rule: the champion's, as decisions name it: it decides from the agent's next start on, and from its first decision
    on requests count. LedgerUnavailable.
    """
    assert champion.at_s is not None, "a promotion that is watched has a time"
    with reading(source) as ledger:
        store = AdmissionStore(ledger)
        made = [one for one in store.decisions_since(cluster, champion.at_s) if one.policy == rule and not one.advice]
        if not made:
            return f"{rule} has decided nothing since then: the cluster takes it up where RULE is `learned`"
        events = [one for one in store.events_since(cluster, made[0].at) if one.kind in _REQUESTS]
    if len(events) < LEAST_REQUESTS:
        return f"{len(events)} requests for more cores came, {LEAST_REQUESTS} are needed to judge it by"
    return Promise(sum(one.kind is EventKind.REFUSED for one in events), len(events), sla, WORDS)


def divergence_of(source: str, cluster: str, one: Probationer) -> tuple[int, int, str]:
    """Return the requests on which a model on probation was asked, all requests, and the differences, for people.

    LedgerUnavailable.
    """
    with reading(source) as ledger:
        made = AdmissionStore(ledger).decisions_since(cluster, one.since)
    sha = Path(one.model).stem
    asked = [(d, d.shadow) for d in made if d.shadow is not None and d.shadow.model == sha and not d.shadow.failed]
    more = [d for d, shadow in asked if shadow.admit and not d.admit]
    fewer = [d for d, shadow in asked if d.admit and not shadow.admit]
    text = f"of {len(asked)} requests it would have admitted {len(more)} more ({_cores(more)} cores)"
    return len(asked), len(made), f"{text} and refused {len(fewer)} more ({_cores(fewer)} cores)"


def replay(source: str, one: Probationer, work: ClusterRound, budget: Budget) -> PromiseReplay:
    """Return the costs of challenger and present rule in the world of the newest part of the record.

    work: a round over the present record, of which the fit and the plan are made here where they are missing.
    Raises BudgetUsed, TooLittle, LedgerUnavailable.
    """
    asked, were, divergence = divergence_of(source, work.in_use.cluster, one)
    none = PromiseReplay(COST, asked, max(round(LEAST_SHARE * were), 1), divergence)
    challenger = cluster_model_in(work.directory.file_of(one.model))
    beliefs: list[tuple[str, Population]] = [
        (work.in_use.rule, work.in_use.population),
        (challenger.rule, challenger.population),
    ]
    work.prepare()
    idle: list[tuple[float, ...]] = []
    refused = of = 0
    for rule, population in beliefs:
        runs = work.held_out(rule, population, budget)
        idle.append(tuple((1.0 - runs.utilisation).tolist()))
        refused, of = int(runs.failures.sum()), int(runs.requests.sum())
    names = tuple(f"run {k}" for k in range(len(idle[0])))
    return replace(
        none, windows=names, now=idle[0], challenger=idle[1], kept=Promise(refused, of, work.in_use.sla, WORDS)
    )


def _cores(made: list[AdmissionDecision]) -> int:
    return sum(one.cores for one in made)
