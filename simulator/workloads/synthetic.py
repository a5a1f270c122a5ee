"""Generated traces: the published batches, randomised ones, and the closed loop of a co-evolution run (§7)."""

from __future__ import annotations

import math
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.units import MINUTE_S
from domain.workload import NO_STAGE, WHOLE_VM, Trace, make_trace

SMALL_BATCH, BIG_BATCH = 50, 100
SMALL_BATCHES, BIG_BATCHES = 11, 10
TAIL_S = 1800.0


class BatchOrder(StrEnum):
    """Order of the 10 batches of 100 jobs and the 11 of 50; the publication does not state it."""

    ALTERNATING = "alternating"
    BIG_FIRST = "big_first"
    SMALL_FIRST = "small_first"
    SHUFFLED = "shuffled"


class CoevolutionVariant(StrEnum):
    """Job model of the co-evolution trace: whole VMs or one core, released by a barrier; or one core at fixed times."""

    WHOLE_VM = "whole_vm"
    ONE_CORE = "one_core"
    FIXED_LIST = "fixed_list"


def train_text(order: BatchOrder = BatchOrder.ALTERNATING, seed: int = 0) -> Trace:
    """Return the training trace as the published text reads: a batch each 480 s, 360 s a job (§7.1)."""
    return _batches("train-text", 480.0, 360.0, 360.0, order, seed)


def train_fit(order: BatchOrder = BatchOrder.ALTERNATING, seed: int = 0) -> Trace:
    """Return the training trace that fits the published figures: a batch each 600 s, 45 s a job (§7.1)."""
    return _batches("train-fit", 600.0, 45.0, 1.0, order, seed)


def _batches(name: str, spacing_s: float, service_s: float, last_s: float, order: BatchOrder, seed: int) -> Trace:
    sizes = [BIG_BATCH] * BIG_BATCHES + [SMALL_BATCH] * SMALL_BATCHES
    if order is BatchOrder.SMALL_FIRST:
        sizes.reverse()
    elif order is BatchOrder.SHUFFLED:
        sizes = [sizes[k] for k in np.random.default_rng(seed).permutation(len(sizes))]
    elif order is BatchOrder.ALTERNATING:
        sizes = [SMALL_BATCH, BIG_BATCH] * BIG_BATCHES + [SMALL_BATCH]
    starts = np.arange(len(sizes)) * spacing_s
    arrivals = np.append(np.repeat(starts, sizes), starts[-1] + TAIL_S)
    services = np.full(arrivals.size, service_s)
    services[-1] = last_s
    return make_trace(name, arrivals, services)


def train_rand(seed: int) -> Trace:
    """Return a randomised training trace (§7.1): 15 to 30 batches, sizes, gaps, lengths and load drawn from `seed`.

    One load factor, log-uniform in 0.5..2, scales the batch sizes. Job lengths are lognormal with one median (90 to
    360 s) and one sigma (0 to 0.6) per trace.
    """
    rng = np.random.default_rng(seed)
    batches = int(rng.integers(15, 31))
    load = math.exp(rng.uniform(math.log(0.5), math.log(2.0)))
    sizes = np.maximum(np.rint(rng.choice([25, 50, 75, 100, 150], size=batches) * load), 1).astype(np.int64)
    gaps = rng.lognormal(math.log(480.0), 0.35, size=batches - 1)
    starts = np.concatenate([[0.0], np.cumsum(gaps)])
    arrivals = np.append(np.repeat(starts, sizes), starts[-1] + rng.uniform(600.0, 3600.0))
    median_s, sigma = rng.uniform(90.0, 360.0), rng.uniform(0.0, 0.6)
    return make_trace(f"train-rand-{seed}", arrivals, rng.lognormal(math.log(median_s), sigma, size=arrivals.size))


def coevolution(
    seed: int,
    *,
    generations: int = 20,
    candidates: int = 64,
    candidate_core_min: float = 3.96,
    predictors: int = 64,
    predictor_core_min: float = 1.32,
    variation: float = 0.3,
    serial_fraction: float = 0.05,
    pause_s: float = 30.0,
    variant: CoevolutionVariant = CoevolutionVariant.WHOLE_VM,
    fixed_interval_s: float = 480.0,
) -> Trace:
    """Return the co-evolution run (§7.2): per generation a stage of candidate jobs, then one of predictor jobs.

    Each stage is released `pause_s` after the last job of the one before has ended, so a slow fleet delays the rest.
    candidate_core_min, predictor_core_min: mean work of a job in core-minutes, lognormal with coefficient of variation
    `variation`. The variant FIXED_LIST releases a generation every `fixed_interval_s` whatever has ended.
    """
    if generations < 1 or candidates < 1 or predictors < 1:
        raise BadInput("generations, candidates, predictors", (generations, candidates, predictors), "give 1 or more")
    rng = np.random.default_rng(seed)
    stages = 2 * generations
    sizes = np.tile([candidates, predictors], generations)
    means_s = np.repeat(np.tile([candidate_core_min, predictor_core_min], generations) * MINUTE_S, sizes)
    service = means_s * _unit_lognormal(rng, variation, means_s.size)
    stage = np.repeat(np.arange(stages), sizes)
    if variant is CoevolutionVariant.FIXED_LIST:
        arrivals = pause_s + (stage // 2) * fixed_interval_s + (stage % 2) * fixed_interval_s / 2
        return make_trace(f"coevolution-{variant.value}-{seed}", arrivals, service)
    return make_trace(
        f"coevolution-{variant.value}-{seed}",
        np.where(stage == 0, pause_s, 0.0),
        service,
        width=WHOLE_VM if variant is CoevolutionVariant.WHOLE_VM else 1,
        stage=stage,
        release_after=np.where(stage == 0, NO_STAGE, stage - 1),
        pause_s=np.where(stage == 0, 0.0, pause_s),
        serial_fraction=serial_fraction if variant is CoevolutionVariant.WHOLE_VM else 0.0,
    )


def _unit_lognormal(rng: np.random.Generator, variation: float, size: int) -> NDArray[np.float64]:
    """Draw numbers with mean 1 and the given coefficient of variation."""
    variance = math.log1p(variation**2)
    return rng.lognormal(-variance / 2, math.sqrt(variance), size=size)
