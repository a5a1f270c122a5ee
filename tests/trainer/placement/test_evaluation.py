"""Figures of an evaluation come from checked packings on the same orders, and stand beside the bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.placement.instance import Instance, Release, Request
from domain.rules.placement.policies import BF, FF, WF, Policy
from simulator.placement import engine, instances
from trainer.placement import evaluation, report
from trainer.placement.evaluation import Comparison, evaluate
from trainer.placement.exact import violations

SHUFFLES = tuple(range(8))


def compared(
    instance: Instance, learned: Mapping[str, Policy], shuffles: tuple[int, ...] = ()
) -> evaluation.Evaluation:
    (one,) = evaluate([Comparison(instance, learned, shuffles, hand=False)])
    return one


@pytest.fixture(scope="module")
def s1() -> evaluation.Evaluation:
    learned = {"again": replace(WF, name="again")}
    return compared(instances.s1(), learned, SHUFFLES)


def test_fixtures_of_s1_come_out(s1: evaluation.Evaluation) -> None:
    """§6.1: FF 20, BF 20, DP 17, WF 17, BF-cpu 20, lower bound and optimum 15."""
    hosts = {one.policy: one.nominal.hosts for one in s1.figures}
    assert {name: hosts[name] for name in ("FF", "BF", "BF-cpu", "DP", "WF")} == {
        "FF": 20, "BF": 20, "BF-cpu": 20, "DP": 17, "WF": 17,
    }  # fmt: skip
    assert s1.bound.hosts == 15
    assert s1.optimum is not None
    assert (s1.optimum.hosts, s1.optimum.optimal) == (15, True)


def test_figures_are_those_of_the_shuffles(s1: evaluation.Evaluation) -> None:
    """Mean, quantiles, range, rates, gap and the paired difference, of hosts played once more."""
    base = instances.s1()
    hosts, best = (
        np.array([engine.play(instances.shuffled(base, k), policy).hosts for k in SHUFFLES]) for policy in (WF, BF)
    )
    data = s1.of("WF").as_data()
    assert data["by_shuffle"] == hosts.tolist()
    assert (data["mean"], data["min"], data["max"]) == (hosts.mean(), hosts.min(), hosts.max())
    assert data["range"] == hosts.max() - hosts.min()
    assert data["standard_error"] == pytest.approx(hosts.std(ddof=1) / np.sqrt(8))
    assert data["rates"]["cores"] == pytest.approx(np.mean(1360 / (96 * hosts)))
    assert data["rates"]["memory_gib"] == pytest.approx(np.mean(2720 / (512 * hosts)))
    assert data["gap"] == pytest.approx(hosts.mean() / 15 - 1)
    assert data["to_best_fit"]["mean"] == pytest.approx((hosts - best).mean())
    assert data["to_best_fit"]["low"] <= data["to_best_fit"]["mean"] <= data["to_best_fit"]["high"]
    assert data["rejected"] == 0
    assert s1.of("BF").to_reference == (0.0, 0.0, 0.0)


def test_the_packing_shown_is_that_of_the_given_order_and_keeps_the_rules(s1: evaluation.Evaluation) -> None:
    for one in s1.figures:
        assert violations(instances.s1(), one.packing) == []
        assert one.packing.opened == one.nominal.hosts


def test_hand_is_tuned_on_the_given_order_alone() -> None:
    """It gets below best fit there, by at most 200 plays of that order."""
    s1 = instances.s1()
    hand = evaluation.tuned_by_hand(s1)
    assert engine.play(s1, hand).hosts < engine.play(s1, BF).hosts
    assert hand == evaluation.tuned_by_hand(s1)


def test_the_best_known_packing_is_a_policys_where_that_opens_fewer_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = replace(evaluation.solve(instances.s1()), hosts=18, bound=15)
    monkeypatch.setattr(evaluation, "solve", lambda _: solved)
    found = compared(instances.s1(), {})
    assert found.optimum is not None
    assert (found.optimum.hosts, found.optimum.method, found.optimum.optimal) == (16, "RESERVE(100, 8, 10)", False)
    assert found.optimum.packing.opened == 16


def test_a_wrong_packing_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulator that puts two containers where they may not be meets the checker."""
    real = engine.play

    def wrong(*arguments: object, **options: object) -> engine.Outcome:
        outcome = real(*arguments, **options)
        return replace(outcome, host=np.where(outcome.host == 1, 0, outcome.host))

    monkeypatch.setattr(engine, "play", wrong)
    with pytest.raises(evaluation.FigureWrong, match="FF on S1"):
        compared(instances.s1(), {})


