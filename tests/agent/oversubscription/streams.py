"""Usage of a pool's VMs for weeks, folded hour by hour without a ledger: what tests of drift live on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from agent.oversubscription.alive import alive_of
from agent.oversubscription.fold import HourFold, fold
from agent.oversubscription.memory import PoolMemory
from agent.oversubscription.profiles import profiles_of
from agent.oversubscription.records import Vm
from tests.agent.oversubscription.pools import OURS, rules

FIRST_HOUR = 24 * 20_000


@dataclass(slots=True)
class Stream:
    """Subscribers `s0`, `s1` ... whose VMs each keep a level of their own, come and go, and follow the day.

    persistence: share of the variance that is a VM's own level; rho: share that a subscriber's VMs have in common.
    life_h: mean life, 0 for VMs that stay. shift: of every VM's usage, in standard deviations; louder: factor on what
    is new each hour; both may be set at any hour. wander_h: hours after which a VM has forgotten most of its level, 0
    where it keeps it.
    """

    subscribers: int = 8
    vms_each: int = 48
    life_h: float = 40.0
    persistence: float = 0.85
    rho: float = 0.0
    level: float = 0.3
    spread: float = 0.1
    seed: int = 5
    shift: float = 0.0
    louder: float = 1.0
    wander_h: float = 0.0
    memory: PoolMemory = field(default_factory=PoolMemory)
    alive: dict[str, Vm] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)

    def hours(self, count: int) -> Iterator[HourFold]:
        """Live this many hours."""
        draws = np.random.default_rng([self.seed, self.memory.hour + 1])
        names = [f"s{n}" for n in range(self.subscribers)]
        pool = rules(machines=100, machine_cores=960.0, subscribers=dict.fromkeys(names, OURS))
        for _ in range(count):
            hour = max(self.memory.hour + 1, FIRST_HOUR)
            if self.alive and self.life_h:
                gone = draws.random(len(self.alive)) < 1.0 / self.life_h
                self.alive = {name: vm for (name, vm), one in zip(self.alive.items(), gone, strict=True) if not one}
            for name in names:
                new = draws.poisson(self.vms_each / self.life_h) if self.memory.hour >= 0 and self.life_h else 0
                for k in range(self.vms_each if self.memory.hour < 0 else int(new)):
                    key = f"{name}-{hour}-{k}"
                    self.alive[key] = Vm(key, name, f"m{k % 50}", 4.0, 16.0, 0.0, 1.0)
            for key in self.alive:
                self.own.setdefault(key, draws.normal())
            mu = self.level * (1.0 + 0.5 * np.sin(2.0 * np.pi * (hour % 24 - 9) / 24.0))
            shared = {name: draws.normal() for name in names}
            noise = draws.normal(size=len(self.alive))
            readings = {}
            for (key, vm), new in zip(self.alive.items(), noise.tolist(), strict=True):
                strays = (
                    np.sqrt(self.persistence) * self.own[key]
                    + np.sqrt(self.rho) * shared[vm.subscriber]
                    + self.louder * np.sqrt(1.0 - self.persistence - self.rho) * new
                )
                usage = float(np.clip(mu + self.spread * (strays + self.shift), 0.0, 1.0))
                readings[vm.subscriber, key] = usage
            if self.wander_h:
                kept = np.exp(-1.0 / self.wander_h)
                for key in self.alive:
                    self.own[key] = kept * self.own[key] + np.sqrt(1.0 - kept * kept) * draws.normal()
            profiles = profiles_of(self.memory.subscribers, self.memory.hour, None, None)
            folded = fold(self.memory, alive_of(self.alive), readings, hour, pool, profiles)
            self.memory = folded.memory
            yield folded
