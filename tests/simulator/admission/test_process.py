"""The simulated cluster: every event against a plain twin, and every refusal accounted for."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.rules.admission.population import Population
from simulator.admission import PRESETS, Rule, Run, draw_run, play
from simulator.admission.engine import (
    ADMITTED,
    ARRIVAL,
    CORE_ENDED,
    REFUSED,
    SCALE_REFUSED,
    SCALED,
    SHUT_DOWN,
    admit,
    lose_core,
    scale_out,
    shut_down,
    size_class,
)
from simulator.admission.play import empty_state
from simulator.admission.streams import extra_cores, key_of, uniform

GENTLE = Population(4.0, 40.0, 4.0, 4.0, 2.0, 1.0, 0.8, 10.0)
"""Cores live some ten hours, nothing is extreme."""


def plain_twin(run: Run, threshold: float) -> list[tuple[float, int, int, int, int]]:
    """The process of specification §2 in plain Python: (time, deployment, kind, cores, total) of every event."""
    capacity, seed = run.cluster.capacity, np.uint64(run.seed)
    total, heap = 0, list[tuple[float, int]]()
    events: list[tuple[float, int, int, int, int]] = []
    size: dict[int, int] = {}
    draws: dict[int, int] = {}

    def rates(i: int) -> tuple[float, float, float]:
        arrival = run.arrivals[i]
        stop = float(arrival["mu"]) / run.cluster.population.lifetimes
        return size[i] * float(arrival["mu"]), float(arrival["theta"]), stop

    def wind_up(i: int, now: float) -> None:
        u = uniform(keys[i], np.uint64(draws[i]))
        heapq.heappush(heap, (now - math.log(u) / sum(rates(i)), i))

    keys = [np.uint64(key_of(seed, arrival["stream"])) for arrival in run.arrivals]
    for number in range(len(run.arrivals) + 1):
        until = float(run.arrivals[number]["time"]) if number < len(run.arrivals) else run.hours
        while heap and heap[0][0] <= until:
            now, i = heapq.heappop(heap)
            dying, growing, stopping = rates(i)
            which = uniform(keys[i], np.uint64(draws[i] + 1)) * (dying + growing + stopping)
            if which < dying:
                size[i] -= 1
                total -= 1
                events.append((now, i, CORE_ENDED, 1, total))
            elif which < dying + growing:
                cores = 1 + extra_cores(float(run.arrivals[i]["sig"]), keys[i], np.uint64(draws[i] + 2))
                granted = total + cores <= capacity
                size[i] += cores * granted
                total += cores * granted
                events.append((now, i, SCALED if granted else SCALE_REFUSED, cores, total))
            else:
                total -= size[i]
                events.append((now, i, SHUT_DOWN, size[i], total))
                size[i] = 0
            draws[i] += 3
            if size[i] > 0:
                wind_up(i, now)
        if number < len(run.arrivals):
            cores = int(run.arrivals[number]["size"])
            fits = total + cores <= capacity and total + cores < threshold
            if fits:
                size[number], draws[number] = cores, 0
                total += cores
            events.append((until, number, ADMITTED if fits else REFUSED, cores, total))
            if fits:
                wind_up(number, until)
    return events


def log_of(run: Run, threshold: float) -> Any:
    return play(run, Rule("zeroth", threshold), log=200_000).log


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    capacity=st.integers(1, 120),
    threshold=st.floats(-5.0, 130.0),
    preset=st.sampled_from("THK"),
)
def test_every_event_is_that_of_the_plain_twin(seed: int, capacity: int, threshold: float, preset: str) -> None:
    run = draw_run(replace(PRESETS[preset], capacity=capacity), seed, hours=60.0)
    twin = plain_twin(run, threshold)
    log = log_of(run, threshold)
    assert len(log) == len(twin)
    assert [event.tolist()[1:] for event in log] == [event[1:] for event in twin]
    assert np.allclose(log["time"], [event[0] for event in twin], rtol=1e-12, atol=0.0)


def test_requests_failures_and_cores_by_month_add_up_to_the_log() -> None:
    run = draw_run(replace(PRESETS["H"], capacity=300), 3, hours=2000.0)
    outcome = play(run, Rule("zeroth", 301.0), log=200_000)
    log = outcome.log
    month = (log["time"] // 730.0).astype(int)
    for k in range(3):
        asked = log[(month == k) & ((log["kind"] == SCALED) | (log["kind"] == SCALE_REFUSED))]
        assert outcome.requests[k] == len(asked)
        assert outcome.failures[k] == np.sum(asked["kind"] == SCALE_REFUSED)
    assert outcome.failures.sum() > 0
    held = np.append(log["time"][1:], 2000.0) - log["time"]
    assert outcome.utilisation == pytest.approx(float((held * log["total"]).sum()) / (300 * 2000.0), rel=1e-9)
    by_month = outcome.utilisation_by_month * np.array([730.0, 730.0, 540.0])
    assert by_month.sum() / 2000.0 == pytest.approx(outcome.utilisation, rel=1e-12)
    assert outcome.crowded_h == pytest.approx(float(held[log["total"] > 0.95 * 300].sum()), rel=1e-9)
    assert outcome.peak_cores == log["total"].max()
    shares = outcome.failures / outcome.requests
    assert outcome.sla_metric == pytest.approx(float(shares.mean()), rel=1e-12)
    assert outcome.arrivals == outcome.admitted + outcome.unfit + outcome.binding.sum()


def test_a_script_of_twelve_events_counts_two_failures() -> None:
    state = empty_state(replace(PRESETS["T"], capacity=20), 730.0, 4)
    arrival = np.zeros(1, dtype=ARRIVAL)
    arrival["mu"] = 1.0

    def enter(cores: int) -> int:
        arrival["size"] = cores
        return admit(state, arrival[0], 0, np.uint64(0), 10.0, True)

    first, second = enter(8), enter(4)
    assert scale_out(state, first, 8)
    assert state.books["total"][0] == 20
    assert not scale_out(state, second, 1)
    assert not lose_core(state, second)
    assert not scale_out(state, second, 2)
    assert scale_out(state, second, 1)
    assert state.books["total"][0] == 20
    shut_down(state, first)
    assert state.books["total"][0] == 4
    assert scale_out(state, second, 16)
    assert not lose_core(state, second)
    assert scale_out(state, second, 1)
    assert state.books["total"][0] == state.live["size"][second] == 20
    assert state.months["requests"][0] == 6
    assert state.months["failures"][0] == 2
    # What was refused counts as seen: six requests in all, five of the second, of 1, 2, 1, 16 and 1 cores after its 4.
    assert state.live["requests"][second] == 5
    assert state.live["extra"][second] == 3 + 0 + 1 + 0 + 15 + 0
    assert state.live["sizes"][second] == 6


def test_an_empty_cluster_stays_empty() -> None:
    outcome = play(draw_run(replace(PRESETS["H"], arrival_rate=0.0), 0, hours=800.0), Rule("zeroth", 100.0))
    assert (outcome.utilisation, outcome.arrivals, outcome.events, outcome.sla_metric) == (0.0, 0, 0, 0.0)
    assert outcome.requests.tolist() == [0, 0]


def test_deployments_have_the_same_future_under_every_rule_while_nothing_is_refused() -> None:
    run = draw_run(PRESETS["H"], 8, hours=300.0)
    some, all_ = log_of(run, 1500.0), log_of(run, 20_001.0)
    assert not np.any(np.isin(some["kind"], (SCALE_REFUSED,)))
    inside = set(some[some["kind"] == ADMITTED]["deployment"].tolist())
    assert 10 < len(inside) < len(run.arrivals)
    fields = ["time", "deployment", "kind", "cores"]
    of_inside = all_[np.isin(all_["deployment"], list(inside))]
    assert some[some["kind"] != REFUSED][fields].tolist() == of_inside[fields].tolist()


def test_the_same_seed_gives_the_same_events_and_another_gives_others() -> None:
    first, again, other = (log_of(draw_run(PRESETS["K"], seed, hours=100.0), 500.0) for seed in (4, 4, 5))
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()


def test_prior_observations_leave_the_deployments_as_they_are() -> None:
    none, five = (draw_run(PRESETS["H"], 2, observations=count, hours=500.0).arrivals for count in (0, 5))
    fields = ["time", "mu", "lam", "sig", "size", "stream"]
    assert none[fields].tolist() == five[fields].tolist()
    assert set(five["seen_deaths"].tolist()) == set(five["seen_sizes"].tolist()) == {5}
    # A gap that never ends is censored at a million hours each.
    censored = 5 - five["seen_requests"]
    assert censored.max() == 5
    assert np.all(five["seen_gap_hours"] >= 1e6 * censored)


def test_size_classes_double() -> None:
    assert [size_class(cores) for cores in (1, 2, 3, 4, 7, 8, 2047, 2048, 10**6)] == [0, 1, 1, 2, 2, 3, 10, 11, 11]
