"""Scores of the policies on small clusters, and what a policy file may say."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput, ConfigurationError, UnknownName
from domain.rules.placement.lifetimes import Fit
from domain.rules.placement.policies import (
    BF,
    BF_CPU,
    DP,
    FAMILIES,
    FF,
    HAND,
    KNOTS,
    NAMED,
    OLDEST,
    RESERVE,
    TIERS,
    WF,
    Policy,
    Training,
    View,
    box,
    parse_policy,
    parts_of,
    policy_document,
    reserve,
    reserve_left,
    reserve_share,
    score_terms,
    scores,
    tier_price,
    tier_threshold,
)

SIZE = (96, 512, 3000)
LEARNED = [name for name, family in FAMILIES.items() if family.learned]


def view(free: list[tuple[int, int, int]], **changes: Any) -> View:
    """Hosts of 96 cores with these free; a full one is closed. The container is one of 4 cores, 8 GiB, 60 GB."""
    room = np.array(free, dtype=np.int64).T
    hosts = room.shape[1]
    usual = View(
        hosts=np.arange(hosts),
        capacity=np.tile(np.array(SIZE)[:, None], hosts),
        free=room,
        new=(room == np.array(SIZE)[:, None]).all(axis=0),
        same=np.zeros(hosts, dtype=np.int64),
        distinct=np.ones(hosts, dtype=np.int64),
        opening=np.arange(hosts, 0, -1),
        openings=hosts,
        demand=(4, 8, 60),
        limit=2,
        count=1,
        headroom={4: 10, 8: 10, 16: 5, 32: 2},
        mean=0.5,
        largest=1.0,
        large=0,
        left_s=np.full(hosts, 1.0),
        life_s=0.0,
        fit=Fit(0.0, 0.0, 1.0, 0.0),
        lost=lambda: np.zeros(hosts),
    )
    return replace(usual, **changes)


def chosen(policy: Policy, seen: View) -> int:
    return int(np.argmax(scores(policy, seen)))


def zeros(family: str, **values: float) -> Policy:
    names = [parameter for _, part in parts_of(family) for parameter in part.parameters]
    return Policy("test", family, tuple(values.get(name, 0.0) for name in names))


def test_places_that_others_lose_cost_twenty_times_their_share() -> None:
    seen = view([(40, 400, 2000), (8, 400, 2900), SIZE], lost=lambda: np.array([0.5, 0.25, 0.0]))
    policy = Policy("p", "places1", (0.5,))
    assert scores(policy, seen).tolist() == [-5.0, -2.5, -np.inf]
    assert score_terms(policy, seen)["places lost"].tolist() == [-5.0, -2.5, 0.0]


def test_simple_policies_choose_by_what_is_left() -> None:
    hosts = view([SIZE, (40, 400, 2000), (8, 400, 2900), (12, 100, 400), (12, 100, 400), (20, 500, 2800)])
    assert chosen(FF, hosts) == 1, "the first host is closed"
    assert chosen(OLDEST, hosts) == 5, "the one that was opened first"
    assert chosen(BF, hosts) == 3, "the smallest residual over three dimensions, the first of two equal hosts"
    assert chosen(BF_CPU, hosts) == 2
    assert chosen(WF, hosts) == 5, "the largest residual fraction over three dimensions among open hosts"
    assert chosen(DP, hosts) == 1, "cores and memory of the demand meet most room there"


@pytest.mark.parametrize("policy", [FF, OLDEST, BF_CPU, DP, WF, HAND])
def test_open_first_takes_a_closed_host_only_where_no_open_one_is_feasible(policy: Policy) -> None:
    both = view([SIZE, (4, 8, 60)])
    assert scores(policy, both)[0] == -np.inf
    assert np.isfinite(scores(policy, view([SIZE]))).all()


def test_reserve_keeps_hosts_with_room_for_large_requests() -> None:
    rule, hosts = reserve(10, 8, 10), [SIZE, (8, 400, 2000), (20, 400, 2000)]
    assert chosen(rule, view(hosts)) == 2, "of 10 hosts with 8 free cores none may be broken into"
    assert chosen(rule, view(hosts[:2])) == 0, "then a new host comes first"
    assert chosen(rule, view(hosts[1:2])) == 0, "the last resort"
    assert chosen(rule, view(hosts, headroom={4: 0, 8: 11, 16: 0, 32: 0})) == 1, "more than 10: best fit by cores"
    assert chosen(rule, view(hosts, count=10)) == 1, "a request of 10 containers may use the reserve"


def test_tier_policy_charges_for_each_tier_that_is_crossed() -> None:
    policy = zeros("tiers17", target_4=-1.0, light_break_8=0.5, light_slope=0.5, light_new=-1.0)
    seen = view([(8, 400, 2000), (12, 400, 2000)], headroom={4: 0, 8: 19, 16: 0, 32: 0})
    terms = score_terms(policy, seen)
    assert terms["tier 8"].tolist() == [-4.0 * 1.5 * (1.0 - 19 / 76.0), 0.0]
    assert terms["slope"].tolist() == [0.5 * 4 / 96, 0.5 * 8 / 96]
    assert terms["tier 4"].tolist() == [0.0, 0.0], "8 - 4 cores are 4, not below"
    assert tier_price([-1.0] + [0.0] * 16, 0, True, 1, 1.0) == 0.0, "a target of 1 host is met by one"
    assert tier_price([0.0] * 17, 1, True, 200, 1.0) == 0.0, "more hosts than the target cost nothing"


def test_light_requests_have_weights_of_their_own() -> None:
    assert tier_threshold([0.0] * 16 + [1.0]) == 20.0
    policy = zeros("tiers17", light_slope=1.0, heavy_slope=-1.0)
    hosts = [(12, 400, 2000), (40, 400, 2000)]
    assert chosen(policy, view(hosts, count=11)) == 1
    assert chosen(policy, view(hosts, count=12)) == 0


def test_adaptive_tiers_hold_no_reserve_that_nobody_needed_yet() -> None:
    hosts, headroom = [(8, 400, 2000), (16, 400, 2000)], {4: 0, 8: 2, 16: 9, 32: 0}
    weights = {"light_slope": -1.0, "target_8": 1.0}
    fixed, adaptive = zeros("tiers17", **weights), zeros("tiers17a", **weights)
    assert chosen(fixed, view(hosts, headroom=headroom, largest=2.0)) == 1
    assert chosen(adaptive, view(hosts, headroom=headroom, largest=1.0)) == 0, "the target is one host"
    assert [reserve_share(count) for count in (1, 11, 41, 400)] == [0.0, 0.25, 1.0, 1.0]
    seen = view(hosts, headroom=headroom, largest=41.0)
    assert scores(adaptive, seen).tolist() == scores(fixed, seen).tolist()


def test_a_filling_holds_no_reserve_after_the_last_large_request_that_is_expected() -> None:
    assert [reserve_left([0.0] * 17 + [expected], 10) for expected in (-1.0, -0.5, -0.475, -0.45, 1.0)] == [
        *(0.0, 0.0, pytest.approx(0.5), 1.0, 1.0),
    ], "0, 10, 10.5, 11 and 40 are expected, and 10 have come"
    hosts, weights = [(8, 400, 2000), (16, 400, 2000)], {"light_slope": -1.0, "target_8": 1.0}
    policy, lasting = zeros("tiers18a", expected=-0.9, **weights), zeros("tiers17a", **weights)
    before, after = (view(hosts, headroom={4: 0, 8: 2, 16: 9, 32: 0}, largest=41.0, large=large) for large in (1, 2))
    assert scores(policy, before).tolist() == scores(lasting, before).tolist()
    assert (chosen(policy, before), chosen(policy, after), chosen(lasting, after)) == (1, 0, 1)


def test_potential_is_the_difference_of_two_values_between_knots() -> None:
    policy = zeros("potential17", value_8=0.5, value_12=1.0, new=-1.0 / 3)
    seen = view([(12, 400, 2000), (10, 400, 2000), (6, 400, 2000), SIZE])
    assert score_terms(policy, seen)["potential"].tolist() == [0.5 - 1.0, 0.0 - 0.75, 0.0, 0.0]
    assert score_terms(zeros("potential17"), seen)["new"].tolist() == [0.0, 0.0, 0.0, -1.0]
    doubled = replace(seen, capacity=seen.capacity * 2, free=seen.free * 2, demand=(8, 16, 120))
    assert score_terms(policy, doubled)["potential"].tolist() == [-0.5, -0.75, 0.0, 0.0], "knots scale with cores"


def test_linear_features_are_those_of_the_specification() -> None:
    every = Policy("all", "linear14", (1.0,) * 14)
    seen = view([(10, 256, 1500)], same=np.array([1]), distinct=np.array([5]), mean=0.25)
    x, y = 6 / 96, 248 / 512
    assert list(score_terms(every, seen)) == list(FAMILIES["linear14"].terms)
    assert [float(term[0]) for term in score_terms(every, seen).values()] == pytest.approx(
        [
            *(x, y, x * x, y - x, 4 / 96 * 10 / 96 + 8 / 512 * 256 / 512 + 60 / 3000 * 1500 / 3000),
            *(0.0, 1.0, 0.25, 0.25, x / 2, x * 4 / 96 * 8, 0.25 - x, 0.5 - x),
        ]
    )
    filled = score_terms(every, view([(4, 256, 1500)]))
    assert (filled["exact"][0], filled["odd"][0]) == (1.0, 0.0)


@given(st.sampled_from(LEARNED), st.sampled_from(LEARNED), st.data())
def test_a_sum_adds_the_scores_of_its_parts(first: str, second: str, data: st.DataObject) -> None:
    if first[:5] == second[:5]:
        with pytest.raises(BadInput):
            parts_of(f"{first}+{second}")
        return
    values = [
        tuple(data.draw(st.lists(st.floats(-1, 1), min_size=n, max_size=n)))
        for n in (len(FAMILIES[first].parameters), len(FAMILIES[second].parameters))
    ]
    seen = view([(10, 256, 1500), (40, 12, 80)])
    single = [scores(Policy("one", name, theta), seen) for name, theta in zip((first, second), values, strict=True)]
    both = Policy("sum", f"{first}+{second}", values[0] + values[1])
    assert scores(both, seen) == pytest.approx(single[0] + single[1])
    assert next(iter(score_terms(both, seen))).startswith(f"{first} ")


@pytest.mark.parametrize(
    "family", ["bf+wf", "tiers17+bf", "tiers17+tiers17a", "tiers17a+tiers18a", "linear14+potential17+tiers17"]
)
def test_only_two_different_learned_families_are_summed(family: str) -> None:
    with pytest.raises(BadInput, match="join two different learned families"):
        parts_of(family)


def test_an_unknown_family_names_those_that_exist() -> None:
    with pytest.raises(UnknownName, match="bf, bf-cpu, dp"):
        box("best")


def test_the_box_of_a_sum_has_34_parameters() -> None:
    low, high = box("tiers17+potential17")
    assert low.tolist() == [-1.0] * 34
    assert high.tolist() == [1.0] * 34


@given(st.sampled_from([*LEARNED, "tiers17+potential17", "linear14+tiers17a"]), st.integers(1, 512), st.data())
def test_a_policy_file_reads_as_it_was_written(family: str, scale: int, data: st.DataObject) -> None:
    size = box(family)[0].size
    theta = tuple(data.draw(st.lists(st.floats(-1, 1), min_size=size, max_size=size)))
    training = Training(("a1",), (10_000, 10_001), 271.5, 0.25, "1", "2026-01-01T00:00:00Z")
    policy = Policy("mine", family, theta, scale, data.draw(st.sampled_from([None, training])))
    assert parse_policy(json.loads(json.dumps(policy_document(policy)))) == policy


@pytest.mark.parametrize("policy", NAMED.values())
def test_named_policies_can_be_written_too(policy: Policy) -> None:
    assert parse_policy(policy_document(policy)) == policy


def test_every_mistake_of_a_file_is_reported_at_once() -> None:
    document = policy_document(zeros("tiers17")) | {"host_scale": 0, "created": 7, "wight": 1}
    document["theta"][2], document["theta"][3] = float("nan"), 1.5
    with pytest.raises(ConfigurationError) as caught:
        parse_policy(document)
    assert [mistake.name for mistake in caught.value.mistakes] == [
        *("policy.wight", "policy.host_scale", "policy.theta[2] (target_16)", "policy.theta[3] (target_32)"),
        "policy.created",
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"theta": [0.0] * 16}, "policy.theta"),
        ({"theta": None}, "policy.theta"),
        ({"theta": [True] + [0.0] * 16}, "policy.theta[0] (target_4)"),
        ({"theta": ["0"] + [0.0] * 16}, "policy.theta[0] (target_4)"),
        ({"family": "tiers18"}, "policy.family"),
        ({"family": 3}, "policy.family"),
        ({"family": "lifetime", "theta": []}, "policy.theta"),
        ({"version": 2}, "policy.version"),
        ({"box": [[-2.0] * 17, [2.0] * 17]}, "policy.box"),
        ({"trained_on": {"instances": [1]}}, "policy.trained_on"),
        ({"objective": float("inf")}, "policy.objective"),
        ({"name": ""}, "policy.name"),
        ({"name": "x" * 129}, "policy.name"),
        ({"name": "\ud800"}, "policy.name"),
        ({"name": "two\nlines"}, "policy.name"),
    ],
)
def test_a_wrong_field_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_policy(policy_document(zeros("tiers17")) | changes)
    assert [mistake.name for mistake in caught.value.mistakes] == [field]


@pytest.mark.parametrize("document", [None, [], "tiers17", {}])
def test_other_content_is_no_policy(document: object) -> None:
    with pytest.raises(ConfigurationError):
        parse_policy(document)


def test_a_vector_outside_its_box_makes_no_policy() -> None:
    with pytest.raises(ConfigurationError, match=r"theta\[1\]"):
        Policy("RESERVE", "reserve", (100.0, 0.0, 10.0))
    with pytest.raises(ConfigurationError, match="17 numbers"):
        Policy("short", "tiers17", (0.0,))


def test_a_digest_changes_with_the_parameters_alone() -> None:
    policy = zeros("tiers17")
    assert replace(policy, name="other").digest == policy.digest
    assert zeros("tiers17", threshold=0.5).digest != policy.digest
    assert Policy("same", "tiers17a", policy.theta).digest != policy.digest


def test_constants_are_those_of_the_specification() -> None:
    assert TIERS == (4, 8, 16, 32)
    assert KNOTS.tolist() == [0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 96]
    assert RESERVE.theta == (100.0, 8.0, 10.0)
    assert {name: len(family.parameters) for name, family in FAMILIES.items() if family.learned} == {
        "linear14": 14,
        "places1": 1,
        "potential17": 17,
        "tiers17": 17,
        "tiers17a": 17,
        "tiers18a": 18,
    }
