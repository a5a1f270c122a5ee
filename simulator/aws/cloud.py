"""The whole cloud: one clock, one agenda, the regions' Auto Scaling, shortages, faults, spot actions, call log."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from domain.clock import Clock
from simulator.aws.faults import Faults
from simulator.aws.group import IN_SERVICE, LEAVING
from simulator.aws.lifecycle import Agenda, Delays
from simulator.aws.limits import Limits
from simulator.aws.machines import ACCOUNT_ID
from simulator.aws.queues import Queues
from simulator.aws.region import Region
from simulator.aws.requests import AwsRequest
from simulator.aws.scaling import Shortage

KEPT = 200_000
"""The calls that the log holds before it drops the oldest."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request as logged. `at` is the cloud's time when it arrived; `status` 0 means the caller got no answer."""

    seq: int
    at: float
    access_key: str
    service: str
    operation: str
    mutating: bool
    plane: str
    params: dict[str, str]
    status: int
    fault: str | None


class CallLog:
    """Calls in the order they were answered, numbered from 1."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque(maxlen=KEPT)
        self._last = 0
        self._lock = threading.Lock()

    def record(self, request: AwsRequest, at: float, status: int, fault: str | None) -> None:
        """Append one call."""
        with self._lock:
            self._last += 1
            self._calls.append(
                Call(
                    self._last,
                    at,
                    request.access_key,
                    request.service,
                    request.operation,
                    request.mutating,
                    request.plane,
                    request.summary,
                    status,
                    fault,
                )
            )

    def since(self, seq: int, **wanted: str) -> list[dict[str, Any]]:
        """Return the calls numbered above `seq` whose fields equal `wanted` (compared as text), oldest first."""
        with self._lock:
            calls = []
            for call in reversed(self._calls):
                if call.seq <= seq:
                    break
                calls.append(call)
        rows = [asdict(call) for call in reversed(calls)]
        return [row for row in rows if all(str(row[key]).lower() == value.lower() for key, value in wanted.items())]

    @property
    def last_seq(self) -> int:
        """Return the number of the latest call, 0 before the first."""
        return self._last


@dataclass(slots=True)
class Cloud:
    """The state of the endpoint beyond moto's. Hold `lock` while touching regions; `settle` first.

    `seed` decides launch delays, random faults and which machines a spot notice names. With `zone_rebalance` a group
    that terminations left lopsided evens its zones out by itself, as AWS's AZRebalance does; it is off by default
    because no request triggers it.
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
    account: str = ACCOUNT_ID
    """The account that answers name, as if another account had groups of the same names."""
    faults: Faults = field(init=False)
    queues: Queues = field(init=False)
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.faults = Faults(self.seed)
        self.queues = Queues(self.clock)
        self.random = np.random.default_rng([self.seed, 5])

    def settle(self) -> float:
        """Carry out all that is due, and return the time."""
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

    def reset(self) -> None:
        """Empty the account in every region; clock, faults and call log stay. The caller holds the lock."""
        self.agenda.clear()
        self.regions.clear()
        self.shortages.clear()
        self.spot_actions.clear()
        self.spot_queue = None
        self.limits = Limits()

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
