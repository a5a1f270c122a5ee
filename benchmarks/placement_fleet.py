"""Machine-hours of a fleet whose VMs are the hosts of a pool, with and without the coupling of the two.

`agent`: the whole agent in virtual time against the simulated AWS, in act mode, with a group that has a drain hook,
signal tracking by `placed_cores` at its defaults, and the policy `lifetime` with declared lifetimes (those of the dry
run: sigma 0.5, sixteen hours of a day, of which the first four do not count). A turn a minute. Coupled: the pool has
the setting FLEET. Without it, an operator's program does what it can from outside: each minute it joins VMs in service
as hosts, drains those that AWS is taking out, reports those that are gone as failed, and sends busy cores and
`placed_cores`. Containers without a host are requested again each minute. `cut_short`: containers whose
VM ended before they did. Intervals: Student's t over seeds, of requests, lifetimes and boots.

`simulated`: the fleet of `simulator.placement.fleet` on six stretches of public traces with a daily rhythm of arrivals:
each request is kept with the chance 0.7 + 0.3 sin(2 pi t / day). Lifetimes with sigma 0.5; the first 30 % do not count.
Intervals: t over the means of the stretches. SOON_S was chosen among 10, 30 and 90 minutes on gaia-pai:20000,
gaia-azure:40000 and alibaba-openb:0, by the lowest machine-hours. Ratios are to `lifetime`, not coupled, at the
defaults: best fit the other way round, so `lifetime_over_bf`. `open_share`: hours of VMs with containers over
machine-hours: what would be left if each VM ended in the minute it is empty, and started in no time. `target_95`,
`in_3` and `both`: a target of 0.95, scale-in after 3 minutes, both; nothing is chosen by these.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import stats

from agent.autoscaling.decision import AutoscalingPart
from agent.placement.decision import PlacementPart
from agent.placement.demand import SIGNAL
from agent.placement.records import HostRecord, HostState, Origin, PlaceRequest
from agent.placement.reserve import PlacementPool
from agent.rehearsal.placements import FLEET_FROM_H, FLEET_H, POOL, fleet_instance, inventory
from agent.rehearsal.scenario import FLEET, ORIGIN, OWNER_KEY, REGION, aws_client, make_group
from agent.rehearsal.sections import agent_at, cloud_at
from agent.rehearsal.virtual_time import quiet_logs
from benchmarks.placement_lifetimes import WARM_UP, with_rhythm
from benchmarks.report import Target, arguments, report
from domain.fleet import Group, VmType
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import LIFETIME, NAMED
from domain.samples import Sample, SignalSeries, VmMetric, VmSeries
from domain.units import HOUR_S, MINUTE_S
from simulator.aws.client import CloudControl
from simulator.aws.prices import price_per_hour
from simulator.placement.fleet import play_fleet
from simulator.placement.traces import trace_of

GROUP: Final = Group(
    "workers", f"{FLEET}-workers", VmType("m5a.8xlarge", 32, 128.0, price_per_hour("m5a.8xlarge", REGION)), 1, 60
)
SIZE: Final = (32, 127, 10_000)
"""Of a VM as a host: a GiB of memory is set aside, and the disk never binds."""
CPU_PERCENT = 50.0
"""The rails take a VM without it for silent; signal tracking does not look at it."""
AGENT_SEEDS, SEEDS = range(21, 26), range(11, 16)
FLEETS = (
    "alibaba-openb:1800+1600@3",
    "alibaba-openb:3600+1600@3",
    "gaia-azure:0+18000@20",
    "gaia-azure:20000+18000@20",
    "gaia-pai:0+18000@20",
    "gaia-pai:40000+18000@20",
)
ARMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bf": {"policy": NAMED["bf"]},
    "alone": {},
    "coupled": {"coupled": True},
    "target_95": {"target": 0.95},
    "in_3": {"in_periods": 3},
    "both": {"target": 0.95, "in_periods": 3},
}
TARGETS = (Target("coupled_fleet_hours_ratio", 1.0), Target("coupled_cut_short", 0.0))


def main() -> int:
    """Measure and print; the exit status is 0 when the promises are kept."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--hours", type=int, default=FLEET_H, help=f"hours of the agent (default {FLEET_H})")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the agent and of each stretch (default 5)")
    parser.add_argument("--fleets", type=int, default=len(FLEETS), help=f"stretches played (default {len(FLEETS)})")
    given = parser.parse_args()
    figures = {
        **rehearsed(AGENT_SEEDS[: given.seeds], given.hours),
        **simulated(FLEETS[: given.fleets], SEEDS[: given.seeds]),
    }
    packages = ("numpy", "scipy", "moto")
    return report("placement_fleet", figures, as_json=given.json, packages=packages, targets=TARGETS)


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean by Student's t; the mean itself of a single value."""
    mean = float(np.mean(ratios))
    if len(ratios) < 2:
        return mean, mean
    error = float(stats.t.ppf(0.975, len(ratios) - 1) * stats.sem(ratios))
    return mean - error, mean + error


