"""What a cluster is offered and what it promised: the population of deployments, capacity, SLA; presets T, H and K."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from domain.rules.admission.population import POPULATIONS, Population

HOURS_PER_MONTH = 730.0
HOURS_PER_RUN = 26_280.0
"""Three years, the length of a run (admission specification, units)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and the population it is offered (admission specification §1, §11); BadInput names a wrong field."""

    name: str
    population: Population
    capacity: int
    """Cores."""
    arrival_rate: float
    """Deployments that ask to come in, per hour."""
    sla: float
    """Share of scale-out requests that may fail."""
    absorb: bool = True
    """False lets a deployment at 0 cores come back; for tests against the closed form (§4.2)."""
    initial_size: str = "drawn"
    """drawn: a deployment starts with one draw of its request-size law, which tells of that law. empirical: with one of
    `sizes`, each as likely, which tells nothing."""
    sizes: tuple[int, ...] = ()
    """Cores; empty unless the first size is empirical."""

    def __post_init__(self) -> None:
        for name in ("capacity", "arrival_rate", "sla"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise BadInput(name, value, "give a finite number")
        if self.capacity <= 0 or int(self.capacity) != self.capacity:
            raise BadInput("capacity", self.capacity, "give whole cores, 1 or more")
        if self.arrival_rate < 0:
            raise BadInput("arrival_rate", self.arrival_rate, "give deployments per hour, 0 or more")
        if not 0.0 < self.sla < 1.0:
            raise BadInput("sla", self.sla, "give a share between 0 and 1, such as 1e-3")
        if self.initial_size not in ("drawn", "empirical"):
            raise BadInput("initial_size", self.initial_size, "give drawn or empirical")
        if (self.initial_size == "empirical") != bool(self.sizes):
            raise BadInput("sizes", self.sizes, "give the sizes to draw from if initial_size is empirical, else none")
        wrong: list[object] = [size for size in self.sizes if type(size) is not int or size < 1]
        if wrong:
            raise BadInput("sizes", wrong[0], "give whole cores, 1 or more")


_OPTIONAL = ("absorb", "initial_size", "sizes")
PRESETS = {name: Cluster(name, law, 20_000, 1.0, 1e-3 if name == "K" else 1e-4) for name, law in POPULATIONS.items()}
"""Trace-matched, heavy-tailed, growing (admission specification §11)."""


def cluster_of(text: str) -> Cluster:
    """Return preset T, H or K, or what a .json or .toml file says.

    The file holds the fields of Cluster and Population side by side, or `preset` and the fields that differ from it.
    Raises BadInput.
    """
    if text in PRESETS:
        return PRESETS[text]
    path = Path(text)
    if path.suffix not in (".json", ".toml"):
        raise BadInput("preset", text, "give T, H, K or a .json or .toml file")
    try:
        content = path.read_text("utf-8")
        given: Any = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
    except (OSError, ValueError) as error:
        raise BadInput("preset", text, f"give a file that can be read: {error}") from None
    if not isinstance(given, dict):
        raise BadInput("preset", text, "give one object with the cluster's fields")
    return _from_fields(given, path.stem)


def _from_fields(given: dict[str, Any], name: str) -> Cluster:
    laws = tuple(field.name for field in fields(Population))
    own = tuple(field.name for field in fields(Cluster) if field.name != "population")
    named = {"name": name} | given
    base = named.pop("preset", None)
    unknown = sorted(named.keys() - {*laws, *own})
    if unknown:
        raise BadInput(unknown[0], named[unknown[0]], f"take it out; known are preset, {', '.join((*own, *laws))}")
    if base is not None:
        if base not in PRESETS:
            raise BadInput("preset", base, "give T, H or K as the base")
        start = PRESETS[base]
        named = {"absorb": True, "capacity": start.capacity, "arrival_rate": start.arrival_rate} | named
        named = {"sla": start.sla} | asdict(start.population) | named
    missing = [field for field in (*laws, *own) if field not in named and field not in _OPTIONAL]
    if missing:
        raise BadInput(missing[0], None, "give it, or name a preset as the base")
    for law in laws:
        if isinstance(named[law], bool) or not isinstance(named[law], (int, float)):
            raise BadInput(law, named[law], "give a number")
    population = Population(**{law: float(named.pop(law)) for law in laws})
    if not isinstance(named.get("sizes", ()), (list, tuple)):
        raise BadInput("sizes", named["sizes"], "give a list of whole cores")
    named["sizes"] = tuple(named.get("sizes", ()))
    return Cluster(population=population, **named)
