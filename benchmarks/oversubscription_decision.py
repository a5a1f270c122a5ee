"""What it costs to decide a pool's hour and to answer a request, on a pool of 500 machines and on one of 5,000.

A pool is filled by best fit with VMs of all subscribers; every VM has two days of usage behind it, so that each has a
belief of its own. `decision`: rates of all subscribers and risk of all machines, once the hour is folded. `shield`:
one answer, with every level it looks at. `rule`: one of a rule for each request that refuses every level below 1.0.
`list`: a new inventory put in columns, in the background. `fold`: an hour's readings taken in, and the loads rebuilt;
`remember`: the memory of every VM, as the ledger keeps it. `busy`: nothing but as much processor time as the median
decision takes; its wall time shows the effect of other work on the machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from agent.ledger import Ledger, codec
from agent.oversubscription.alive import alive_of
from agent.oversubscription.arrays import Floats
from agent.oversubscription.choice import PolicyRates, decide_hour, hot_hours
from agent.oversubscription.fold import fold
from agent.oversubscription.loads import Loads, loads_of
from agent.oversubscription.memory import HourSums, PoolMemory, SubscriberMemory, VmTable, vm_key
from agent.oversubscription.observation import Sight, expected_requests
from agent.oversubscription.pool import Pool
from agent.oversubscription.profiles import Profiles, profiles_of
from agent.oversubscription.rate_policies import policy_of
from agent.oversubscription.records import HourDecision, HourRule, RateRequest, Vm
from agent.oversubscription.request import answer
from agent.oversubscription.state import OversubscriptionStore
from agent.oversubscription.usage import VmKey
from benchmarks.report import Target, arguments, report
from domain.clock import VirtualClock
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules

START_HOUR = 497_000
SIZES, SHARES = (2.0, 4.0, 8.0, 16.0), (0.35, 0.40, 0.20, 0.05)
RATE = 0.5
VARIANCE, OWN = 0.012, 0.85
"""Of usage between VMs and hours, and the share of it that is a VM's own level."""
MANY = (
    *("decision_p99_ms", "decision_cpu_p99_ms", "shield_p99_ms", "shield_cpu_p99_ms"),
    *("rule_p99_ms", "rule_cpu_p99_ms"),
    *("hour_ms", "fold_cpu_ms", "list_cpu_ms", "remember_cpu_ms", "vms"),
)
FULL = 0.9
"""The pool is filled until so much of its machines' cores is reserved."""
NEED: Final = 0.9
"""Of the rule, more than any level but 1.0: each level is looked at."""
WEIGHTS: Final = {"spread": 2.5, "margin": 0.1, "room": 0.0, "shortfall": 1.0, "enough": 0.05, "least": -0.05}
TARGETS = (
    *(Target("decision_p99_ms", 5.0), Target("shield_p99_ms", 5.0), Target("rule_p99_ms", 5.0)),
    Target("many_fold_cpu_ms", 100.0),
)


