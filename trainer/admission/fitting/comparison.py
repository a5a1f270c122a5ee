"""The table beside a fitted population that lived through the same window: facts, size classes, distance of sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.population import Population
from trainer.admission.fitting.histories import SHUTDOWN_VMS, Histories
from trainer.admission.fitting.lives import Lives, drawn_from, lives_of, uniforms
from trainer.admission.fitting.two_step import cramer_von_mises, window_hours

CLASS_STARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Least cores of each class of deployments by their largest size."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What deployments of the window have in common (admission specification §11)."""

    cores_activated: float
    """Per deployment."""
    ended_share: float
    """Of the cores activated, those that ended inside the window."""
    dead_share: float
    shutdown_share: float
    """Of the dead, those that lost three machines or more at the last instant."""
    cores_at_end: float
    """Per deployment, still running when the window ends."""
    scale_outs: float
    """Per deployment."""
    core_hours_by_class: tuple[float, ...]
    """Share of the core-hours, by largest size: see CLASS_STARTS."""
    deployments_by_class: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A population's facts and how far its largest sizes are from those of the table."""

    facts: Facts
    distance: float
    peak: NDArray[np.int64]


def facts_of(histories: Histories | Lives) -> Facts:
    """Return the facts of a table's deployments, or of simulated ones."""
    count, activated = len(histories.peak), float(histories.activated.sum())
    last = histories.last_vms if isinstance(histories, Histories) else histories.last_cores
    place = np.searchsorted(CLASS_STARTS, histories.peak, side="right") - 1
    by_class = np.bincount(place, weights=histories.core_hours, minlength=len(CLASS_STARTS))
    numbers = np.bincount(place, minlength=len(CLASS_STARTS))
    return Facts(
        cores_activated=activated / count,
        ended_share=float(histories.ended.sum()) / activated,
        dead_share=float(histories.dead.mean()),
        shutdown_share=float((last >= SHUTDOWN_VMS).sum() / max(histories.dead.sum(), 1)),
        cores_at_end=float((histories.activated - histories.ended).sum()) / count,
        scale_outs=float(histories.scale_outs.mean()),
        core_hours_by_class=tuple((by_class / by_class.sum()).tolist()),
        deployments_by_class=tuple((numbers / count).tolist()),
    )


def compare(histories: Histories, population: Population, *, simulated: int = 50_000, seed: int = 2**40) -> Comparison:
    """Simulate a population in the table's window and return its facts; take a seed that the fit has not used."""
    drawn = drawn_from(population, uniforms(simulated, seed), window_hours(histories, simulated, seed), seed)
    lives = lives_of(drawn, population.lifetimes)
    return Comparison(facts_of(lives), cramer_von_mises(histories.peak, lives.peak), lives.peak)
