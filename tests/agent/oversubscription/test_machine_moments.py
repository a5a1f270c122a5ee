"""Moments of machines are the sums of their VMs', one by one, whichever of them are interpolated."""

from __future__ import annotations

import numpy as np
import pytest

from agent.oversubscription.machine_moments import NODES, machine_moments
from agent.oversubscription.memory import DaySums, HourSums, SubscriberMemory, VmTable, columns_of, levels
from agent.oversubscription.profiles import Profiles, profiles_of
from domain.rules.oversubscription.usage import clipped_moments

MACHINES = 7


def profiles_at(*levels_of_usage: tuple[float, float]) -> Profiles:
    """Subscribers `s0`, `s1` ... by mean and standard deviation of their usage, the mean a little higher by day."""
    memories = {}
    for n, (mean, sd) in enumerate(levels_of_usage):
        by_day = [mean * (1.0 + 0.2 * np.sin(hour * np.pi / 12.0)) for hour in range(24)]
        squares = tuple(400.0 * (level * level + sd * sd) for level in by_day)
        long = HourSums((400.0,) * 24, tuple(400.0 * level for level in by_day), squares)
        memories[f"s{n}"] = SubscriberMemory(long=long, history_h=400.0, vm_hours=8e3, days=DaySums())
    return profiles_of(memories, 0, 0.0, None)


@pytest.mark.parametrize(("vms", "hours"), [(0, (0,)), (3, (0, 5)), (40 * NODES, (48,)), (9_000, (0, 1, 30, 168))])
def test_moments_of_a_machine_are_those_of_its_vms(vms: int, hours: tuple[int, ...]) -> None:
    draws = np.random.default_rng(vms)
    profiles = profiles_at((0.15, 0.1), (0.5, 0.05), (0.02, 0.02), (0.9, 0.2))
    owner, machine = draws.integers(0, 5, vms), draws.integers(0, MACHINES, vms)
    cores = draws.choice([2.0, 4.0, 16.0], vms)
    measured = draws.choice(hours, vms)
    empty = columns_of(VmTable(), tuple(f"v{k}" for k in range(vms)))
    known = empty._replace(hours=measured, residual_sum=measured * draws.normal(0.0, 1.5, vms))

    found = machine_moments(machine, owner, cores, known, profiles, MACHINES)

    level, width = levels(known, profiles.persistence[owner], profiles.rho[owner])
    mu, sd = profiles.mu[owner] + profiles.narrow[owner] * level[:, None], profiles.sd[owner] * width[:, None]
    exact = np.zeros((3, MACHINES, 24))
    room = np.zeros((3, MACHINES, 24))
    for k in range(vms):
        for hour in (0, 7, 23):
            moments = clipped_moments(float(mu[k, hour]), float(sd[k, hour]))
            for power, moment in enumerate(moments, start=1):
                exact[power - 1, machine[k], hour] += cores[k] ** power * moment
                room[power - 1, machine[k], hour] += 1e-8 * (cores[k] * sd[k, hour]) ** power
    for kind in range(3):
        for hour in (0, 7, 23):
            assert (np.abs(found[kind][:, hour] - exact[kind, :, hour]) <= room[kind, :, hour]).all()
