"""A rule is a text: its kind, its threshold, and settings by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from domain.rules.admission.rule import KINDS, METHODS, Rule, rule_of


def test_each_kind_takes_its_threshold_first() -> None:
    assert rule_of("zeroth:14000") == Rule("zeroth", 14000.0)
    assert rule_of("first:16000") == Rule("first", 16000.0)
    assert rule_of("second:2.5") == Rule("second", None, 2.5)
    assert rule_of("gamma:1e-3") == Rule("gamma", risk=1e-3)
    assert rule_of("sgamma:1e-4") == Rule("sgamma", risk=1e-4)
    assert rule_of("budget:3e-4") == Rule("budget", risk=3e-4)


def test_a_threshold_may_be_given_by_its_name() -> None:
    assert rule_of("zeroth:limit=14000") == rule_of("zeroth:threshold=14000") == rule_of("zeroth:14000")
    assert rule_of("second:kappa=2.5,threshold=900") == Rule("second", 900.0, 2.5)
    assert rule_of("gamma:p=1e-3") == rule_of("gamma:1e-3")
    assert rule_of("budget:share=3e-4") == rule_of("budget:3e-4")


def test_a_risk_gives_kappa_by_cantellis_bound() -> None:
    assert rule_of("second:p=0.1") == Rule("second", None, 3.0)
    assert rule_of("second:p=1") == Rule("second", None, 0.0)
    with pytest.raises(BadInput, match="give kappa or p, not both"):
        rule_of("second:2.5,p=0.1")


def test_every_other_setting_goes_by_its_name() -> None:
    text = "second:2,marginal=1,tol=0.3,dead_band=6,reuse=2,grid=paper,moments=ab,belief=conjugate,fresh=na,a=0.5"
    assert rule_of(text) == Rule(
        "second",
        None,
        2.0,
        (1.0, 1.0, 1.0, 0.5, 0.25),
        marginal_cores=1.0,
        grid="paper",
        tolerance=0.3,
        dead_band_cores=6.0,
        reuse_h=2.0,
        moments="ab",
        belief="conjugate",
        fresh="na",
    )


def test_what_a_text_does_not_say_is_the_callers() -> None:
    rule = rule_of("first:9", tolerance=0.3, dead_band_cores=6.0)
    assert (rule.tolerance, rule.dead_band_cores, rule.reuse_h, rule.marginal_cores) == (0.3, 6.0, 6.0, 0.0)
    own = rule_of("first:9,tol=0,dead_band=0", tolerance=0.3, dead_band_cores=6.0)
    assert (own.tolerance, own.dead_band_cores) == (0.0, 0.0)
    usual = rule_of("first:9")
    assert (usual.tolerance, usual.dead_band_cores, usual.grid) == (0.1, 1.0, "log")
    assert (usual.moments, usual.belief, usual.fresh, usual.feedback) == ("ab_fast", "exact", "", False)


def test_bands_are_five_factors() -> None:
    assert rule_of("second:2,bands=1/0.9/0.8/0.7/0").bands == (1.0, 0.9, 0.8, 0.7, 0.0)
    for wrong in ("second:2,bands=1/1/1/1", "second:2,bands=1/1/1/1/1/1"):
        with pytest.raises(BadInput, match="give five factors"):
            rule_of(wrong)
    with pytest.raises(BadInput, match="give bands or a, not both"):
        rule_of("second:2,a=1,bands=1/1/1/1/1")


@pytest.mark.parametrize(("word", "on"), [("yes", True), ("1", True), ("no", False), ("0", False)])
def test_feedback_is_yes_or_no(word: str, on: bool) -> None:
    assert rule_of(f"budget:1e-3,feedback={word}").feedback is on
    with pytest.raises(BadInput, match="give feedback=yes or feedback=no"):
        rule_of("budget:1e-3,feedback=maybe")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("third:1", "begin with one of zeroth, first, second, gamma, sgamma, budget"),
        ("", "begin with one of"),
        ("second:a=1,2.5", "put the threshold first"),
        ("second:2.5,3", "put the threshold first"),
        ("second:2.5,share=1", "share is not a setting of second"),
        ("zeroth:9,p=0.1", "p is not a setting of zeroth"),
        ("gamma:0.1,feedback=yes", "feedback is not a setting of gamma"),
        ("second:2,tol=1,tol=2", "give tol once"),
        ("second:2,threshold=1,limit=2", "give limit once"),
        ("second:two", "'two' is not a number"),
        ("second:2,bands=1/1/one/1/1", "'one' is not a number"),
        ("zeroth:", "give limit, such as zeroth:14000"),
        ("first", "give limit, such as first:16000"),
        ("second:", "give kappa, such as second:2.5 or second:p=0.1"),
        ("gamma:", "give p, such as gamma:1e-4"),
        ("sgamma:tol=1", "give p, such as sgamma:1e-4"),
        ("budget:", "give share, such as budget:3e-4"),
    ],
)
def test_a_text_that_is_no_rule_is_refused_with_a_remedy(text: str, remedy: str) -> None:
    with pytest.raises(BadInput) as caught:
        rule_of(text)
    assert caught.value.field == "policy"
    assert remedy in caught.value.remedy


SECOND = Rule("second", None, 2.0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "third"}, "policy"),
        ({"kind": "zeroth"}, "limit"),
        ({"kind": "first"}, "limit"),
        ({"limit": math.inf}, "limit"),
        ({"limit": math.nan}, "limit"),
        ({"kappa": -0.1}, "policy"),
        ({"kappa": math.inf}, "policy"),
        ({"bands": (1.0, 1.0, -1.0, 1.0, 1.0)}, "policy"),
        ({"marginal_cores": -1.0}, "policy"),
        ({"tolerance": math.nan}, "policy"),
        ({"dead_band_cores": -1.0}, "policy"),
        ({"reuse_h": math.inf}, "policy"),
        ({"risk": -1e-9}, "risk"),
        ({"risk": 1.0 + 1e-9}, "risk"),
        ({"risk": math.nan}, "risk"),
        ({"grid": "linear"}, "grid"),
        ({"grid": ""}, "grid"),
        ({"moments": "exact"}, "moments"),
        ({"belief": ""}, "belief"),
        ({"fresh": "new"}, "fresh"),
        ({"kind": "sgamma", "moments": "na"}, "moments"),
        ({"kind": "budget", "moments": "paper"}, "moments"),
        ({"kind": "budget", "fresh": "na"}, "moments"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_field(changes: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        replace(SECOND, **changes)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_the_ends_of_each_range_belong_to_it() -> None:
    for changes in (
        {"risk": 0.0},
        {"risk": 1.0},
        {"kappa": 0.0},
        {"limit": -5.0},
        {"tolerance": 0.0},
        {"reuse_h": 0.0},
    ):
        replace(SECOND, **changes)
    for kind in ("sgamma", "budget"):
        assert replace(SECOND, kind=kind, moments="ab", fresh="ab_fast").wants_third


@pytest.mark.parametrize("kind", KINDS)
def test_all_but_zeroth_look_ahead_and_two_want_a_third_moment(kind: str) -> None:
    rule = Rule(kind, 1.0)
    assert rule.looks_ahead is (kind != "zeroth")
    assert rule.wants_third is (kind in {"sgamma", "budget"})


_NUMBER = st.floats(0.0, 1e6)


@given(_NUMBER, _NUMBER, _NUMBER, st.sampled_from(METHODS))
def test_any_number_is_read_as_it_is_written(kappa: float, marginal: float, limit: float, moments: str) -> None:
    rule = rule_of(f"second:{kappa!r},marginal={marginal!r},limit={limit!r},moments={moments}")
    assert (rule.kappa, rule.marginal_cores, rule.limit, rule.moments) == (kappa, marginal, limit, moments)
