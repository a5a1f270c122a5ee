"""A fleet of two groups on a clock: VMs report lines, the cloud shows instances, a minute is folded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.rails.state import LoopState
from collectors.intake import IntakeCounters, LineReader
from domain.fleet import Fleet, Group, VmType
from domain.observed import GroupObserved, Instance, Lifecycle, Observed
from domain.snapshot import GroupSnapshot, Snapshot

T0 = 1_795_209_000.0  # a whole minute
SMALL = Group("s", "web-s", VmType("m5a.large", 2, 8.0, 0.086), 1, 10)
LARGE = Group("l", "web-l", VmType("m5a.2xlarge", 8, 32.0, 0.344), 0, 10)
FLEET = Fleet("web", (SMALL, LARGE))


@dataclass
class Scene:
    """`now` is the reader's clock; a minute's readings are sent as the listener would receive them."""

    now: float = T0
    fleet: Fleet = FLEET
    settings: AggregationSettings = field(default_factory=AggregationSettings)
    store: SeriesStore = field(default_factory=SeriesStore)
    counters: IntakeCounters = field(default_factory=IntakeCounters)
    state: LoopState = field(default_factory=LoopState)
    groups: dict[str, GroupObserved] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.aggregator = Aggregator(self.store)
        self.reader = LineReader(self.store, self.counters, lambda: self.now)
        for group in self.fleet.groups:
            self.groups.setdefault(group.name, GroupObserved(group.name, 0, group.minimum, group.maximum))

    def place(self, key: str, *instances: Instance, desired: int | None = None, **more: Any) -> None:
        group = self.fleet.groups[self.fleet.index(key)]
        count = sum(i.serving for i in instances) if desired is None else desired
        changed = replace(self.groups[group.name], instances=instances, desired=count, **more)
        self.groups[group.name] = changed

    def send(self, *lines: str) -> None:
        self.reader.feed("".join(f"{line}\n" for line in lines).encode())

    def report(self, key: str, vm: str, times: Iterable[float], **values: float) -> None:
        """Send the metrics of one VM at each of these times."""
        self.send(
            *(f"trimtab.web.{key}.{vm}.{name} {value!r} {at!r}" for at in times for name, value in values.items())
        )

    def report_queue(self, at: float, **values: float) -> None:
        self.send(*(f"trimtab.web.queue.{name} {value!r} {at!r}" for name, value in values.items()))

    def fold(self) -> Snapshot:
        """Fold the last closed minute at `now`."""
        observed = Observed(self.now, self.groups)
        self.folded = self.aggregator.snapshot(self.fleet, observed, self.state, self.settings, self.now)
        self.state = self.folded.state
        return self.folded.snapshot

    def minute(
        self,
        cpu: Mapping[str, float] | None = None,
        queue: Mapping[str, float] | None = None,
        **metrics: float,
    ) -> Snapshot:
        """Let a minute pass: the VMs named report six times, the queue once; then fold it, five seconds later."""
        start, self.now = self.now, self.now + 60.0
        for vm, percent in (cpu or {}).items():
            key = next(g.key for g in self.fleet.groups if any(i.vm == vm for i in self.groups[g.name].instances))
            given = {"ram_percent": 10.0, "busy_cores": 1.0, **metrics}
            self.report(key, vm, (start + 10.0 * k for k in range(1, 7)), cpu_percent=percent, **given)
        if queue is not None:
            self.report_queue(self.now, **queue)
        self.now += 5.0
        snapshot = self.fold()
        self.now -= 5.0
        return snapshot


def running(vm: str, launched_at: float | None = T0 - 3600.0, **more: Any) -> Instance:
    return Instance(vm, "a", Lifecycle.IN_SERVICE, launched_at=launched_at, **more)


def group(snapshot: Snapshot, key: str) -> GroupSnapshot:
    return next(found for found in snapshot.groups if found.key == key)
