"""Trains the rule of `domain.rules.oversubscription.request_rule`: a search over its parameters on many weeks.

Every generation of CMA-ES draws some weeks of a pool, and plays every candidate on all of them. A week's risk r is
the chance, without sampling, that it breaks the promise. With S the share that the objective saves, the score is

    100 (mean S - 3 mean max(r - c0, 0) - max(worst r - c1, 0) - 0.3 mean r),

c0 = aim (1 - alpha), c1 = 0.8 (1 - alpha): well below the allowed risk, as margin for unseen weeks.

With `drifts` half of the redrawn weeks have a usual drift of usage (`unseen.shifted`): one half of these in mid-week
and unknown to the policy, the other half before the week and known to it. Such a week costs
8 max(r - max(c0, 0.3 q), 0) in place of 3 max(r - c0, 0), with q the risk of the constant rates behind the agent's
usual shield in that week, and does not count as the worst.

The result is the exponential mean of the distribution's centre. A second stage begins at the centre of the first, with
a larger step. A budget is a number of generations, so that a seed gives the same rule on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.rule_model import CORE_HOURS, CORES, MACHINES, OBJECTIVES
from domain.errors import BadInput
from domain.rules.oversubscription.rates import SHIELD, USUAL_BUDGET, USUAL_SPREAD, Margin
from domain.rules.oversubscription.request_rule import HARMONICS, KNOTS_H, NEUTRAL, RequestRule, Weights
from domain.rules.oversubscription.usage import moments_of
from simulator.oversubscription.layout import Guard, Tables, guard_of, ruled, unguarded
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.weekly import Assessor, Placement
from trainer.kit.checkpoint import Checkpoint, Checkpoints, Clock, resume
from trainer.kit.progress import Progress
from trainer.oversubscription.calibration import calibrate
from trainer.oversubscription.evolution import Evolution
from trainer.oversubscription.policies import RatesFile, scenario_sha256, shipped_rates
from trainer.oversubscription.unseen import TRAINING, VALIDATION, arrivals_of, shifted, unseen_week

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a run. Raises BadInput."""

    scenario: str = "internal_like"
    weeks: tuple[str, ...] = ()  # of the scenario, to learn from and choose by; all when empty
    start: str = "cold"
    alpha: float = 0.95  # required share of weeks that keep the promise
    seed: int = 0
    objective: str = CORES
    drifts: bool = False  # whether usage changes in half of the redrawn weeks, as it does in a pool
    weekly: bool = False  # whether the hour of the week counts: for weeks that end, as the published ones do
    redrawn: int = 40  # generated weeks of the pool
    times: int = 3  # that the scenario's own weeks are in the pool
    drawn: int = 10  # weeks of a generation
    population: int = 18
    generations: tuple[int, ...] = (18, 40)  # of each stage
    steps: tuple[float, ...] = (0.08, 0.12)  # first step of each stage
    aim: float = 0.4  # share of the allowed risk from which the mean costs
    validation: int = 60  # generated weeks to choose among seeds by
    released: int = 16  # further ones, each of which has to keep the promise

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise BadInput("objective", self.objective, f"choose one of {', '.join(OBJECTIVES)}")
        for name in ("drawn", "released"):
            if getattr(self, name) < 1:
                raise BadInput(name, getattr(self, name), "give a whole number, 1 or more")
        if min(self.redrawn, self.validation) < 0 or self.times < 1:
            raise BadInput("redrawn", self.redrawn, "give numbers of weeks of 0 or more, and times of 1 or more")
        if self.population < 4 or self.population % 2:
            raise BadInput("population", self.population, "give an even number, 4 or more")
        if len(self.generations) != len(self.steps) or min(self.generations, default=0) < 1 or min(self.steps) <= 0.0:
            raise BadInput("generations", self.generations, "give 1 or more for each stage, and as many steps above 0")
        if not 0.0 < self.alpha < 1.0 or not 0.0 <= self.aim < 1.0:
            raise BadInput("aim", self.aim, "give a share below 1, and an alpha between 0 and 1")

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the configuration of JSON data."""
        lists = {name: tuple(data[name]) for name in ("weeks", "generations", "steps") if name in data}
        return cls(**{**data, **lists})

    def plain(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def whole(self) -> int:
        """Generations of all stages."""
        return sum(self.generations)


# Parameters: the search has steps of about a tenth in each.

START: Final = (0.1, 0.05, 0.2, 0.05, 0.0, 0.0)
DAY: Final = 2 * HARMONICS


def decoded(x: Floats, subscribers: int) -> RequestRule:
    """Return the rule of a point of the search: b, w (none where there is no room for it), d, then the weights."""
    knots = len(x) - subscribers - DAY - len(START)
    base, week, day, rest = np.split(x, np.cumsum([subscribers, knots, DAY]))
    spread, margin, room, shortfall, enough, least = rest.tolist()
    weights = Weights(
        max(2.0 + 10.0 * spread, 0.0), 10.0 * margin, room, 20.0 * shortfall, 0.05 + enough, -0.05 + least
    )
    return RequestRule(base, week, day, weights)


def first_point(rates: Floats, weekly: bool) -> Floats:
    """Return where the search begins: at constant rates (N,)."""
    return np.concatenate([rates, np.zeros(weekly * len(KNOTS_H) + DAY), START])


def raised(rule: RequestRule, offset: float | Floats) -> RequestRule:
    """Return the rule with every need higher by an offset, or by one of each subscriber, (N,)."""
    return RequestRule(rule.base + offset, rule.week, rule.day, rule.weights)


def start_rates(scenario: Scenario, config: Config) -> RatesFile:
    """Return constant rates to begin with, and to fall back to: the shipped ones, else calibrated ones."""
    shipped = shipped_rates(scenario, config.start)
    if shipped is not None and shipped.alpha == config.alpha:
        return shipped
    found = calibrate(scenario, start=config.start, alpha=config.alpha, weeks=config.weeks, seed=0)
    facts = (scenario.name, scenario_sha256(scenario), config.start, config.alpha, scenario.actions)
    names = tuple(str(n) for n in range(scenario.subscribers))
    return RatesFile("calibrated", *facts, names, tuple(found.rates.tolist()), calibration=found.facts)


# Weeks, and a rule on them.


def known_weeks(scenario: Scenario, config: Config) -> list[Week]:
    """Return the scenario's weeks to learn from."""
    return [scenario.week(name) for name in (config.weeks or scenario.weeks)]