def simulated(stretches: Sequence[str], seeds: Sequence[int]) -> dict[str, float]:
    """Return machine-hours of simulated fleets over those of the arm `alone`, waits, and the share of open hours."""
    hours: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    waits: dict[str, list[float]] = {arm: [] for arm in ARMS}
    shares: list[float] = []
    for name in stretches:
        for found in hours.values():
            found.append([])
        for seed in seeds:
            instance = trace_of(name, "0.5", seed)
            assert instance is not None
            instance = with_rhythm(instance, seed)
            begin_s = WARM_UP * instance.requests[-1].at_s
            for arm, given in ARMS.items():
                changes = {"policy": LIFETIME, "coupled": False, **given}
                made = play_fleet(instance, seed=seed, measured_from_s=begin_s, **changes)
                hours[arm][-1].append(made.machine_hours)
                waits[arm].append(made.wait_s)
                if arm == "alone":
                    shares.append(made.open_hours / made.machine_hours)
    figures = {f"simulated_{arm}_wait_s": float(np.mean(found)) for arm, found in waits.items()}
    figures["simulated_open_share"] = float(np.mean(shares))
    for arm in ARMS:
        if arm == "alone":
            continue
        key, one, other = ("lifetime_over_bf", "alone", "bf") if arm == "bf" else (f"{arm}_over_alone", arm, "alone")
        each = [float(np.mean(np.array(a) / np.array(b))) for a, b in zip(hours[one], hours[other], strict=True)]
        low, high = _interval(each)
        figures |= {f"simulated_{key}": float(np.mean(each)), f"simulated_{key}_low": low}
        figures[f"simulated_{key}_high"] = high
    return figures


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """Hours of the VMs of a rehearsed fleet, of those with containers, the mean wait, and containers cut short."""

    machine_hours: float
    open_hours: float
    wait_s: float
    cut_short: int


def rehearsed(seeds: Sequence[int], hours: int) -> dict[str, float]:
    """Return machine-hours of the coupled agent over those without, mean and interval over seeds, and both arms."""
    found: dict[str, list[Rehearsed]] = {"alone": [], "coupled": []}
    for seed in seeds:
        for arm, made in found.items():
            with tempfile.TemporaryDirectory() as directory, quiet_logs():
                made.append(rehearse(Path(directory), seed, hours, coupled=arm == "coupled"))
    ratios = [b.machine_hours / a.machine_hours for a, b in zip(found["alone"], found["coupled"], strict=True)]
    low, high = _interval(ratios)
    figures = {"coupled_fleet_hours_ratio": float(np.mean(ratios))}
    figures |= {"coupled_fleet_hours_low": low, "coupled_fleet_hours_high": high}
    for arm, made in found.items():
        figures[f"{arm}_open_share"] = float(np.mean([one.open_hours / one.machine_hours for one in made]))
        figures[f"{arm}_wait_s"] = float(np.mean([one.wait_s for one in made]))
        figures[f"{arm}_cut_short"] = float(np.mean([one.cut_short for one in made]))
    return figures


