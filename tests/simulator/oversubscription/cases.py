"""Small scenarios that a test can reckon by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from simulator.oversubscription.scenario import Scenario, Week, scenario_of, week_of

HEADER = "id,sub,cores,mem_gb,net_gbps,t_arr,t_dep,warm_only"
Row = tuple[float, ...]


def write_folder(folder: Path, rows: list[str], *, profile: list[str] | None = None, **changes: Any) -> Path:
    """Write a scenario of two subscribers and machines of 10 cores, and return its folder."""
    constants: dict[str, Any] = {"n_subscribers": 2, "pms": 4, "pm_cores": 10, "pm_mem_gb": 40, "pm_net_gbps": 10}
    (folder / "small.json").write_text(json.dumps({"horizon_h": 6} | constants | changes))
    lines = profile or [f"{n},{hour},{0.2 + 0.3 * n},{0.05}" for n in range(2) for hour in range(24)]
    (folder / "small_profile.csv").write_text("\n".join(["sub,hour,mu,sd", *lines]))
    (folder / "small_s0_requests.csv").write_text("\n".join([HEADER, *rows]))
    return folder


def small(folder: Path, rows: list[str], **changes: Any) -> tuple[Scenario, Week]:
    """Return that scenario and its week."""
    scenario = scenario_of(str(write_folder(folder, rows, **changes)))
    return scenario, scenario.week("s0")


def invented(seed: int, *, requests: int = 60, machines: int = 5, hours: int = 30) -> tuple[Scenario, Week]:
    """Return a random scenario of three subscribers in which memory, network and cores all bind at times."""
    draws = np.random.default_rng(seed)
    base = scenario_of("internal_like")
    scenario = Scenario(
        *("invented", base.folder, 3, machines, 16.0, 64.0, 5.0, 0.6, 2, hours, (0.3, 0.5, 1.0), 1.0),
        mu=draws.uniform(0.1, 0.6, (3, 24)),
        sd=draws.uniform(0.05, 0.4, (3, 24)),
        weeks=("s0",),
    )
    warm = draws.random(requests) < 0.15
    arrival = np.where(warm, -draws.integers(1, 9, requests), draws.integers(0, hours, requests))
    cores = draws.choice([1.0, 2.0, 4.0, 0.5, 1.3], requests)
    week = week_of(
        "s0",
        ids=draws.permutation(requests).astype(np.int64),
        subscriber=draws.integers(0, 3, requests),
        cores=cores,
        memory_gb=cores * draws.choice([2.0, 6.0], requests),
        network_gbps=cores * 0.25,
        arrival=arrival.astype(np.int64),
        departure=(np.maximum(arrival, -1) + draws.integers(1, 20, requests)).astype(np.int64),
        warm_only=warm,
    )
    scenario._weeks["s0"] = week
    return scenario, week
