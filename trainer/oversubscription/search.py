"""The best constant rate of each subscriber: a multi-start search on the analytic risk engine (§12.1, §12.5, §12.7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.units import HOURS_PER_DAY
from simulator.oversubscription.scenario import Scenario
from simulator.oversubscription.weekly import Assessor

EVALUATIONS = 4_000
"""Assessments of one search."""
IDLE_ROUNDS = 200
Levels = tuple[int, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is searched: by which measure of risk, among which levels, and how often a day rates may change."""

    bound: str = "tail"
    """tail: the chance of too many hot hours; markov: their expected number over that many, as published (§12.2)."""
    step: float | None = None
    """Levels are its multiples up to 1; those of the scenario when None."""
    block_h: int = HOURS_PER_DAY
    """Hours of the day, from midnight on, over which a rate stays."""

    def __post_init__(self) -> None:
        if self.bound not in ("tail", "markov"):
            raise BadInput("bound", self.bound, "choose tail or markov")
        if self.step is not None and not (0.01 <= self.step <= 0.5 and abs(1.0 / self.step % 1.0) < 1e-9):
            raise BadInput("step", self.step, "give a part of 1 from 0.01 to 0.5, such as 0.05")
        if self.block_h < 1 or HOURS_PER_DAY % self.block_h:
            raise BadInput("block_h", self.block_h, "give hours that divide a day, such as 6")

    def levels(self, scenario: Scenario) -> Floats:
        """Return the levels that a rate can have, rising, 1 included."""
        if self.step is None:
            return np.array(scenario.actions)
        return np.arange(1.0, round(1.0 / self.step) + 1.0) * self.step


