"""A recording as files: a trace that every verb plays, written window by window, and a world file."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np

from domain.errors import BadInput
from domain.fleet import Fleet, VmType
from domain.units import DAY_S
from domain.workload import DEFAULT_RAM_GB
from simulator.autoscaling.world_file import World, world_from, world_text
from trainer.learning.recorded import QUANTILES, Recorded, RecordedTrace, measured_world, traced

HEADER = "job_id,arrival_s,service_s,width,ram_gb\n"
ENDINGS = (".csv", ".csv.gz")
_LEVEL = 1


def export_trace(
    recorded: Recorded,
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
    if not path.name.endswith(ENDINGS):
        raise BadInput("--out", str(path), f"give a file that ends in {' or '.join(ENDINGS)}")
    partial = path.with_name(f".{path.name}.partial")
    summary = _Summary(recorded)
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(partial.open("wb"))
            text = stack.enter_context(_text(raw, packed=path.name.endswith(".gz")))
            text.write(HEADER)
            for window in traced(recorded, DAY_S, on_window):
                first, offset = summary.take(window)
                text.write(_rows(window, first, offset))
        if not summary.jobs:
            why = f"the recording of {recorded.fleet.name} has no jobs, or nothing of their length"
            raise BadInput("--fleet", recorded.fleet.name, f"{why}: give a longer span")
        with partial.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        side = summary.side(version, parameters, digest)
        side_path = path.with_name(path.name + ".json")
        side_partial = partial.with_name(f"{partial.name}.json")
        side_partial.write_text(json.dumps(side, indent=2, sort_keys=True) + "\n", encoding="utf-8", newline="\n")
        os.replace(partial, path)
        os.replace(side_partial, side_path)
    finally:
        partial.unlink(missing_ok=True)
    return side


def _text(raw: IO[bytes], *, packed: bool) -> io.TextIOWrapper:
    # Without name and time in its head the same recording gives the same file.
    stream: Any = gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) if packed else raw
    return io.TextIOWrapper(stream, encoding="ascii", newline="\n", write_through=True)


def _rows(window: RecordedTrace, first: int, offset_s: float) -> str:
    trace = window.trace
    columns = zip((trace.arrival_s + offset_s).tolist(), trace.service_s.tolist(), strict=True)
    return "".join(
        [f"{number},{at:.3f},{length:.6g},1,{DEFAULT_RAM_GB}\n" for number, (at, length) in enumerate(columns, first)]
    )


class _Summary:
    """What the side file says, gathered window by window."""

    def __init__(self, recorded: Recorded) -> None:
        groups = recorded.fleet.groups
        self._recorded = recorded
        self.jobs, self._end_s, self._windows = 0, 0.0, 0
        self._began: float | None = None
        self._until = 0.0
        self._gaps: list[list[float]] = []
        self._boots: dict[str, list[float]] = {group.key: [] for group in groups}
        self._interrupted: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._rent = self._waiting_cost = self._lost_core_s = 0.0
        self._measured = self._quantiles = True
        self._policies: set[str] = set()

    def take(self, window: RecordedTrace) -> tuple[int, float]:
        """Take in a window; return the number of its first job, and what is added to its arrivals.

        Where the clock was set back a window follows right after the one before it.
        """
        self._began = window.start if self._began is None else self._began
        offset, first = max(window.start - self._began, self._end_s), self.jobs + 1
        if offset > self._end_s:
            self._add_gap(self._end_s, offset)
        for since, until in window.gaps_s:
            self._add_gap(offset + since, offset + until)
        self._end_s, self._until = offset + window.duration_s, window.start + window.duration_s
        self.jobs += window.trace.jobs
        self._windows += 1
        keys = [group.key for group in window.fleet.groups]
        for k, key in enumerate(keys):
            if window.boots is not None:
                self._boots.setdefault(key, []).extend(window.boots[k])
            self._interrupted[key] = self._interrupted.get(key, 0) + window.interrupted[k]
            self._refused[key] = self._refused.get(key, 0) + window.refused[k]
        self._measured &= window.boots is not None
        self._quantiles &= window.has_quantiles
        self._rent += window.rent
        self._waiting_cost += window.waiting_cost
        self._lost_core_s += window.lost_core_s
        self._policies.update(window.policies)
        return first, offset

    def _add_gap(self, since: float, until: float) -> None:
        if self._gaps and self._gaps[-1][1] >= since:
            self._gaps[-1][1] = until
        else:
            self._gaps.append([since, until])

    def side(self, version: str, parameters: Mapping[str, object], digest: str) -> dict[str, Any]:
        """Return the side file of the trace."""
        recorded = self._recorded
        return {
            "name": recorded.fleet.name,
            "generator": "ledger",
            "version": version,
            "seed": None,
            "parameters": dict(parameters),
            "serial_fraction": 0.0,
            "jobs": self.jobs,
            "sha256": digest,
            "recorded": {
                "from": _utc(self._began or 0.0),
                "until": _utc(self._until),
                "duration_s": self._end_s,
                "gaps_s": self._gaps,
                "lengths": "quantiles" if self._quantiles else "means, at least in part",
                "boots_s": {key: _quantiles(found) for key, found in self._boots.items()},
                "boots": "measured" if self._measured else "unknown in part",
                "spot_notices": self._interrupted,
                "refusals_by_aws": self._refused,
                "lost_core_s": round(self._lost_core_s, 1),
                "rent_dollars": round(self._rent, 4),
                "waiting_dollars": round(self._waiting_cost, 4),
                "policies": sorted(self._policies),
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
    recorded: Recorded, path: Path, base: World, on_window: Callable[[float], None] = lambda end_s: None
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
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return world_from(text, path.stem), measured.notes
