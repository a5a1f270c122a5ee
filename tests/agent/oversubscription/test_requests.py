"""The shield before a request: the domain's choice on fewer machines, recorded, repeatable, and the same again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.ledger import codec
from agent.oversubscription.alive import alive_of
from agent.oversubscription.arrays import clipped, hot_probabilities, unclipped
from agent.oversubscription.choice import choose
from agent.oversubscription.fold import fold
from agent.oversubscription.memory import PoolMemory, SubscriberMemory, VmTable, columns_of, levels
from agent.oversubscription.profiles import Profiles, persistence_of, profiles_of
from agent.oversubscription.records import HourDecision, RateDecision, RateRequest, Vm
from agent.oversubscription.shield import ask_filter, ask_shield, machines_among, replayed
from agent.oversubscription.state import OversubscriptionStore
from domain.decisions import Reason
from domain.errors import BadInput
from domain.rules.oversubscription.pool import SubscriberRules
from domain.rules.oversubscription.rates import USUAL_BUDGET, USUAL_SPREAD
from domain.rules.oversubscription.risk import hot_probability
from domain.rules.oversubscription.shield import Demand, Machines
from domain.rules.oversubscription.usage import clipped_moments, drifted_means, offset_belief, turned_excess
from tests.agent.oversubscription.pools import OURS, House, loads_as, rules, vm
from tests.oracles.persistence import estimate_persistence
from tests.oracles.shield import shield

SHARES = st.floats(0.0, 1.0)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path, rules(), [vm(f"v{k}", "web" if k % 2 else "batch", f"m{k % 2 + 1}") for k in range(12)])
    made.live(180)
    yield made
    made.ledger.close()


@given(mu=st.floats(-0.5, 1.5), sd=st.floats(0.0, 1.0))
def test_moments_on_arrays_are_those_of_one(mu: float, sd: float) -> None:
    found = [float(column[0]) for column in clipped(np.array([mu]), np.array([sd]))]
    assert found == pytest.approx(clipped_moments(mu, sd), rel=1e-9, abs=1e-12)


@given(
    mean=st.floats(0.0, 100.0),
    variance=st.floats(0.0, 400.0),
    third=st.floats(-1e3, 1e3),
    threshold=st.floats(1.0, 90.0),
)
def test_tails_on_arrays_are_those_of_one(mean: float, variance: float, third: float, threshold: float) -> None:
    found = hot_probabilities(np.array([mean]), np.array([variance]), np.array([third]), threshold)
    expected = hot_probability(mean, variance, third, threshold)
    near = variance > 1e-30 and abs(threshold - mean) < 7.0 * variance**0.5
    # What lies further out than seven standard deviations counts as nothing, whatever its skewness.
    assert float(found[0]) == pytest.approx(expected if near or variance <= 1e-30 else round(expected), abs=1e-9)


@given(mu=st.floats(0.05, 0.8), sd=st.floats(0.01, 0.3))
@settings(deadline=None)
def test_a_profile_that_was_measured_clipped_is_found_again(mu: float, sd: float) -> None:
    mean, variance, _ = clipped_moments(mu, sd)
    back, spread = unclipped(np.array([mean]), np.array([variance]))
    assert clipped_moments(float(back[0]), float(spread[0]))[0] == pytest.approx(mean, abs=2e-3)
    assert clipped_moments(float(back[0]), float(spread[0]))[1] == pytest.approx(variance, rel=0.05, abs=1e-5)


def test_the_share_that_is_a_vms_own_is_estimated_from_sums_as_from_the_whole() -> None:
    draws = np.random.default_rng(5)
    pool = rules(subscribers={"web": OURS})
    shares = np.clip(0.4 + 0.05 * (draws.normal(0.0, 0.9, (40, 1)) + draws.normal(0.0, 0.4, (40, 72))), 0.0, 1.0)
    alive = {f"v{k}": Vm(f"v{k}", "web", "m1", 1.0, 1.0, 0.0, 1.0) for k in range(40)}
    # The standing profile, so that the residuals are those of one profile throughout.
    profiles, memory = profiles_of({"web": SubscriberMemory()}, 0, 0.0, None), PoolMemory()
    first = 24 * 20_000
    for hour in range(73):
        column = shares[:, hour] if hour < 72 else np.full(40, 0.4)
        readings = {("web", f"v{k}"): float(u) for k, u in enumerate(column)}
        memory = fold(memory, alive_of(alive), readings, first + hour, pool, profiles).memory
    days = ((shares - profiles.mu[0, 0]) / profiles.sd[0, 0]).reshape(120, 24)
    assert memory.subscribers["web"].days.days == 120
    assert persistence_of(memory.subscribers["web"].days) == pytest.approx(estimate_persistence(days), abs=1e-9)


@given(
    hours=st.integers(0, 160),
    total=st.floats(-300.0, 300.0),
    own=st.floats(0.0, 0.95),
    shared=st.floats(0.0, 0.04),
)
def test_levels_in_arrays_are_the_domains(hours: int, total: float, own: float, shared: float) -> None:
    nothing = np.zeros(1)
    columns = columns_of(VmTable(), ("web/v1",))._replace(hours=np.array([hours]), residual_sum=np.array([total]))
    level, width = levels(columns, nothing + own, nothing + shared)
    mean, variance = offset_belief(total, hours, own, shared)
    assert float(level[0]) == pytest.approx(mean)
    assert float(width[0]) == pytest.approx(max(variance + 1.0 - own, 0.0) ** 0.5)


def with_a_day(profiles: Profiles, turn_h: int) -> Profiles:
    """The profiles with a day in them, and what the means rise by when it turns."""
    mu = profiles.mu * (0.6 + 0.4 * np.sin(np.arange(24) * np.pi / 12.0))
    mean, variance, third = clipped(mu, profiles.sd)
    excess = turned_excess(mean, turn_h)
    drifts = dict(zip(("moved", "spread"), drifted_means(mean), strict=True))
    return replace(profiles, mu=mu, mean=mean, variance=variance, third=third, excess=excess, **drifts)


@given(data=st.data(), rate=st.sampled_from([0.2, 0.4, 0.6, 1.0]), cores=st.floats(1.0, 16.0))
@settings(deadline=None, max_examples=60)
def test_the_answer_is_the_domains_on_all_machines(data: st.DataObject, rate: float, cores: float) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(0, 5), st.floats(1.0, 12.0), st.floats(0.2, 1.0)), max_size=20))
    vms = [Vm(f"v{k}", ("web", "batch")[k % 2], f"m{m}", c, 4.0, 0.0, r) for k, (m, c, r) in enumerate(sizes)]
    budget = data.draw(st.sampled_from([1e-6, 1e-3, 0.1]))
    level, turn_h, spread = data.draw(st.sampled_from([(0.0, 0, 0.0), (0.3, 0, 0.0), (0.0, 3, 1.0), (0.4, 2, 3.0)]))
    room = {"drift_level": level, "drift_hours": turn_h, "drift_spread": spread}
    pool = rules(machines=6, subscribers={"web": OURS, "batch": OURS}, **room)
    profiles = with_a_day(profiles_of({"web": SubscriberMemory()}, 0, 0.0, None), turn_h)
    loads = loads_as(vms, profiles, pool)
    request = RateRequest(subscriber="web", cores=cores, memory_gb=4.0)
    found = ask_shield(loads, profiles, request, rate, pool, budget, ())
    # Nobody has a level of its own yet, so that the machines' means are those of the profile.
    drifted = np.max([np.roll(profiles.mean, step, axis=1) for step in range(-turn_h, turn_h + 1)], axis=0)
    n = profiles.index("web")
    held = loads.by_owner + cores * np.eye(len(profiles.names) + 1)[n]
    risen = held @ profiles.moved + spread * np.sqrt(held**2 @ profiles.spread**2)
    whole = Machines(
        free_cores=loads.free_cores,
        free_memory=loads.free_memory,
        free_network=loads.free_network,
        mean=(1.0 + level) * np.array([by_owner @ drifted for by_owner in loads.by_owner])
        + (np.maximum(risen, 0.0) if spread else 0.0),
        variance=loads.variance,
        third=loads.third,
        threshold=pool.threshold_cores,
    )
    moments = ((1.0 + level) * cores * drifted[n], cores**2 * profiles.variance[n], cores**3 * profiles.third[n])
    expected = shield(whole, Demand(cores, 4.0, 0.0, *moments), rate, pool.actions, budget)
    assert (found.rate, found.machine, found.safe) == (expected.rate, expected.machine, expected.safe)


def test_a_request_is_refused_for_a_rise_that_there_is_room_for_in_the_settings_alone() -> None:
    profiles = profiles_of({}, 0, 0.0, None)
    vms = [Vm(f"v{k}", "web", "m1", 8.0, 4.0, 0.0, 0.3) for k in range(3)]

    def answer(level: float) -> tuple[float, float]:
        pool = rules(machines=1, subscribers={"web": OURS}, drift_level=level, drift_spread=0.0)
        loads = loads_as(vms, profiles, pool)
        found = ask_shield(
            loads, profiles, RateRequest(subscriber="web", cores=4.0, memory_gb=4.0), 0.3, pool, 0.02, ()
        )
        assert found.hot_hours is not None
        # What people see of the pool is what is expected, without the margin.
        assert loads.mean[0].max() == pytest.approx(24.0 * profiles.mean[-1].max())
        return found.rate, found.hot_hours

    calm, risen = answer(0.0), answer(1.0)
    assert (calm[0], risen[0]) == (0.3, 1.0)
    assert calm[1] < risen[1]


def test_there_is_room_for_a_rise_of_what_runs_as_of_what_is_asked_for() -> None:
    profiles, request = profiles_of({}, 0, 0.0, None), RateRequest(subscriber="web", cores=4.0, memory_gb=4.0)
    vms = [Vm("v0", "web", "m1", 8.0, 4.0, 0.0, 0.3)]

    def means(level: float) -> tuple[np.ndarray, np.ndarray]:
        pool = rules(machines=1, subscribers={"web": OURS}, drift_level=level, drift_spread=0.0)
        machines, demand = machines_among(
            *(loads_as(vms, profiles, pool), profiles, request, [0], pool.threshold_cores, pool.margin)
        )
        return machines.mean, demand.mean

    (running, asked), (more_running, more_asked) = means(0.0), means(0.5)
    assert running.min() > 0.0
    np.testing.assert_allclose(more_running, 1.5 * running)
    np.testing.assert_allclose(more_asked, 1.5 * asked)


def test_a_machine_that_uses_its_budget_up_is_taken_and_none_beyond() -> None:
    pool, profiles = rules(machines=1, subscribers={"web": OURS}), profiles_of({}, 0, 0.0, None)
    vms = [Vm(f"v{k}", "web", "m1", 10.0, 4.0, 0.0, 0.3) for k in range(8)]
    request = RateRequest(subscriber="web", cores=8.0, memory_gb=4.0)

    def rate(budget: float) -> tuple[float, bool]:
        found = ask_shield(loads_as(vms, profiles, pool), profiles, request, 0.3, pool, budget, ())
        return found.rate, found.safe

    (first, *_) = ask_shield(loads_as(vms, profiles, pool), profiles, request, 0.3, pool, 24.0, ()).tried
    assert first.hot_hours is not None
    assert first.hot_hours > 0.0
    assert rate(first.hot_hours) == (0.3, True)
    assert rate(np.nextafter(first.hot_hours, 0.0)) == (1.0, False)


@given(data=st.data(), rate=st.sampled_from([0.2, 0.6, 1.0]), cores=st.floats(1.0, 16.0))
@settings(deadline=None, max_examples=60)
def test_the_filter_gives_the_best_fit_among_the_machines_that_stay_cool(
    data: st.DataObject, rate: float, cores: float
) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(0, 5), st.floats(1.0, 12.0), st.floats(0.2, 1.0)), max_size=20))
    vms = [Vm(f"v{k}", "web", f"m{m}", c, 4.0, 0.0, r) for k, (m, c, r) in enumerate(sizes)]
    budget = data.draw(st.sampled_from([1e-6, 1e-3, 0.1]))
    spread = data.draw(st.sampled_from([0.0, USUAL_SPREAD]))
    pool = rules(machines=6, subscribers={"web": OURS}, risk_filter=True, drift_spread=spread)
    profiles = profiles_of({}, 0, 0.0, None)
    loads = loads_as(vms, profiles, pool)
    closed = {"m1"} if data.draw(st.booleans()) else set()
    found = ask_filter(
        loads, profiles, RateRequest(subscriber="web", cores=cores, memory_gb=4.0), rate, pool, budget, closed
    )
    n, hours = profiles.index("web"), np.zeros(len(loads.names))
    for k in range(len(loads.names)):
        # One subscriber's VMs move together.
        held = loads.by_owner[k, n] + cores
        risen = held * (profiles.moved[n] + spread * profiles.spread[n]) if spread else 0.0
        mean = loads.mean[k] + cores * profiles.mean[n] + np.maximum(risen, 0.0)
        variance = loads.variance[k] + cores**2 * profiles.variance[n]
        third = loads.third[k] + cores**3 * profiles.third[n]
        parts = zip(mean.tolist(), variance.tolist(), third.tolist(), strict=True)
        hours[k] = sum(hot_probability(m, v, t, pool.threshold_cores) for m, v, t in parts)
    cool = [
        k
        for k, name in enumerate(loads.names)
        if hours[k] <= budget and loads.free_cores[k] >= rate * cores - 1e-9 and (rate == 1.0 or name not in closed)
    ]
    if cool:
        best = min(cool, key=lambda k: (round(float(loads.free_cores[k]), 6), k))
        assert (found.rate, found.safe) == (rate, True)
        assert loads.free_cores[found.machine] == pytest.approx(loads.free_cores[best], abs=1e-6)
        assert found.hot_hours == pytest.approx(hours[found.machine], abs=1e-9)
    else:
        assert (found.rate, found.safe) == (1.0, False)


def test_a_pool_with_the_filter_answers_with_a_cooler_machine_and_replays(tmp_path: Path) -> None:
    given = rules(risk_filter=True, beta=0.3, subscribers={"web": SubscriberRules(internal=True, fixed_rate=0.3)})
    house = House(tmp_path, given, [vm(f"v{k}", "web", f"m{k % 2 + 1}") for k in range(6)])
    house.live(12, mean=0.35)
    answers = [house.ask(cores=8.0) for _ in range(6)]
    assert {found.rate for found in answers} == {0.3}
    assert all(found.safe and found.hot_hours <= USUAL_BUDGET for found in answers)
    # Best fit alone would fill the fuller machines first.
    assert len({found.machine for found in answers}) > 1
    assert all(replayed(found) == (found.rate, found.safe) for found in answers)
    house.ledger.close()


@pytest.mark.exhaustive
def test_an_answer_takes_room_until_the_vm_is_listed_or_its_time_is_over(house: House) -> None:
    assert house.pool.loads is not None
    before = house.pool.loads.free_cores.sum()
    found = house.ask(cores=10.0, vm="new")
    assert house.pool.loads.free_cores.sum() == pytest.approx(before - 10.0 * found.rate)
    house.place([*house.vms, vm("new", machine=found.machine, cores=10.0, rate=found.rate)])
    house.turn()
    assert house.pool.promised == {}
    house.ask(cores=10.0, vm="never")
    house.open()
    house.turn()
    assert set(house.pool.promised) == {"never"}
    house.clock.advance(3700.0)
    house.turn()
    assert house.pool.promised == {}


@pytest.mark.exhaustive
def test_the_same_request_again_gets_the_same_answer_also_after_a_restart(house: House) -> None:
    first = house.ask(request_id="r1")
    assert house.ask(request_id="r1") == first
    house.open()
    house.turn()
    assert house.ask(request_id="r1") == first
    assert house.pool.memory.counts.requests == 1
    with pytest.raises(BadInput, match="it belongs to another request"):
        house.ask(cores=9.0, request_id="r1")


def test_a_larger_rate_that_leads_to_a_cooler_machine_is_the_answer() -> None:
    pool, profiles = rules(machines=2, subscribers={"web": OURS}), profiles_of({}, 0, 0.0, None)
    room = float(loads_as([], profiles, pool).free_cores[0])
    # Three cores are left on the busy machine: enough for 0.3 of eight, not for 0.4 of them.
    vms = [Vm(f"v{k}", "web", "m0", 10.0, 4.0, 0.0, (room - 3.0) / 80.0) for k in range(8)]
    loads = loads_as(vms, profiles, pool)
    assert sorted(loads.free_cores.tolist()) == pytest.approx([3.0, room])
    found = ask_shield(loads, profiles, RateRequest(subscriber="web", cores=8.0, memory_gb=4.0), 0.3, pool, 1e-3, ())
    assert (found.rate, found.safe) == (0.4, True)
    assert [(tried.rate, bool(tried.hot_hours is not None and tried.hot_hours > 1e-3)) for tried in found.tried] == [
        (0.3, True),
        (0.4, False),
    ]


@pytest.mark.exhaustive
def test_the_shield_raises_a_rate_whose_machine_would_run_hot(house: House) -> None:
    answers = [house.ask(cores=8.0) for _ in range(40)]
    raised = [one for one in answers if Reason.SHIELDED in one.reasons]
    assert answers[0].rate == 0.3
    assert raised
    assert all(one.rate > one.base_rate for one in raised)
    assert all(one.hot_hours is not None and one.hot_hours <= one.budget for one in answers if one.safe)
    assert house.pool.memory.counts.interventions == len(raised)


@pytest.mark.exhaustive
def test_every_answer_and_every_hour_can_be_had_again_from_the_ledger(house: House) -> None:
    for k in range(30):
        house.ask("batch" if k % 3 else "web", cores=float(k % 7 + 1))
    decisions = OversubscriptionStore(house.ledger).newest("main", 500)
    assert len(decisions) == 210
    for decision in decisions:
        if isinstance(decision, RateDecision):
            assert replayed(decision) == (decision.rate, decision.safe)
            continue
        inputs = OversubscriptionStore(house.ledger).inputs(decision.decision_id)
        assert inputs is not None
        again = {choice.subscriber: (choice.rate, choice.reasons) for choice in choose(inputs)}
        assert again == {row.subscriber: (row.rate, row.reasons) for row in decision.subscribers}
        assert codec.decode(HourDecision, codec.encode(decision)) == decision


def test_rates_in_force_are_those_of_the_hour_and_none_once_no_hour_was_decided_for_long(house: House) -> None:
    assert house.pool.hour is not None
    assert house.pool.rates() == {row.subscriber: row.rate for row in house.pool.hour.subscribers}
    assert min(house.pool.rates().values()) == 0.3
    house.clock.advance(1000.0)
    assert house.pool.rates() == {}


@pytest.mark.exhaustive
def test_nothing_is_oversold_by_an_agent_that_does_not_lead_or_has_not_decided_for_long(house: House) -> None:
    assert house.ask().rate == 0.3
    house.clock.advance(1000.0)
    found = house.ask()
    assert (found.rate, found.reasons[0]) == (1.0, Reason.NOT_LEADER)
    house.pool.leads(house.clock.now() + 4 * 3600.0)
    house.clock.advance(4 * 3600.0)
    found = house.ask()
    assert (found.rate, found.reasons[0]) == (1.0, Reason.STALE_INPUT)


@pytest.mark.exhaustive
@pytest.mark.parametrize("step_s", [7200.0, -7200.0])
def test_a_clock_that_is_set_takes_no_room_from_a_vm_that_was_answered(house: House, step_s: float) -> None:
    house.ask(cores=10.0, vm="new")
    house.clock.step(step_s)
    house.turn()
    assert set(house.pool.promised) == {"new"}
    house.clock.advance(3700.0)
    house.turn()
    assert house.pool.promised == {}


def test_a_start_anew_does_not_begin_the_wait_for_a_vm_anew(house: House) -> None:
    house.ask(cores=10.0, vm="old")
    house.clock.advance(1800.0)
    house.ask(cores=10.0, vm="new")
    house.open()
    house.turn()
    house.clock.advance(1900.0)
    house.turn()
    assert set(house.pool.promised) == {"new"}


@pytest.mark.exhaustive
def test_an_agent_whose_clock_is_ahead_takes_over_what_the_other_answered(house: House) -> None:
    house.ask(cores=10.0, vm="new")
    house.clock.step(7200.0)
    house.open()
    house.turn()
    assert set(house.pool.promised) == {"new"}


@pytest.mark.exhaustive
def test_a_decision_replays_with_its_budget_used_up_and_not_beyond(house: House) -> None:
    found = house.ask(cores=8.0)
    assert found.tried[-1].rate == found.rate
    assert found.hot_hours > 0.0
    assert replayed(replace(found, budget=found.hot_hours)) == (found.rate, True)
    assert replayed(replace(found, budget=math.nextafter(found.hot_hours, 0.0))) == (1.0, False)


def test_machines_whose_names_differ_by_zeros_alone_have_one_order() -> None:
    names = [f"m{'0' * zeros}1" for zeros in range(9)]
    for order in (names, names[::-1]):
        rows = {f"vm-{name}": Vm(f"vm-{name}", "batch", name, 1.0, 1.0, 0.0, 1.0) for name in order}
        assert alive_of(rows).machines == tuple(sorted(names))
