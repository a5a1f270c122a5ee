"""The whole cloud: one clock, one agenda, the regions' Auto Scaling, shortages, faults, spot notices, call log."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from domain.clock import Clock
from simulator.aws.agenda import Agenda
from simulator.aws.calls import CallLog
from simulator.aws.capacity import Shortage
from simulator.aws.faults import Faults
from simulator.aws.group import IN_SERVICE, LEAVING
from simulator.aws.lifecycle import Delays
from simulator.aws.limits import Limits
from simulator.aws.queues import Queues
from simulator.aws.region import Region


@dataclass(slots=True)
class Cloud:
    """Everything the endpoint knows beyond moto. Hold `lock` while touching regions; `settle` first.

    `seed` decides launch delays, fault dice and which machines a spot notice names. With `zone_rebalance` a group that
    terminations left lopsided evens its zones out by itself, as AWS's AZRebalance does; it is off by default because it
    acts unasked.
    """

    clock: Clock
    seed: int = 0
    delays: Delays = field(default_factory=Delays)
    zone_rebalance: bool = False
    spot_queue: str | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    agenda: Agenda = field(default_factory=Agenda)
    shortages: list[Shortage] = field(default_factory=list)
    regions: dict[str, Region] = field(default_factory=dict)
    spot_actions: dict[str, float] = field(default_factory=dict)
    """Instance id -> when (epoch seconds) its spot machine is reclaimed."""
    calls: CallLog = field(default_factory=CallLog)
    limits: Limits = field(default_factory=Limits)
    faults: Faults = field(init=False)
    queues: Queues = field(init=False)
    dice: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.faults = Faults(self.seed)
        self.queues = Queues(self.clock)
        self.dice = np.random.default_rng([self.seed, 5])

    def settle(self) -> float:
        """Let everything happen that is due, and return the time."""
        now = self.clock.now()
        due = self.agenda.next_at
        if due is not None and due <= now:
            with self.lock:
                self.agenda.settle(now)
        return now

    def region(self, name: str) -> Region:
        """Return the region's Auto Scaling service, made on first use."""
        if name not in self.regions:
            self.regions[name] = Region(
                name, self.agenda, self.delays, self.shortages, self.seed, self.queues, self.zone_rebalance
            )
        return self.regions[name]

    def ready_now(self, group_name: str | None = None) -> list[str]:
        """Put every machine on its way in (of one group or of all) into service at once; return their ids."""
        now = self.settle()
        ready = []
        with self.lock:
            for region in self.regions.values():
                for group in region.groups.values():
                    if group_name not in (None, group.name):
                        continue
                    for member in list(group.members.values()):
                        if member.state not in (IN_SERVICE, *LEAVING) and member.in_service_at is None:
                            region.lifecycle.enter_service(group, member, now)
                            ready.append(member.instance_id)
        return ready
