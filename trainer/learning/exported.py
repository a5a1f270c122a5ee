"""A recording as files: a trace that every verb plays, written window by window, and a world file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from domain.errors import BadInput
from domain.fleet import Fleet, VmType
from domain.units import DAY_S
from domain.workload import DEFAULT_RAM_GB, make_trace
from simulator.autoscaling.world_file import World, world_from, world_text
from trainer.kit.files import replace_file
from trainer.learning.recorded import QUANTILES, Recording, WindowTrace, measured_world, traced
from trainer.learning.tables import write_table

HEADER = "job_id,arrival_s,service_s,width,ram_gb\n"
_NO_JOBS = make_trace("none", [], [])


def export_trace(
    recorded: Recording,
    path: Path,
    version: str,
    parameters: Mapping[str, object],
    on_window: Callable[[float], None] = lambda end_s: None,
) -> dict[str, Any]:
    """Write the jobs of a recording as a saved trace, and its side file `<path>.json`; return what the latter holds.

    path: ends in .csv or .csv.gz. The side file lists gaps, boots, spot notices, refusals by AWS and cost beside the
    digest. Both appear whole or not at all. on_window: called with the end of each day read, epoch seconds. BadInput
    when the recording has no jobs of a known length.
    """
    summary = _Summary(recorded)

    def lines() -> Iterator[str]:
        yield HEADER
        for window in traced(recorded, DAY_S, on_window):
            yield _rows(window, *summary.take(window))

    def side(digest: str) -> dict[str, Any]:
        if not summary.jobs:
            why = f"the recording of {recorded.fleet.name} has no jobs, or nothing of their length"
            raise BadInput("fleet", recorded.fleet.name, f"{why}: give a longer span")
        return summary.side(version, parameters, digest)

    return write_table(path, lines(), side)


def _rows(window: WindowTrace, first: int, offset_s: float) -> str:
    trace = window.trace
    columns = zip((trace.arrival_s + offset_s).tolist(), trace.service_s.tolist(), strict=True)
    return "".join(
        [f"{number},{at:.3f},{length:.6g},1,{DEFAULT_RAM_GB}\n" for number, (at, length) in enumerate(columns, first)]
    )


@dataclass(slots=True)
class _Summary:
    """The content of the side file, gathered window by window; of these only figures are kept."""

    recorded: Recording
    windows: list[WindowTrace] = field(default_factory=list)
    jobs: int = 0
    end_s: float = 0.0
    gaps: list[list[float]] = field(default_factory=list)

    def take(self, window: WindowTrace) -> tuple[int, float]:
        """Take in a window; return the number of its first job, and the offset of its arrivals.

        Where the clock was set back a window follows right after the one before it.
        """
        began = self.windows[0].start if self.windows else window.start
        first, offset = self.jobs + 1, max(window.start - began, self.end_s)
        gaps = [(self.end_s, offset)] if offset > self.end_s else []
        for since, until in [*gaps, *((offset + since, offset + until) for since, until in window.gaps_s)]:
            if self.gaps and self.gaps[-1][1] >= since:
                self.gaps[-1][1] = until
            else:
                self.gaps.append([since, until])
        self.end_s = offset + window.duration_s
        self.jobs += window.trace.jobs
        self.windows.append(replace(window, trace=_NO_JOBS))
        return first, offset

    def side(self, version: str, parameters: Mapping[str, object], digest: str) -> dict[str, Any]:
        """Return the side file of the trace."""
        boots: dict[str, list[float]] = {group.key: [] for group in self.recorded.fleet.groups}
        interrupted, refused = Counter[str](), Counter[str]()
        for one in self.windows:
            for k, group in enumerate(one.fleet.groups):
                boots.setdefault(group.key, []).extend(() if one.boots is None else one.boots[k])
                interrupted[group.key] += one.interrupted[k]
                refused[group.key] += one.refused[k]
        last = self.windows[-1]
        return {
            "name": self.recorded.fleet.name,
            "generator": "ledger",
            "version": version,
            "seed": None,
            "parameters": dict(parameters),
            "serial_fraction": 0.0,
            "jobs": self.jobs,
            "sha256": digest,
            "recorded": {
                "from": _utc(self.windows[0].start),
                "until": _utc(last.start + last.duration_s),
                "duration_s": self.end_s,
                "gaps_s": self.gaps,
                "lengths": "quantiles" if all(w.has_quantiles for w in self.windows) else "means, at least in part",
                "boots_s": {key: _quantiles(found) for key, found in boots.items()},
                "boots": "unknown in part" if any(w.boots is None for w in self.windows) else "measured",
                "spot_notices": dict(interrupted),
                "refusals_by_aws": dict(refused),
                "lost_core_s": round(sum(w.lost_core_s for w in self.windows), 1),
                "rent_dollars": round(sum(w.rent for w in self.windows), 4),
                "waiting_dollars": round(sum(w.waiting_cost for w in self.windows), 4),
                "policies": sorted({policy for w in self.windows for policy in w.policies}),
            },
        }


def _quantiles(found: list[float]) -> dict[str, Any]:
    if not found:
        return {"count": 0}
    values = np.quantile(np.array(found), np.linspace(0.0, 1.0, QUANTILES))
    return {"count": len(found), "quantiles": [round(float(value), 1) for value in values]}


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _named_apart(fleet: Fleet, types: tuple[VmType, ...]) -> tuple[VmType, ...]:
    """Return the types, with the group's key in the name where two groups have one type, as spot beside on demand."""
    often = Counter(kind.name for kind in types)
    return tuple(
        replace(kind, name=f"{kind.name} {group.key}") if often[kind.name] > 1 else kind
        for kind, group in zip(types, fleet.groups, strict=True)
    )


def export_world(
    recorded: Recording, path: Path, base: World, on_window: Callable[[float], None] = lambda end_s: None
) -> tuple[World, tuple[str, ...]]:
    """Write the world of a recording as a world file, which says in comments what each part rests on; return both.

    base: has what a ledger does not record. The file appears whole or not at all.
    """
    measured = measured_world(recorded, base.config, on_window)
    config = replace(measured.config, types=_named_apart(recorded.fleet, measured.config.types))
    head = (
        f"The world of fleet {recorded.fleet.name}, as recorded; fields without a measurement are those of {base.name}."
    )
    # Only what the file can hold is promised: it is read back before it is kept.
    text = world_text(World(config, path.stem, "", base.job_sizes, base.typical_job_core_s))
    comment = "\n".join([head, *measured.notes])
    text = world_text(world_from(text, path.stem), comment)
    replace_file(path, text)
    return world_from(text, path.stem), measured.notes
