"""The price of uncertainty, cores that are kept free, is in each answer, a cluster's state and on its card."""

from __future__ import annotations

import math

import pytest

from agent.admission.cluster import AdmissionService
from agent.admission.part import AdmissionPart
from agent.admission.records import HourPrice
from agent.admission.view import admission_lines, cluster_lines
from agent.kernel.part import Host
from agent.ledger import Ledger
from agent.settings import load_settings
from domain.clock import VirtualClock
from domain.rules.admission.cluster import PolicyKind
from tests.agent.admission.clusters import START, ask, event
from tests.agent.admission.conftest import Make


def price_of(service: AdmissionService, name: str, cores: int = 10, **names: str) -> HourPrice:
    found = service.answer([ask(name, cores, **names)], advice=True)[0].price
    assert found is not None
    return found


def test_an_hour_costs_the_cores_and_those_that_are_kept_free(make: Make) -> None:
    price = price_of(make(), "a")
    assert 15.0 < price.ahead_hours < 40.0
    # Alone in the cluster it keeps 2.2 of its own standard deviations free.
    assert price.for_uncertainty == pytest.approx(2.2 * math.sqrt(price.variance))
    assert price.core_hours == pytest.approx(10.0 + price.for_uncertainty)
    assert price.share == pytest.approx(price.for_uncertainty / price.core_hours)
    assert price.amount is None


def test_the_amount_is_in_the_currency_of_the_setting_and_decides_nothing(make: Make) -> None:
    plain, priced = (
        make().answer([ask("a")], advice=True)[0],
        make(core_hour_price=0.04).answer([ask("b")], advice=True)[0],
    )
    assert plain.price is not None
    assert priced.price is not None
    assert priced.price.amount == pytest.approx(0.04 * plain.price.core_hours)
    assert (priced.config_hash, priced.slack_cores) == (plain.config_hash, plain.slack_cores)


def test_among_many_the_uncertainty_of_one_costs_less(make: Make) -> None:
    service = make(capacity_cores=20_000)
    alone = price_of(service, "first")
    service.answer([ask("inside", 50)])
    assert price_of(service, "second").for_uncertainty < 0.5 * alone.for_uncertainty


def test_a_label_of_which_much_is_known_costs_less(make: Make) -> None:
    service = make(labels=True)
    for n in range(10):
        service.observe([event(f"old-{n}", "started", 8, START - 7200.0, label="batch")])
        service.observe([event(f"old-{n}", "core_ended", 8, START - 3600.0)])
    assert price_of(service, "b", label="batch").core_hours < price_of(service, "a").core_hours


def test_a_rule_without_standard_deviations_names_no_price(make: Make, clock: VirtualClock) -> None:
    service = make(policy=PolicyKind.FIRST, kappa=None, threshold_cores=900.0)
    assert service.answer([ask("a")], advice=True)[0].price is None
    assert service.gauges(clock.now()).uncertainty_cores is None
    assert make().answer([ask("huge", 1001)], advice=True)[0].price is None


def test_the_cluster_says_what_it_keeps_free_for_uncertainty(make: Make, clock: VirtualClock) -> None:
    service = make()
    assert service.gauges(clock.now()).uncertainty_share == 0.0
    price = service.answer([ask("a", 10)])[0].price
    gauges = service.gauges(clock.now())
    assert price is not None
    assert gauges.uncertainty_cores == pytest.approx(price.for_uncertainty)
    assert gauges.uncertainty_share == pytest.approx(price.share)
    assert any("kept free for uncertainty" in line for line in cluster_lines(gauges, ()))


def test_an_explanation_has_the_price_of_an_hour(make: Make) -> None:
    decision = make(core_hour_price=2.0).answer([ask("a")], advice=True)[0]
    lines = admission_lines(decision)
    assert decision.price is not None
    there = lines[lines.index("Price of an hour") :]
    assert any(line.split() == ["core-hours", f"{decision.price.core_hours:,.2f}"] for line in there)
    assert any(f"({decision.price.share:.0%})" in line for line in there)
    assert any(line.split() == ["amount", f"{2.0 * decision.price.core_hours:,.4g}"] for line in there)


@pytest.mark.parametrize(("rule", "shown"), [("second:2.2", True), ("zeroth:900", False)])
def test_the_card_shows_what_is_kept_free(ledger: Ledger, clock: VirtualClock, rule: str, shown: bool) -> None:
    values = {"CAPACITY_CORES": "1000", "PRESET": "K", "RULE": rule, "CORE_HOUR_PRICE": "0.05", "LABELS": "on"}
    environ = {f"TRIMTAB_CLUSTERS__main__{name}": value for name, value in values.items()}
    part = AdmissionPart(Host(ledger, load_settings(environ), clock))
    given = part.clusters["main"].rules
    assert (given.labels, given.core_hour_price, given.label_half_life_days) == (True, 0.05, 90.0)
    part.clusters["main"].answer([ask("a", 10)])
    card = part.card("main", clock.now())
    assert card is not None
    rows = dict(card.rows)
    assert ("kept free for uncertainty, a day ahead" in rows) == shown
