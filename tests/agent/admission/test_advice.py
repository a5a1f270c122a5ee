"""Advice: what would be decided, recorded to be explained, while nothing is taken in."""

from __future__ import annotations

from agent.admission.cluster import AdmissionService
from agent.admission.state import AdmissionStore
from agent.admission.view import admission_lines
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.rules.admission.cluster import PolicyKind
from tests.agent.admission.clusters import START, ask, event, recorded, rules
from tests.agent.admission.conftest import Make


def test_advice_is_the_decision_that_would_be_made_and_takes_nothing_in(make: Make) -> None:
    service = make()
    advice = service.answer([ask("a", 20)], advice=True)[0]
    decision = service.answer([ask("a", 20)])[0]
    apart = {"decision_id", "advice", "evaluation_us", "refreshed"}
    for name in decision.__slots__:
        if name not in apart:
            assert getattr(advice, name) == getattr(decision, name), name
    assert (advice.advice, decision.advice, advice.admit) == (True, False, True)


def test_nobody_counts_who_was_only_advised(make: Make) -> None:
    service = make(capacity_cores=60, policy=PolicyKind.ZEROTH, kappa=None, threshold_cores=61.0)
    assert [service.answer([ask(name, 40)], advice=True)[0].reason for name in "abc"] == [Reason.ADMITTED] * 3
    assert (service.deployments(), service.gauges(START).total_cores) == ((), 0)


def test_advice_uses_up_no_request_id(make: Make) -> None:
    service = make()
    advice = service.answer([ask("a", 20, request_id="r1")], advice=True)[0]
    decision = service.answer([ask("a", 20, request_id="r1")])[0]
    assert decision.decision_id != advice.decision_id
    assert service.deployment("a") is not None
    assert service.answer([ask("a", 20, request_id="r1")])[0] == decision


def test_the_same_advice_is_recorded_once_and_another_one_anew(make: Make) -> None:
    service = make(capacity_cores=100)
    first = service.answer([ask("a", 20)], advice=True)[0]
    assert service.answer([ask("a", 20)], advice=True)[0] == first
    service.observe([event("b", "started", 90)])
    second = service.answer([ask("a", 20)], advice=True)[0]
    assert (first.reason, second.reason) == (Reason.REJECTED_RULE, Reason.REJECTED_FEASIBILITY)
    assert [d.decision_id for d in service.newest(deployment_id="a")] == [second.decision_id, first.decision_id]


def test_advice_after_an_admission_lapsed_counts_its_cores_as_free(make: Make, clock: VirtualClock) -> None:
    service = make(policy=PolicyKind.ZEROTH, kappa=None, threshold_cores=51.0, capacity_cores=50, start_within_s=600.0)
    service.answer([ask("a", 40)])
    assert service.answer([ask("b", 40)], advice=True)[0].reason is Reason.REJECTED_FEASIBILITY
    clock.advance(601.0)
    assert service.answer([ask("b", 40)], advice=True)[0].admit
    assert service.deployments() == ()


def test_advice_outlives_the_process_and_is_explained_as_such(make: Make, ledger: Ledger, clock: VirtualClock) -> None:
    advice = make().answer([ask("a", 20)], advice=True)[0]
    again = AdmissionService(rules(), AdmissionStore(ledger), clock)
    assert recorded(again, advice.decision_id) == advice
    text = "\n".join(admission_lines(advice))
    assert "a with 20 cores: would be admitted" in text
    (note,) = [entry for entry in ledger.journal(limit=10) if entry.ref == advice.decision_id]
    assert note.reason == "observe_mode"
