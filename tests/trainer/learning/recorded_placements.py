"""A placement pool that was asked for some hours: requests of several sizes, which end, lapse or are cancelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.rules.placement.instance import parse_instance
from domain.units import HOUR_S
from tests.agent.placement.hosts import START, app, ask, inventory, kind, made
from trainer.learning.placements import Life, PlacementRecord

APPS = ("web", "mail", "batch")
INVENTORY = inventory(app("web", 3), app("mail", 5, limit=2), app("batch", 7, excludes=["web"]), hosts=[kind(count=60)])


def lived(folder: Path, hours: int, *, policy: str = "wf", per_hour: int = 4, seed: int = 3) -> Path:
    """The ledger of the pool `main` after this many hours from START on, placed by one policy."""
    folder.mkdir(parents=True, exist_ok=True)
    draws, clock = np.random.default_rng(seed), VirtualClock(START)
    path = folder / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        pool = made(ledger, clock, INVENTORY, policy=policy)
        ends: dict[str, float] = {}
        for number in range(hours * per_hour):
            clock.advance(HOUR_S / per_hour)
            for name in [name for name, end in ends.items() if end <= clock.now()]:
                pool.release(name)
                del ends[name]
            name = f"r{number}"
            asked = ask(name, APPS[int(draws.integers(3))], 1 + int(draws.integers(3)), partial=True)
            pool.request(replace(asked, lifetime_s=4 * HOUR_S if number % 2 else None))
            if number % 11 == 5:
                pool.cancel(name)
            else:
                pool.confirm(name)
                ends[name] = clock.now() + HOUR_S * float(draws.exponential(4.0))
    return path


def drawn(hours: int = 160, per_hour: int = 6, seed: int = 3) -> PlacementRecord:
    """A record of small containers that stay, and large ones that come and go: first fit opens fewest hosts."""
    draws = np.random.default_rng(seed)
    basis, _ = parse_instance(inventory(app("tiny", 1), app("mid", 6), app("whole", 15), hosts=[kind(count=200)]))
    until = START + hours * HOUR_S + 1.0
    lives = []
    for number in range(hours * per_hour):
        at, which = START + HOUR_S * (number + 1) / per_hour, int(draws.integers(3))
        count = 1 + int(draws.integers(4)) if which == 0 else 1
        end = at + HOUR_S * float(draws.exponential((30.0, 6.0, 2.0)[which]))
        name = ("tiny", "mid", "whole")[which]
        lives.append(Life(f"r{number}", name, count, at, (end,) * count if end < until else ()))
    return PlacementRecord("main", basis, tuple(lives), START, until, 0)
