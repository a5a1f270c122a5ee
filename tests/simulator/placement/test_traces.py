"""Extracts of public traces, their declared lifetimes, and placement by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from domain.errors import BadInput, ConfigurationError
from domain.rules.placement.instance import Application, Instance, Release, Request, as_document, parse_instance
from domain.rules.placement.policies import LIFETIME, OLDEST
from simulator.placement.engine import ENDED, play
from simulator.placement.instances import churn, instance_of
from simulator.placement.traces import HOST, trace_of
from tests.simulator.placement.test_parity import instances


def lifetimes(hints: str, seed: int = 0) -> list[float]:
    found = trace_of("alibaba-openb:200+400@3", hints, seed)
    assert found is not None
    return [one.lifetime_s or 0.0 for one in found.requests]


def test_arrivals_are_divided_by_the_speed_and_lifetimes_stay() -> None:
    slow, fast = (instance_of(f"gaia-pai:2000+500@{speed}") for speed in (1, 20))
    assert fast.requests[-1].at_s == pytest.approx(slow.requests[-1].at_s / 20.0)
    ends = [{end.request: end.at_s - one.requests[int(end.request[1:])].at_s for end in one.releases}
            for one in (slow, fast)]  # fmt: skip
    assert len(ends[1]) > 200
    assert all(ends[0][name] == pytest.approx(life, abs=1e-3) for name, life in ends[1].items())
    assert max(end.at_s for end in fast.releases) <= fast.requests[-1].at_s


def test_declared_lifetimes_are_true_with_an_error_or_permuted() -> None:
    true = np.array(lifetimes("0"))
    assert lifetimes("") == [0.0] * 400
    errors = np.log(np.array(lifetimes("0.5")) / true)
    assert (errors.mean(), errors.std()) == (pytest.approx(0.0, abs=0.06), pytest.approx(0.5, abs=0.05))
    assert sorted(lifetimes("shuffled")) == sorted(true)
    assert lifetimes("shuffled") != true.tolist()
    assert lifetimes("0.5") != lifetimes("0.5", seed=1)


@pytest.mark.parametrize(
    ("text", "hints", "field"),
    [("gaia-azure:59999+2", "", "instance"), ("gaia-azure:0+0", "", "instance"), ("gaia-azure@0", "", "instance"),
     ("gaia-azure", "much", "hints"), ("gaia-azure", "-1", "hints"), ("S1", "0.5", "hints")],
)  # fmt: skip
def test_what_is_no_extract_is_refused(text: str, hints: str, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        instance_of(text, hints)
    assert caught.value.field == field


@given(instances())
def test_without_hints_lifetime_places_as_oldest_does(instance: Instance) -> None:
    plain = replace(instance, requests=tuple(replace(one, lifetime_s=None) for one in instance.requests))
    assert play(plain, LIFETIME).host.tolist() == play(plain, OLDEST).host.tolist()


def test_without_hints_a_month_with_departures_is_that_of_oldest() -> None:
    month = churn(7)
    assert play(month, LIFETIME).host.tolist() == play(month, OLDEST).host.tolist()


def test_true_lifetimes_save_host_hours() -> None:
    hours = {}
    for policy, hints in ((OLDEST, ""), (LIFETIME, "0"), (LIFETIME, "shuffled")):
        found = trace_of("gaia-azure:40000+18000@8", hints)
        assert found is not None
        last = found.requests[-1].at_s
        hours[policy.name, hints] = play(found, policy, measured_from_s=0.3 * last, until_s=last).host_hours
    assert hours["lifetime", "0"] < 0.87 * hours["oldest", ""]
    assert hours["lifetime", "shuffled"] == pytest.approx(hours["oldest", ""], rel=0.01)


def test_the_last_container_of_a_host_moves_to_one_that_stays_open() -> None:
    apps = tuple(Application(f"a{cores}", (cores, 1, 1)) for cores in (90, 4, 93))
    requests = (
        *(Request(f"r{k}", name, 1, 0.0, 1e5) for k, name in enumerate(("a90", "a90", "a4"))),
        Request("r3", "a93", 1, 60.0, 1e5),
    )
    made = Instance("one", (HOST,), apps, requests, (Release("r0", 0, 50.0),))
    stays, moves = (play(made, LIFETIME, between=between) for between in (0, 1))
    assert stays.host.tolist() == [ENDED, 1, 0, 2]
    # Host 0 has the container of 4 cores alone, and host 1 room for it.
    assert moves.host.tolist() == [ENDED, 1, 1, 2]
    assert (stays.hosts, stays.migrated, moves.hosts, moves.migrated) == (3, 0, 2, 1)
    limited = replace(made, applications=(apps[0], replace(apps[1], excludes=frozenset({"a90", "a93"})), apps[2]))
    limited = replace(limited, applications=(replace(apps[0], excludes=frozenset({"a4"})), *limited.applications[1:]))
    assert play(limited, LIFETIME, between=1).migrated == 0
    with pytest.raises(BadInput, match="does not predict lifetimes"):
        play(made, OLDEST, between=1)


def test_a_move_after_each_hundred_placements_saves_host_hours_and_fits() -> None:
    found = trace_of("gaia-azure:40000+18000@8", "0.5")
    assert found is not None
    last = found.requests[-1].at_s
    stays, moves = (
        play(found, LIFETIME, measured_from_s=0.3 * last, until_s=last, between=between) for between in (0, 100)
    )
    assert 90 < moves.migrated <= 180
    assert moves.host_hours < 0.98 * stays.host_hours
    sizes = {app.name: app.demand for app in found.applications}
    used = np.zeros((moves.host.max() + 1, 3))
    for one, host in zip(found.requests, moves.host.tolist(), strict=True):
        if host >= 0:
            used[host] += sizes[one.application]
    assert (used <= HOST.capacity).all()


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), 1e12, "1h", True])
def test_a_declared_lifetime_that_is_none_is_refused(value: object) -> None:
    document = as_document(instance_of("S1"))
    document["requests"][3]["lifetime_s"] = value
    with pytest.raises(ConfigurationError, match=r"requests\[3\].lifetime_s"):
        parse_instance(document)


def test_a_declared_lifetime_survives_the_file() -> None:
    base = instance_of("S1")
    declared = replace(base, requests=(*base.requests[:-1], Request("last", "a0", 1, 0.0, 90.5)))
    assert parse_instance(as_document(declared))[0] == declared
