"""Cost against delay: what rent buys which wait, and where each price of waiting (C_Q) settles on that front (§11).

The rules do not look at C_Q, so each setting is run once and priced anew for every C_Q: the front of a rule is what
tuning it for that price would choose.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.autoscaling.evaluation.episode import run_episode
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.policies.fixed import sizes_of_cores
from trainer.autoscaling.policies.registry import policy_of

PRICES_PER_HOUR: tuple[float, ...] = (0.004, 0.012, 0.036, 0.108, 0.36)
"""C_Q, dollars per waiting job and hour."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting of a kind of policy: dollars of rent, seconds waited per job, job-hours waited, all means."""

    kind: str
    text: str
    rent: float
    mean_wait_s: float
    waiting_job_h: float

    def cost(self, price_per_hour: float) -> float:
        """Return J at a price of waiting."""
        return self.rent + price_per_hour * self.waiting_job_h


@dataclass(frozen=True, slots=True)
class Front:
    """The settings of one kind that are best for some price: `chosen[i]` for PRICES_PER_HOUR[i]; `tried` are all."""

    kind: str
    tried: tuple[Tried, ...]
    chosen: tuple[Tried, ...]


def settings(case: Case) -> dict[str, list[str]]:
    """Return the texts tried per kind of policy."""
    minimum = sum(n * cores for n, cores in zip(case.config.minimum, case.config.cores, strict=True))
    step = max(2, (case.config.max_cores - minimum) // 16 // 2 * 2)
    fleets = [sizes_of_cores(case.config, cores) for cores in range(minimum, case.config.max_cores + 1, step)]
    horizons = (60, 120, 210, 300, 420, 700, 1000, 1500, 2400)
    return {
        "constant fleet": [f"constant:{','.join(map(str, sizes))}" for sizes in fleets],
        "queue rule, multi": [
            f"queue-rule:horizon_s={h},idle_s={i},single=false" for h, i in itertools.product(horizons, (0, 120, 300))
        ],
        "threshold": [
            f"threshold:high={high},low={high if low is None else low},periods={periods},exclude_warming=false,"
            f"cooldown_s={cooldown_s}"
            for high, low, periods, cooldown_s in itertools.product(
                (0.6, 0.75, 0.9), (None, 0.4), (1, 3), (0, 120, 300)
            )
        ],
    }


def fronts(cases: Sequence[Case], told: Callable[[int], None] = lambda _: None) -> tuple[Front, ...]:
    """Return the front of each kind over the same cases; `told` hears of every setting that is done."""
    found = []
    for kind, texts in settings(cases[0]).items():
        tried = []
        for text in texts:
            tried.append(_try(kind, text, cases))
            told(1)
        chosen = [min(tried, key=lambda t: t.cost(price)) for price in PRICES_PER_HOUR]
        found.append(Front(kind, tuple(tried), tuple(chosen)))
    return tuple(found)


def _try(kind: str, text: str, cases: Sequence[Case]) -> Tried:
    policy = policy_of(text)
    runs = [run_episode(policy, case).measures for case in cases]
    return Tried(
        kind,
        text,
        float(np.mean([run.rent for run in runs])),
        float(np.mean([run.mean_wait_s for run in runs])),
        float(
            np.mean(
                [
                    run.penalty / case.config.waiting_price_per_hour if case.config.waiting_price_per_hour else 0.0
                    for run, case in zip(runs, cases, strict=True)
                ]
            )
        ),
    )
