"""A cluster's rule as settings give it: its defaults, what follows from it, and what is refused."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from domain.errors import BadInput
from domain.rules.admission.cluster import ClusterRules, Moments, PolicyKind, terms_of
from domain.rules.admission.population import POPULATIONS
from domain.rules.admission.rule import kappa_of, rule_of

SECOND = ClusterRules("main", 1000, POPULATIONS["K"], PolicyKind.SECOND, kappa=2.0)


def test_what_is_not_given_has_the_documented_default() -> None:
    given = {"name", "capacity_cores", "population", "policy", "kappa"}
    assert {name: value for name, value in asdict(SECOND).items() if name not in given} == {
        "threshold_cores": None,
        "risk": None,
        "band_factor": 1.0,
        "bands": None,
        "feedback": False,
        "moments": Moments.AB,
        "fresh": None,
        "conjugate": False,
        "marginal_cores": 1.0,
        "sla": 1e-3,
        "tolerance": 0.1,
        "dead_band_cores": 1.0,
        "start_within_s": 3600.0,
        "horizons": 32,
        "paper_grid": False,
        "labels": False,
        "label_half_life_days": 90.0,
    }


def test_kappa_shrinks_beyond_a_month_by_the_factor_and_beyond_a_year_by_its_square() -> None:
    assert SECOND.kappa_factors == (1.0, 1.0, 1.0, 1.0, 1.0)
    assert replace(SECOND, band_factor=0.5).kappa_factors == (1.0, 1.0, 1.0, 0.5, 0.25)
    assert replace(SECOND, band_factor=0.5, bands=(1.0, 0.9, 0.8, 0.7, 0.6)).kappa_factors == (1.0, 0.9, 0.8, 0.7, 0.6)


def test_the_limit_is_the_threshold_where_there_is_one_and_else_the_capacity() -> None:
    assert SECOND.limit_cores == 1000.0
    assert replace(SECOND, threshold_cores=750.0).limit_cores == 750.0


def test_kappa_is_given_or_follows_from_the_risk() -> None:
    by_risk = replace(SECOND, kappa=None, risk=0.2)
    assert (SECOND.standard_deviations, by_risk.standard_deviations) == (2.0, kappa_of(0.2))
    assert replace(SECOND, policy=PolicyKind.ZEROTH, kappa=None, threshold_cores=9.0).standard_deviations is None


def test_a_rule_is_named_with_its_number() -> None:
    assert SECOND.text == "second:2"
    assert replace(SECOND, kappa=None, policy=PolicyKind.FIRST, threshold_cores=520.0).text == "first:520"
    assert replace(SECOND, kappa=None, policy=PolicyKind.BUDGET, risk=0.08).text == "budget:0.08"


def test_any_change_of_the_rules_changes_their_hash() -> None:
    hashes = {SECOND.config_hash, replace(SECOND, kappa=2.1).config_hash, replace(SECOND, sla=2e-3).config_hash}
    assert len(hashes) == 3
    assert all(len(text) == 16 and set(text) <= set("0123456789abcdef") for text in hashes)
    assert replace(SECOND).config_hash == SECOND.config_hash


@pytest.mark.parametrize("kind", list(PolicyKind))
def test_rules_that_bound_a_chance_need_one_and_two_of_them_a_third_moment(kind: PolicyKind) -> None:
    assert kind.by_risk == (kind.value in {"sgamma", "gamma", "budget"})
    assert kind.wants_third == (kind.value in {"sgamma", "budget"})


def test_only_both_forms_of_ab_have_third_moments() -> None:
    assert [one.value for one in Moments if one.has_third] == ["ab", "ab_fast"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"capacity_cores": 0}, "capacity_cores"),
        ({"capacity_cores": 10.5}, "capacity_cores"),
        ({"capacity_cores": True}, "capacity_cores"),
        ({"capacity_cores": math.inf}, "capacity_cores"),
        ({"sla": 0.0}, "sla"),
        ({"sla": 1.0}, "sla"),
        ({"policy": PolicyKind.ZEROTH, "kappa": None}, "threshold_cores"),
        ({"policy": PolicyKind.FIRST, "kappa": None}, "threshold_cores"),
        ({"threshold_cores": math.nan}, "threshold_cores"),
        ({"kappa": -0.1}, "kappa"),
        ({"kappa": math.inf}, "kappa"),
        ({"kappa": None}, "kappa"),
        ({"risk": 0.1}, "kappa"),
        ({"kappa": None, "risk": 0.0}, "risk"),
        ({"kappa": None, "risk": 1.0}, "risk"),
        ({"policy": PolicyKind.GAMMA, "kappa": None}, "risk"),
        ({"policy": PolicyKind.SGAMMA, "kappa": None, "risk": 0.1, "moments": Moments.NA}, "moments"),
        ({"policy": PolicyKind.BUDGET, "kappa": None, "risk": 0.1, "fresh": Moments.PAPER}, "moments"),
        ({"bands": (1.0, 1.0, 1.0, 1.0)}, "bands"),
        ({"bands": (1.0, 1.0, 1.0, 1.0, -0.1)}, "bands"),
        ({"band_factor": -0.1}, "band_factor"),
        ({"marginal_cores": math.nan}, "marginal_cores"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"dead_band_cores": math.inf}, "dead_band_cores"),
        ({"start_within_s": 0.0}, "start_within_s"),
        ({"start_within_s": math.inf}, "start_within_s"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        replace(SECOND, **changes)
    assert str(refused.value).startswith(field)


def test_the_least_of_each_is_taken() -> None:
    least = replace(
        SECOND, capacity_cores=1, kappa=0.0, band_factor=0.0, marginal_cores=0.0, tolerance=0.0, dead_band_cores=0.0
    )
    assert least.bands is None
    assert replace(SECOND, bands=(0.0,) * 5).kappa_factors == (0.0,) * 5


def test_a_rule_written_as_text_fills_every_term() -> None:
    terms = terms_of(rule_of("second:2,bands=1/1/1/0.5/0.25,moments=na,belief=conjugate,marginal=3,tol=0.2,grid=paper"))
    assert (terms["policy"], terms["kappa"], terms["risk"]) == (PolicyKind.SECOND, 2.0, None)
    assert (terms["moments"], terms["fresh"], terms["conjugate"]) == (Moments.NA, None, True)
    assert (terms["bands"], terms["marginal_cores"], terms["tolerance"]) == ((1.0, 1.0, 1.0, 0.5, 0.25), 3.0, 0.2)
    assert terms["paper_grid"] is True
    budget = terms_of(rule_of("budget:0.1,feedback=yes"))
    assert (budget["policy"], budget["kappa"], budget["risk"], budget["feedback"]) == ("budget", None, 0.1, True)
    assert (budget["conjugate"], budget["paper_grid"]) == (False, False)
    assert set(terms) <= set(asdict(SECOND))
