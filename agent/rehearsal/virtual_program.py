"""Plays a rehearsal as the command line asks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from agent.models.shelf import ModelShelf
from agent.rehearsal.virtual_rails import rail_set
from agent.rehearsal.virtual_run import Rehearsal, Rehearsed
from domain.errors import BadInput
from simulator.autoscaling.reference import PRICES, preset
from simulator.workloads.named import workload_of


def play(
    *,
    workload: str,
    policy: str,
    rails: str,
    cooldown_s: float | None,
    hours: float | None,
    prices: str,
    seed: int,
    models: Path,
    ledger_path: Path,
    told: Callable[[int, int, int], None],
) -> Rehearsed:
    """Rehearse; `told` is called after each minute with the minutes lived, the jobs done and the jobs there are.

    models: directory of the champion. Raises BadInput, TraceError or LedgerUnavailable.
    """
    types = PRICES.get(f"prices-{prices}")
    if types is None:
        names = ", ".join(name.removeprefix("prices-") for name in PRICES)
        raise BadInput("--prices", prices, f"choose one of {names}")
    chosen = rail_set(rails, cooldown_s)
    config = preset("train-text", types=types)
    trace = workload_of(workload, max(config.cores))
    shelf = ModelShelf(models)
    with quiet_logs():
        rehearsal = Rehearsal(policy, trace, config, chosen, shelf, ledger_path, seed=seed, hours=hours)
        try:
            return rehearsal.run(rails, lambda minutes, finished: told(minutes, finished, trace.jobs))
        finally:
            rehearsal.close()


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Say nothing of single decisions: the ledger holds them."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