def rehearse(directory: Path, seed: int, hours: int, *, coupled: bool) -> Rehearsed:
    """Run the agent and its pool for these hours, and count from FLEET_FROM_H on, or from half of fewer hours."""
    start, count_from = ORIGIN // HOUR_S * HOUR_S, min(FLEET_FROM_H, hours / 2)
    machines = opened = 0
    with cloud_at(start, seed) as endpoint, ExitStack() as stack:
        control, groups = CloudControl(endpoint), aws_client("autoscaling", endpoint, OWNER_KEY)
        make_group(groups, aws_client("ec2", endpoint, OWNER_KEY), FLEET, GROUP, GROUP.minimum)
        control.ready_now()
        given = _settings(directory, seed, coupled=coupled)
        agent, clock = stack.enter_context(agent_at(start, directory, endpoint, "act", given))
        # Readings are sent by the loop below, once a minute of virtual time.
        agent.poller.stop()
        part, series = agent.part(PlacementPart), agent.part(AutoscalingPart).series
        containers = Containers(part.pools[POOL], fleet_instance(seed), count_from * HOUR_S)
        agent.turn()
        for minute in range(hours * 60):
            listed = groups.describe_auto_scaling_groups()["AutoScalingGroups"][0]["Instances"]
            states = {vm["InstanceId"]: vm["LifecycleState"] for vm in listed}
            containers.minute(minute * MINUTE_S)
            if minute >= count_from * 60:
                machines += len(states)
                opened += sum(host.containers > 0 for host in part.pools[POOL].hosts())
            now = clock.now()
            if coupled:
                samples = [one for each in part.collectors() for one in each.collect(now)]
            else:
                samples = _readings(part.pools[POOL], containers.missing(), now)
            series.append_samples([*samples, *_cpu(states, now)], now)
            failure = agent.turn().failure
            assert failure is None, failure
            if not coupled:
                _bring(part.pools[POOL], states)
            clock.advance(MINUTE_S)
            control.advance(MINUTE_S)
    hour = MINUTE_S / HOUR_S
    return Rehearsed(machines * hour, opened * hour, float(np.mean(containers.waits)), containers.cut_short)


def _settings(directory: Path, seed: int, *, coupled: bool) -> dict[str, str]:
    """Return the settings of the agent as environment variables; the inventory is written to the directory."""
    document = inventory(seed)
    document["host_types"] = [
        {"name": "vm", **dict(zip(("cores", "memory_gib", "disk_gb"), SIZE, strict=True)), "count": 0}
    ]
    file = directory / "pool.json"
    file.write_text(json.dumps(document), "utf-8")
    pool, fleet = f"TRIMTAB_PLACEMENTS__{POOL}__", f"TRIMTAB_FLEETS__{FLEET}__"
    group, kind = f"{fleet}GROUPS__{GROUP.key}__", GROUP.vm_type
    values = {
        f"{pool}INVENTORY_FILE": str(file),
        f"{pool}VM_DISK_GB": str(SIZE[2]),
        f"{fleet}POLICY": "signal-tracking",
        f"{fleet}SIGNALS__{SIGNAL}__TARGET": "0.85",
        f"{group}NAME": GROUP.name,
        f"{group}VM_TYPE": kind.name,
        f"{group}CORES": str(kind.cores),
        f"{group}MEMORY_GB": f"{kind.memory_gb:g}",
        f"{group}PRICE_PER_HOUR": f"{kind.price_per_hour:g}",
        f"{group}MIN": str(GROUP.minimum),
        f"{group}MAX": str(GROUP.maximum),
        "TRIMTAB_AWS__CALLS_PER_MINUTE": "1000",
    }
    return {**values, f"{pool}FLEET": FLEET} if coupled else values


