"""The dry run's section on placement: two days of a pool of hosts, a large request and a host that fails among them.

Then sixteen hours of the simulator's fleet (`simulator.placement.fleet`) whose pool drains hosts for it, and of another
one, by five seeds of requests, lifetimes and boots: the ratio of machine-hours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent.placement.decision import PlacementPart
from agent.placement.records import Comparison, PlaceRequest
from agent.placement.reserve import PlacementPool
from agent.rehearsal.scenario import LEDGER, ORIGIN, shown_path
from agent.rehearsal.sections import OnEvent, Section, SectionResult, agent_at, cloud_at
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.rules.placement.instance import Instance, Release, Request, parse_instance
from domain.rules.placement.policies import LIFETIME
from domain.units import DAY_S, HOUR_S
from simulator.placement.fleet import play_fleet

POOL: Final = "hosts"
HOSTS: Final = 50
HOST: Final[Mapping[str, int]] = {"cores": 96, "memory_gib": 512, "disk_gb": 3000}
TWO_DAYS_H: Final = 50
"""A shadow compares once a day is over, from the first turn on."""
REQUESTS_PER_HOUR: Final = 12.0
LIFE_H: Final = 16.0
SIZES: Final = ((1, 2), (2, 4), (4, 8), (8, 16), (4, 16), (16, 32))
SHARES: Final = (0.10, 0.16, 0.38, 0.22, 0.06, 0.08)
APPLICATIONS: Final = 40
LIMITS, LIMIT_SHARES = (1, 2, 4, 1000), (0.5, 0.2, 0.1, 0.2)
HEAVY_AT, HEAVY_COUNT = 30, 24
FAILS_AT: Final = 36
FLEET_H, FLEET_FROM_H, FLEET_SEEDS = 16, 4, 5
FLEET_REQUESTS_PER_HOUR, FLEET_LIFE_H, FLEET_SIGMA = 30.0, 1.5, 0.5
"""Containers of a fleet's pool, of which fewer come by night; they live for hours, so that the fleet shrinks."""
STUDENT_95: Final = 2.776
"""Of five observations, two-sided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementResult(SectionResult):
    """The result of the section on placement."""

    kind = "placement"
    question = "why a container is where it is"

    pool: str
    hosts: int
    requests: int
    containers: int
    refused: Mapping[str, int]
    advised: int
    open_hosts: int
    lower_bound: int
    peak_hosts: int
    moved: int
    saved: float | None
    shadow: str
    happened: Mapping[str, int]
    coupled_fleet_hours_ratio: float
    coupled_fleet_hours_low: float
    coupled_fleet_hours_high: float

    def notes(self) -> Sequence[str]:
        """Return the machine-hours of a fleet that the pool drains hosts for."""
        interval = f"[{self.coupled_fleet_hours_low:.3f}, {self.coupled_fleet_hours_high:.3f}]"
        ratio = f"{self.coupled_fleet_hours_ratio:.3f} {interval} of those without"
        return (f"machine-hours of a simulated fleet whose pool drains hosts for it: {ratio}, {FLEET_SEEDS} seeds",)

    def brief(self) -> str:
        """Return the result in a line, with its figure."""
        hosts = f"at most {self.peak_hosts} of {self.hosts} hosts"
        return f"{self.containers} containers on {hosts}; a failure moved {self.moved}"


class Deployer:
    """Requests hosts for containers, confirms them, and releases them when they end."""

    def __init__(self, pool: PlacementPool, clock: VirtualClock, seed: int) -> None:
        self._pool, self._clock = pool, clock
        self._draws = np.random.default_rng(seed)
        self._ends: dict[str, float] = {}
        self.requests = self.placed = self.advised = 0

    def play(self, hour: int) -> None:
        """Play an hour: containers end, requests come, in one hour a large one."""
        now = self._clock.now()
        for name in [name for name, end in self._ends.items() if end <= now]:
            del self._ends[name]
            self._pool.release(name)
        for _ in range(int(self._draws.poisson(REQUESTS_PER_HOUR))):
            application = f"app-{int(self._draws.integers(APPLICATIONS))}"
            self._request(application, 1 + int(self._draws.geometric(0.5)))
        if hour == HEAVY_AT:
            self._request("heavy", HEAVY_COUNT)

    def _request(self, application: str, count: int) -> None:
        self.requests += 1
        name = f"r{self.requests}"
        made = self._pool.request(PlaceRequest(POOL, name, application, count, partial=True, requested_by="dry run"))
        self.advised += made.advice
        if made.containers and not made.advice:
            self.placed += len(made.containers)
            self._pool.confirm(name)
            self._ends[name] = self._clock.now() + HOUR_S * float(self._draws.exponential(LIFE_H))


def inventory(seed: int) -> dict[str, Any]:
    """Return the pool's inventory: hosts of one type, applications of six sizes, one of them needed by many at once."""
    draws = np.random.default_rng(seed)
    apps = []
    for n in range(APPLICATIONS):
        cores, memory = SIZES[int(draws.choice(len(SIZES), p=SHARES))]
        limit = int(draws.choice(LIMITS, p=LIMIT_SHARES))
        apps.append({"id": f"app-{n}", "cores": cores, "memory_gib": memory, "disk_gb": 60, "limit": limit})
    apps.append({"id": "heavy", "cores": 8, "memory_gib": 16, "disk_gb": 60, "limit": 1})
    kind = {"name": "host", **HOST, "count": HOSTS}
    return {"version": 1, "name": "dry run", "host_types": [kind], "applications": apps}


