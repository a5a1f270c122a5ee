"""The dry run's section on overselling: nine days of a pool whose rates come down, meet a surge, and are rolled back.

The real agent on a virtual clock, against a fake AWS that holds the parameter. The VMs report by Graphite lines through
the agent's own listener's sink; an allocator, which only the story knows, asks for the rate of every new VM.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent.oversubscription.pool import Pool
from agent.oversubscription.records import RateRequest, Vm
from agent.rehearsal.cloud import AGENT_KEY, REGION, SECRET
from agent.rehearsal.run import LEDGER, shown_path, shown_program
from agent.rehearsal.scenario import ORIGIN
from agent.service.assembly import Agent, AwsKeys, assembled, usage_into
from agent.settings import load_settings
from domain.clock import VirtualClock
from domain.decisions import Event, Reason
from domain.samples import PREFIX, VmMetric
from simulator.aws.process import start_process

NAME: Final = "research"
HOUR_S: Final = 3600.0
HOURS: Final = 216
SURGE_AT, SURGE_H = 204, 5
MACHINES: Final = 12
MACHINE_CORES, MACHINE_MEMORY_GB = 48.0, 384.0
PARAMETER: Final = f"/trimtab/oversubscription/{NAME}"
SIZES, SHARES = (2.0, 4.0, 8.0), (0.4, 0.4, 0.2)
LIFE_H: Final = 40.0
ARRIVALS_PER_HOUR: Final = 1.2
READINGS_PER_HOUR: Final = 4
LASTING: Final = frozenset({Reason.MACHINE_HOT, Reason.MACHINE_WARM})
LEVELS: Final[Mapping[str, tuple[float, float]]] = {
    "web": (0.20, 0.08),
    "batch": (0.30, 0.10),
    "guests": (0.15, 0.05),
}
"""Mean and spread of usage by subscriber; guests are external, and never oversold."""
SURGE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Oversold:
    """What came of the section. examples: the id of the last decision of each kind."""

    pool: str
    hours: int
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
    examples: Mapping[str, str]
    ledger: str
    program: str

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": "oversubscription", **asdict(self), "next": [self.next_command()]}

    def next_command(self) -> str:
        """Return a command that tells why a rate is what it is, as it is typed where this one was."""
        wanted = next(iter(self.examples.values()), "last")
        return f"{shlex.quote(self.program)} explain {wanted} --ledger {shlex.quote(self.ledger)}"

    def sentence(self) -> str:
        """Return what happened in one sentence."""
        lowest = ", ".join(f"{name} {rate:g}" for name, rate in self.lowest.items())
        final = ", ".join(f"{name} {rate:g}" for name, rate in self.final.items())
        return (
            f"{self.hours} hours of the pool {self.pool} of {self.machines} machines: {self.requests} VMs asked for "
            f"their rate, {self.saved_share:.0%} of their cores were not reserved, the shield raised {self.shielded}; "
            f"lowest rates: {lowest}; a surge made {self.hot_hours} hours hot, after which the rates are: {final}; "
            f"published: {self.published or 'nothing'}"
        )


class Allocator:
    """Who places the VMs: asks for each rate, follows the answer, and writes the inventory."""

    def __init__(self, agent: Agent, inventory: Path, clock: VirtualClock, seed: int) -> None:
        self.vms: dict[str, tuple[Vm, float]] = {}
        self._agent, self._inventory, self._clock = agent, inventory, clock
        self._draws = np.random.default_rng(seed)
        self._own: dict[str, float] = {}
        self._count = 0
        self._sink = usage_into(agent.pools, agent.store)

    @property
    def pool(self) -> Pool:
        """The pool that is asked."""
        return self._agent.pools[NAME]

    def live(self, hour: int) -> None:
        """Let an hour pass: VMs end, others come, each reports."""
        now = self._clock.now()
        self.vms = {name: held for name, held in self.vms.items() if held[1] > now}
        for subscriber in LEVELS:
            for _ in range(int(self._draws.poisson(ARRIVALS_PER_HOUR))):
                self._arrive(subscriber, now)
        rows = [
            f"{v.vm},{v.subscriber},{v.machine},{v.cores:g},{v.memory_gb:g},0,{v.rate:g}" for v, _ in self.vms.values()
        ]
        header = "vm,subscriber,machine,cores,memory_gb,network_gbit,rate"
        self._inventory.write_text("\n".join([header, *rows]) + "\n", "utf-8")
        self._report(hour, now)

    def touch(self) -> None:
        """Let the inventory be as old as the virtual clock says."""
        now = self._clock.now()
        os.utime(self._inventory, (now, now))

    def _arrive(self, subscriber: str, now: float) -> None:
        self._count += 1
        cores = float(self._draws.choice(SIZES, p=SHARES))
        name = f"vm-{self._count}"
        asked = RateRequest(NAME, subscriber, cores, 4.0 * cores, 0.0, name, name, "dry run")
        answer = self.pool.request(asked)
        if not answer.machine:
            return
        vm = Vm(name, subscriber, answer.machine, cores, 4.0 * cores, 0.0, answer.rate)
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
                paths.append(f"{PREFIX}.{NAME}.{vm.subscriber}.{vm.vm}.{VmMetric.CPU_PERCENT}".encode())
                values.append(100.0 * min(max(share, 0.0), 1.0))
            self._sink.append(paths, values, [at] * len(paths), at)


def settings_of(
    directory: Path, endpoint: str, mode: str, inventory: Path, overrides: Mapping[str, str]
) -> dict[str, str]:
    """Return the section's settings as the environment variables an operator would set."""
    pool = f"TRIMTAB_POOLS__{NAME}__"
    values = {
        "TRIMTAB_MODE": mode,
        "TRIMTAB_STATE_DIRECTORY": str(directory),
        "TRIMTAB_LISTENER__PORT": "0",
        "TRIMTAB_AWS__REGION": REGION,
        "TRIMTAB_AWS__ENDPOINT_URL": endpoint,
        f"{pool}MACHINES": str(MACHINES),
        f"{pool}MACHINE_CORES": str(MACHINE_CORES),
        f"{pool}MACHINE_MEMORY_GB": str(MACHINE_MEMORY_GB),
        f"{pool}INVENTORY_FILE": str(inventory),
        f"{pool}PARAMETER": PARAMETER,
        f"{pool}SUBSCRIBERS__web__INTERNAL": "true",
        f"{pool}SUBSCRIBERS__batch__INTERNAL": "true",
        f"{pool}SUBSCRIBERS__guests__INTERNAL": "false",
    }
    return values | {name: value for name, value in overrides.items() if name.startswith(pool)}


