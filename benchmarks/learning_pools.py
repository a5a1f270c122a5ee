"""Hot weeks of oversold pools on eight unseen weeks, with a drift of usage: rates alone, behind a shield, in an agent.

The weeks are drawn anew from the requests of a packaged scenario; no rates were tuned or held to them. The drift: level
and times of day of every subscriber change at once, as `trainer.oversubscription.unseen.shifted` draws them. Promised:
in at most 5 % of the weeks too many hot hours (three in 120).

Simulated, each week cold and by itself, met by many episodes of usage. `steady`: usage as the scenario has it. `drift`:
it changes in the middle of the week; rates and shield go by the usage before, to the end. `after`: the whole week is of
the changed usage, which the shield knows and the rates do not. hot_*: share of episodes that break the promise, in the
worst of the weeks; upper_*: upper end of its 95 % interval; hot_mean_*: over all weeks; saved_*: cores not reserved.
`bare`: the rates of the file that ships, without its guard; `shipped`: the file; `strict`: its rates behind the agent's
own budget of 0.003; `ma`: moving average behind the same, the default of a pool; `rates_1`: no overselling at all.

Lived (--lived): eight weeks in a row through the agent's own pool, on a ledger, after one in which it learns the usage;
the drift comes at the begin of the fifth. Requests get the rate and the machine that the agent answers, every VM
reports each hour, and each hour is decided, with drift alarms, frozen rates and roll-back. A pool that was rolled back
is re-armed at the begin of the next week. lived_hot_*: the most hot hours of a week; lived_broken_*: weeks of the eight
with three or more; lived_saved_*: of the cores requested in them.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from agent.ledger import Ledger
from agent.oversubscription.inventory import COLUMNS
from agent.oversubscription.pool import Pool, vm_of
from agent.oversubscription.pools import PoolTurns
from agent.oversubscription.records import RateRequest, Vm
from agent.oversubscription.store import OversubscriptionStore
from benchmarks.report import Target, arguments, progress, report
from domain.clock import VirtualClock
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from domain.rules.oversubscription.rates import USUAL_BUDGET
from domain.rules.oversubscription.risk import clopper_pearson_upper
from domain.units import HOUR_S
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Placement, sample
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.policies import SHIPPED, OversubscriptionPolicy, Task, as_rates, policy_of, shipped_rates
from trainer.oversubscription.unseen import EVALUATION, arrivals_of, shifted, unseen_week

SCENARIOS = ("internal_like", "azure_like")
ALPHA = 0.95
FIRST_WEEK = 2_000
"""Number of the first unseen week; evaluations and the gate draw others."""
LIVED_DRIFT = FIRST_WEEK + 5
"""Of the eight drifts, the one that breaks the promise most in internal-like."""
SEED = 6_000_000_007
"""First episode of usage."""
HEAD = ",".join(COLUMNS) + "\n"
KINDS = ("steady", "drift", "after")
LIVED = {"shipped": "rates", "ma": "moving-average"}
START_S = 1_790_553_600.0
"""2026-09-28 00:00:00 UTC."""


def policies(scenario: Scenario) -> dict[str, OversubscriptionPolicy]:
    """Return what ships for a scenario, with and without its guard, and no overselling."""
    found = shipped_rates(scenario, "cold")
    assert found is not None
    rates = as_rates(np.array(found.rates))
    return {
        "bare": policy_of(rates),
        "shipped": found,
        "strict": policy_of(f"shield:base=({rates}),b={USUAL_BUDGET:g}"),
        "ma": policy_of(f"shield:base=(ma),b={USUAL_BUDGET:g}"),
        "rates_1": policy_of("none"),
    }


def hot_hours(
    placed: Placement, before: Scenario, after: Scenario, week: Week, seeds: NDArray[Any], change_h: int
) -> NDArray[np.int64]:
    """Return the hot hours of each episode, (E,), when usage changes at an hour of the week.

    Draws belong to the VM and the hour, so that the hours after the change are those of a whole week less its begin.
    """

    def hot(usage: Scenario, hours: int) -> NDArray[np.int64]:
        cut = replace(placed, scenario=replace(placed.scenario, hours=hours))
        return sample(cut, usage_of("gauss", usage, week), seeds).hot_hours

    whole = before.hours
    if change_h >= whole:
        return hot(before, whole)
    late = hot(after, whole)
    return late if change_h == 0 else hot(before, change_h) + late - hot(after, change_h)


def broken(
    policy: OversubscriptionPolicy, scenario: Scenario, week: Week, number: int, kind: str, seeds: NDArray[Any]
) -> tuple[int, float]:
    """Return how many episodes of a week break the promise, and the share of cores that is saved in it."""
    changed = shifted(scenario, number)
    known = changed if kind == "after" else scenario
    placed = judge(policy, Task(known, week, "cold", ALPHA), episodes=1).placement
    change_h = {"steady": scenario.hours, "drift": scenario.hours // 2, "after": 0}[kind]
    hot = hot_hours(placed, scenario, changed, week, seeds, change_h)
    count = len(seeds) if placed.rejects else int((hot >= scenario.violation_hours).sum())
    return count, placed.s_cores or 0.0


def simulated(scenario: Scenario, weeks: int, episodes: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures of a scenario, and the share of hot episodes week by week."""
    arrivals = arrivals_of(scenario)
    drawn = [unseen_week(arrivals, FIRST_WEEK + n, EVALUATION) for n in range(weeks)]
    seeds = np.arange(SEED, SEED + episodes)
    figures: dict[str, float] = {}
    by_week: dict[str, Any] = {}
    for name, policy in policies(scenario).items():
        for kind in KINDS:
            progress(f"{scenario.name} {name} {kind}")
            found = [broken(policy, scenario, week, FIRST_WEEK + n, kind, seeds) for n, week in enumerate(drawn)]
            counts = [count for count, _ in found]
            key = f"{scenario.name}_{name}_{kind}"
            by_week[key] = [round(count / episodes, 4) for count in counts]
            figures[f"hot_{key}"] = max(counts) / episodes
            figures[f"upper_{key}"] = clopper_pearson_upper(max(counts), episodes)
            figures[f"hot_mean_{key}"] = sum(counts) / (episodes * weeks)
            figures[f"saved_{key}"] = float(np.mean([saved for _, saved in found]))
    return figures, by_week


