"""Public traces of containers that end, and draws like them, as instances with or without declared lifetimes.

Placement with lifetimes, §7. Arrivals are divided by a speed, lifetimes stay; an extract ends with its last arrival.
Origin and licences: `simulator/placement/data/README.md`.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from domain.errors import BadInput
from domain.rules.placement.instance import Application, HostType, Instance, Release, Request
from simulator.placement.drawn import LEAST_LIFE_S, Table, drawn, parameters

DATA: Final = Path(__file__).with_name("data")
TRACES: Final[Mapping[str, tuple[int, float]]] = {
    "gaia-azure": (18_000, 20.0),
    "gaia-pai": (18_000, 20.0),
    "alibaba-openb": (1_600, 8.0),
}
"""Rows of an extract and its speed, by trace, where the name does not give them."""
HOST: Final = HostType("host", (96, 512, 3000))
SHUFFLED: Final = "shuffled"
FORM: Final = "TRACE[~SEED][:FIRST[+ROWS]][@SPEED], such as gaia-azure:20000+18000@8, or gaia-azure~7 for a drawn one"
_NAME: Final = re.compile(
    r"(?P<trace>[a-z-]+)(~(?P<seed>\d{1,7}))?(:(?P<first>\d{1,7})(\+(?P<rows>\d{1,7}))?)?(@(?P<speed>\d{1,6}(\.\d+)?))?"
)


def trace_of(text: str, hints: str = "", seed: int = 0) -> Instance | None:
    """Return an extract by its name (FORM), None for another name; BadInput.

    hints: declared lifetimes: "" for none; a number sigma for life * exp(sigma z) with z standard normal; `shuffled`
    for the true lifetimes permuted. seed: of these draws.
    """
    found = _NAME.fullmatch(text)
    if found is None or found["trace"] not in TRACES:
        return None
    rows, speed = TRACES[found["trace"]]
    first = int(found["first"] or 0)
    rows, speed = int(found["rows"] or rows), float(found["speed"] or speed)
    if found["seed"] is None:
        table = table_of(found["trace"])
    else:
        table = drawn(parameters()[found["trace"]], max(first + rows, 1), int(found["seed"]))
    arrival_s, life_s, cores, memory = (column[first : first + rows].tolist() for column in table)
    if len(arrival_s) < max(rows, 1) or not speed > 0.0:
        known = f"{found['trace']} has {len(table[0])} rows, and a speed is above 0"
        raise BadInput("instance", text, f"give {FORM}: {known}")
    lives = np.array(life_s)
    declared = [None] * rows if hints == "" else _declared(lives, hints, seed).tolist()
    moments = [(at_s - arrival_s[0]) / speed for at_s in arrival_s]
    apps: dict[str, Application] = {}
    requests, releases = [], []
    for number, (wanted, room, at_s, left_s, hint_s) in enumerate(
        zip(cores, memory, moments, life_s, declared, strict=True)
    ):
        name = f"{wanted}c{room}g"
        apps.setdefault(name, Application(name, (wanted, room, 1)))
        requests.append(Request(f"r{number}", name, 1, at_s, hint_s))
        if at_s + left_s <= moments[-1]:
            releases.append(Release(f"r{number}", 0, at_s + left_s))
    releases.sort(key=lambda end: end.at_s)
    whose = found["trace"] + ("" if found["seed"] is None else f"~{found['seed']}")
    name = f"{whose}:{first}+{rows}@{speed:g}"
    return Instance(name, (HOST,), tuple(apps.values()), tuple(requests), tuple(releases))


@lru_cache(maxsize=1)
def table_of(trace: str) -> Table:
    """Return arrivals and lives in seconds, cores and memory in GB of a trace, float64 and int64 [rows]."""
    with gzip.open(DATA / f"{trace}.csv.gz", "rt", encoding="ascii") as lines:
        rows = [*csv.DictReader(lines)]
    arrival_s, life_s = (np.array([float(row[name]) for row in rows]) for name in ("arrival_s", "lifetime_s"))
    cores, memory = (np.array([int(row[name]) for row in rows]) for name in ("cores", "memory_gb"))
    return arrival_s, np.maximum(life_s, LEAST_LIFE_S), cores, memory


def _declared(lives: np.typing.NDArray[np.float64], hints: str, seed: int) -> np.typing.NDArray[np.float64]:
    draws = np.random.default_rng(seed)
    if hints == SHUFFLED:
        return draws.permutation(lives)
    try:
        sigma = float(hints)
    except ValueError:
        sigma = math.nan
    if not 0.0 <= sigma <= 5.0:
        raise BadInput("hints", hints, f"give a standard deviation of ln from 0 to 5, or {SHUFFLED}")
    found: np.typing.NDArray[np.float64] = lives * np.exp(sigma * draws.standard_normal(lives.size))
    return found
