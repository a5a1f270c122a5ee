"""Small cases on which the cheaper policy is known: idle waiting for jobs that the smallest change makes dearer."""

from __future__ import annotations

from pathlib import Path

from domain.workload import make_trace
from simulator.autoscaling.world_file import preset
from tests.agent.models.making import ADD_L, ADD_M, NOTHING, preferring
from trainer.autoscaling.evaluation.suite import Case

AT = "2026-03-01T12:00:00Z"


def cases(count: int = 6, family: str = "T1") -> list[Case]:
    """Fourteen long jobs keep the initial fleet of fourteen cores busy; any further VM is wasted."""
    return [
        Case(
            f"{family} boot {n}",
            family,
            "training",
            preset("train-text"),
            make_trace(f"long jobs {n}", [0.0] * 14, [1200.0 + 60.0 * n] * 14),
            n,
        )
        for n in range(count)
    ]


def idler(directory: Path) -> Path:
    """A model that does nothing: the cheapest there is here."""
    return preferring(directory, NOTHING)


def spender(directory: Path) -> Path:
    """A model that adds a large VM every minute."""
    return preferring(directory, ADD_L, ADD_M)


def saver(directory: Path) -> Path:
    """A model that adds a medium VM every minute: cheaper than the spender."""
    return preferring(directory, ADD_M, NOTHING)


def cases_without_a_price_of_waiting(count: int = 6) -> list[Case]:
    """Many short jobs whose waiting costs next to nothing: the queue rule adds VMs for them, which only cost."""
    config = preset("train-text", waiting_price_per_hour=0.0, minimum=(1, 1, 1))
    return [
        Case(f"T1 boot {n}", "T1", "training", config, make_trace(f"{n}", [0.0] * (270 + n), [60.0] * (270 + n)), n)
        for n in range(count)
    ]