def training_weeks(scenario: Scenario, config: Config) -> list[Week]:
    """Return the pool: redrawn weeks of the training stream, and the known ones, each `times` times."""
    arrivals = arrivals_of(scenario, config.weeks)
    redrawn = [unseen_week(arrivals, i, TRAINING) for i in range(config.redrawn)]
    return [*redrawn, *(config.times * known_weeks(scenario, config))]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A usual drift: the scenario with the usage after it, and whether it comes in mid-week, unknown to the policy."""

    after: Scenario
    unknown: bool


FIRST_DRIFT: Final = 100_000
"""Number of the drift of the first training week; those of the release follow far behind."""


def change_of(scenario: Scenario, number: int) -> Change | None:
    """Return the drift of a redrawn week: of four by number two have no drift, one an unknown and one a known drift."""
    kind = number % 4
    return None if kind < 2 else Change(shifted(scenario, FIRST_DRIFT + number), kind == 2)


def assessor_of(
    scenario: Scenario, week: Week, start: str, change: Change | None, guard: Callable[[Scenario], Guard]
) -> Assessor:
    """Return the assessor of a week with its drift. guard: from the scenario with the usage that the policy knows."""
    if change is None:
        return Assessor(scenario, week, start, guard=guard(scenario))
    if not change.unknown:
        return Assessor(change.after, week, start, guard=guard(change.after))
    late = Tables(*moments_of(change.after.mu, change.after.sd), 0.0)
    return Assessor(scenario, week, start, guard=guard(scenario), changed=(late, scenario.hours // 2))


def usual_shield(scenario: Scenario) -> Guard:
    """Return the shield of an agent with default settings."""
    return guard_of(scenario, SHIELD, USUAL_BUDGET, margin=Margin(spread=USUAL_SPREAD))


def validation_weeks(scenario: Scenario, config: Config) -> list[Week]:
    """Return the weeks that decide among seeds: redrawn ones of the validation stream, and the known ones."""
    arrivals = arrivals_of(scenario, config.weeks)
    redrawn = [unseen_week(arrivals, i, VALIDATION) for i in range(config.validation)]
    return [*redrawn, *known_weeks(scenario, config)]


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Shares saved by week, (W,), by each objective, and the chance that each week breaks the promise, (W,).

    A week with a rejected request has risk 1.
    """

    cores: Floats
    core_hours: Floats
    machines: Floats
    """Machines in use at once at most, and below in the mean of the hours."""
    machines_in_use: Floats
    machines_saved: Floats
    """Share of peak plus mean that is saved against a rate of 1.0 for all."""
    risk: Floats

    def saved(self, objective: str) -> Floats:
        """Return the share that an objective saves, (W,)."""
        shares: dict[str, Floats] = {
            CORES: self.cores,
            CORE_HOURS: self.core_hours,
            MACHINES: self.machines_saved,
        }
        return shares[objective]

    def means(self) -> dict[str, float]:
        """Return the means over the weeks, and the worst risk."""
        found = {f"mean_{one.name}": float(np.mean(getattr(self, one.name))) for one in fields(self)}
        return found | {"worst_risk": float(self.risk.max())}


