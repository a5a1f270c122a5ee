"""Public traces of containers that end, as instances of placement with or without declared lifetimes.

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

DATA: Final = Path(__file__).with_name("data")
TRACES: Final[Mapping[str, tuple[int, float]]] = {
    "gaia-azure": (18_000, 20.0),
    "gaia-pai": (18_000, 20.0),
    "alibaba-openb": (1_600, 8.0),
}
"""Rows of an extract and its speed, by trace, where the name does not give them."""
HOST: Final = HostType("host", (96, 512, 3000))
SHUFFLED: Final = "shuffled"
FORM: Final = "TRACE[:FIRST[+ROWS]][@SPEED], such as gaia-azure:20000+18000@8"
_NAME: Final = re.compile(
    r"(?P<trace>[a-z-]+)(:(?P<first>\d{1,7})(\+(?P<rows>\d{1,7}))?)?(@(?P<speed>\d{1,6}(\.\d+)?))?"
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
    table = _table(found["trace"])
    extract = table[first : first + rows]
    if len(extract) < max(rows, 1) or not speed > 0.0:
        raise BadInput("instance", text, f"give {FORM}: {found['trace']} has {len(table)} rows, and a speed is above 0")
    lives = np.array([max(float(row["lifetime_s"]), 1.0) for row in extract])
    declared = [None] * rows if hints == "" else _declared(lives, hints, seed).tolist()
    begin_s = float(extract[0]["arrival_s"])
    moments = [(float(row["arrival_s"]) - begin_s) / speed for row in extract]
    apps: dict[str, Application] = {}
    requests, releases = [], []
    for number, (row, at_s, life_s, hint_s) in enumerate(zip(extract, moments, lives.tolist(), declared, strict=True)):
        cores, memory = int(row["cores"]), int(row["memory_gb"])
        name = f"{cores}c{memory}g"
        apps.setdefault(name, Application(name, (cores, memory, 1)))
        requests.append(Request(f"r{number}", name, 1, at_s, hint_s))
        if at_s + life_s <= moments[-1]:
            releases.append(Release(f"r{number}", 0, at_s + life_s))
    releases.sort(key=lambda end: end.at_s)
    name = f"{found['trace']}:{first}+{rows}@{speed:g}"
    return Instance(name, (HOST,), tuple(apps.values()), tuple(requests), tuple(releases))


@lru_cache(maxsize=1)
def _table(trace: str) -> list[dict[str, str]]:
    with gzip.open(DATA / f"{trace}.csv.gz", "rt", encoding="ascii") as lines:
        return list(csv.DictReader(lines))


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
