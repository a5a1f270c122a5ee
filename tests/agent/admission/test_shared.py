"""Several services on one cluster's ledger agree; old history goes; the schema can be taken back."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent.admission.cluster import AdmissionService
from agent.admission.state import AdmissionStore
from agent.kernel.parts import kept
from agent.ledger import Kind, Ledger
from domain.clock import VirtualClock
from domain.decisions import Reason
from tests.agent.admission.clusters import HOUR_S, ask, event, rules
from tests.agent.admission.conftest import Make

DAY_S = 24 * HOUR_S


def test_two_services_know_of_each_other_s_deployments(make: Make, clock: VirtualClock) -> None:
    one, two = make(), make()
    one.answer([ask("a", 10)])
    two.answer([ask("b", 20)])
    assert one.answer([ask("c", 5)])[0].total_cores == 30
    one.observe([event("b", "started", 20)])
    two.observe([event("b", "scaled", 3)])
    assert one.observe([event("a", "started", 10)])[0] is not None
    assert one.deployments() == make().deployments()
    assert one.gauges(clock.now()).total_cores == 38


def test_many_that_ask_at_once_are_never_admitted_beyond_the_capacity(path: Path, clock: VirtualClock) -> None:
    url = f"sqlite:///{path}"
    with Ledger.open(url) as first, Ledger.open(url) as second:
        services = [AdmissionService(rules(), AdmissionStore(ledger), clock) for ledger in (first, second)]
        with ThreadPoolExecutor(4) as pool:
            asked = pool.map(lambda n: services[n % 2].answer([ask(f"d{n}", 30)])[0], range(24))
            decisions = list(asked)
        alone = AdmissionService(rules(name="alone"), AdmissionStore(first), clock)
        requests = [ask(f"d{n}", 30) for n in range(24)]
        expected = sum(decision.admit for decision in alone.answer(requests))
    assert sum(decision.admit for decision in decisions) == expected > 0
    assert len({decision.decision_id for decision in decisions}) == 24
    totals = sorted(decision.total_cores for decision in decisions if decision.admit)
    assert totals == [30 * n for n in range(expected)]


def test_what_happened_is_in_the_journal(make: Make, ledger: Ledger, clock: VirtualClock) -> None:
    service = make()
    service.answer([ask("shop", 10)])
    service.answer([ask("huge", 1001)])
    service.observe([event("shop", "started", 12)])
    service.answer([ask("late", 10)])
    clock.advance(4000.0)
    service.answer([ask("next", 1)])
    rows = [(entry.kind, entry.reason, entry.ref) for entry in ledger.journal()]
    assert rows == [
        (Kind.EVENT, Reason.ADMITTED, "main-a1"),
        (Kind.EVENT, Reason.REJECTED_FEASIBILITY, "main-a2"),
        (Kind.EVENT, Reason.SIZES_REPAIRED, "shop"),
        (Kind.EVENT, Reason.ADMITTED, "main-a3"),
        (Kind.EVENT, Reason.ADMISSION_LAPSED, "late"),
        (Kind.EVENT, Reason.ADMITTED, "main-a4"),
    ]


def test_old_events_decisions_and_ended_deployments_go_and_live_ones_stay(
    make: Make, ledger: Ledger, clock: VirtualClock
) -> None:
    service = make()
    old = event("live", "started", 4)
    service.observe([old, event("ended", "started", 4), event("ended", "shutdown")])
    service.answer([ask("huge", 1001)])
    clock.advance(100 * DAY_S)
    service.answer([ask("new", 3)])
    before = service.deployments()
    removed = ledger.compact(clock.now(), 90 * DAY_S, kept())
    assert removed.finished
    # Three events, one decision and one deployment, beside the journal's row on the decision.
    assert removed.rows == 6
    again = make()
    assert again.deployments() == before
    assert again.deployment("ended") is None
    assert [decision.deployment_id for decision in again.newest()] == ["new"]
    assert AdmissionStore(ledger).events("main", [old.event_id]) == {}
