"""The agent and the simulator decide alike on the same history, by every rule that either of them takes.

The simulator plays a small cluster. What happens in it is told to the agent's books, arrival by arrival, and each
arrival is judged there too, in the very state that the simulator judged it in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from agent.admission.book import Book
from agent.admission.deployments import Deployment, Stage, applied
from agent.admission.records import AdmissionRequest, DeploymentEvent, EventKind, Prior
from agent.admission.rule import effective, judge, settle, undecided
from domain.decisions import Reason
from domain.rules.admission.cluster import ClusterRules, PolicyKind, terms_of
from domain.rules.admission.policies import unused_budget
from domain.rules.admission.rule import KINDS, rule_of
from domain.units import HOUR_S
from simulator.admission import PRESETS, Run, draw_run, play
from simulator.admission.engine import ADMITTED, CORE_ENDED, REFUSED, SCALE_REFUSED, SCALED, SHUT_DOWN

CLUSTER = replace(PRESETS["K"], capacity=600, sla=0.02)
ALWAYS = "tol=0,reuse=0"
"""Futures are computed anew for each arrival, so that neither depends on when they last were."""
TEXTS = (
    "zeroth:450",
    f"first:520,{ALWAYS}",
    f"second:1.2,{ALWAYS}",
    f"second:p=0.4,threshold=560,a=0.6,{ALWAYS}",
    f"second:1.5,bands=1/1/0.9/0.5/0.2,marginal=2,{ALWAYS}",
    f"second:1.2,moments=ab,{ALWAYS}",
    f"second:1.2,fresh=ab,{ALWAYS}",
    f"second:1.2,moments=na,{ALWAYS}",
    f"second:1.2,moments=paper,{ALWAYS}",
    f"second:1.2,belief=conjugate,{ALWAYS}",
    f"gamma:0.15,{ALWAYS}",
    f"sgamma:0.12,marginal=1,{ALWAYS}",
    f"budget:0.08,{ALWAYS}",
    f"budget:0.1,feedback=yes,marginal=1,{ALWAYS}",
)
SHORT = {text for text in TEXTS if text.startswith("zeroth")}
"""Those that every run of the tests compares; the others are long."""
KINDS_OF_EVENT = {
    CORE_ENDED: EventKind.CORE_ENDED,
    SCALED: EventKind.SCALED,
    SCALE_REFUSED: EventKind.REFUSED,
    SHUT_DOWN: EventKind.SHUTDOWN,
}


@dataclass(frozen=True)
class Asked:
    """An arrival: what the simulator said, what the agent says, and the room that it saw."""

    admitted: bool
    admits: bool
    slack_cores: float


@cache
def offered(observations: int) -> Run:
    return draw_run(CLUSTER, 11, hours=300.0, observations=observations)


def rules_by(text: str) -> ClusterRules:
    return ClusterRules("main", CLUSTER.capacity, CLUSTER.population, sla=CLUSTER.sla, **terms_of(rule_of(text)))


def prior_of(arrival: np.void) -> tuple[Prior, ...]:
    """What the simulator says was seen of an arrival before it came."""
    if not arrival["seen_sizes"]:
        return ()
    return (
        Prior(
            deaths=float(arrival["seen_deaths"]),
            core_hours=float(arrival["seen_core_hours"]),
            scale_outs=float(arrival["seen_requests"]),
            gap_hours=float(arrival["seen_gap_hours"]),
            extra_cores=float(arrival["seen_extra"]),
            size_draws=float(arrival["seen_sizes"]),
        ),
    )


def asked(text: str, observations: int = 0, agents: str = "") -> list[Asked]:
    """Return every arrival that fitted, judged by both; by the agent under a text of its own where one is given."""
    run = offered(observations)
    outcome = play(run, rule_of(text), log=100_000)
    book, answers, requests, failures = Book(rules_by(agents or text)), list[Asked](), 0, 0
    for number, event in enumerate(outcome.log):
        name, at, kind, cores = (
            f"d{event['deployment']}",
            float(event["time"]) * HOUR_S,
            event["kind"],
            int(event["cores"]),
        )
        if kind in (ADMITTED, REFUSED):
            priors = prior_of(run.arrivals[event["deployment"]])
            if book.total + cores <= CLUSTER.capacity:
                book.unused_budget = unused_budget(CLUSTER.sla, failures, requests)
                book.refresh(at)
                settle(book, book.rules, book.newcomer(cores, priors), at, observed=bool(priors))
                request = AdmissionRequest(deployment_id=name, cores=cores, observations=priors)
                blank = undecided(book, effective(book.rules), request, name, at)
                verdict = judge(book, book.rules, blank, book.newcomer(cores, priors), observed=bool(priors))
                answers.append(Asked(kind == ADMITTED, verdict.reason is Reason.ADMITTED, verdict.slack_cores))
            if kind == ADMITTED:
                live = Deployment(name, Stage.LIVE, cores, at, at, extra_cores=cores - 1, priors=priors)
                book.put(live, book.newcomer(cores, priors) if book.rules.policy is not PolicyKind.ZEROTH else None)
            continue
        told = DeploymentEvent(f"e{number}", name, KINDS_OF_EVENT[kind], 0 if kind == SHUT_DOWN else cores, time=at)
        requests += kind in (SCALED, SCALE_REFUSED)
        failures += kind == SCALE_REFUSED
        book.put(applied(book.known[name], told).deployment)
        assert book.total == event["total"]
    return answers


def test_every_kind_of_rule_is_here() -> None:
    assert {text.partition(":")[0] for text in TEXTS} == set(KINDS) == {kind.value for kind in PolicyKind}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", [pytest.param(t, marks=() if t in SHORT else pytest.mark.exhaustive) for t in TEXTS])
def test_both_decide_alike_on_the_same_history(text: str) -> None:
    # The agent leaves out what is marginal only for those of which something was seen (admission specification §11).
    answers = asked(text, observations=2 if "marginal" in text else 0)
    refused = sum(not one.admitted for one in answers)
    assert len(answers) > 150
    assert 10 < refused < len(answers) - 10, "a rule that always says the same shows nothing"
    apart = [one for one in answers if one.admitted != one.admits]
    # Their futures differ in the fourth digit: only a decision within a hair's breadth may fall to either side.
    assert len(apart) <= 0.005 * len(answers), apart
    assert all(abs(one.slack_cores) < 1.0 for one in apart), apart


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "rule",
    [
        "second:1.2",
        *(
            pytest.param(r, marks=pytest.mark.exhaustive)
            for r in ("first:520", "gamma:0.15", "sgamma:0.12", "budget:0.08")
        ),
    ],
)
def test_old_futures_in_the_agent_decide_as_new_ones_in_the_simulator(rule: str) -> None:
    answers = asked(f"{rule},{ALWAYS}", agents=f"{rule},tol=0.3,dead_band=6")
    assert 10 < sum(not one.admitted for one in answers) < len(answers) - 10
    assert sum(one.admitted != one.admits for one in answers) <= 0.01 * len(answers)