def play_oversubscription(
    directory: Path,
    seed: int,
    mode: str,
    overrides: Mapping[str, str],
    tell: Callable[[Event], None],
    *,
    hours: int = HOURS,
) -> Oversold:
    """Live the hours and return what came of them; `tell` hears of everything that happened to the pool.

    Raises RuntimeError when the fake AWS does not start, ConfigurationError for wrong settings, LedgerUnavailable when
    the directory is in use.
    """
    start = ORIGIN // HOUR_S * HOUR_S
    clock, inventory = VirtualClock(start), directory / "inventory.csv"
    inventory.write_text("vm,subscriber,machine,cores,memory_gb,network_gbit,rate\n", "utf-8")
    lowest = dict.fromkeys(LEVELS, 1.0)
    happened: Counter[str] = Counter()
    told: set[tuple[Reason, str]] = set()
    with start_process(["--virtual", repr(start), "--seed", str(seed)]) as process:
        settings = load_settings(settings_of(directory, process.endpoint, mode, inventory, overrides))
        with assembled(settings, clock, AwsKeys(AGENT_KEY, SECRET)) as agent:
            allocator = Allocator(agent, inventory, clock, seed)
            allocator.touch()
            agent.turn()
            for hour in range(hours):
                allocator.live(hour)
                clock.advance(HOUR_S)
                if not hour:
                    clock.advance(60.0)
                allocator.touch()
                for event in agent.turn().events:
                    happened[event.reason.value] += 1
                    # A machine that stays hot says so each hour; the story tells it once.
                    if (event.reason, event.subject) not in told or event.reason not in LASTING:
                        tell(event)
                    told.add((event.reason, event.subject))
                decision = allocator.pool.hour
                for row in decision.subscribers if decision is not None else ():
                    lowest[row.subscriber] = min(lowest.get(row.subscriber, 1.0), row.rate)
            return _reckoned(agent, hours, lowest, happened, shown_path(directory / LEDGER))


def _reckoned(agent: Agent, hours: int, lowest: Mapping[str, float], happened: Counter[str], ledger: str) -> Oversold:
    pool = agent.pools[NAME]
    view = pool.view()
    counts, decision = view.counts, view.decision
    record = view.publication
    published = json.loads(record.value)["decision"] if record is not None else ""
    newest = pool.store.newest(NAME, 500, "request")
    examples = {"hour": decision.decision_id} if decision is not None else {}
    for one in reversed(newest):
        for reason in getattr(one, "reasons", ()):
            examples[str(reason)] = one.decision_id
    return Oversold(
        pool=NAME,
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
        program=shown_program(),
    )
