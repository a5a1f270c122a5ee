"""One collection of one collector, by name, outside the loop: for a person who wants to see what it gives."""

from __future__ import annotations

import time
from dataclasses import dataclass

from agent.settings import Settings
from collectors.base import Collector
from collectors.host import HostSampler
from collectors.run_directory import RunDirectory
from collectors.vm_reporter import VmIdentity, VmReporter
from domain.clock import WallClock
from domain.decisions import Mode
from domain.errors import BadInput
from domain.samples import Sample

HOST = "host"
CPU_OVER_S = 1.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collector gave, and how long it took in seconds."""

    name: str
    samples: tuple[Sample, ...]
    duration_s: float


def collected_once(settings: Settings, name: str) -> Collected:
    """Run the collector of that name once; `host` measures this machine over one second.

    Raises BadInput when there is no such collector, else what the collector raises.
    """
    began = time.monotonic()
    samples = _host(settings) if name == HOST else tuple(_collector(settings, name).collect(time.time()))
    return Collected(name, samples, time.monotonic() - began)


def _host(settings: Settings) -> tuple[Sample, ...]:
    collect = settings.collect
    identity = VmIdentity(collect.fleet or "fleet", collect.group or "group", collect.vm or "vm")
    directory = None
    if collect.run_directory is not None:
        directory = RunDirectory(collect.run_directory, collect.worker_silence_s)
    sampler = HostSampler()
    time.sleep(CPU_OVER_S)
    return tuple(VmReporter(identity, sampler, _Nobody(), time.time, workers=directory).measure(time.time()))


def _collector(settings: Settings, name: str) -> Collector:
    from agent.service.assembly import aws_session
    from agent.service.inputs import collectors_of

    observing = settings.model_copy(update={"mode": Mode.OBSERVE})
    session = aws_session(observing, WallClock(), None, lambda: None)
    fleets = [settings.fleet(key) for key in settings.fleets]
    made = {collector.name: collector for collector in collectors_of(settings, fleets, session)}
    try:
        return made[name]
    except KeyError:
        raise BadInput("collector", name, f"choose one of: {', '.join([HOST, *sorted(made)])}") from None


class _Nobody:
    """Takes samples and sends them nowhere."""

    def send_samples(self, samples: list[Sample]) -> None:
        """Do nothing."""
