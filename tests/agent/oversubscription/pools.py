"""Pools, inventories and usage that the tests of overselling share."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agent.ledger import Ledger
from agent.models.directory import ModelsDirectory
from agent.oversubscription.alive import alive_of
from agent.oversubscription.loads import Loads, loads_of
from agent.oversubscription.memory import SubscriberMemory, VmTable, columns_of
from agent.oversubscription.pool import Pool
from agent.oversubscription.profiles import Profiles, profiles_of
from agent.oversubscription.records import RateRequest, Vm
from agent.oversubscription.state import OversubscriptionStore
from domain.clock import VirtualClock
from domain.decisions import Event
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from domain.rules.oversubscription.usage import moments_of
from simulator.oversubscription.scenario import Scenario

HOUR_S = 3600.0
START = 1_790_553_600.0
"""2026-09-28 00:00:00 UTC, a Monday."""
OURS = SubscriberRules(internal=True)


def rules(**changes: Any) -> PoolRules:
    """The pool `main`: 12 machines of 48 cores; the subscribers `web` and `batch` are ours."""
    given: dict[str, Any] = {
        "name": "main",
        "machines": 12,
        "machine_cores": 48.0,
        "machine_memory_gb": 512.0,
        "subscribers": {"web": OURS, "batch": OURS},
        "policy": "static:0.3",
        **changes,
    }
    return PoolRules(**given)


def pool_of(scenario: Scenario, subscribers: Mapping[str, SubscriberRules], **changes: Any) -> PoolRules:
    """The scenario's cluster as a pool."""
    return rules(
        machines=scenario.machines,
        machine_cores=scenario.machine_cores,
        machine_memory_gb=scenario.machine_memory_gb,
        machine_network_gbit=scenario.machine_network_gbps,
        subscribers=dict(subscribers),
        **changes,
    )


def vm(name: str, subscriber: str = "web", machine: str = "m1", cores: float = 4.0, **more: Any) -> Vm:
    """A VM, reserved in full unless told otherwise."""
    return Vm(name, subscriber, machine, cores, more.get("memory_gb", 16.0), 1.0, more.get("rate", 1.0))


def csv_of(vms: Sequence[Vm]) -> str:
    """An inventory file's content."""
    rows = [f"{v.vm},{v.subscriber},{v.machine},{v.cores},{v.memory_gb},{v.network_gbit},{v.rate}" for v in vms]
    return "\n".join(["vm,subscriber,machine,cores,memory_gb,network_gbit,rate", *rows]) + "\n"


def profiles_as(scenario: Scenario, names: Iterable[str]) -> Profiles:
    """What the agent knows of the subscribers, in their order, once it knows what the scenario is made of."""
    known = profiles_of({name: SubscriberMemory() for name in names}, 0, 0.0, 0.0)
    mean, variance, third = moments_of(scenario.mu, scenario.sd)
    return replace(
        known,
        names=tuple(names),
        mu=np.vstack((scenario.mu, known.mu[-1:])),
        sd=np.vstack((scenario.sd, known.sd[-1:])),
        narrow=np.vstack((scenario.sd, known.sd[-1:])),
        mean=np.vstack((mean, known.mean[-1:])),
        variance=np.vstack((variance, known.variance[-1:])),
        third=np.vstack((third, known.third[-1:])),
    )


def loads_as(vms: Sequence[Vm], profiles: Profiles, pool: PoolRules) -> Loads:
    """The loads of VMs of which nothing was measured yet."""
    alive = alive_of({one.vm: one for one in vms})
    return loads_of(alive, columns_of(VmTable(), alive.names), profiles, pool)


class House:
    """A pool on a real ledger and a clock that is moved by hand, with an inventory file that is kept up to date."""

    def __init__(self, directory: Path, given: PoolRules, vms: Sequence[Vm] = (), start: float = START) -> None:
        self.rules = given
        self.clock = VirtualClock(start)
        self.ledger = Ledger.open(f"sqlite:///{directory / 'ledger.db'}")
        self.file = directory / "inventory.csv"
        self.epoch = self.ledger.take_epoch("test", start)
        self.paused = False
        self.vms: list[Vm] = []
        self.place(vms)
        self.open()

    def open(self) -> None:
        """Start the service, as after a restart."""
        store, models = OversubscriptionStore(self.ledger), ModelsDirectory(self.file.parent / "models")
        self.pool = Pool(self.rules, store, self.clock, self.file, models=models)

    def place(self, vms: Sequence[Vm]) -> None:
        """Write these VMs to the inventory file."""
        self.vms = [*vms]
        self.file.write_text(csv_of(self.vms))
        self.touch()

    def touch(self) -> None:
        """Let the inventory be written anew, now."""
        now = self.clock.now()
        os.utime(self.file, (now, now))

    def send(self, usage: Mapping[str, float | None]) -> None:
        """Let the VMs report these shares of their cores, once in five minutes of the hour that begins now."""
        start = self.clock.now()
        for step in range(12):
            at = start + 290.0 * step + 5.0
            for one in self.vms:
                share = usage.get(one.vm)
                if share is not None:
                    self.pool.book.add(one.subscriber, one.vm, 100.0 * share, at, at)

    def turn(self) -> tuple[Event, ...]:
        """Turn the pool now."""
        self.touch()
        return self.pool.turn(self.clock.now(), self.epoch, paused=self.paused)

    def hour(self, usage: Mapping[str, float | None] | float = 0.2) -> tuple[Event, ...]:
        """Live an hour in which the VMs use so much, and turn a minute into the next."""
        given = {one.vm: usage for one in self.vms} if isinstance(usage, int | float) else usage
        self.send(given)
        now = self.clock.now()
        self.clock.advance((math.floor(now / HOUR_S) + 1) * HOUR_S + 60.0 - now)
        return self.turn()

    def ask(self, subscriber: str = "web", cores: float = 4.0, **more: Any) -> Any:
        """Ask for the rate of a VM."""
        return self.pool.request(
            RateRequest(subscriber=subscriber, cores=cores, **{"memory_gb": 16.0, "network_gbit": 1.0, **more})
        )

    def rate(self, subscriber: str = "web") -> float:
        """The subscriber's present rate."""
        assert self.pool.hour is not None
        return next(row.rate for row in self.pool.hour.subscribers if row.subscriber == subscriber)

    def reasons(self, subscriber: str = "web") -> tuple[str, ...]:
        """Why it is what it is."""
        assert self.pool.hour is not None
        return next(row.reasons for row in self.pool.hour.subscribers if row.subscriber == subscriber)

    def live(
        self, hours: int, seed: int = 0, mean: float = 0.2, sd: float = 0.05, means: Mapping[str, float] | None = None
    ) -> list[Event]:
        """Live hours in which every VM uses about its share; return what happened. means: other ones, by subscriber."""
        draws = np.random.default_rng(seed)
        told: list[Event] = []
        for _ in range(hours):
            usual = [(means or {}).get(one.subscriber, mean) for one in self.vms]
            usage = np.clip(draws.normal(usual, sd), 0.0, 1.0)
            told += self.hour({one.vm: float(u) for one, u in zip(self.vms, usage, strict=True)})
        return told
