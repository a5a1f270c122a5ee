"""The dry run's section on oversubscription: nine days of a pool whose rates fall, then a surge, then a rollback.

The VMs report by Graphite lines into the sink of the agent's listener, an allocator requests the rate of every new VM,
and a fake AWS holds the parameter.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from agent.autoscaling.decision import AutoscalingPart
from agent.oversubscription.decision import OversubscriptionPart
from agent.oversubscription.pool import Pool
from agent.oversubscription.records import RateRequest, Vm
from agent.rehearsal.scenario import (
    LEDGER,
    ORIGIN,
    shown_path,
)
from agent.rehearsal.sections import OnEvent, Section, SectionResult, agent_at, cloud_at
from agent.service.assembly import Agent
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.samples import PREFIX, VmMetric
from domain.units import HOUR_S

RESEARCH: Final = "research"
"""The pool."""
NINE_DAYS_H: Final = 216
SURGE_AT, SURGE_H = 204, 5
MACHINES: Final = 12
MACHINE_CORES, MACHINE_MEMORY_GB = 48.0, 384.0
PARAMETER: Final = f"/trimtab/oversubscription/{RESEARCH}"
SIZES, SHARES = (2.0, 4.0, 8.0), (0.4, 0.4, 0.2)
INVENTORY_HEADER: Final = "vm,subscriber,machine,cores,memory_gb,network_gbit,rate"
LIFE_H: Final = 40.0
VMS_PER_HOUR: Final = 1.2
READINGS_PER_HOUR: Final = 4
LASTING: Final = frozenset({Reason.MACHINE_HOT, Reason.MACHINE_WARM})
LEVELS: Final[Mapping[str, tuple[float, float]]] = {
    "web": (0.20, 0.08),
    "batch": (0.30, 0.10),
    "guests": (0.15, 0.05),
}
"""Mean and spread of usage by subscriber; guests are external, and never oversubscribed."""
SURGE: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class OversubscriptionResult(SectionResult):
    """The result of the section on oversubscription."""

    kind = "oversubscription"
    question = "the reason of a rate"

    pool: str
    machines: int
    requests: int
    saved_share: float
    lowest: Mapping[str, float]
    final: Mapping[str, float]
    shielded: int
    rejected: int
    happened: Mapping[str, int]
    hot_hours: int
    peak_machines: int
    published: str

    def brief(self) -> str:
        """Return the result in a line, with its figure."""
        return f"{self.saved_share:.0%} of the cores not reserved; {self.hot_hours} of {self.hours} h hot, by a surge"


class Allocator:
    """Places the VMs: requests each rate, follows the response, and writes the inventory."""

    def __init__(self, agent: Agent, inventory: Path, clock: VirtualClock, seed: int) -> None:
        self.vms: dict[str, tuple[Vm, float]] = {}
        self._agent, self._inventory, self._clock = agent, inventory, clock
        self._draws = np.random.default_rng(seed)
        self._own: dict[str, float] = {}
        self._count = 0
        self._sink = agent.part(OversubscriptionPart).sink(agent.part(AutoscalingPart).series)

    @property
    def pool(self) -> Pool:
        """The agent's pool."""
        return self._agent.part(OversubscriptionPart).pools[RESEARCH]

    def play(self, hour: int) -> None:
        """Play an hour: VMs end, others arrive, each reports."""
        now = self._clock.now()
        self.vms = {name: held for name, held in self.vms.items() if held[1] > now}
        for subscriber in LEVELS:
            for _ in range(int(self._draws.poisson(VMS_PER_HOUR))):
                self._arrive(subscriber, now)
        rows = [
            f"{v.vm},{v.subscriber},{v.machine},{v.cores:g},{v.memory_gb:g},0,{v.rate:g}" for v, _ in self.vms.values()
        ]
        self._inventory.write_text("\n".join([INVENTORY_HEADER, *rows]) + "\n", "utf-8")
        self._report(hour, now)

    def touch(self) -> None:
        """Set the inventory's modification time to the virtual clock's."""
        now = self._clock.now()
        os.utime(self._inventory, (now, now))

    def _arrive(self, subscriber: str, now: float) -> None:
        self._count += 1
        cores = float(self._draws.choice(SIZES, p=SHARES))
        name = f"vm-{self._count}"
        request = RateRequest(
            subscriber=subscriber, cores=cores, memory_gb=4.0 * cores, vm=name, request_id=name, requested_by="dry run"
        )
        response = self.pool.request(request)
        if not response.machine:
            return
        vm = Vm(name, subscriber, response.machine, cores, 4.0 * cores, 0.0, response.rate)
        self.vms[name] = (vm, now + HOUR_S * float(self._draws.exponential(LIFE_H)))
        self._own[name] = float(self._draws.normal())

    def _report(self, hour: int, now: float) -> None:
        surging = SURGE_AT <= hour < SURGE_AT + SURGE_H
        for step in range(READINGS_PER_HOUR):
            at = now + 60.0 + step * HOUR_S / (READINGS_PER_HOUR + 1)
            paths, values = [], []
            for vm, _ in self.vms.values():
                level, spread = LEVELS[vm.subscriber]
                own = 0.9 * self._own[vm.vm] + 0.4 * float(self._draws.normal())
                share = SURGE if surging and vm.subscriber != "guests" else level + spread * own
                paths.append(f"{PREFIX}.{RESEARCH}.{vm.subscriber}.{vm.vm}.{VmMetric.CPU_PERCENT}".encode())
                values.append(100.0 * min(max(share, 0.0), 1.0))
            self._sink.append(paths, values, [at] * len(paths), at)


