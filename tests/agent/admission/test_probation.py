"""A rule on probation: a cluster records what it would have decided, and goes by none of it."""

from __future__ import annotations

from dataclasses import replace

from agent.admission.cluster import AdmissionService
from agent.admission.records import AdmissionDecision
from agent.admission.view import admission_lines
from agent.ledger import codec
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.subject import Subject
from tests.agent.admission.clusters import HOUR_S, START, ask, event
from tests.agent.admission.conftest import Make

SUBJECT = Subject("admission", "main")


def asked_of(service: AdmissionService, count: int) -> list[AdmissionDecision]:
    return [service.answer([ask(f"d{n}", 10)])[0] for n in range(count)]


def without(made: AdmissionDecision) -> AdmissionDecision:
    """The decision without what a shadow said and what it took."""
    return replace(made, shadow=None, evaluation_us=0.0)


def test_what_it_would_have_decided_is_recorded_and_changes_nothing(make: Make, clock: VirtualClock) -> None:
    service = make()
    strict = replace(service.rules, kappa=9.0)
    service.try_out("f" * 64, strict)
    made = asked_of(service, 60)
    assert all(one.shadow is not None and one.shadow.model == "f" * 64 and not one.shadow.failed for one in made)
    both = [(one.admit, one.shadow.admit) for one in made if one.shadow is not None]
    # A stricter rule refuses where the other one admits, and nowhere the other way about.
    assert (True, False) in both
    assert (False, True) not in both
    assert (True, True) in both
    assert codec.decode(AdmissionDecision, codec.encode(made[0])) == made[0]
    refused = next(one for one in made if one.admit and one.shadow is not None and not one.shadow.admit)
    assert any("ffffffffffff would refuse it" in line for line in admission_lines(refused))
    service.try_out("", None)
    assert service.answer([ask("last", 10)])[0].shadow is None


def test_it_answers_as_a_cluster_that_it_decided_for_would(make: Make, clock: VirtualClock) -> None:
    """The same deployments inside, read anew, grown, ended and lapsed: the shadow knows as much as the rule itself."""
    service = make()
    service.try_out("f" * 64, replace(service.rules))
    for n in range(6):
        service.answer([ask(f"d{n}", 4)])
    for n in range(4):
        service.observe([event(f"d{n}", "started", 4)])
    clock.advance(30 * HOUR_S)
    service.observe([event("d0", "scaled", 2, START + 20 * HOUR_S)])
    service.observe([event("d1", "shutdown", 0, START + 25 * HOUR_S)])
    service.refresh()
    made = [service.answer([ask(f"e{n}", 4)])[0] for n in range(60)]
    assert {one.admit for one in made} == {True, False}
    assert all(
        one.shadow is not None and (one.shadow.admit, one.shadow.reason) == (one.admit, one.reason) for one in made
    )


def test_one_that_fails_says_so_and_the_answer_stands(make: Make) -> None:
    service, plain = make(), make()
    broken = replace(service.rules, population=replace(service.rules.population))
    service.try_out("f" * 64, broken)
    # A population that no formula takes: what a file that was checked cannot hold, and a mistake of ours could.
    object.__setattr__(broken.population, "power", float("nan"))
    object.__setattr__(broken.population, "lifetimes", "none")
    found = service.answer([ask("d0", 10)])[0]
    assert found.shadow is not None
    assert (found.shadow.reason, bool(found.shadow.failed)) == (Reason.INTERNAL_ERROR, True)
    assert found.admit
    assert plain is not service