@dataclass(slots=True)
class Containers:
    """Requests hosts for containers, again each minute while some of a request have none, and releases them.

    waiting: when it was asked for, index of the request, number of containers without a host.
    """

    pool: PlacementPool
    instance: Instance
    from_s: float
    waiting: list[tuple[float, int, int]] = field(default_factory=list)
    ends: list[tuple[float, str, int]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    asked: int = 0
    cut_short: int = 0
    life_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        ends = {end.request: end.at_s for end in self.instance.releases}
        self.life_s = [ends[one.name] - one.at_s for one in self.instance.requests]

    def minute(self, now_s: float) -> None:
        """Let a minute begin: containers end, and those without a host are requested."""
        while self.ends and self.ends[0][0] <= now_s:
            _, name, placed = heappop(self.ends)
            one = self.pool.reservation(name)[1]
            self.cut_short += placed if one is None else len({*one.moved, *one.lost})
            if one is not None:
                self.pool.release(name)
        requests = self.instance.requests
        while self.asked < len(requests) and requests[self.asked].at_s <= now_s:
            self.waiting.append((now_s, self.asked, requests[self.asked].count))
            self.asked += 1
        self.waiting = [one for one in (self._placed(*each, now_s) for each in self.waiting) if one[2]]

    def _placed(self, since: float, number: int, count: int, now_s: float) -> tuple[float, int, int]:
        """Request hosts for containers; return which of them have none."""
        request = self.instance.requests[number]
        name, hint = f"{request.name}-{now_s:g}", request.lifetime_s
        made = self.pool.request(
            PlaceRequest(
                POOL, name, request.application, count, partial=True, requested_by="rehearsal", lifetime_s=hint
            )
        )
        placed = len(made.containers)
        if placed:
            self.pool.confirm(name)
            heappush(self.ends, (now_s + self.life_s[number], name, placed))
            self.waits += [now_s - since] * (placed if since >= self.from_s else 0)
        return since, number, count - placed

    def missing(self) -> int:
        """Return the cores of containers without a host."""
        cores = self.pool.cores_of()
        return sum(cores[self.instance.requests[number].application] * count for _, number, count in self.waiting)


def _bring(pool: PlacementPool, states: Mapping[str, str]) -> None:
    """Bring a pool's hosts to what AWS lists."""
    hosts = {host.name: host for host in pool.hosts()}
    for vm, state in states.items():
        if vm not in hosts and state == "InService":
            pool.join(HostRecord(vm, SIZE, Origin.API, HostState.UP))
        elif vm in hosts and hosts[vm].state is HostState.UP and state != "InService":
            pool.drain(vm)
    for name, host in hosts.items():
        if name not in states and host.state is not HostState.FAILED:
            pool.fail(name)


def _readings(pool: PlacementPool, missing: int, now: float) -> list[Sample]:
    """Return the readings that a coupled pool makes itself: busy cores of each VM, and the fleet's signal."""
    held = {host.name: float(host.used[0]) for host in pool.hosts() if host.state is not HostState.FAILED}
    busy = [Sample(VmSeries(FLEET, GROUP.key, vm, VmMetric.BUSY_CORES), cores, now) for vm, cores in held.items()]
    return [*busy, Sample(SignalSeries(FLEET, SIGNAL), sum(held.values()) + missing, now)]


def _cpu(states: Mapping[str, str], now: float) -> list[Sample]:
    """Return the CPU of the minute that each VM in service reports."""
    serve = [vm for vm, state in states.items() if state == "InService"]
    return [
        Sample(VmSeries(FLEET, GROUP.key, vm, VmMetric.CPU_PERCENT), CPU_PERCENT, now - 10.0 * k)
        for vm in serve
        for k in range(6)
    ]


if __name__ == "__main__":
    sys.exit(main())
