"""A cluster, its subscribers' usage profiles and weeks of VM requests: packaged, or from a folder of yours."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.rates import ACTIONS, check_actions, check_rate, violation_hours
from simulator.oversubscription.tables import read_profile, read_requests, weeks_in

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PACKAGED = ("internal_like", "azure_like")
EXPLICIT = "packaged"
"""`packaged:NAME` is the packaged scenario, whatever folders there are."""
STARTS = ("cold", "warm")
_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, eq=False)
class Week:
    """One week of requests as columns: first the VMs of a warm start, then the requests by (arrival, id).

    A VM holds its machine in the hours arrival <= t < departure, counted from the week's first midnight.
    """

    name: str
    ids: Ints
    subscriber: Ints
    cores: Floats
    memory_gb: Floats
    network_gbps: Floats
    arrival: Ints
    departure: Ints
    warm: int
    """So many rows at the front exist at hour 0 in a warm start and are left out in a cold one."""

    @property
    def requests(self) -> int:
        """How many VMs are requested in the week."""
        return len(self.ids) - self.warm

    @property
    def requested_cores(self) -> float:
        """Cores requested in the week."""
        return float(self.cores[self.warm :].sum())


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """A cluster of equal machines and the subscribers that use it (oversubscription specification §1, §6)."""

    name: str
    folder: Path
    subscribers: int
    machines: int
    machine_cores: float
    machine_memory_gb: float
    machine_network_gbps: float
    beta: float
    """A machine is hot from this share of its cores in use."""
    violation_hours: int
    """So many hot hours break the promise."""
    hours: int
    actions: tuple[float, ...]
    prefill_rate: float
    """Rate of the VMs that a warm start begins with."""
    mu: Floats
    """Usage of one VM before clipping, by subscriber and hour of day, (N, 24); sd is its spread."""
    sd: Floats
    weeks: tuple[str, ...]
    _kept: dict[str, Week] = field(default_factory=dict, repr=False)

    @property
    def packaged(self) -> bool:
        """Whether it came with the program: reference figures are for these, not for others of the same name."""
        return self.folder == _DATA

    @property
    def threshold(self) -> float:
        """Cores in use from which a machine is hot."""
        return self.beta * self.machine_cores

    @property
    def hourly_cores(self) -> float:
        """Cores requested per hour in the first week: the unit of the reward."""
        return max(self.week(self.weeks[0]).requested_cores / self.hours, 1e-12)

    def week(self, name: str) -> Week:
        """Return a week by name, such as s0; BadInput for one that there is not, or whose file is wrong."""
        if name not in self._kept:
            if name not in self.weeks:
                raise BadInput("week", name, f"choose one of {', '.join(self.weeks)}")
            machine = (self.machine_cores, self.machine_memory_gb, self.machine_network_gbps)
            table = read_requests(self.folder, self.name, name, self.subscribers, machine, self.hours)
            self._kept[name] = week_of(name, **table)
        return self._kept[name]


def week_of(
    name: str,
    *,
    ids: Ints,
    subscriber: Ints,
    cores: Floats,
    memory_gb: Floats,
    network_gbps: Floats,
    arrival: Ints,
    departure: Ints,
    warm_only: NDArray[np.bool_],
) -> Week:
    """Return a week from columns in any order."""
    order = np.lexsort((ids, arrival, ~warm_only))
    return Week(
        name,
        ids=ids[order],
        subscriber=subscriber[order],
        cores=cores[order],
        memory_gb=memory_gb[order],
        network_gbps=network_gbps[order],
        arrival=arrival[order],
        departure=departure[order],
        warm=int(warm_only.sum()),
    )


def scenario_of(text: str) -> Scenario:
    """Return a packaged scenario by name, or the one in a folder (or .json file) of yours; raises BadInput.

    A name that is both, a packaged scenario's and that of a folder here with a scenario in it, is refused: neither may
    stand for the other unseen. `./NAME` is the folder, `packaged:NAME` the packaged one.
    """
    path, (prefix, _, packaged) = Path(text), text.partition(":")
    if prefix == EXPLICIT and packaged in PACKAGED:
        return _packaged(packaged)
    if text in PACKAGED:
        if any(path.glob("*_profile.csv")):
            remedy = f"a packaged scenario and a folder here bear this name: give ./{text} or {EXPLICIT}:{text}"
            raise BadInput("scenario", text, remedy)
        return _packaged(text)
    if path.is_dir():
        found = sorted(path.glob("*.json"))
        if len(found) != 1:
            raise BadInput("scenario", text, f"keep one .json in the folder, or name the file; there are {len(found)}")
        path = found[0]
    if path.suffix != ".json" or not path.is_file():
        raise BadInput("scenario", text, f"give {', '.join(PACKAGED)} or a folder with NAME.json and its tables")
    return _read(path)


@functools.cache
def _packaged(name: str) -> Scenario:
    return _read(_DATA / f"{name}.json")


def _read(path: Path) -> Scenario:
    try:
        given: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput("scenario", str(path), f"give a JSON file that can be read: {error}") from None
    if not isinstance(given, dict):
        raise BadInput("scenario", str(path), "give one object with the cluster's constants")
    where, name = path.name, path.stem
    subscribers = _whole(given, where, "n_subscribers")
    hours = _whole(given, where, "horizon_h", 120)
    beta = _positive(given, where, "beta", 0.6)
    if beta > 1.0:
        raise BadInput(f"{where}: beta", beta, "give a share of a machine's cores, up to 1")
    weeks = weeks_in(path.parent, name)
    if not weeks:
        raise BadInput("scenario", str(path), f"put {name}_WEEK_requests.csv beside it")
    actions = given.get("actions", ACTIONS)
    if not isinstance(actions, list | tuple) or not all(isinstance(level, int | float) for level in actions):
        raise BadInput(f"{where}: actions", actions, "give a list of rates")
    mu, sd = read_profile(path.parent / f"{name}_profile.csv", subscribers)
    return Scenario(
        name=name,
        folder=path.parent,
        subscribers=subscribers,
        machines=_whole(given, where, "pms"),
        machine_cores=_positive(given, where, "pm_cores"),
        machine_memory_gb=_positive(given, where, "pm_mem_gb"),
        machine_network_gbps=_positive(given, where, "pm_net_gbps"),
        beta=beta,
        violation_hours=_whole(given, where, "delta_count", violation_hours(hours)),
        hours=hours,
        actions=check_actions(actions),
        prefill_rate=check_rate(f"{where}: warm_prefill_rate", _positive(given, where, "warm_prefill_rate", 1.0)),
        mu=mu,
        sd=sd,
        weeks=weeks,
    )


def _positive(given: dict[str, Any], where: str, name: str, default: float | None = None) -> float:
    value = given.get(name, default)
    if value is None:
        raise BadInput(f"{where}: {name}", None, "add it; see the README of the packaged scenarios")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise BadInput(f"{where}: {name}", value, "give a finite number above 0")
    return float(value)


def _whole(given: dict[str, Any], where: str, name: str, default: int | None = None) -> int:
    value = _positive(given, where, name, default)
    if value != int(value):
        raise BadInput(f"{where}: {name}", value, "give a whole number, 1 or more")
    return int(value)
