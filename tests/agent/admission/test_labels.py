"""Names given with requests gather priors of their own, from ends and from those inside, kept in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.admission.api import EventOrder, EventsOrder
from agent.admission.cluster import AdmissionService
from agent.admission.records import AdmissionDecision, PriorKind
from agent.admission.state import AdmissionStore, Change
from agent.admission.view import admission_lines
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.rules.admission.cluster import Moments
from domain.rules.admission.labels import tally_of
from domain.rules.admission.names import MOST_NAMES
from domain.rules.admission.population import POPULATIONS
from tests.agent.admission.clusters import HOUR_S, SEEN, START, ask, event, rules
from tests.agent.admission.conftest import Make
from tests.golden import figures

DAY_S = 24 * HOUR_S


@pytest.fixture
def second(path: Path, ledger: Ledger) -> Iterator[Ledger]:
    """Another agent's connection to the same ledger."""
    with Ledger.open(f"sqlite:///{path}", busy_timeout_s=30.0) as opened:
        yield opened


def live(service: AdmissionService, name: str, at: float, cores: int = 8, **names: str) -> None:
    service.observe([event(name, "started", cores, at, **names)])


def brief(service: AdmissionService, count: int, at: float, prefix: str = "old", **names: str) -> None:
    """So many deployments of 8 cores that last half an hour."""
    for n in range(count):
        live(service, f"{prefix}-{n}", at, **names)
        service.observe([event(f"{prefix}-{n}", "core_ended", 8, at + 0.5 * HOUR_S)])


def said(decision: AdmissionDecision) -> tuple[object, ...]:
    """All that a decision rests on."""
    numbers = (decision.slack_cores, decision.expected_cores, decision.sd_cores, decision.sgamma, decision.cantelli)
    return decision.reason, decision.prior, decision.binding_hours, decision.total_cores, *numbers


def test_a_name_of_which_nothing_was_seen_is_judged_by_the_population_to_the_last_digit(make: Make) -> None:
    plain = make(fresh=Moments.AB).answer([ask("a", 10)], advice=True)[0]
    named = make(labels=True, fresh=Moments.AB).answer([ask("b", 10, label="batch", owner="ada")], advice=True)[0]
    assert named.prior.kind is PriorKind.POPULATION
    assert (named.slack_cores, named.expected_cores, named.sd_cores) == (
        plain.slack_cores,
        plain.expected_cores,
        plain.sd_cores,
    )
    assert named.prior.named is not None
    assert named.prior.named.law == POPULATIONS["K"]
    assert (named.prior.named.of_label, named.prior.named.of_owner) == (0.0, 0.0)


def test_a_label_of_brief_deployments_needs_less_room(make: Make, clock: VirtualClock) -> None:
    service = make(labels=True)
    brief(service, 20, START - HOUR_S, label="batch", owner="ada")
    unnamed = service.answer([ask("a", 10)], advice=True)[0]
    of_owner = service.answer([ask("b", 10, owner="ada")], advice=True)[0]
    of_label = service.answer([ask("c", 10, owner="ada", label="batch")], advice=True)[0]
    elsewhere = service.answer([ask("d", 10, owner="bob", label="batch")], advice=True)[0]
    kinds = [decision.prior.kind for decision in (unnamed, of_owner, of_label, elsewhere)]
    assert kinds == [PriorKind.POPULATION, PriorKind.OWNER, PriorKind.LABEL, PriorKind.POPULATION]
    spreads = [decision.sd_cores or 0.0 for decision in (unnamed, of_owner, of_label, elsewhere)]
    assert spreads[0] == spreads[3] > spreads[1] > spreads[2]
    named = of_label.prior.named
    assert named is not None
    assert named.of_label == named.of_owner == pytest.approx(20.0, rel=1e-3)


def test_those_inside_count_before_they_end(make: Make, clock: VirtualClock) -> None:
    service = make(labels=True)
    for n in range(10):
        live(service, f"old-{n}", START, label="base")
    clock.advance(400 * HOUR_S)
    found = service.answer([ask("a", 10, label="base")], advice=True)[0].prior
    assert found.kind is PriorKind.LABEL
    assert found.named is not None
    assert found.named.of_label == 10.0
    # Cores that ran for 400 hours and did not end are expected to last.
    assert found.named.law.mu_rate / found.named.law.mu_shape > 400.0
    # A label is its owner's: the same word of another owner is another label.
    assert service.answer([ask("b", 10, label="base", owner="bob")], advice=True)[0].prior.kind is PriorKind.POPULATION