def test_hosts_counted_wrongly_are_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine.play
    monkeypatch.setattr(engine, "play", lambda *a, **b: (lambda o: replace(o, hosts=o.hosts - 1))(real(*a, **b)))
    with pytest.raises(evaluation.FigureWrong, match="are counted wrongly"):
        compared(instances.s1(), {})


SMALL = instances.small(2)
KINDS = {
    "two sizes of hosts": replace(SMALL, hosts=instances.hetero(2).hosts),
    "a cluster that is filled": instances.taken_over(SMALL, 0.7),
    "too few hosts": replace(SMALL, hosts=(replace(SMALL.hosts[0], count=12),)),
    "releases": replace(SMALL, releases=tuple(Release(one.name, 0, 1.0) for one in SMALL.requests[:9])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_instance_is_evaluated(kind: str) -> None:
    """Each beside its bound, in as many orders as it has; no method knows the optimum of these."""
    made = KINDS[kind]
    shuffles = () if made.releases else (0, 1)
    found = compared(made, {}, shuffles)
    data = found.of("FF").as_data()
    assert found.optimum is None
    assert (data["mean"] >= found.bound.hosts) == (kind != "too few hosts")
    assert (data["rejected"] > 0) == (kind == "too few hosts")
    assert len(data["by_shuffle"]) == len(shuffles)
    assert (data["host_hours"] is not None) == (found.bound_hours is not None) == (kind == "releases")
    json.dumps(found.as_data(), allow_nan=False)


def test_where_containers_end_host_hours_stand_beside_peaks_and_their_bound() -> None:
    """Hosts of one container: an hour of one, an hour of two, and what runs after the last arrival does not count."""
    app = replace(SMALL.applications[0], name="a", demand=SMALL.hosts[0].capacity, excludes=frozenset())
    requests = tuple(Request(f"r{k}", "a", 1, 3600.0 * k) for k in range(3))
    releases = (Release("r0", 0, 5400.0), Release("r1", 0, 90_000.0))
    made = replace(SMALL, applications=(app,), requests=requests, releases=releases)
    found = compared(made, {})
    assert found.bound_hours == pytest.approx(2.5)
    assert {one.policy for one in found.figures} >= {"oldest", "lifetime"}
    assert {(one.nominal.hosts, one.nominal.host_hours) for one in found.figures} == {(2, 2.5)}


def test_labels_that_are_taken_and_orders_that_there_are_not_are_refused() -> None:
    with pytest.raises(BadInput, match="these are taken: FF, BF"):
        compared(instances.s1(), {"FF": FF})
    with pytest.raises(BadInput, match="its own order is played"):
        compared(instances.churn(1), {}, (0,))


def test_the_report_has_the_figures_and_the_pictures(s1: evaluation.Evaluation, tmp_path: Path) -> None:
    """One page that needs nothing beside it; the same packing gives the same picture."""
    files = report.write(tmp_path / "a", [s1], {"again": ["S1", "pso", "1 s"]})
    page = files[0].read_text("utf-8")
    assert "fewer than <b>15</b>" in page
    assert page.count("<svg") == 5
    assert "168 containers in 30" in page
    assert ">optimal<" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    summary = json.loads(files[1].read_text("utf-8"))
    assert summary["evaluations"][0]["policies"][1]["nominal"] == 20
    packing = s1.of("BF").packing
    assert report.packing_picture(s1.instance, packing) == report.packing_picture(s1.instance, packing)


def test_cores_of_a_picture_are_those_of_the_hosts(s1: evaluation.Evaluation) -> None:
    used = report.used(instances.s1(), s1.of("BF").packing)
    assert used.sum() == 1360
    assert (used.sum(axis=1) <= 96).all()
