"""The rule that sets the rate of each request: the engine against the plain rule, and against rates that are given."""

from __future__ import annotations

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.oversubscription.request_rule import NEUTRAL, RequestRule, Weights, choose_level
from domain.rules.oversubscription.shield import Demand, Machines, best_fit, write_room
from domain.rules.oversubscription.usage import moments_of
from simulator.oversubscription.layout import Floats, Ints, guard_of, ruled, unguarded
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.weekly import Assessor, Risk
from tests.simulator.oversubscription.cases import invented
from trainer.oversubscription.policies import shipped_rates

WEIGHTS = Weights(spread=2.5, margin=0.6, room=0.3, shortfall=1.5, enough=0.08, least=-0.02)


def drawn_rule(subscribers: int, seed: int = 0) -> RequestRule:
    draws = np.random.default_rng(seed)
    base, week, day = (
        draws.uniform(low, high, size) for low, high, size in ((0.3, 0.8, subscribers), (-0.1, 0.1, 7), (-0.1, 0.1, 4))
    )
    return RequestRule(base, week, day, WEIGHTS)


def played(scenario: Scenario, week: Week, rule: RequestRule, start: str) -> Risk:
    guard = ruled(unguarded(scenario), rule, scenario.hours)
    return Assessor(scenario, week, start, guard=guard).assess(np.ones(scenario.subscribers))


@pytest.mark.parametrize("start", ["cold", "warm"])
@pytest.mark.parametrize("name", ["internal_like", "azure_like"])
def test_a_rule_that_wants_given_rates_places_a_week_as_those_rates_do(name: str, start: str) -> None:
    scenario = scenario_of(name)
    week, shipped = scenario.week("s21"), shipped_rates(scenario, start)
    assert shipped is not None
    rates = np.array(shipped.rates)
    by_rule = played(scenario, week, RequestRule(rates, np.zeros(0), np.zeros(4), NEUTRAL), start)
    given = Assessor(scenario, week, start).assess(rates)
    assert by_rule.placement.s_cores == pytest.approx(given.placement.s_cores, abs=1e-13)
    assert by_rule.c_hot_r == pytest.approx(given.c_hot_r, abs=1e-11)
    assert by_rule.placement.peak_machines == given.placement.peak_machines


def decided_again(scenario: Scenario, risk: Risk, rule: RequestRule, rows: list[int]) -> list[tuple[float, int]]:
    """Return rate and machine that the plain rule gives each row, where the week put the rows before it."""
    week, placed = risk.placement.week, risk.placement
    mean, variance, third = moments_of(scenario.mu, scenario.sd)
    c, wanted = week.cores, rule.wanted(range(scenario.hours))
    found = []
    for row in rows:
        t, n = int(week.arrival[row]), int(week.subscriber[row])
        before = np.arange(len(c)) < row
        alive = np.flatnonzero(before & (placed.machine >= 0) & (week.departure > t))
        k, owner = placed.machine[alive], week.subscriber[alive]

        def summed(values: Floats, k: Ints = k) -> Floats:
            total = np.zeros((scenario.machines, *values.shape[1:]))
            np.add.at(total, k, values)
            return total

        machines = Machines(
            scenario.machine_cores - summed(placed.rate[alive] * c[alive]),
            scenario.machine_memory_gb - summed(week.memory_gb[alive]),
            scenario.machine_network_gbps - summed(week.network_gbps[alive]),
            summed(c[alive, None] * mean[owner]),
            summed(c[alive, None] ** 2 * variance[owner]),
            summed(c[alive, None] ** 3 * third[owner]),
            scenario.threshold,
        )
        sizes = (week.memory_gb[row], week.network_gbps[row])
        demand = Demand(c[row], *sizes, c[row] * mean[n], c[row] ** 2 * variance[n], c[row] ** 3 * third[n])
        fits, room = [], np.empty(scenario.machines)
        for level in scenario.actions:
            write_room(machines.free_cores, machines.free_memory, machines.free_network, level * c[row], *sizes, room)
            fits.append(best_fit(room))
        decision = choose_level(
            scenario.actions, fits, machines, scenario.machine_cores, demand, float(wanted[t, n]), rule.weights
        )
        found.append((decision.taken.level, decision.taken.machine))
    return found


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_the_engine_decides_each_request_as_the_plain_rule_does(start: str) -> None:
    scenario = scenario_of("internal_like")
    week, rule = scenario.week("s0"), drawn_rule(scenario.subscribers)
    risk = played(scenario, week, rule, start)
    rows = np.random.default_rng(1).choice(np.arange(week.warm, len(week.ids)), 250, replace=False).tolist()
    placed = risk.placement
    wanted = [(float(placed.rate[row]), int(placed.machine[row])) for row in rows]
    assert decided_again(scenario, risk, rule, rows) == wanted
    # The case would show nothing where a level is never refused, or all are.
    assert len({rate for rate, _ in wanted}) >= 4


def test_a_full_cluster_rejects_what_the_plain_rule_finds_no_machine_for() -> None:
    scenario, week = invented(3, requests=120, machines=2)
    rule = drawn_rule(scenario.subscribers)
    risk = played(scenario, week, rule, "warm")
    rows = list(range(week.warm, len(week.ids)))
    machines = [max(k, -1) for k in risk.placement.machine[week.warm :].tolist()]
    assert [k for _, k in decided_again(scenario, risk, rule, rows)] == machines
    assert -1 in machines


def test_a_shield_after_the_rule_raises_what_the_rule_left_too_hot() -> None:
    scenario = scenario_of("internal_like")
    week, daring = scenario.week("s0"), RequestRule(np.full(12, 0.2), np.zeros(0), np.zeros(4), NEUTRAL)
    assessor = Assessor(scenario, week, guard=ruled(guard_of(scenario, "shield", 0.003), daring, scenario.hours))
    behind, alone = assessor.assess(np.ones(12)), played(scenario, week, daring, "cold")
    grid = Assessor(scenario, week, guard=guard_of(scenario, "shield", 0.003)).assess(np.full(12, 0.2))
    assert behind.placement.raised > 0
    assert behind.c_hot_r < 0.5 < alone.c_hot_r
    assert np.array_equal(behind.placement.machine, grid.placement.machine)


def test_parameters_of_another_number_or_not_finite_are_refused() -> None:
    with pytest.raises(BadInput, match="week"):
        RequestRule(np.ones(2), np.zeros(3), np.zeros(4), NEUTRAL)
    with pytest.raises(BadInput, match="finite"):
        RequestRule(np.array([0.2, np.nan]), np.zeros(0), np.zeros(4), NEUTRAL)


def test_a_rule_cannot_follow_where_no_moments_are_kept() -> None:
    scenario = scenario_of("internal_like")
    with pytest.raises(BadInput, match="moments"):
        Assessor(scenario, scenario.week("s0")).follow(drawn_rule(scenario.subscribers))