def test_names_are_gathered_where_they_do_not_decide_and_decide_once_they_may(make: Make) -> None:
    off = make()
    brief(off, 5, START - HOUR_S, label="batch")
    assert off.answer([ask("a", 10, label="batch")], advice=True)[0].prior.kind is PriorKind.POPULATION
    assert off.answer([ask("a", 10, label="batch")], advice=True)[0].prior.named is None
    assert make(labels=True).answer([ask("b", 10, label="batch")], advice=True)[0].prior.kind is PriorKind.LABEL


def test_a_restart_changes_no_digit(make: Make, clock: VirtualClock) -> None:
    service = make(labels=True)
    brief(service, 7, START - HOUR_S, label="batch", owner="ada")
    admitted = service.answer([ask("mine", 10, label="batch", owner="ada")])[0]
    assert admitted.admit
    live(service, "mine", START, 10)
    clock.advance(30 * HOUR_S)
    before = service.answer([ask("next", 10, label="batch", owner="ada")], advice=True)[0]
    again = make(labels=True)
    inside = again.deployment("mine")
    assert inside is not None
    assert admitted.prior.named is not None
    assert inside.law == admitted.prior.named.law
    assert said(again.answer([ask("after", 10, label="batch", owner="ada")], advice=True)[0]) == said(before)
    again.refresh(all_of_them=True)
    service.refresh(all_of_them=True)
    assert again.gauges(clock.now()) == service.gauges(clock.now())


def test_what_is_inside_is_believed_by_the_law_it_was_admitted_under(make: Make, clock: VirtualClock) -> None:
    service = make(labels=True)
    brief(service, 20, START - HOUR_S, label="batch")
    service.answer([ask("mine", 10, label="batch")])
    by_law = service.gauges(clock.now()).worst_slack_cores["year"]
    service.refresh(all_of_them=True)
    assert service.gauges(clock.now()).worst_slack_cores["year"] == pytest.approx(by_law)
    plain = make(name="plain")
    plain.answer([ask("mine", 10)])
    assert plain.gauges(clock.now()).worst_slack_cores["year"] < by_law - 10.0


def test_two_agents_learn_together(make: Make, second: Ledger, clock: VirtualClock) -> None:
    one, two = make(labels=True), AdmissionService(rules(labels=True), AdmissionStore(second), clock)
    brief(one, 3, START - HOUR_S, "one", label="batch")
    brief(two, 3, START - HOUR_S, "two", label="batch")
    found = [service.answer([ask("a", 10, label="batch")], advice=True)[0].prior.named for service in (one, two)]
    assert found[0] == found[1] is not None
    assert found[0].of_label == pytest.approx(6.0, rel=1e-3)


def test_what_was_learnt_fades(make: Make, clock: VirtualClock) -> None:
    service = make(labels=True, label_half_life_days=10.0)
    brief(service, 8, START - 0.5 * HOUR_S, label="batch")
    clock.advance(20 * DAY_S)
    named = service.answer([ask("a", 10, label="batch")], advice=True)[0].prior.named
    assert named is not None
    assert named.of_label == pytest.approx(2.0)
    assert named.half_life_days == 10.0


def test_the_time_of_the_end_counts_not_the_order_of_the_reports(make: Make, clock: VirtualClock) -> None:
    def learnt(order: tuple[int, ...], prefix: str) -> float:
        service = make(labels=True, label_half_life_days=1.0)
        for n in order:
            brief(service, 1, START - (n + 1) * DAY_S, f"{prefix}-{n}", label=prefix)
        named = service.answer([ask("x", 10, label=prefix)], advice=True)[0].prior.named
        assert named is not None
        return named.of_label

    clock.advance(DAY_S)
    assert learnt((0, 1, 2), "a") == pytest.approx(learnt((2, 0, 1), "b")) == pytest.approx(0.444, rel=0.01)


def test_only_what_ran_counts(make: Make, clock: VirtualClock) -> None:
    service = make(labels=True)
    service.answer([ask("cancelled", 10, label="batch")])
    service.observe([event("cancelled", "shutdown")])
    service.answer([ask("late", 10, label="batch")])
    clock.advance(2 * HOUR_S)
    assert service.answer([ask("a", 10, label="batch")], advice=True)[0].prior.kind is PriorKind.POPULATION


def test_one_that_was_admitted_and_has_not_started_says_nothing(make: Make) -> None:
    service = make(labels=True)
    service.answer([ask("a", 10, label="batch")])
    assert service.answer([ask("b", 10, label="batch")], advice=True)[0].prior.kind is PriorKind.POPULATION


