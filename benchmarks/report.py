"""What the benchmarks share: repeating, medians, and one way to print results for people or as JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = Mapping[str, float]
VERDICTS = {True: "met", False: "MISSED", None: "not measured"}


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that a benchmark promises: `name` is to be at most (or at least) `limit`."""

    name: str
    limit: float
    at_most: bool = True

    def met(self, figures: Mapping[str, float | None]) -> bool | None:
        """Whether the figure keeps the promise; None where it was not measured."""
        value = figures[self.name]
        if value is None:
            return None
        return value <= self.limit if self.at_most else value >= self.limit


def arguments(doc: str, *, runs: int = 3) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark: --json, --runs and --directory."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")
    parser.add_argument("--runs", type=int, default=runs, help=f"measure this often and take medians (default {runs})")
    parser.add_argument("--directory", type=Path, help="where files are written (default: the temporary directory)")
    return parser


def repeat(measure: Callable[[], Figures], runs: int) -> dict[str, float]:
    """Run a measurement `runs` times and return the median of each figure."""
    every = [measure() for _ in range(max(1, runs))]
    return {name: statistics.median(figures[name] for figures in every) for name in every[0]}


def machine(packages: Sequence[str]) -> dict[str, str]:
    """Return where the figures were taken: processor, cores, Python, and versions of the packages that matter."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count() or 0),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
            return next(named, platform.machine())
    except OSError:
        return platform.machine()


def report(
    name: str,
    figures: Mapping[str, float | None],
    *,
    as_json: bool,
    packages: Sequence[str] = (),
    targets: Sequence[Target] = (),
    notes: Mapping[str, Any] | None = None,
) -> int:
    """Print the figures and return the exit status: 1 when a target is missed, else 0.

    A figure of None could not be measured here. As JSON: one object with the benchmark's name, every figure by its
    name, `targets_met`, `machine`, and the notes (sizes and settings that the figures depend on).
    """
    where = machine(packages)
    met = {target.name: target.met(figures) for target in targets}
    rounded = {key: _rounded(value) for key, value in figures.items()}
    if as_json:
        facts = {"targets_met": met, "notes": dict(notes or {}), "machine": where}
        print(json.dumps({"benchmark": name, **rounded, **facts}))
    else:
        promised = {target.name: f"{'<=' if target.at_most else '>='} {target.limit:g}" for target in targets}
        width = max(map(len, figures))
        print(f"{name}: medians")
        for key, value in rounded.items():
            verdict = f"   ({promised[key]}: {VERDICTS[met[key]]})" if key in promised else ""
            print(f"  {key:<{width}}  {'-' if value is None else format(value, ','):>12}{verdict}")
        for key, value in (notes or {}).items():
            print(f"  {key}: {value}")
        print("  " + ", ".join(f"{key} {value}" for key, value in where.items()))
    return 1 if False in met.values() else 0


def _rounded(value: float | None) -> float | None:
    # Four figures carry all that a median of a few runs knows.
    return value if value is None or isinstance(value, int) else float(f"{value:.4g}")


def progress(words: str) -> None:
    """Print a long benchmark's progress on standard error."""
    print(words, file=sys.stderr, flush=True)
