"""Who may come in: the decision is the published rule on the sum of futures, and the record says what it rests on."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from agent.admission.book import horizons_of
from agent.admission.cluster import AdmissionService
from agent.admission.records import AdmissionDecision, AdmissionRequest, Prior, PriorKind
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.rules.admission.cluster import Moments, PolicyKind
from domain.rules.admission.moments import Curve, moments_of
from domain.rules.admission.policies import cantelli, gamma_tail, second_refusal, sgamma_tail
from domain.rules.admission.population import POPULATIONS, Statistics, fresh
from domain.rules.admission.rule import kappa_of
from tests.agent.admission.clusters import HOUR_S, SEEN, START, ask, event, recorded, rules
from tests.agent.admission.conftest import Make
from tests.golden import figures

K = POPULATIONS["K"]


def admitted(service: AdmissionService, count: int, cores: int = 10) -> int:
    """Ask until `count` were asked; return how many came in."""
    return sum(service.answer([ask(f"d{n}", cores)])[0].admit for n in range(count))


def history(service: AdmissionService, clock: VirtualClock) -> dict[str, Statistics]:
    """Let three deployments live for a while; return what was seen of each at the end."""
    for name, cores in (("a", 20), ("b", 5), ("c", 60)):
        service.observe([event(name, "started", cores)])
    clock.advance(100 * HOUR_S)
    service.observe([event("a", "scaled", 10, START + 40 * HOUR_S)])
    service.observe([event("b", "core_ended", 2, START + 60 * HOUR_S)])
    service.observe([event("c", "refused", 4, START + 80 * HOUR_S)])
    return {
        "a": Statistics(30, 0, 20 * 40 + 30 * 60, 1, 100, 0, 19 + 9, 2),
        "b": Statistics(3, 2, 5 * 60 + 3 * 40, 0, 100, 0, 4, 1),
        "c": Statistics(60, 0, 60 * 100, 1, 100, 0, 59 + 3, 2),
    }


class TestTheRecord:
    def test_names_the_rules_in_force(self, make: Make) -> None:
        service = make()
        before = service.answer([ask("a", 1)])[0].config_hash
        service.resize(service.rules.capacity_cores + 1)
        assert service.answer([ask("b", 1)])[0].config_hash == service.rules.config_hash != before

    @pytest.mark.parametrize("moments", [Moments.AB, Moments.AB_FAST, Moments.NA, Moments.PAPER])
    def test_holds_the_sum_of_the_futures_that_the_formulas_give(
        self, make: Make, clock: VirtualClock, moments: Moments
    ) -> None:
        service = make(moments=moments, capacity_cores=5000)
        seen = history(service, clock)
        decision = service.answer([ask("new", 7)])[0]
        horizons_h = horizons_of(service.rules)
        curves = {name: moments_of(K, of, horizons_h, moments.value) for name, of in (*seen.items(), ("new", fresh(7)))}
        mean = sum(curve.mean for curve in curves.values())
        variance = sum(curve.variance for curve in curves.values())
        slack = 5000.0 - mean - 2.2 * np.sqrt(variance)
        k = int(np.argmin(slack))
        assert decision.admit == (slack[k] >= 0.0)
        assert decision.binding_hours == pytest.approx(horizons_h[k])
        assert decision.expected_cores == pytest.approx(mean[k], rel=1e-9)
        assert decision.sd_cores == pytest.approx(math.sqrt(variance[k]), rel=1e-9)
        assert decision.slack_cores == pytest.approx(slack[k], rel=1e-9)
        assert decision.peak_utilisation == pytest.approx(mean.max() / 5000.0, rel=1e-9)
        assert decision.peak_hours == pytest.approx(horizons_h[int(np.argmax(mean))])
        assert decision.cantelli == pytest.approx(cantelli(mean[k], variance[k], 5000.0), rel=1e-6)
        assert decision.refreshed == 3
        self.names_the_largest(decision, curves, k)
        if moments in (Moments.AB, Moments.AB_FAST):
            third = sum(third_of(curve)[k] for curve in curves.values())
            assert decision.sgamma == pytest.approx(sgamma_tail(mean[k], variance[k], third, 5000.0), rel=1e-6)
        else:
            assert decision.sgamma is None

    def names_the_largest(self, decision: AdmissionDecision, curves: dict[str, Curve], k: int) -> None:
        by_mean = sorted(curves, key=lambda name: -curves[name].mean[k])
        by_variance = sorted(curves, key=lambda name: -curves[name].variance[k])
        assert [part.deployment_id for part in decision.top_expected] == by_mean
        assert [part.deployment_id for part in decision.top_variance] == by_variance
        assert decision.top_expected[0].amount == pytest.approx(curves[by_mean[0]].mean[k], rel=1e-9)

    def test_says_who_asked_under_which_rule_and_when(self, make: Make) -> None:
        service = make()
        found = service.answer([ask("shop", 10, requested_by="ada")])[0]
        assert (found.decision_id, found.cluster, found.deployment_id, found.cores) == ("main-a1", "main", "shop", 10)
        assert (found.at, found.requested_by, found.policy) == (START, "ada", "second:2.2")
        assert (found.kappa, found.threshold_cores, found.capacity_cores) == (2.2, None, 1000)
        assert (found.total_cores, found.live, found.reason) == (0, 0, Reason.ADMITTED)
        assert found.prior.kind is PriorKind.POPULATION
        assert found.config_hash == service.rules.config_hash != rules(kappa=2.3).config_hash
        assert found.evaluation_us > 0.0

    def test_is_found_again_by_its_id_after_a_restart(self, make: Make) -> None:
        made = [make().answer([ask(f"d{n}", 300, SEEN)])[0] for n in range(6)]
        assert {decision.reason for decision in made} >= {Reason.ADMITTED, Reason.REJECTED_FEASIBILITY}
        assert [recorded(make(), decision.decision_id) for decision in made] == made
        assert make().newest(limit=2) == (made[5], made[4])
        assert make().newest(deployment_id="d3") == (made[3],)

    def test_names_at_most_five_contributors(self, make: Make) -> None:
        service = make(capacity_cores=20_000)
        admitted(service, 8)
        found = service.answer([ask("new", 11)])[0]
        assert len(found.top_expected) == len(found.top_variance) == 5
        assert found.top_expected[0].deployment_id == "new"


def third_of(curve: Curve) -> Any:
    assert curve.third is not None
    return curve.third


class TestARefusal:
    def test_by_feasibility_looks_at_no_future(self, make: Make) -> None:
        service = make(policy=PolicyKind.ZEROTH, threshold_cores=1001.0, kappa=None)
        service.answer([ask("a", 990)])
        found = service.answer([ask("b", 11)])[0]
        assert (found.reason, found.binding_hours) == (Reason.REJECTED_FEASIBILITY, None)
        assert figures(found.detail) == [990, 1000, 11]
        assert service.answer([ask("c", 10)])[0].admit

    @pytest.mark.parametrize(("limit", "shown"), [(0.8, "0.8"), (1.0, "1"), (0.05, "0.05")])
    def test_by_a_threshold_names_it_unrounded(self, make: Make, limit: float, shown: str) -> None:
        found = make(policy=PolicyKind.ZEROTH, threshold_cores=limit, kappa=None).answer([ask("a", 1)])[0]
        assert (found.reason, found.detail.endswith(f">= threshold {shown}")) == (
            Reason.REJECTED_RULE,
            True,
        )

    def test_of_one_larger_than_the_cluster_says_so(self, make: Make) -> None:
        found = make().answer([ask("b", 1001)])[0]
        assert found.reason is Reason.REJECTED_FEASIBILITY
        assert figures(found.detail) == [1001, 1000]

    def test_by_the_rule_leaves_the_cluster_as_it_was(self, make: Make, clock: VirtualClock) -> None:
        service = make()
        count = admitted(service, 40)
        assert 3 < count < 40
        found = service.answer([ask("more", 10)])[0]
        assert (found.reason, found.admit, found.total_cores) == (Reason.REJECTED_RULE, False, 10 * count)
        assert found.slack_cores is not None
        assert found.slack_cores < 0.0
        assert service.gauges(clock.now()).total_cores == 10 * count
        assert service.gauges(clock.now()).safe

    def test_by_an_unsafe_cluster_is_told_apart_with_the_first_horizon_that_fails(
        self, make: Make, clock: VirtualClock
    ) -> None:
        service = make()
        for n in range(60):
            service.observe([event(f"d{n}", "started", 10)])
        found = service.answer([ask("new", 1)])[0]
        gauges = service.gauges(clock.now())
        assert found.reason is Reason.REJECTED_UNSAFE
        assert not gauges.safe
        assert found.binding_hours == gauges.unsafe_from_hours
        horizons_h = horizons_of(service.rules)
        alone = moments_of(K, fresh(10), horizons_h, "ab_fast")
        fails = 60 * alone.mean + 2.2 * np.sqrt(60 * alone.variance) > 1000.0
        assert found.binding_hours == pytest.approx(horizons_h[np.flatnonzero(fails)[0]])
        assert found.top_expected[0].deployment_id != "new"
        assert [alarm.reason for alarm in service.alarms()] == [Reason.REJECTED_UNSAFE]

    @pytest.mark.parametrize(
        ("field", "request_of"),
        [
            ("core_hours", lambda: ask("x", 5, Prior(deaths=3.0))),
            ("label", lambda: ask("x", 5, Prior(label="a"), Prior(label="a"))),
        ],
    )
    def test_by_a_value_that_cannot_be_names_the_field_and_is_recorded(
        self, make: Make, field: str, request_of: Any
    ) -> None:
        service = make()
        found = service.answer([request_of()])[0]
        assert (found.reason, found.admit) == (Reason.REJECTED_INPUT, False)
        assert found.detail.startswith(f"{field} is ")
        assert recorded(service, found.decision_id) == found
        assert service.deployments() == ()

    @pytest.mark.parametrize(
        ("field", "body"),
        [
            ("cores", {"cores": 0}),
            ("cores", {"cores": -1}),
            ("cores", {"cores": 2.5}),
            ("cores", {"cores": float("nan")}),
            ("cores", {"cores": True}),
            ("cores", {"cores": "5"}),
            ("cores", {"cores": 10**9}),
            ("deployment_id", {"deployment_id": ""}),
            ("deployment_id", {"deployment_id": "a\nb"}),
            ("deaths", {"observations": [{"deaths": -1.0}]}),
            ("core_hours", {"observations": [{"core_hours": float("inf")}]}),
            ("gap_hours", {"observations": [{"gap_hours": float("nan")}]}),
            ("size_draws", {"observations": [{"size_draws": "1"}]}),
            ("weight", {"observations": [{"weight": 0.0}]}),
            ("weigth", {"observations": [{"weigth": 1.0}]}),
            ("observations", {"observations": [{"label": str(n)} for n in range(9)]}),
            ("requested_by", {"requested_by": "a" * 201}),
            ("label", {"label": "a b"}),
            ("owner", {"owner": "x" * 65}),
            ("color", {"color": "red"}),
        ],
    )
    def test_by_a_value_that_cannot_be_is_no_request(self, field: str, body: dict[str, Any]) -> None:
        with pytest.raises(ValidationError) as caught:
            AdmissionRequest.model_validate({"deployment_id": "x", "cores": 5, **body})
        assert [error["loc"][-1] for error in caught.value.errors()] == [field]

    def test_of_one_that_is_inside_already(self, make: Make) -> None:
        service = make()
        service.observe([event("shop", "started", 4)])
        found = service.answer([ask("shop", 10)])[0]
        assert found.reason is Reason.REJECTED_INPUT
        assert figures(found.detail) == [4]


class TestRules:
    def test_kappa_and_its_risk_decide_alike(self, make: Make) -> None:
        by_kappa = make(name="one", kappa=kappa_of(0.17))
        by_risk = make(name="two", kappa=None, risk=0.17)
        answers = [[one(service, n).admit for n in range(25)] for service in (by_kappa, by_risk)]
        assert answers[0] == answers[1]
        assert {True, False} == set(answers[0])

    def test_no_kappa_at_all_is_the_first_moment_with_the_capacity(self, make: Make) -> None:
        second = make(name="one", kappa=0.0)
        first = make(name="two", policy=PolicyKind.FIRST, threshold_cores=1000.0, kappa=None)
        answers = [[one(service, n, 70).admit for n in range(16)] for service in (second, first)]
        assert answers[0] == answers[1]
        assert {True, False} == set(answers[0])

    def test_zeroth_with_one_core_more_than_the_capacity_admits_whatever_fits(self, make: Make) -> None:
        service = make(policy=PolicyKind.ZEROTH, threshold_cores=1001.0, kappa=None)
        assert admitted(service, 12, 90) == 11
        assert service.answer([ask("rest", 10)])[0].admit

    def test_zeroth_does_not_let_the_threshold_be_reached(self, make: Make) -> None:
        service = make(policy=PolicyKind.ZEROTH, threshold_cores=100.0, kappa=None)
        assert service.answer([ask("a", 90)])[0].admit
        assert service.answer([ask("b", 10)])[0].reason is Reason.REJECTED_RULE
        assert service.answer([ask("c", 9)])[0].admit
        assert service.answer([ask("d", 1)])[0].reason is Reason.REJECTED_RULE

    def test_zeroth_at_its_threshold_without_the_newcomer_is_unsafe(self, make: Make) -> None:
        service = make(policy=PolicyKind.ZEROTH, threshold_cores=100.0, kappa=None)
        service.observe([event("a", "started", 99)])
        assert service.answer([ask("b", 1)])[0].reason is Reason.REJECTED_RULE
        service.observe([event("a", "scaled", 1)])
        assert service.answer([ask("c", 1)])[0].reason is Reason.REJECTED_UNSAFE

    def test_zeroth_with_a_threshold_beyond_the_capacity_admits_what_fits_and_no_more(self, make: Make) -> None:
        service = make(policy=PolicyKind.ZEROTH, threshold_cores=2000.0, kappa=None)
        service.answer([ask("a", 990)])
        assert service.answer([ask("b", 11)])[0].reason is Reason.REJECTED_FEASIBILITY
        assert service.answer([ask("c", 10)])[0].admit

    def test_a_threshold_of_nothing_admits_nothing(self, make: Make) -> None:
        service = make(policy=PolicyKind.ZEROTH, threshold_cores=0.0, kappa=None)
        found = service.answer([ask("a", 1)])[0]
        assert (found.admit, found.reason) == (False, Reason.REJECTED_UNSAFE)

    def test_sgamma_keeps_its_risk_at_every_horizon(self, make: Make) -> None:
        service = make(policy=PolicyKind.SGAMMA, risk=0.02, kappa=None)
        count = admitted(service, 60)
        found = service.answer([ask("more", 10)])[0]
        assert 3 < count < 60
        assert found.reason is Reason.REJECTED_RULE
        assert found.sgamma is not None
        assert found.sgamma > 0.02
        last = recorded(service, f"main-a{count}")
        assert last.admit
        assert last.sgamma is not None
        assert last.sgamma <= 0.02

    def test_gamma_keeps_its_risk_and_says_the_chance_that_it_found(self, make: Make) -> None:
        service = make(policy=PolicyKind.GAMMA, risk=0.02, kappa=None)
        count = admitted(service, 60)
        found = service.answer([ask("more", 10)])[0]
        assert 3 < count < 60
        assert found.reason is Reason.REJECTED_RULE
        said = re.search(r"more than 1,000 is (\S+); limit 0.02", found.detail)
        assert said is not None
        assert found.expected_cores is not None
        assert found.sd_cores is not None
        tail = gamma_tail(found.expected_cores, found.sd_cores**2, 1000.0)
        assert tail > 0.02
        assert float(said[1]) == pytest.approx(tail, rel=0.05)

    def test_a_budget_says_which_share_of_requests_would_fail(self, make: Make) -> None:
        service = make(policy=PolicyKind.BUDGET, risk=0.02, kappa=None)
        count = admitted(service, 60)
        found, last = service.answer([ask("more", 10)])[0], recorded(service, f"main-a{count}")
        assert 3 < count < 60
        assert found.reason is Reason.REJECTED_RULE
        shares = [re.search(r": (\S+) of future requests would fail", one.detail) for one in (found, last)]
        assert all(shares)
        too_many, few = (float(share[1]) for share in shares if share is not None)
        assert few <= 0.02 < too_many

    def test_a_budget_with_feedback_shrinks_as_requests_are_refused_and_outlives_a_restart(
        self, make: Make, clock: VirtualClock
    ) -> None:
        terms: dict[str, Any] = {"policy": PolicyKind.BUDGET, "risk": 0.5, "kappa": None, "feedback": True, "sla": 0.1}
        service = make(**terms)
        assert service.answer([ask("a", 20)])[0].admit
        service.observe([event("a", "started", 20)])
        for n in range(9):
            service.observe([event("a", "scaled", 1, START + n)])
        assert service.answer([ask("b", 20)])[0].admit
        # One of ten: all that a promise of a tenth permits, in last month's or this one's.
        service.observe([event("a", "refused", 1, START + 10)])
        clock.step(40 * 24 * HOUR_S)
        for asked in (service, make(**terms)):
            found = asked.answer([ask("c", 20)])[0]
            assert found.reason is Reason.REJECTED_UNSAFE
            assert "; limit 0" in found.detail

    def test_the_same_threshold_takes_the_place_of_the_capacity(self, make: Make) -> None:
        small, large = make(name="one", capacity_cores=700), make(name="two", threshold_cores=700.0)
        assert [one(small, n).admit for n in range(20)] == [one(large, n).admit for n in range(20)]

    def test_a_factor_of_far_bands_below_one_admits_more(self, make: Make) -> None:
        assert admitted(make(name="main", band_factor=0.7), 40) > admitted_by(make(name="two"), 40)

    def test_the_rule_of_the_domain_agrees_on_every_one_of_many(self, make: Make) -> None:
        service = make(tolerance=0.0)
        horizons_h = horizons_of(service.rules)
        sizes = [3, 40, 1, 7, 90, 2, 15, 60, 5, 5, 30, 1, 1, 80, 9]
        mean, variance = np.zeros(horizons_h.size), np.zeros(horizons_h.size)
        for n, cores in enumerate(sizes):
            curve = moments_of(K, fresh(cores), horizons_h, "ab_fast")
            kappas = np.full(horizons_h.size, 2.2)
            refused = second_refusal(mean, variance, curve.mean, curve.variance, kappas, 1000.0, 0.0, 0) >= 0
            assert service.answer([ask(f"d{n}", cores)])[0].admit == (not refused)
            if not refused:
                mean, variance = mean + curve.mean, variance + curve.variance


def one(service: AdmissionService, n: int, cores: int = 10) -> AdmissionDecision:
    return service.answer([ask(f"d{n}", cores)])[0]


def admitted_by(service: AdmissionService, count: int) -> int:
    return sum(one(service, n).admit for n in range(count))


class TestTheMarginalHeuristic:
    SMALL = Prior(deaths=50, core_hours=40.0, scale_outs=0, gap_hours=5000.0, extra_cores=0, size_draws=50)

    def overfull(self, service: AdmissionService) -> AdmissionService:
        for n in range(40):
            service.observe([event(f"d{n}", "started", 10)])
        assert service.answer([ask("other", 1)])[0].reason is Reason.REJECTED_UNSAFE
        return service

    def test_lets_in_what_will_be_gone_before_it_is_tight(self, make: Make) -> None:
        found = self.overfull(make()).answer([ask("batch", 4, self.SMALL)])[0]
        assert (found.admit, found.prior.kind) == (True, PriorKind.OBSERVATIONS)
        assert "three_years" in found.marginal_bands
        assert found.binding_band not in ("year", "three_years")
        assert found.prior.observations == 50

    def test_switched_off_lets_it_wait(self, make: Make) -> None:
        found = self.overfull(make(marginal_cores=0.0)).answer([ask("batch", 4, self.SMALL)])[0]
        assert (found.reason, found.marginal_bands) == (Reason.REJECTED_UNSAFE, ())

    def test_changes_nothing_without_prior_observations(self, make: Make) -> None:
        def numbers(name: str, cores: float) -> list[Any]:
            service = make(name=name, marginal_cores=cores)
            made = [one(service, n, 1 + n % 7) for n in range(30)]
            return [(d.admit, d.slack_cores, d.expected_cores, d.sd_cores, d.marginal_bands) for d in made]

        assert numbers("with", 1.0) == numbers("without", 0.0)


class TestAskedAgain:
    def test_a_refusal_too(self, make: Make) -> None:
        first = make().answer([ask("shop", 1001, request_id="r1")])[0]
        assert make().answer([ask("shop", 1001, request_id="r1")])[0] == first

    def test_while_admitted_and_not_started_gets_the_same_decision(self, make: Make, clock: VirtualClock) -> None:
        service = make()
        first = service.answer([ask("shop", 10)])[0]
        assert service.answer([ask("shop", 10)])[0] == first
        assert service.gauges(clock.now()).total_cores == 10
        assert service.answer([ask("shop", 11)])[0].reason is Reason.REJECTED_INPUT

    def test_within_one_batch_counts_once(self, make: Make, clock: VirtualClock) -> None:
        service = make()
        both = service.answer([ask("shop", 10, request_id="r1"), ask("shop", 10, request_id="r1")])
        assert both[0] == both[1]
        assert service.gauges(clock.now()).total_cores == 10


def test_a_batch_decides_in_its_order_as_one_by_one(make: Make) -> None:

    service, other = make(name="main"), make(name="two")
    at_once = service.answer([ask(f"d{n}", 40) for n in range(20)])
    singly = [one(other, n, 40) for n in range(20)]
    assert [(d.admit, d.expected_cores, d.total_cores) for d in at_once] == [
        (d.admit, d.expected_cores, d.total_cores) for d in singly
    ]
    assert {d.admit for d in at_once} == {True, False}
    assert replace(at_once[0], evaluation_us=0.0).decision_id == "main-a1"


def test_an_empty_cluster_takes_the_first_and_a_far_future_at_most_its_mean(make: Make) -> None:
    found = make().answer([ask("first", 1)])[0]
    assert (found.admit, found.live, found.total_cores) == (True, 0, 0)
    assert [part.deployment_id for part in found.top_expected] == ["first"]