class Stage:
    """Weeks on which rules are played again and again, in the same memory."""

    def __init__(
        self, scenario: Scenario, weeks: Sequence[Week], start: str, changes: Sequence[Change | None] = ()
    ) -> None:
        """Begin with weeks, and the drift of each where there are any."""
        ones = np.ones(scenario.subscribers)
        nothing = RequestRule(ones, np.zeros(0), np.zeros(DAY), NEUTRAL)
        self._ones = ones
        self._without: dict[Week, float] = {}
        self.assessors = [
            assessor_of(scenario, week, start, change, lambda known: ruled(unguarded(known), nothing, known.hours))
            for week, change in zip_longest(weeks, changes)
        ]
        for assessor in self.assessors:
            if assessor.week not in self._without:
                self._without[assessor.week] = sum(_in_use(assessor.assess(ones).placement))

    def play(self, rule: RequestRule, chosen: Sequence[int] | None = None) -> Played:
        """Play the rule on the weeks, all or the chosen ones by index."""
        rows: list[tuple[float, ...]] = []
        for at in range(len(self.assessors)) if chosen is None else chosen:
            assessor = self.assessors[at]
            assessor.follow(rule)
            risk = assessor.c_hot_r(self._ones)
            placed = assessor.placement()
            machines = _in_use(placed)
            spared = 1.0 - sum(machines) / self._without[assessor.week]
            cores = (placed.s_cores or 0.0, placed.s_core_hours or 0.0)
            rows.append((*cores, *machines, spared, 1.0 if placed.rejects else risk))
        return Played(*np.array(rows).T)


def _in_use(placed: Placement) -> tuple[float, float]:
    return float(placed.peak_machines), placed.machines_in_use


