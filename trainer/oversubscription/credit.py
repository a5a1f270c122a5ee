"""Whose hot hours are they: an episode's chances of hot machines, laid on the decisions that filled those machines.

A rate shows in the chances of later hours, days after it was given, among those of everybody else. Here each chance
goes back to the subscriber and hour whose VMs bring it about (oversubscription specification §12.1, §12.3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.usage import Moments
from simulator.oversubscription.weekly import Placement

Floats = NDArray[np.float64]
LEAST = 1e-9


def saved_by(placed: Placement) -> Floats:
    """Return the cores that each subscriber's placements of an hour save, (hours, N)."""
    return _by_decision(placed, (1.0 - placed.rate) * placed.week.cores)


def answered_for(placed: Placement, moments: Moments) -> Floats:
    """Return the hours of hot machines that each subscriber's placements of an hour answer for, (hours, N).

    A VM answers for its use of a hot machine, at what a core more would add to the machine's chance, less what its
    reservation keeps out: the machine's average use of as many reserved cores. To first order this is the change of
    the chances by a core of that VM in place of the machine's usual mix, so that all VMs of a machine come to 0
    together, and a higher rate takes away what the VMs that found no room there would have brought.
    """
    mean = moments.mean[:, np.arange(placed.scenario.hours) % 24]
    load = held(placed, placed.week.cores)
    used = np.einsum("knt,nt->kt", load, mean)
    reserved = held(placed, placed.week.cores * placed.rate).sum(axis=1)
    slope = slopes(placed, moments)
    by_use = np.divide(slope, used, out=np.zeros_like(slope), where=used > LEAST)
    by_room = np.divide(slope, reserved, out=np.zeros_like(slope), where=reserved > LEAST)
    machine, subscriber, first, last = _stays(placed)
    cost = np.zeros(len(placed.machine))
    there = placed.machine >= 0
    for price, who, weights in (
        (by_use[:, None, :] * mean[None], (machine, subscriber), placed.week.cores),
        (by_room, (machine,), placed.week.cores * placed.rate),
    ):
        so_far = np.concatenate([np.zeros((*price.shape[:-1], 1)), price.cumsum(axis=-1)], axis=-1)
        sign = 1.0 if len(who) == 2 else -1.0
        cost[there] += sign * weights[there] * (so_far[(*who, last)] - so_far[(*who, first)])
    return _by_decision(placed, cost)


def slopes(placed: Placement, moments: Moments) -> Floats:
    """Return by how much each machine's chance to be hot grows with its load, per share of it, (opened, hours).

    By the normal tail: the mean grows by that share, the standard deviation by half of it. A machine that is hot
    anyway counts as at the threshold: its chance hardly moves, yet it is the one to relieve.
    """
    of_day = np.arange(placed.scenario.hours) % 24
    used = np.einsum("knt,nt->kt", held(placed, placed.week.cores), moments.mean[:, of_day])
    squares = np.einsum("knt,nt->kt", held(placed, placed.week.cores**2), moments.variance[:, of_day])
    sigma = np.sqrt(np.maximum(squares, LEAST))
    z = np.maximum((placed.scenario.threshold - used) / sigma, 0.0)
    slope: Floats = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) * (used / sigma + 0.5 * z)
    return slope


def held(placed: Placement, weights: Floats) -> Floats:
    """Return the sums of the weights of the VMs there, by machine, subscriber and hour, (opened, N, hours)."""
    machine, subscriber, first, last = _stays(placed)
    there, hours = placed.machine >= 0, placed.scenario.hours
    change = np.zeros((placed.opened, placed.scenario.subscribers, hours + 1))
    np.add.at(change, (machine, subscriber, first), weights[there])
    np.add.at(change, (machine, subscriber, last), -weights[there])
    sums: Floats = change.cumsum(axis=2)[..., :hours]
    return sums


def _stays(placed: Placement) -> tuple[NDArray[np.int64], ...]:
    """Return machine, subscriber, first hour and hour of departure of each VM that found a machine."""
    week, there, hours = placed.week, placed.machine >= 0, placed.scenario.hours
    return (
        placed.machine[there],
        week.subscriber[there],
        np.clip(week.arrival[there], 0, hours),
        np.clip(week.departure[there], 0, hours),
    )


def _by_decision(placed: Placement, values: Floats) -> Floats:
    """Add up the values of requests that found a machine, by hour and subscriber; VMs of a warm start are left out."""
    week, out = placed.week, np.zeros((placed.scenario.hours, placed.scenario.subscribers))
    asked = np.flatnonzero(placed.machine >= 0)
    asked = asked[asked >= week.warm]
    np.add.at(out, (week.arrival[asked], week.subscriber[asked]), values[asked])
    return out