def play_oversubscription(
    directory: Path,
    seed: int,
    mode: str,
    overrides: Mapping[str, str],
    on_event: OnEvent,
    *,
    hours: int = NINE_DAYS_H,
) -> OversubscriptionResult:
    """Run the hours and return the result; `on_event` is called with every event of the pool.

    Raises RuntimeError when this process already serves a simulated AWS, ConfigurationError for wrong settings,
    LedgerUnavailable when the directory is in use.
    """
    start = ORIGIN // HOUR_S * HOUR_S
    inventory = directory / "inventory.csv"
    inventory.write_text(INVENTORY_HEADER + "\n", "utf-8")
    lowest = dict.fromkeys(LEVELS, 1.0)
    happened: Counter[str] = Counter()
    shown: set[tuple[Reason, str]] = set()
    pool = f"TRIMTAB_POOLS__{RESEARCH}__"
    given = {
        f"{pool}MACHINES": str(MACHINES),
        f"{pool}MACHINE_CORES": str(MACHINE_CORES),
        f"{pool}MACHINE_MEMORY_GB": str(MACHINE_MEMORY_GB),
        f"{pool}INVENTORY_FILE": str(inventory),
        f"{pool}PARAMETER": PARAMETER,
        f"{pool}SUBSCRIBERS__web__INTERNAL": "true",
        f"{pool}SUBSCRIBERS__batch__INTERNAL": "true",
        f"{pool}SUBSCRIBERS__guests__INTERNAL": "false",
        **{name: text for name, text in overrides.items() if name.startswith(pool)},
    }
    with (
        cloud_at(start, seed) as endpoint,
        agent_at(start, directory, endpoint, mode, given) as (agent, clock),
    ):
        allocator = Allocator(agent, inventory, clock, seed)
        allocator.touch()
        agent.turn()
        for hour in range(hours):
            allocator.play(hour)
            clock.advance(HOUR_S if hour else HOUR_S + 60.0)
            allocator.touch()
            for event in agent.turn().events:
                happened[event.reason.value] += 1
                # A machine that stays hot has an event each hour; the first is shown.
                if (event.reason, event.about) not in shown or event.reason not in LASTING:
                    on_event(event)
                shown.add((event.reason, event.about))
            decision = allocator.pool.hour
            for row in decision.subscribers if decision is not None else ():
                lowest[row.subscriber] = min(lowest.get(row.subscriber, 1.0), row.rate)
        return _rates(agent, hours, lowest, happened, shown_path(directory / LEDGER))


def _rates(
    agent: Agent, hours: int, lowest: Mapping[str, float], happened: Counter[str], ledger: str
) -> OversubscriptionResult:
    pool = agent.part(OversubscriptionPart).pools[RESEARCH]
    view = pool.view()
    counts, decision = view.counts, view.decision
    record = view.publication
    published = json.loads(record.value)["decision"] if record is not None else ""
    newest = pool.store.newest(RESEARCH, 500, "request")
    examples = {"hour": decision.decision_id} if decision is not None else {}
    for one in reversed(newest):
        for reason in getattr(one, "reasons", ()):
            examples[str(reason)] = one.decision_id
    return OversubscriptionResult(
        pool=RESEARCH,
        hours=hours,
        machines=MACHINES,
        requests=counts.requests,
        saved_share=counts.saved_cores / counts.requested_cores if counts.requested_cores else 0.0,
        lowest=dict(lowest),
        final={row.subscriber: row.rate for row in decision.subscribers} if decision is not None else {},
        shielded=counts.interventions,
        rejected=counts.rejects,
        happened=dict(happened),
        hot_hours=counts.realised_hot_hours,
        peak_machines=counts.peak_machines,
        published=f"{published} in {PARAMETER}" if published else "",
        examples=examples,
        ledger=ledger,
    )


SECTION = Section(
    play_oversubscription,
    shown=frozenset(
        {
            Reason.RATES_CHANGED,
            Reason.RATES_FROZEN,
            Reason.RATES_ROLLED_BACK,
            Reason.MACHINE_HOT,
            Reason.USAGE_DRIFTED,
            Reason.NO_MACHINE,
        }
    ),
)
