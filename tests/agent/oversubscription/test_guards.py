"""The guard in a file of rates: the simulator and a pool go by the same one, and contradictions are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.oversubscription.observation import Sight
from agent.oversubscription.rate_policies import policy_of
from agent.oversubscription.records import RateRequest, Vm
from agent.oversubscription.shield import ask_shield
from agent.settings import load_settings
from domain.decisions import Reason
from domain.errors import BadInput, ConfigurationError
from domain.rules.oversubscription.rates import USUAL_BUDGET
from simulator.oversubscription.batch import OversubscriptionSimulation
from simulator.oversubscription.scenario import Week, scenario_of
from tests.agent.oversubscription.pools import OURS, House, loads_as, pool_of, profiles_as, rules, vm
from trainer.oversubscription.policies import SHIPPED, Task, read_rates

HOURS = 48
SHIELDED = {"kind": "shield", "budget": 0.02}


def rates_file(directory: Path, **more: Any) -> Path:
    """A file of rates for `web` and `batch`."""
    path = directory / "rates.json"
    path.write_text(json.dumps({"kind": "oversubscription-rates", "rates": {"web": 0.3, "batch": 0.4}, **more}))
    return path


@pytest.mark.parametrize(
    ("guard", "changes", "budget"),
    [
        (None, {}, USUAL_BUDGET),
        (None, {"shield_budget": 0.5}, 0.5),
        (SHIELDED, {"drift_spread": 0.0}, 0.02),
        (SHIELDED, {}, USUAL_BUDGET),
        ({"kind": "shield", "budget": 0.001}, {}, 0.001),
        (SHIELDED, {"shield_budget": 0.02}, 0.02),
        (SHIELDED, {"shield_budget": 0.001}, 0.001),
        ({"kind": "filter", "budget": 0.01}, {"risk_filter": True, "drift_spread": 0.0}, 0.01),
    ],
)
def test_a_request_may_leave_what_the_file_says_or_less(
    tmp_path: Path, guard: dict[str, Any] | None, changes: dict[str, Any], budget: float
) -> None:
    assert policy_of(f"rates:{rates_file(tmp_path, guard=guard)}", rules(**changes)).budget == budget


@pytest.mark.parametrize(
    ("guard", "changes", "field"),
    [
        (SHIELDED, {"shield_budget": 0.021}, "shield_budget"),
        (SHIELDED, {"risk_filter": True}, "risk_filter"),
        ({"kind": "filter", "budget": 0.01}, {}, "risk_filter"),
    ],
)
def test_settings_that_contradict_the_files_guard_are_named(
    tmp_path: Path, guard: dict[str, Any], changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as refused:
        policy_of(f"rates:{rates_file(tmp_path, guard=guard)}", rules(**changes))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "guard", ["shield", {"kind": "shield"}, {"kind": "wall", "budget": 0.1}, {"kind": "shield", "budget": 25}]
)
def test_a_guard_that_does_not_exist_makes_the_file_unusable(tmp_path: Path, guard: Any) -> None:
    with pytest.raises(BadInput, match="rates file"):
        policy_of(f"rates:{rates_file(tmp_path, guard=guard)}", rules())


def test_a_budget_above_the_files_is_a_mistake_of_the_settings(tmp_path: Path) -> None:
    path = "TRIMTAB_POOLS__main__"
    given = {
        f"{path}MACHINES": "12",
        f"{path}MACHINE_CORES": "48",
        f"{path}MACHINE_MEMORY_GB": "512",
        f"{path}POLICY": f"rates:{rates_file(tmp_path, guard=SHIELDED)}",
        f"{path}SHIELD_BUDGET": "0.05",
    }
    with pytest.raises(ConfigurationError, match=r"SHIELD_BUDGET=0\.05: give at most 0\.02"):
        load_settings(given)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    given = rules(policy=f"rates:{rates_file(tmp_path, guard=SHIELDED)}", drift_spread=0.0)
    made = House(tmp_path, given, [vm(f"v{k}", "web" if k % 2 else "batch", f"m{k % 2 + 1}") for k in range(12)])
    made.live(2)
    yield made
    made.ledger.close()


def test_a_pool_answers_by_its_files_guard_also_after_a_restart(house: House) -> None:
    assert house.pool.hour is not None
    assert (house.pool.hour.budget, house.ask().budget) == (0.02, 0.02)
    house.open()
    house.turn()
    assert house.ask().budget == 0.02
    assert "0.02 allowed" in house.ask().detail


@pytest.mark.exhaustive
def test_a_file_that_comes_to_contradict_the_settings_leads_to_full_reservations(house: House, tmp_path: Path) -> None:
    house.live(200)
    assert house.rate("web") < 1.0
    rates_file(tmp_path, guard={"kind": "filter", "budget": 0.02})
    told = house.hour()
    assert (house.rate("web"), house.reasons("web")) == (1.0, (Reason.POLICY_FAILED,))
    assert any(event.reason is Reason.POLICY_FAILED and "risk_filter" in event.detail for event in told)


def vm_of(week: Week, k: int, machine: str, rate: float) -> Vm:
    """Row k of a week as a VM of the pool."""
    sizes = (float(week.cores[k]), float(week.memory_gb[k]), float(week.network_gbps[k]))
    return Vm(str(week.ids[k]), str(week.subscriber[k]), machine, *sizes, rate)


@pytest.mark.exhaustive
def test_a_pool_gives_every_request_the_rate_and_machine_that_the_simulator_gives_it() -> None:
    """The shipped rates behind their shield, two days of a warm cluster: the same file, played and asked."""
    scenario, path = scenario_of("internal_like"), SHIPPED / "internal_like-warm.json"
    held = read_rates(path)
    plan = held.plan(Task(scenario, scenario.week("s0"), "warm"))
    assert plan.schedule is not None
    played = OversubscriptionSimulation(scenario, "s0", start="warm", cost="analytic", guard=plan.guard)
    played.reset()
    for hour in range(HOURS):
        played.step_rates(plan.schedule[hour])
    week, there = played.week, played.placement()
    owners = {str(n): OURS for n in range(scenario.subscribers)}
    # The file as it is played: no room for drifts.
    pool = pool_of(scenario, owners, policy=f"rates:{path}", persistence=0.0, rho=0.0, drift_spread=0.0)
    policy, profiles = policy_of(pool.policy, pool), profiles_as(scenario, held.subscribers)
    loads = loads_as([], profiles, pool)
    rates = policy.rates(Sight({}, (), {}, loads, profiles, pool, 0, 0))
    asked = np.arange(len(week.ids)) >= week.warm
    raised = 0
    for hour in range(HOURS):
        standing = np.flatnonzero(((week.arrival < hour) | ~asked) & (week.departure > hour) & (there.machine >= 0))
        alive = [vm_of(week, k, f"m{there.machine[k]}", float(there.rate[k])) for k in standing.tolist()]
        loads = loads_as(alive, profiles, pool)
        taken = {int(name[1:]) for name in loads.names if name.startswith("m")}
        # Machines without VMs have no name here; there they are taken in the order of their numbers.
        number = iter([*sorted(taken), *(k for k in range(scenario.machines) if k not in taken)])
        place = dict(enumerate(number))
        for k in np.flatnonzero(asked & (week.arrival == hour)).tolist():
            wanted = vm_of(week, k, "", 1.0)
            base = rates[wanted.subscriber]
            assert base is not None
            request = RateRequest(
                subscriber=wanted.subscriber,
                cores=wanted.cores,
                memory_gb=wanted.memory_gb,
                network_gbit=wanted.network_gbit,
            )
            found = ask_shield(loads, profiles, request, base, pool, policy.budget, ())
            assert (k, found.rate, place[found.machine]) == (k, there.rate[k], there.machine[k])
            raised += found.rate > base
            owner = profiles.index(wanted.subscriber)
            loads.place(found.machine, replace(wanted, rate=found.rate), owner, profiles)
    assert raised > 10
