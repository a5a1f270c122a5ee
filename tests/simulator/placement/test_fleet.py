"""A pool whose hosts are VMs of a fleet: waits for boots, machine-hours, and the hosts that drain while it shrinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from domain.rules.placement.instance import Application, HostType, Instance, Release, Request
from domain.rules.placement.policies import LIFETIME, OLDEST, Policy
from domain.units import HOUR_S, MINUTE_S
from simulator.placement.fleet import FleetOutcome, play_fleet
from simulator.placement.traces import trace_of

CORES = 16
APPS = tuple(Application(f"c{cores}", (cores, 1, 1)) for cores in (1, 8))
Wanted = tuple[float, int, float]
"""When a container is asked for, its cores, and its life, in seconds."""


def played(
    *wanted: Wanted, until_s: float, coupled: bool, policy: Policy = OLDEST, from_s: float = 0.0, seed: int = 1
) -> FleetOutcome:
    """Play containers with true hints; a last one, at `until_s`, ends the play and does not count."""
    names = [f"r{k}" for k in range(len(wanted))]
    requests = [Request(name, f"c{n}", 1, at, life) for name, (at, n, life) in zip(names, wanted, strict=True)]
    releases = tuple(Release(name, 0, at + life) for name, (at, _, life) in zip(names, wanted, strict=True))
    last = Request("last", "c1", 1, until_s)
    hosts = (HostType("vm", (CORES, 64, 100)),)
    instance = Instance("test", hosts, APPS, (*requests, last), releases)
    return play_fleet(instance, policy, coupled=coupled, seed=seed, measured_from_s=from_s)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_container_waits_for_a_boot_and_its_vm_ends_with_it(coupled: bool, seed: int) -> None:
    found = played((0.0, 8, HOUR_S), until_s=4 * HOUR_S, coupled=coupled, seed=seed)
    # The VM is asked for in the turn after the request; the container runs its whole life from the turn that places it.
    wait_s = 2.0 * found.wait_s
    assert wait_s in (240.0, 300.0, 360.0)
    assert found.machine_hours == pytest.approx((wait_s - MINUTE_S) / HOUR_S + 1.0)
    assert found.delayed == 0.5
    later = played((0.0, 8, HOUR_S), until_s=4 * HOUR_S, coupled=coupled, seed=seed, from_s=1800.0)
    assert later.machine_hours == pytest.approx((wait_s + HOUR_S - 1800.0) / HOUR_S)
    assert (later.wait_s, later.delayed) == (0.0, 0.0)
    # The first minute of the life begins with the placement, and the VM ends with it.
    assert later.open_hours == later.machine_hours
    assert found.open_hours == pytest.approx(1.0)


def shrinking() -> list[Wanted]:
    """Return containers that teach what hints are worth, and two VMs of which one is too many from second 18,000 on.

    The older one ends in an hour; a container that lives for 40 minutes is asked for every ten minutes.
    """
    draws = np.random.default_rng(3)
    taught: list[Wanted] = [(30.0 * k, 1, float(life)) for k, life in enumerate(np.exp(draws.uniform(4.0, 8.0, 300)))]
    begin = 16_200.0
    pair: list[Wanted] = [(begin, 8, 1800.0), (begin, 1, HOUR_S), (begin, 8, 5 * HOUR_S)]
    return [*taught, *pair, *((begin + 2400.0 + 600.0 * k, 1, 2400.0) for k in range(24))]


def test_a_coupled_pool_lets_the_host_that_ends_soonest_run_empty() -> None:
    alone, coupled = (
        played(*shrinking(), until_s=34_000.0, coupled=coupled, from_s=16_200.0) for coupled in (False, True)
    )
    # The oldest host takes every new container while it does not drain, so that both VMs last to the end.
    assert alone.machine_hours == pytest.approx(2.0 * 4.93, abs=0.1)
    assert coupled.machine_hours == pytest.approx(4.93 + 1.07, abs=0.15)
    assert coupled.wait_s == alone.wait_s


def test_a_container_that_fits_nowhere_else_does_not_wait_while_a_host_drains() -> None:
    more: list[Wanted] = [(19_000.0, 8, 600.0)]
    wanted = sorted([*shrinking(), *more])
    found = played(*wanted, until_s=34_000.0, coupled=True, from_s=19_000.0)
    assert (found.wait_s, found.delayed) == (0.0, 0.0)


def test_a_higher_target_and_an_earlier_scale_in_give_empty_vms_back() -> None:
    instance = trace_of("alibaba-openb:0+300@3", "0.5", 2)
    assert instance is not None
    changes: tuple[dict[str, Any], ...] = ({}, {"target": 1.0}, {"in_periods": 3})
    usual, full, early = (
        play_fleet(instance, LIFETIME, coupled=False, seed=1, measured_from_s=0.0, **changed) for changed in changes
    )
    assert max(full.machine_hours, early.machine_hours) < usual.machine_hours
    for one in (usual, full, early):
        assert 0.5 * one.machine_hours < one.open_hours < one.machine_hours


@pytest.mark.parametrize("coupled", [False, True])
def test_a_fleet_has_no_fewer_machine_hours_than_its_containers_and_no_other_with_the_same_seed(coupled: bool) -> None:
    instance = trace_of("alibaba-openb:0+300@3", "0.5", 2)
    assert instance is not None
    first, again, other = (
        play_fleet(instance, LIFETIME, coupled=coupled, seed=seed, measured_from_s=0.0) for seed in (1, 1, 2)
    )
    assert first == again != other
    last = instance.requests[-1].at_s
    ends = {(one.request, one.index): one.at_s for one in instance.releases}
    cores = {app.name: app.demand[0] for app in instance.applications}
    # A container that waits runs later; what it has done by the last request is at most as much less.
    done = sum(
        cores[one.application] * (min(ends.get((one.name, k), last), last) - one.at_s)
        for one in instance.requests
        for k in range(one.count)
    )
    waited = max(cores.values()) * first.wait_s * instance.containers
    assert first.machine_hours * HOUR_S * instance.hosts[0].capacity[0] >= done - waited
