"""The queue rule as a policy: enough cores to take up what waits within a horizon, idle VMs given back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.autoscaling.policies.base import InputAbsent, spelled
from agent.autoscaling.state import Memory
from domain.decisions import Proposal, Reason
from domain.fleet import Fleet
from domain.rules.autoscaling.queue_rule import queue_rule_multi, queue_rule_single
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class QueueRulePolicy:
    """Autoscaler specification §9.4, in its stronger form: busy cores count as cover, since they take up what waits.

    It already counts booting VMs, so pending capacity counts once. horizon_s: time in which waiting work should be
    taken up. job_core_s: core-seconds of a job where the job source reports none. single: change at most one VM a
    minute (act-7) instead of as many as needed.
    """

    horizon_s: float = 150.0
    job_core_s: float = 120.0
    single: bool = False

    @property
    def name(self) -> str:
        """Name and parameters."""
        return spelled("queue-rule", self)

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Propose from queue length, booting and idle VMs; InputAbsent without queue data."""
        queue = snapshot.queue
        if queue is None:
            raise InputAbsent("the queue rule needs the queue's length, and no reading of it arrived this minute")
        job_core_s = queue.job_core_s if queue.job_core_s is not None else self.job_core_s
        cores = np.array(fleet.cores, dtype=np.int64)
        requested = np.array(snapshot.requested, dtype=np.int64)
        idle = np.array([g.idle_long for g in snapshot.groups], dtype=np.int64)
        # What cannot be seen covers nothing: neither a silent VM's free cores nor an unseen group's busy ones count.
        seen = [((g.warm - g.silent) * c, g.busy_cores) for g, c in zip(snapshot.groups, fleet.cores, strict=True)]
        busy_cores = sum(busy for _, busy in seen if busy is not None)
        free_cores = sum(max(0.0, total - busy) for total, busy in seen if busy is not None)
        arguments = (
            queue.waiting * job_core_s,
            self.horizon_s,
            cores,
            requested,
            np.array(snapshot.booting, dtype=np.int64),
            idle,
            np.array([g.minimum for g in fleet.groups], dtype=np.int64),
            np.array([g.maximum for g in fleet.groups], dtype=np.int64),
            free_cores,
            busy_cores,
        )
        if self.single:
            action = queue_rule_single(*arguments)
            desired = list(snapshot.requested)
            if action:
                desired[(action - 1) // 2] += 1 if action % 2 else -1
        else:
            desired = [int(n) for n in queue_rule_multi(*arguments)]
        booting_cores = sum(b * c for b, c in zip(snapshot.booting, fleet.cores, strict=True))
        sentence = (
            f"{queue.waiting} jobs of {job_core_s:.0f} core-s wait, {busy_cores:.0f} cores busy, "
            f"{free_cores:.0f} free, {booting_cores} booting, {int(idle.sum())} VMs idle for long"
        )
        change = sum(desired) - sum(snapshot.requested)
        reason = Reason.QUEUE_GREW if change > 0 else Reason.IDLE_CAPACITY if change < 0 else Reason.QUEUE_COVERED
        return Proposal(fleet.name, self.name, tuple(desired), reason, sentence), memory