def score_of(played: Played, config: Config, of_rates: Floats) -> float:
    """Return the score of a rule on some weeks.

    of_rates: risk of the constant rates behind the usual shield, (W,), nan where usage does not change.
    """
    allowed, risk, changes = 1.0 - config.alpha, played.risk, np.isfinite(of_rates)
    free = np.fmax(config.aim * allowed, 0.3 * of_rates)
    over = float((np.where(changes, 8.0, 3.0) * np.maximum(risk - free, 0.0)).mean())
    over += max(float(risk[~changes].max(initial=0.0)) - 0.8 * allowed, 0.0) + 0.3 * float(risk.mean())
    return 100.0 * (float(played.saved(config.objective).mean()) - over)


# Training.

FADING: Final = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """The point (D,) of a search, and its time."""

    point: Floats
    wall_s: float
    cpu_s: float


def train(
    config: Config,
    *,
    rates: RatesFile | None = None,
    checkpoints: Checkpoints | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Learnt:
    """Search the parameters of a rule for each request, resuming from the last checkpoint. Raises BadInput.

    rates: where it begins, None for those of `start_rates`.
    """
    scenario = scenario_of(config.scenario)
    weeks = training_weeks(scenario, config)
    changes = [change_of(scenario, i) if config.drifts and i < config.redrawn else None for i in range(len(weeks))]
    stage = Stage(scenario, weeks, config.start, changes)
    given = np.array((rates or start_rates(scenario, config)).rates)
    first = first_point(given, config.weekly)
    of_rates = np.full(len(weeks), np.nan)
    for at, (week, change) in enumerate(zip(weeks, changes, strict=True)):
        if change is not None:
            of_rates[at] = assessor_of(scenario, week, config.start, change, usual_shield).c_hot_r(given)

    def play(point: Floats, chosen: Sequence[int]) -> Played:
        return stage.play(decoded(point, scenario.subscribers), chosen)

    return best_point(config, first, of_rates, play, checkpoints, on_progress)


def best_point(
    config: Config,
    first: Floats,
    of_rates: Floats,
    play: Callable[[Floats, Sequence[int]], Played],
    checkpoints: Checkpoints | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Learnt:
    """Search from a point (D,), resuming from the last checkpoint.

    of_rates: of each week, see `score_of`. play: a point on weeks by their indices.
    """
    state: dict[str, Any] = {}
    last = resume(checkpoints, config.plain(), state.update, ())
    clock, done = Clock(last), 0 if last is None else last.update
    centre = mean = state["mean"] if state else first
    before = 0
    for number, (count, step) in enumerate(zip(config.generations, config.steps, strict=True)):
        if done >= before + count:
            before += count
            centre = state["centres"][number]
            continue
        search = Evolution(centre, step, config.population, (config.seed, number))
        if state and done > before:
            search.restore(state["search"])
        else:
            mean = centre
        while search.generation < count:
            draws = np.random.default_rng((config.seed, number, search.generation, 1))
            chosen = draws.choice(len(of_rates), min(config.drawn, len(of_rates)), replace=False).tolist()
            points = search.ask()
            played = [play(point, chosen) for point in points]
            scores = np.array([score_of(one, config, of_rates[chosen]) for one in played])
            search.tell(points, scores)
            mean = FADING * mean + (1.0 - FADING) * search.centre
            done += 1
            best = played[int(scores.argmax())]
            figures = {
                "score/best": float(scores.max()),
                "score/mean": float(scores.mean()),
                "saved": float(best.saved(config.objective).mean()),
                "risk/mean": float(best.risk.mean()),
                "risk/worst": float(best.risk.max()),
                "step": search.step,
            }
            progress = {"update": done, "steps": done, "total_steps": config.whole, **clock.spent()}
            if checkpoints is not None:
                centres = [*state.get("centres", [])[:number], search.centre]
                state = {"search": search.state(), "mean": mean, "centres": centres}
                checkpoints.save(Checkpoint(config.plain(), progress, state))
            on_progress(Progress(**progress, figures=figures))
        before += count
        centre = search.centre
    spent = clock.spent()
    return Learnt(mean, spent["wall_s"], spent["cpu_s"])
