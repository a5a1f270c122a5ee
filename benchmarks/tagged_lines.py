"""Readings of some VMs as other senders name them: lines with Graphite tags, which the agent's map turns back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from collectors.base import Refusal, SampleSink
from collectors.mapping import Hosts, MappedSink, map_of
from domain.samples import QUEUE_SEGMENT, Sample, VmMetric

OF_VM: Final = ";fleet={fleet};group={group};host={vm}"
MAP: Final = map_of(
    {
        "series": [
            {
                "from": f"cpu.{{state}}{OF_VM}",
                "to": "cpu_percent",
                "fold": "share",
                "part": "state",
                "not_counted": ["idle"],
            },
            *({"from": f"{one}{OF_VM}", "to": str(one)} for one in VmMetric if one is not VmMetric.CPU_PERCENT),
        ]
    }
)
"""What the agent is set to: the share of the CPU by its states, the other metrics by their names."""

EVERY, MOST_WRITTEN = 4, 2048


class TaggedLines:
    """Passes readings on, of every fourth VM or so as lines with tags, through the map."""

    def __init__(self, below: SampleSink) -> None:
        self.hosts = Hosts(MAP.hosts)
        self.sink = MappedSink(below, MAP, self.hosts)
        self._written: dict[bytes, tuple[bytes, ...]] = {}

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Take readings, see `SampleSink`; the positions of what is refused are those of the lines."""
        if len(self._written) > MOST_WRITTEN:
            self._written.clear()
        names: list[bytes] = []
        shares: list[float] = []
        stamps: list[float] = []
        for path, value, at in zip(paths, values, times, strict=True):
            written = self._written.get(path)
            if written is None:
                written = self._written[path] = _written(path)
            names += written
            shares += (value, 100.0 - value)[: len(written)]
            stamps += (at,) * len(written)
        return self.sink.append(names, shares, stamps, now, peer)

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Pass on readings whose series is known."""
        return self.sink.append_samples(samples, now)


def _written(path: bytes) -> tuple[bytes, ...]:
    """Return the path of the line that brings this reading; of a CPU those of its two states, busy and idle."""
    _, fleet, group, vm, *metric = path.decode().split(".")
    if group == QUEUE_SEGMENT or int(vm[2:], 16) % EVERY:
        return (path,)
    of_vm = OF_VM.format(fleet=fleet, group=group, vm=vm)
    names = ("cpu.user", "cpu.idle") if metric == [VmMetric.CPU_PERCENT] else metric
    return tuple(f"{name}{of_vm}".encode() for name in names)