def _row(vm: Vm) -> str:
    """Return a VM's line of the inventory."""
    return f"{vm.vm},{vm.subscriber},{vm.machine},{vm.cores},{vm.memory_gb},{vm.network_gbit},{vm.rate}\n"


@dataclass(frozen=True, slots=True)
class Life:
    """What came of weeks that were lived: hot hours by week, and the figures."""

    hot_hours: list[int]
    figures: dict[str, float]


def lived(scenario: Scenario, label: str, weeks: int, place: Path) -> Life:
    """Live one week and then `weeks` more in an agent's pool; usage changes in the middle of the latter."""
    arrivals, names = arrivals_of(scenario), [str(n) for n in range(scenario.subscribers)]
    shipped = SHIPPED / f"{scenario.name}-cold.json"
    rules = PoolRules(
        name="main",
        machines=scenario.machines,
        machine_cores=scenario.machine_cores,
        machine_memory_gb=scenario.machine_memory_gb,
        machine_network_gbit=scenario.machine_network_gbps,
        subscribers={name: SubscriberRules(internal=True) for name in names},
        policy=f"rates:{shipped}" if LIVED[label] == "rates" else LIVED[label],
        actions=scenario.actions,
        beta=scenario.beta,
        horizon_h=scenario.hours,
        hot_hours=scenario.violation_hours,
    )
    clock, inventory = VirtualClock(START_S + 60.0), place / "inventory.csv"
    usage, changed, draws = scenario, shifted(scenario, LIVED_DRIFT), np.random.default_rng(SEED)
    hot, saved, requested = [0] * (weeks + 1), 0.0, 0.0
    alive: dict[str, tuple[Vm, int]] = {}
    with Ledger.open(f"sqlite:///{place / 'ledger.db'}") as ledger:
        epoch = ledger.take_epoch("benchmark", clock.now())
        inventory.write_text(HEAD)
        pool = Pool(rules, OversubscriptionStore(ledger), clock, inventory)
        turns = PoolTurns(pool)
        for number in range(weeks + 1):
            progress(f"{scenario.name} {label}: week {number} lived, {len(alive)} VMs, hot hours so far {hot[:number]}")
            week = unseen_week(arrivals, FIRST_WEEK + 500 + number, EVALUATION)
            if number > weeks // 2:
                usage = changed
            if pool.memory.rolled_back:
                pool.rearm("benchmark", "a week is over")
            for hour in range(scenario.hours):
                at = number * scenario.hours + hour
                alive = {name: one for name, one in alive.items() if one[1] > at}
                for row in range(week.warm, len(week.ids)):
                    if week.arrival[row] != hour:
                        continue
                    sizes = (float(week.cores[row]), float(week.memory_gb[row]), float(week.network_gbps[row]))
                    name = f"w{number}-{row}"
                    made = pool.request(RateRequest("main", names[week.subscriber[row]], *sizes, vm=name))
                    if made.machine:
                        until = number * scenario.hours + int(week.departure[row])
                        alive[name] = (vm_of(made), until)
                    if number:
                        requested += sizes[0]
                        saved += (1.0 - made.rate) * sizes[0] if made.machine else 0.0
                vms = [vm for vm, _ in alive.values()]
                owner = np.array([int(vm.subscriber) for vm in vms], dtype=np.int64)
                mu, sd = usage.mu[owner, hour % 24], usage.sd[owner, hour % 24]
                shares = np.clip(draws.normal(mu, sd), 0.0, 1.0)
                loads: dict[str, float] = {}
                for vm, share in zip(vms, shares.tolist(), strict=True):
                    loads[vm.machine] = loads.get(vm.machine, 0.0) + vm.cores * share
                    pool.book.add(vm.subscriber, vm.vm, 100.0 * share, clock.now() + 1.0, clock.now() + 1.0)
                hot[number] += any(load >= scenario.threshold for load in loads.values())
                inventory.write_text(HEAD + "".join(map(_row, vms)))
                clock.advance(HOUR_S)
                os.utime(inventory, (clock.now(), clock.now()))
                turns.turn(clock.now(), epoch, paused=False)
    judged = hot[1:]
    figures = {
        "lived_hot": float(max(judged)),
        "lived_broken": float(sum(count >= scenario.violation_hours for count in judged)),
        "lived_saved": saved / max(requested, 1e-9),
    }
    return Life(judged, figures)


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--weeks", type=int, default=8, help="unseen weeks of each scenario (default 8)")
    parser.add_argument("--episodes", type=int, default=1000, help="of usage on each week (default 1000)")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="one of them (default both)")
    parser.add_argument("--lived", choices=LIVED, action="append", help="live the weeks in an agent too; minutes each")
    parser.add_argument("--directory", help="for the ledger (default: the temporary directory)")
    asked = parser.parse_args(given)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures: dict[str, float] = {}
    weeks: dict[str, Any] = {}
    for name in asked.scenario or SCENARIOS:
        found, by_week = simulated(scenario_of(name), max(1, asked.weeks), max(1, asked.episodes))
        figures |= found
        weeks |= by_week
        for label in asked.lived or ():
            with tempfile.TemporaryDirectory(dir=asked.directory) as place:
                life = lived(scenario_of(name), label, max(1, asked.weeks), Path(place))
            figures |= {f"{figure}_{name}_{label}": value for figure, value in life.figures.items()}
            weeks[f"lived_{name}_{label}"] = life.hot_hours
    notes = {"weeks": asked.weeks, "episodes": asked.episodes, "start": "cold", "hot_by_week": weeks}
    kept = [f"hot_{name}_{label}_steady" for name in asked.scenario or SCENARIOS for label in ("shipped", "ma")]
    return report(
        "learning_pools",
        figures,
        as_json=asked.json,
        packages=("numba", "numpy"),
        targets=[Target(figure, 1.0 - ALPHA) for figure in kept],
        notes=notes,
    )


if __name__ == "__main__":
    sys.exit(main())