class Ground:
    """A pool that is full to nine tenths, its last hour just over."""

    def __init__(self, machines: int, subscribers: int, seed: int = 1993) -> None:
        draws = np.random.default_rng(seed)
        names = [f"s{n}" for n in range(subscribers)]
        self.rules = PoolRules(
            name="main",
            machines=machines,
            machine_cores=96.0,
            machine_memory_gb=1536.0,
            subscribers={name: SubscriberRules(internal=True) for name in names},
            policy="moving-average",
        )
        self.level = dict(zip(names, draws.uniform(0.10, 0.26, subscribers).tolist(), strict=True))
        self.vms = {vm.vm: vm for vm in self._filled(names, draws)}
        own = draws.normal(0.0, math.sqrt(OWN), len(self.vms))
        self.memory = self._remembered(names, draws, own)
        readings: dict[VmKey, float] = {}
        deviations = VARIANCE**0.5 * (own + draws.normal(0.0, math.sqrt(1.0 - OWN), len(self.vms)))
        for vm, away in zip(self.vms.values(), deviations.tolist(), strict=True):
            usage = min(max(self.level[vm.subscriber] + away, 0.0), 1.0)
            readings[vm.subscriber, vm.vm] = usage
        self.readings = readings

    def _filled(self, names: list[str], draws: np.random.Generator) -> list[Vm]:
        free = np.full(self.rules.machines, 96.0)
        found: list[Vm] = []
        while True:
            cores = float(draws.choice(SIZES, p=SHARES))
            room = np.flatnonzero(free >= RATE * cores)
            if not room.size or free.sum() < (1.0 - FULL) * 96.0 * self.rules.machines:
                return found
            machine = int(room[np.argmin(free[room])])
            free[machine] -= RATE * cores
            owner = names[int(draws.integers(len(names)))]
            found.append(Vm(f"v{len(found)}", owner, f"m{machine}", cores, 2.0 * cores, 0.0, RATE))

    def _remembered(self, names: list[str], draws: np.random.Generator, own: Floats) -> PoolMemory:
        def sums(level: float) -> HourSums:
            return HourSums((400.0,) * 24, (400.0 * level,) * 24, (400.0 * (level**2 + VARIANCE),) * 24)

        subscribers = {
            name: SubscriberMemory(
                rate=RATE,
                long=sums(self.level[name]),
                recent=sums(self.level[name]),
                history_h=400.0,
                vm_hours=20_000.0,
                peaks=tuple(np.clip(draws.normal(0.45, 0.05, 48), 0.0, 1.0).tolist()),
            )
            for name in names
        }
        count = len(self.vms)
        table = VmTable(
            names=tuple(vm_key(vm) for vm in self.vms.values()),
            last=tuple(self.level[vm.subscriber] for vm in self.vms.values()),
            last_hour=(START_HOUR - 1,) * count,
            residual_sum=tuple((48.0 * own + draws.normal(0.0, math.sqrt(48.0 * (1.0 - OWN)), count)).tolist()),
            hours=(48,) * count,
            day=(0,) * count,
            day_count=(0,) * count,
            day_sum=(0.0,) * count,
            day_squares=(0.0,) * count,
        )
        return PoolMemory(hour=START_HOUR - 1, subscribers=subscribers, table=table)