TAIL = Rule()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found: rates, the saved share of the cores, the worst risk, and what it took."""

    rates: Floats
    """(N,), or (blocks of the day, N) where a rule has several."""
    s_cores: float
    risk: float
    evaluations: int
    feasible: bool


def hourly(rates: Floats, hours: int, subscribers: int) -> Floats:
    """Return rates (N,) or (blocks of the day, N) for every hour, (hours, N)."""
    blocks = np.atleast_2d(rates)
    day = np.repeat(blocks, HOURS_PER_DAY // len(blocks), axis=0)[np.arange(hours) % HOURS_PER_DAY]
    return np.broadcast_to(day, (hours, subscribers)).copy()


@dataclass(slots=True)
class _Search:
    assessors: Sequence[Assessor]
    rule: Rule
    actions: Floats
    shares: Floats
    """Share of the requested cores by block of the day and subscriber, flat."""
    cap: float
    known: dict[Levels, float] = field(default_factory=dict)

    def rates(self, levels: Levels) -> Floats:
        found: Floats = self.actions[list(levels)]
        return found if self.rule.block_h == HOURS_PER_DAY else found.reshape(HOURS_PER_DAY // self.rule.block_h, -1)

    def risk(self, levels: Levels) -> float:
        if levels not in self.known:
            scenario, worst = self.assessors[0].scenario, 0.0
            rates = hourly(self.rates(levels), scenario.hours, scenario.subscribers)
            for assessor in self.assessors:
                if worst <= self.cap:
                    tail = assessor.c_hot_r(rates)
                    worst = max(worst, tail if self.rule.bound == "tail" else assessor.markov())
                # A week with rejected requests is no week that anybody wants.
                worst = 1.0 if assessor.rejects() else worst
            self.known[levels] = worst
        return self.known[levels]

    def reserved(self, levels: Levels) -> float:
        return float(self.shares @ self.actions[list(levels)])


def optimise(
    assessors: Sequence[Assessor],
    alpha: float,
    *,
    cap: float | None = None,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    rule: Rule = TAIL,
    on_progress: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Return the constant rates that save most cores with the risk of every given week at most 1 - alpha, or `cap`.

    From safe rates the search lowers one subscriber after the other, by most cores saved per risk added, then makes
    exchanges: one down, another up. It begins anew, from random safe rates or the best ones with some raised, until the
    evaluations are spent. Without any safe rates the answer is 1.0 for all, not feasible. Raises BadInput.
    """
    if not 0.0 < alpha < 1.0:
        raise BadInput("alpha", alpha, "give a required probability between 0 and 1, such as 0.95")
    scenario = assessors[0].scenario
    blocks = HOURS_PER_DAY // rule.block_h
    shares = np.zeros((blocks, scenario.subscribers))
    for assessor in assessors:
        week = assessor.week
        asked = slice(week.warm, None)
        at = week.arrival[asked] % HOURS_PER_DAY // rule.block_h
        np.add.at(shares, (at, week.subscriber[asked]), week.cores[asked])
    shares /= max(float(shares.sum()), 1e-12)
    actions = rule.levels(scenario)
    search = _Search(assessors, rule, actions, shares.ravel(), 1.0 - alpha if cap is None else cap)
    draws = np.random.default_rng(seed)
    top = len(actions) - 1
    safest: Levels = (top,) * shares.size
    if search.risk(safest) > search.cap:
        return SearchResult(search.rates(safest), 0.0, search.risk(safest), len(search.known), False)
    best, start, spent = safest, safest, 0
    if blocks > 1 or rule.step is not None:
        # What may change more often, or in finer steps, begins where a rate for all day among the usual levels ended.
        given: dict[str, Any] = {"cap": cap, "evaluations": evaluations // 2, "seed": seed, "on_progress": on_progress}
        coarse = optimise(assessors, alpha, rule=replace(rule, step=None, block_h=HOURS_PER_DAY), **given)
        spent = coarse.evaluations
        nearest = tuple(int(np.searchsorted(actions, rate - 1e-9)) for rate in coarse.rates.tolist())
        best = start = nearest * blocks if search.risk(nearest * blocks) <= search.cap else safest
    else:
        for level in range(top):
            if search.risk((level,) * shares.size) <= search.cap:
                start = (level,) * shares.size
                break
    evaluations -= spent
    idle = 0
    while len(search.known) < evaluations and idle < IDLE_ROUNDS:
        before = len(search.known)
        found = _climb(search, start, evaluations, draws)
        if search.reserved(found) < search.reserved(best) - 1e-12:
            best = found
            on_progress(f"{1.0 - search.reserved(best):.2%} saved at risk {search.risk(best):.2%}")
        shaken = _shaken(best, top, draws)
        anew = draws.random() < 0.5 or search.risk(shaken) > search.cap
        start = _scattered(search, safest, draws) if anew else shaken
        # A few subscribers have few rates: the search is over when nothing new comes up.
        idle = idle + 1 if len(search.known) == before else 0
    saved, taken = 1.0 - search.reserved(best), spent + len(search.known)
    return SearchResult(search.rates(best), saved, search.risk(best), taken, True)


def _shaken(levels: Levels, top: int, draws: np.random.Generator) -> Levels:
    """Return levels of which some are raised, and one may be lowered, at random."""
    changed = list(levels)
    for n in draws.permutation(len(changed))[: max(1, min(len(changed) // 3, 4))]:
        changed[n] = min(top, changed[n] + int(draws.integers(1, 3)))
    if draws.random() < 0.5:
        n = int(draws.integers(len(changed)))
        changed[n] = max(0, changed[n] - 1)
    return tuple(changed)


def _scattered(search: _Search, safest: Levels, draws: np.random.Generator) -> Levels:
    """Return random safe levels: one subscriber after the other gets one, where that is safe."""
    at = safest
    for n in draws.permutation(len(at)).tolist():
        changed = (*at[:n], int(draws.integers(len(search.actions))), *at[n + 1 :])
        at = changed if search.risk(changed) <= search.cap else at
    return at


def _climb(search: _Search, start: Levels, evaluations: int, draws: np.random.Generator) -> Levels:
    """Return rates that no single step down and no exchange of two improves, or what the evaluations allow."""
    at = start
    while len(search.known) < evaluations:
        lower = _lowered(search, at, draws)
        lower = lower if lower is not None else _exchanged(search, at, evaluations)
        if lower is None:
            return at
        at = lower
    return at


def _lowered(search: _Search, at: Levels, draws: np.random.Generator) -> Levels | None:
    """Return the best single step down, None where every one is unsafe: most saved per risk, with some chance."""
    best, merit = None, -1.0
    now = search.risk(at)
    for n, level in enumerate(at):
        if level == 0:
            continue
        step = (*at[:n], level - 1, *at[n + 1 :])
        risk = search.risk(step)
        if risk <= search.cap:
            gain = search.reserved(at) - search.reserved(step)
            worth = gain / (max(risk - now, 0.0) + 1e-4) * draws.uniform(0.5, 1.0)
            if worth > merit:
                best, merit = step, worth
    return best


def _exchanged(search: _Search, at: Levels, evaluations: int) -> Levels | None:
    """Return the first safe exchange, those that save most tried first: one or two steps down against some up."""
    base, top, steps = search.reserved(at), len(search.actions) - 1, []
    for i, down in enumerate(at):
        for j, up in enumerate(at):
            if i == j:
                continue
            for by, back in ((1, 1), (2, 1), (1, 2), (3, 1), (2, 2)):
                if down - by >= 0 and up + back <= top:
                    changed = list(at)
                    changed[i], changed[j] = down - by, up + back
                    gain = base - search.reserved(tuple(changed))
                    if gain > 1e-9:
                        steps.append((gain, tuple(changed)))
    for _, step in sorted(steps, reverse=True):
        if search.risk(step) <= search.cap:
            return step
        if len(search.known) >= evaluations:
            return None
    return None