def fleet_instance(seed: int) -> Instance:
    """Return requests with expected lifetimes, the true ones times exp(sigma z), to hosts without number."""
    draws = np.random.default_rng((seed, 1))
    instance = parse_instance(inventory(seed), "dry run", hosts_elsewhere=True)[0]
    requests: list[Request] = []
    releases: list[Release] = []
    at_s = 0.0
    while (at_s := at_s + HOUR_S * float(draws.exponential(1.0 / FLEET_REQUESTS_PER_HOUR))) < FLEET_H * HOUR_S:
        if draws.random() > 0.5 + 0.5 * np.sin(2.0 * np.pi * at_s / DAY_S):
            continue
        name, count = f"r{len(requests)}", 1 + int(draws.geometric(0.5))
        life_s = HOUR_S * float(draws.exponential(FLEET_LIFE_H))
        expected_s = life_s * float(np.exp(FLEET_SIGMA * draws.normal()))
        requests.append(Request(name, f"app-{int(draws.integers(APPLICATIONS))}", count, at_s, expected_s))
        releases += [Release(name, k, at_s + life_s) for k in range(count)]
    return replace(instance, requests=tuple(requests), releases=tuple(releases))


def coupled_fleet_hours(seed: int) -> tuple[float, float, float]:
    """Return machine-hours of a coupled fleet over those of one that is not: mean and 95 % interval over seeds."""
    ratios = []
    for one in range(seed, seed + FLEET_SEEDS):
        instance = fleet_instance(one)
        alone, coupled = (
            play_fleet(instance, LIFETIME, coupled=coupled, seed=one, measured_from_s=FLEET_FROM_H * HOUR_S)
            for coupled in (False, True)
        )
        ratios.append(coupled.machine_hours / alone.machine_hours)
    mean, error = float(np.mean(ratios)), STUDENT_95 * float(np.std(ratios, ddof=1)) / FLEET_SEEDS**0.5
    return mean, mean - error, mean + error


def play_placements(
    directory: Path,
    seed: int,
    mode: str,
    overrides: Mapping[str, str],
    on_event: OnEvent,
    *,
    hours: int = TWO_DAYS_H,
) -> PlacementResult:
    """Run the hours and return the result; `on_event` is called with every event of the pool.

    Raises RuntimeError when this process already serves a simulated AWS, ConfigurationError for wrong settings,
    LedgerUnavailable when the directory is in use.
    """
    start = ORIGIN // HOUR_S * HOUR_S
    file = directory / "pool.json"
    file.write_text(json.dumps(inventory(seed), indent=1), "utf-8")
    prefix = f"TRIMTAB_PLACEMENTS__{POOL}__"
    given = {
        f"{prefix}INVENTORY_FILE": str(file),
        f"{prefix}SHADOW": "reserve:10,8,10",
        **{name: text for name, text in overrides.items() if name.startswith(prefix)},
    }
    happened: Counter[str] = Counter()
    peak = moved = 0
    with (
        cloud_at(start, seed) as endpoint,
        agent_at(start, directory, endpoint, mode, given) as (agent, clock),
    ):
        part = agent.part(PlacementPart)
        pool = part.pools[POOL]
        deployer = Deployer(pool, clock, seed)
        for hour in range(hours):
            agent.turn()
            deployer.play(hour)
            if hour == FAILS_AT:
                fullest = max(pool.hosts(), key=lambda one: (one.containers, one.name))
                moved = sum(one.host is not None for one in pool.fail(fullest.name).moves)
            peak = max(peak, pool.view().figures.open_hosts)
            for event in part.events(clock.now()):
                happened[event.reason.value] += 1
                on_event(event)
            clock.advance(HOUR_S)
        view = pool.view()
        made = pool.store.newest(POOL, 10_000)
        days = [one for one in made if isinstance(one, Comparison)]
        ratio, low, high = coupled_fleet_hours(seed)
        return PlacementResult(
            pool=POOL,
            hours=hours,
            hosts=HOSTS,
            requests=deployer.requests,
            containers=deployer.placed,
            refused=dict(view.head.refusals),
            advised=deployer.advised,
            open_hosts=view.figures.open_hosts,
            lower_bound=view.figures.lower_bound,
            peak_hosts=peak,
            moved=moved,
            saved=days[0].saved if days else None,
            shadow=days[0].shadow if days else "",
            happened=dict(happened),
            coupled_fleet_hours_ratio=ratio,
            coupled_fleet_hours_low=low,
            coupled_fleet_hours_high=high,
            examples={one.reason.value: one.decision_id for one in reversed(made)},
            ledger=shown_path(directory / LEDGER),
        )


SECTION = Section(
    play_placements,
    shown=frozenset(
        {
            Reason.NO_HOST,
            Reason.PLACED_IN_PART,
            Reason.HOST_FAILED,
            Reason.CONTAINERS_LOST,
            Reason.HOSTS_COMPARED,
        }
    ),
)
