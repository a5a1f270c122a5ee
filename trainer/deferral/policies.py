"""Policies of deferral by name, as `evaluate` and `simulate` play them, and the schedules that they make.

| text | policy |
|---|---|
| `fifo`, `sjf`, `tetris`, `els`; `:prefix` or `:skip` | an order (§7) |
| `knapsack`, `knapsack:alpha=0.3,beta=0` | per-step knapsack (§10.1) |
| `rolling`, `rolling:steps=10,factor=0.7,margin=0.5` | rolling plan (§10.2) with the forecast of the scenario |
| `rolling:levels=10` | by the charge to be expected over so many levels of the forecast |
| `rolling:quantile=0.1`, `rolling:forecast=FILE.json` | at a quantile; with a forecast from a file |
| `rolling:forecast=persistence`, `=calendar`, `=true` | capacity stays; means alone; the real capacity |
| `optimum` | all jobs and capacities known (§1.2) |
| `FILE.onnx`, `FILE.onnx:prefix`, `:skip`, `:knapsack` | a trained model and how its scores are decoded |
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agent.deferral.rolling import Paths, RollingPlan, check_available
from domain.errors import BadInput
from domain.rules.deferral.choosing import DECODINGS, KEYS, Decoding, ScoresUnusable, View, packed
from domain.rules.deferral.forecast import AHEAD, Forecast
from domain.rules.deferral.jobs import Ints, Score, objective
from domain.rules.deferral.rolling import FACTOR, MARGIN, STEPS, middles
from simulator.deferral.scenarios import Episode
from simulator.deferral.world import play
from trainer.deferral.exact import check, solve

Floats = NDArray[np.float64]

OPTIMUM, ROLLING, KNAPSACK = "optimum", "rolling", "knapsack"
MODEL = ".onnx"
FITTED, PERSISTENCE, CALENDAR, TRUE = "fitted", "persistence", "calendar", "true"
PATIENCE_S = 60.0
"""A plan in an evaluation may take this long: its figures do not depend on how busy a machine is."""
OPTIMUM_S = 600.0
WINDOW = 24
"""Steps before this one that a forecast reads."""
_NUMBERS = {"steps": float(STEPS), "factor": FACTOR, "margin": MARGIN, "quantile": math.nan, "levels": 0.0}


class Player(Protocol):
    """A policy by name."""

    @property
    def text(self) -> str:
        """What names it."""

    @property
    def needs_forecast(self) -> bool:
        """Whether it is played with the forecast that was fitted to the scenario."""

    def schedule(self, episode: Episode, forecast: Forecast | None) -> tuple[Ints, int]:
        """Return the schedule [N], and in how many steps the fallback decided; BadInput, PolicyFailure."""


def checked_schedule(player: Player, name: str, episode: Episode, forecast: Forecast | None) -> tuple[Ints, Score, int]:
    """Return the schedule of a policy on an episode, its score, and the steps of the fallback.

    name: of the episode. Raises BadInput, PolicyFailure, and ScheduleWrong for a schedule that breaks a rule.
    """
    start, fallbacks = player.schedule(episode, forecast)
    score = objective(episode.jobs, start, episode.capacity)
    online = player.text != OPTIMUM
    check(episode.jobs, start, episode.capacity, score, f"{player.text} on {name}", online=online)
    return start, score, fallbacks


@dataclass(frozen=True, slots=True)
class _Rule:
    text: str
    needs_forecast: bool = False

    def schedule(self, episode: Episode, forecast: Forecast | None) -> tuple[Ints, int]:
        from simulator.deferral import engine

        return engine.play(episode, engine.rule_of(self.text)), 0


@dataclass(frozen=True, slots=True)
class _Optimum:
    text: str = OPTIMUM
    needs_forecast: bool = False

    def schedule(self, episode: Episode, forecast: Forecast | None) -> tuple[Ints, int]:
        best = solve(episode.jobs, episode.capacity, limit_s=OPTIMUM_S)
        if best is None:
            remedy = f"no optimum within {OPTIMUM_S:g} s: leave it out, or give a smaller scenario"
            raise BadInput("policy", self.text, remedy)
        return best.start, 0


@dataclass(frozen=True, slots=True)
class _Rolling:
    text: str
    steps: int
    factor: float
    margin: float
    quantile: float | None
    levels: int
    source: str

    @property
    def needs_forecast(self) -> bool:
        return self.source in (FITTED, CALENDAR)

    def schedule(self, episode: Episode, forecast: Forecast | None) -> tuple[Ints, int]:
        plan = RollingPlan(self._paths(episode, forecast), self.steps, self.factor, PATIENCE_S)
        return _with_fallback(episode, plan)

    def _paths(self, episode: Episode, forecast: Forecast | None) -> Paths:
        if self.source == PERSISTENCE:
            return persistence
        if self.source == TRUE:
            return real_paths(episode)
        known = forecast if self.needs_forecast else _forecast_of(self.source)
        if known is None:
            raise BadInput("policy", self.text, "this scenario has no training seeds: give forecast=FILE.json")
        if self.source == CALENDAR:
            return calendar_paths(known)
        return forecast_paths(known, margin=self.margin, quantile=self.quantile, levels=self.levels)


@dataclass(frozen=True, slots=True)
class _Model:
    text: str
    path: Path
    kind: Decoding | None
    needs_forecast: bool = False

    def schedule(self, episode: Episode, forecast: Forecast | None) -> tuple[Ints, int]:
        from agent.deferral.model import load_score_model

        model = load_score_model(self.path)

        def choose(view: View) -> Ints | None:
            try:
                return model.choose(view, self.kind)
            except ScoresUnusable:
                return None

        return _with_fallback(episode, choose)


def _with_fallback(episode: Episode, choose: Callable[[View], Ints | None]) -> tuple[Ints, int]:
    """Return the schedule of a policy; the knapsack decides where it has no answer, and so often."""
    floor = packed()
    missing = 0

    def policy(view: View) -> Ints:
        nonlocal missing
        chosen = choose(view)
        if chosen is None:
            missing += 1
            return floor(view)
        return chosen

    return play(episode, policy), missing


def real_paths(episode: Episode) -> Paths:
    """Return the real capacity of the steps after a view, the last one beyond the end."""
    last = episode.steps - 1
    return lambda view, steps: episode.capacity[np.minimum(view.step + np.arange(1, steps + 1), last)].astype(float)


def calendar_paths(forecast: Forecast) -> Paths:
    """Return means by the hour of the week, a drop counted with its chance: the forecast of §9 without correction."""
    chance = np.array([_chance(forecast, hour) for hour in range(len(forecast.level))])
    depth = forecast.depth[np.arange(len(forecast.level)) % len(forecast.depth)]
    mean = forecast.level * (1.0 - chance * (1.0 - depth))

    def paths(view: View, steps: int) -> Floats:
        return np.asarray(mean[(view.hour_of_week + np.arange(1, steps + 1)) % len(mean)], dtype=np.float64)

    return paths


def _chance(forecast: Forecast, hour: int) -> float:
    """Return how likely a drop is at an hour of the week, seen from a day before."""
    before = (hour - AHEAD) % len(forecast.level)
    return float(forecast.chances(np.array([forecast.level[before]]), before, AHEAD)[-1])


def policy_of(text: str) -> Player:
    """Return the policy that a text names. Raises BadInput with what there is."""
    name, colon, rest = text.partition(":")
    if MODEL in text:
        path, _, kind = text.rpartition(":") if not text.endswith(MODEL) else (text, "", "")
        if not path.endswith(MODEL) or (kind and kind not in DECODINGS):
            raise BadInput("policy", text, f"give FILE{MODEL}, or FILE{MODEL}:KIND with one of {', '.join(DECODINGS)}")
        if not Path(path).is_file():
            raise BadInput("policy", text, "there is no such file")
        return _Model(text, Path(path), next((one for one in DECODINGS if one == kind), None))
    if name in KEYS or name == KNAPSACK:
        from simulator.deferral import engine

        engine.rule_of(text)
        return _Rule(text)
    if text == OPTIMUM:
        check_available()
        return _Optimum()
    if name == ROLLING:
        check_available()
        return _rolling_of(text, rest if colon else "")
    known = ", ".join((*KEYS, KNAPSACK, ROLLING, OPTIMUM, f"FILE{MODEL}"))
    raise BadInput("policy", text, f"choose from {known}")


def _rolling_of(text: str, rest: str) -> Player:
    numbers, source = dict(_NUMBERS), FITTED
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        key = key.strip()
        if key == "forecast" and value:
            source = value.strip()
            continue
        try:
            numbers[key] = float(value) if equals and key in numbers else math.inf
        except ValueError:
            numbers[key] = math.inf
    steps, quantile, levels = numbers["steps"], numbers["quantile"], numbers["levels"]
    fine = (
        set(numbers) == set(_NUMBERS)
        and 1 <= steps <= 1000
        and steps == int(steps)
        and 0.0 < numbers["factor"] <= 1.0
        and abs(numbers["margin"]) <= 100.0
        and (math.isnan(quantile) or 0.0 < quantile < 1.0)
        and 0 <= levels <= 100
        and levels == int(levels)
    )
    if not fine:
        remedy = "give rolling:steps=10,factor=0.7,margin=0.5 or some of them, quantile=0.1, forecast=FILE.json"
        spans = "steps from 1 to 1000, a factor above 0 to 1, a quantile within 0 to 1, levels to 100"
        raise BadInput("policy", text, f"{remedy}; {spans}")
    if source not in (FITTED, PERSISTENCE, CALENDAR, TRUE):
        _forecast_of(source)
    level = None if math.isnan(quantile) else quantile
    return _Rolling(text, int(steps), numbers["factor"], numbers["margin"], level, int(levels), source)


@cache
def _forecast_of(source: str) -> Forecast:
    try:
        document = json.loads(Path(source).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput("forecast", source, f"name a forecast's file that can be read: {error}") from None
    return Forecast.parse(document, Path(source).name)


def forecast_paths(
    forecast: Forecast, *, margin: float = MARGIN, quantile: float | None = None, levels: int = 0
) -> Paths:
    """Return the capacity forecast after a view: `levels` quantiles of it, else one, else a path with a margin."""

    def paths(view: View, steps: int) -> Floats:
        known = np.append(view.history.capacity[-WINDOW:], view.capacity)
        if levels:
            return forecast.quantiles(known, view.hour_of_week, steps, middles(levels))
        return forecast.path(known, view.hour_of_week, steps, quantile=quantile, margin=margin)

    return paths


def persistence(view: View, steps: int) -> Floats:
    """Return the capacity of now for every step: what to expect before there is a record to fit a forecast to."""
    return np.full(steps, float(view.capacity))