def test_a_deployment_counts_once_whatever_happens_to_it(make: Make, clock: VirtualClock) -> None:
    service = make(labels=True)
    live(service, "a", START, label="batch")
    clock.advance(HOUR_S)
    for kind, cores in (("scaled", 4), ("refused", 2), ("core_ended", 1), ("shutdown", 0)):
        service.observe([event("a", kind, cores, START + HOUR_S)])
        named = service.answer([ask("b", 10, label="batch")], advice=True)[0].prior.named
        assert named is not None
        assert named.of_label == 1.0


def test_prior_observations_stand_before_names(make: Make) -> None:
    service = make(labels=True)
    brief(service, 5, START - HOUR_S, label="batch")
    found = service.answer([ask("a", 10, SEEN, label="batch")], advice=True)[0]
    assert found.prior.kind is PriorKind.OBSERVATIONS
    assert found.prior.named is None
    assert found.slack_cores == service.answer([ask("b", 10, SEEN)], advice=True)[0].slack_cores


def test_at_most_a_thousand_names_are_kept_and_the_oldest_falls_back_to_its_owner(
    make: Make, ledger: Ledger, clock: VirtualClock
) -> None:
    service, store = make(labels=True), AdmissionStore(ledger)
    live(service, "mine", START - HOUR_S, label="new", owner="ada")
    inside = store.inside("main")
    tally = tally_of(POPULATIONS["K"], [], START - DAY_S)
    many = {("ada", f"l{n}"): replace(tally, at=tally.at + n, deployments=1.0) for n in range(MOST_NAMES - 1)}
    store.write("main", inside.revision, Change(inside.counts, tallies=many | {("ada", ""): replace(tally, at=START)}))
    service.observe([event("mine", "shutdown", at=START)])
    kept = store.inside("main").tallies
    assert len(kept) == MOST_NAMES
    assert ("ada", "l0") not in kept
    assert {("ada", "l1"), ("ada", "new"), ("ada", "")} <= set(kept)
    assert service.answer([ask("a", 10, label="l0", owner="ada")], advice=True)[0].prior.kind is PriorKind.OWNER


@pytest.mark.parametrize("wrong", ["a b", "x" * 65, "\n"])
@pytest.mark.parametrize("field", ["label", "owner"])
def test_a_name_that_cannot_be_is_refused_and_named(field: str, wrong: str) -> None:
    with pytest.raises(ValidationError, match=field):
        ask("a", 10, **{field: wrong})
    told = {"event_id": "e1", "kind": "started", "cores": 1, "time": START}
    with pytest.raises(ValidationError, match=field):
        EventsOrder.model_validate({"events": [{**told, "deployment_id": "a", field: wrong}]})
    with pytest.raises(ValidationError, match=field):
        EventOrder.model_validate({**told, field: wrong})


def test_the_same_request_again_gets_its_decision_and_another_label_does_not(make: Make) -> None:
    service = make()
    first = service.answer([ask("a", 10, label="batch", owner="ada")])[0]
    assert service.answer([ask("a", 10, label="batch", owner="ada")])[0] == first
    for other in (ask("a", 10, label="web", owner="ada"), ask("a", 10, label="batch", owner="bob")):
        assert service.answer([other])[0].reason is Reason.REJECTED_INPUT


def test_an_explanation_says_which_prior_spoke_and_from_how_many_deployments(make: Make) -> None:
    service = make(labels=True)
    brief(service, 4, START - 0.5 * HOUR_S, label="batch", owner="ada")
    text = admission_lines(service.answer([ask("a", 10, label="batch", owner="ada")], advice=True)[0])
    assert [4.0, 4.0, 90] in map(figures, text)
    assert any(line.startswith("  expected of it: a core lasts ") for line in text)
    assert [0.0, 90] in map(figures, admission_lines(service.answer([ask("b", 10, label="web")], advice=True)[0]))
    assert "  label batch, owner ada" in admission_lines(
        make().answer([ask("c", 10, label="batch", owner="ada")], advice=True)[0]
    )


def test_rules_without_labels_keep_the_hash_that_they_had() -> None:
    assert rules().config_hash == rules(label_half_life_days=7.0).config_hash
    assert (
        len(
            {
                rules().config_hash,
                rules(labels=True).config_hash,
                rules(labels=True, label_half_life_days=7.0).config_hash,
            }
        )
        == 3
    )