def main() -> int:
    """Measure and print; the exit status is 0 when the promises are kept."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--machines", type=int, default=500, help="machines of the pool (default 500)")
    parser.add_argument("--subscribers", type=int, default=12, help="its subscribers (default 12)")
    parser.add_argument("--many-machines", type=int, default=5000, help="machines of the large one (default 5000)")
    parser.add_argument("--many-subs", type=int, default=200, help="its subscribers (default 200)")
    parser.add_argument("--times", type=int, default=300, help="decisions and requests measured (default 300)")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    small = _measured(Ground(given.machines, given.subscribers), given.times, given.runs, given.directory)
    large = _measured(Ground(given.many_machines, given.many_subs), max(given.times // 5, 3), 1, given.directory)
    figures = {
        **small,
        **{f"many_{name}": large[name] for name in MANY},
        "growth": large["decision_p50_ms"] / small["decision_p50_ms"],
        "shield_growth": large["shield_p50_ms"] / small["shield_p50_ms"],
    }
    return report(
        "oversubscription_decision",
        figures,
        as_json=given.json,
        packages=("numpy", "sqlalchemy"),
        targets=TARGETS,
        notes={
            "machines": given.machines,
            "subscribers": given.subscribers,
            "many_machines": given.many_machines,
            "many_subscribers": given.many_subs,
        },
    )


def _measured(ground: Ground, times: int, runs: int, directory: Path | None) -> dict[str, float]:
    every = [_once(ground, times, directory) for _ in range(max(1, runs))]
    return {name: statistics.median(one[name] for one in every) for name in every[0]}


def _once(ground: Ground, times: int, directory: Path | None) -> dict[str, float]:
    rules = ground.rules
    policy = policy_of(rules.policy, rules)
    list_cpu_ms = _seconds(lambda: alive_of(ground.vms), time.thread_time) * 1e3
    alive = alive_of(ground.vms)
    began, began_cpu = time.perf_counter(), time.thread_time()
    profiles = profiles_of(ground.memory.subscribers, ground.memory.hour, rules.rho, rules.persistence)
    folded = fold(ground.memory, alive, ground.readings, START_HOUR, rules, profiles)
    profiles = profiles_of(folded.memory.subscribers, START_HOUR, rules.rho, rules.persistence)
    loads = loads_of(alive, folded.columns, profiles, rules)
    fold_ms, fold_cpu_ms = (time.perf_counter() - began) * 1e3, (time.thread_time() - began_cpu) * 1e3
    remember_cpu_ms = _seconds(lambda: codec.encode(folded.memory), time.thread_time) * 1e3

    def decide() -> HourDecision:
        subscribers, clock = folded.memory.subscribers, (START_HOUR + 1) % 24
        sight = Sight(
            memories=subscribers,
            vms=tuple(ground.vms.values()),
            asked=expected_requests(subscribers, clock),
            loads=loads,
            profiles=profiles,
            rules=rules,
            hour_of_day=clock,
            hot_hours=hot_hours(folded.memory, rules),
        )
        return decide_hour(
            folded,
            loads,
            profiles,
            rules,
            PolicyRates(policy.rates(sight), policy.budget),
            (START_HOUR + 1) * 3600.0,
            1,
            paused=False,
            fresh=True,
        ).decision

    decision = decide()
    decided = _timed(decide, times)
    asked = [
        RateRequest(subscriber=f"s{k % len(rules.subscribers)}", cores=SIZES[k % 4], memory_gb=2.0 * SIZES[k % 4])
        for k in range(times)
    ]
    memory = folded.memory
    requests = itertools.cycle(asked)

    def reply() -> object:
        return answer(next(requests), 1, 0.0, rules, decision, memory, loads, profiles, None)

    cpu_decided = _timed(decide, times, time.thread_time)
    busy = partial(_busy, statistics.median(cpu_decided) / 1e3)
    answered, cpu_answered = _timed(reply, times), _timed(reply, times, time.thread_time)
    by_rule = replace(decision, rule=HourRule(dict.fromkeys(rules.subscribers, NEED), (0.0,) * 4, WEIGHTS))

    def rule_reply() -> object:
        return answer(next(requests), 1, 0.0, rules, by_rule, memory, loads, profiles, None)

    ruled, cpu_ruled = _timed(rule_reply, times), _timed(rule_reply, times, time.thread_time)
    return {
        "decision_p50_ms": statistics.median(decided),
        "decision_p99_ms": float(np.quantile(decided, 0.99)),
        "decision_cpu_p50_ms": statistics.median(cpu_decided),
        "decision_cpu_p99_ms": float(np.quantile(cpu_decided, 0.99)),
        "busy_p99_ms": float(np.quantile(_timed(busy, times), 0.99)),
        "shield_p50_ms": statistics.median(answered),
        "shield_p99_ms": float(np.quantile(answered, 0.99)),
        "shield_cpu_p99_ms": float(np.quantile(cpu_answered, 0.99)),
        "rule_p50_ms": statistics.median(ruled),
        "rule_p99_ms": float(np.quantile(ruled, 0.99)),
        "rule_cpu_p99_ms": float(np.quantile(cpu_ruled, 0.99)),
        "recorded_p99_ms": _recorded_p99_ms(ground, loads, profiles, decision, min(times, 100), directory),
        "fold_ms": fold_ms,
        "fold_cpu_ms": fold_cpu_ms,
        "list_cpu_ms": list_cpu_ms,
        "remember_cpu_ms": remember_cpu_ms,
        "hour_ms": fold_ms + statistics.median(decided),
        "vms": len(ground.vms),
    }


def _timed(work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return milliseconds; by the thread's own clock they leave out what others took of the processor."""
    for _ in range(min(5, times)):
        work()
    return [_seconds(work, clock) * 1e3 for _ in range(times)]


def _seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    work()
    return clock() - began


def _busy(cpu_s: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < cpu_s:
        pass


def _recorded_p99_ms(
    ground: Ground, loads: Loads, profiles: Profiles, decision: HourDecision, times: int, where: Path | None
) -> float:
    """Return what an answer costs from the service, on disk before it is given; each takes its room."""
    with tempfile.TemporaryDirectory(dir=where) as directory:
        ledger = Ledger.open(f"sqlite:///{Path(directory) / 'ledger.db'}")
        with ledger:
            clock = VirtualClock(decision.at)
            pool = Pool(ground.rules, OversubscriptionStore(ledger), clock)
            pool.leads(clock.now())
            pool.hour, pool.loads, pool.profiles = decision, loads, profiles
            numbers = iter(range(10 * times))

            def ask() -> None:
                k = next(numbers)
                pool.request(
                    RateRequest(
                        subscriber=f"s{k % len(ground.rules.subscribers)}", cores=2.0, memory_gb=4.0, request_id=f"r{k}"
                    )
                )

            return float(np.quantile(_timed(ask, times), 0.99))


if __name__ == "__main__":
    sys.exit(main())
