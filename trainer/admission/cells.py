"""What is run: a rule on a cluster with an amount of knowledge; and the seeds, tuning's apart from comparison's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from simulator.admission import cluster_of, rule_of
from simulator.admission.presets import HOURS_PER_RUN

ROOT = Path(__file__).parents[2]
SOURCES = ("domain/rules/admission", "simulator/admission")
"""Folders whose code decides what a run comes to."""
TUNING_SEED = 500_000
"""Thresholds are tuned on the seeds from here on, and compared on those from 0 on."""
MOST_RUNS = 100_000
LABELS = ("", "labelled", "unlabelled")


@dataclass(frozen=True, slots=True)
class Cell:
    """One rule on one cluster; with a seed it is one run (admission specification §7)."""

    preset: str
    """T, H, K or a file, as `simulator.admission.cluster_of` takes it."""
    policy: str
    """As `simulator.admission.rule_of` takes it."""
    observations: int = 0
    labels: str = ""
    """labelled or unlabelled: each user owns two types, and the one that comes is named, or not (§8)."""
    hours: float = HOURS_PER_RUN

    def __post_init__(self) -> None:
        if self.labels not in LABELS:
            raise BadInput("labels", self.labels, "give labelled, unlabelled, or nothing")
        rule_of(self.policy)

    @property
    def name(self) -> str:
        """The cell in words."""
        known = f"{self.observations} obs"
        return f"{self.preset} {self.policy}, {known}{f' {self.labels}' if self.labels else ''}"

    @property
    def key(self) -> str:
        """Return 12 hex digits that tell it from other cells of the same configuration."""
        return digest_of(asdict(self))

    @property
    def policy_hash(self) -> str:
        """Return 8 hex digits of the rule with every setting that it left unsaid."""
        return digest_of(asdict(rule_of(self.policy)))[:8]


def digest_of(data: Any) -> str:
    """Return 12 hex digits of plain data, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode("utf-8")).hexdigest()[:12]


@cache
def code_version() -> str:
    """Return 12 hex digits over the source text that decides results."""
    digest = hashlib.sha256()
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode("utf-8"))
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def configuration_of(presets: Sequence[str], hours: float) -> dict[str, Any]:
    """Return what all runs of a folder have in common, as plain data: length, code, and each cluster by its name."""
    clusters = {preset: json.loads(json.dumps(asdict(cluster_of(preset)))) for preset in presets}
    return {"hours": hours, "code": code_version(), "clusters": clusters}


def tuning_seeds(runs: int) -> range:
    """Return so many seeds to tune on; raises BadInput above MOST_RUNS."""
    return range(TUNING_SEED, TUNING_SEED + _checked(runs))


def comparison_seeds(runs: int) -> range:
    """Return so many seeds to compare on, none of them a tuning seed; raises BadInput above MOST_RUNS."""
    return range(_checked(runs))


def _checked(runs: int) -> int:
    if not 1 <= runs <= MOST_RUNS:
        raise BadInput("runs", runs, f"give a number from 1 to {MOST_RUNS}")
    return runs
