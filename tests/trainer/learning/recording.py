"""Ledgers of a fleet whose every minute is known: the agent's own decisions on a simulated world, recorded as they are.

A rehearsal in virtual time would do it too, with every reading of every VM; one test holds that both agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.autoscaling.decide import DecisionInputs, DecisionResult
from agent.autoscaling.minutes import MinuteMeasurements
from agent.autoscaling.policies.fallback import Models
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.rehearsal.virtual_time import START, fleet_of
from domain.snapshot import Terms
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from trainer.learning.ledgers import ledger_url
from trainer.learning.minutes import Record
from trainer.learning.replay import Loop, play

WORLD = preset("live-like")
FLEET = "web"
RULE = "queue-rule:horizon_s=150,job_core_s=120,single=False"


def batches(hours: float, *, every_min: float = 30.0, jobs: int = 40, job_s: float = 300.0, seed: int = 0) -> Trace:
    """A batch of equal jobs every this many minutes, from minute 5 on, each over two minutes."""
    rng = np.random.default_rng(seed)
    begins = np.arange(5 * MINUTE_S, max(hours * HOUR_S - 10 * MINUTE_S, 6 * MINUTE_S), every_min * MINUTE_S)
    arrivals = np.concatenate([begin + rng.uniform(0.0, 120.0, jobs) for begin in begins])
    return make_trace("batches", arrivals, np.full(arrivals.size, job_s))


def loop_of(world: SimulationConfig = WORLD, models: Models | None = None) -> Loop:
    """The agent's decision of a fleet in this world, under its own limits."""
    low, high = zip(*world.boot_ranges_s, strict=True)
    limits = RailLimits()
    terms = Terms(world.waiting_price_per_hour, 150.0, 120.0, limits.cooldown_out_s, low, high)
    return Loop(fleet_of(world), limits, terms, lag_s=5.0, models=models)


def made(
    hours: float,
    world: SimulationConfig = WORLD,
    trace: Trace | None = None,
    policy: str = RULE,
    loop: Loop | None = None,
) -> list[tuple[DecisionInputs, DecisionResult]]:
    """What the agent decided in these hours."""
    found: list[tuple[DecisionInputs, DecisionResult]] = []
    config = replace(world, initial=world.minimum)
    steps = [policy] * (round(hours * 60) + 1)
    jobs = trace or batches(hours)
    play(loop or loop_of(world), config, jobs, steps, 0, START, seen=lambda *pair: found.append(pair))
    return found


def recorded_in(
    path: Path | str, pairs: Sequence[tuple[DecisionInputs, DecisionResult]], *measured: MinuteMeasurements
) -> str:
    """A ledger (a file or a URL) with these decisions, and what was measured of the first of their minutes.

    Their intents are left out, for they would have to be followed one by one.
    """
    url = ledger_url(str(path))
    with Ledger.open(url) as ledger:
        epoch, store = ledger.take_epoch("tests", START), FleetStore(ledger)
        rows = [
            (replace(inputs, epoch=epoch), replace(one, decision=replace(one.decision, intents=())))
            for inputs, one in pairs
        ]
        for row, more in zip(rows, measured, strict=False):
            store.record([row], measured={FLEET: more})
        store.record(rows[len(measured) :])
    return str(path)


def dearer(recorded: Record, factor: float) -> Record:
    """A record whose minutes cost so many times as much."""
    stretches = tuple(
        tuple(replace(one, rent=factor * one.rent, penalty=factor * one.penalty) for one in stretch)
        for stretch in recorded.stretches
    )
    return replace(recorded, stretches=stretches)


def as_decided(loop: Loop) -> bool:
    """Whether a replay has the recorded terms, whose idle time is not known here, and not a rule in their place."""
    return loop.terms is not None and loop.terms.idle_s is None
