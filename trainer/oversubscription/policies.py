"""Policies of the oversubscription simulator: fixed rates, published baselines, the static optimum, guards, files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agent.oversubscription.rate_model import RateCard, open_rate_model
from agent.oversubscription.rule_model import KIND as RULE
from agent.oversubscription.rule_model import RuleFile, read_rule
from domain.errors import BadInput
from domain.rules.oversubscription import ridge
from domain.rules.oversubscription.peaks import PeakPredictor
from domain.rules.oversubscription.rates import (
    FILTER,
    NO_MARGIN,
    SHIELD,
    USUAL_BUDGET,
    Margin,
    RateGuard,
    check_actions,
    check_rate,
    guard_of_file,
)
from domain.rules.oversubscription.ridge import moving_average_rate
from domain.units import HOURS_PER_DAY
from simulator.oversubscription.batch import OversubscriptionSimulation
from simulator.oversubscription.layout import Guard, guard_of, ruled, unguarded
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import DAY_BEFORE_H, peak_log
from simulator.oversubscription.weekly import Assessor
from trainer.kit.fields import value_of
from trainer.kit.files import replace_file
from trainer.oversubscription.search import EVALUATIONS, TAIL, Rule, SearchResult, hourly, optimise

if TYPE_CHECKING:
    import onnxruntime

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]


def _quiet(_: str) -> None:
    """Show no phase; a lambda could not be sent to another process."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What a policy is asked to play."""

    scenario: Scenario
    week: Week
    start: str = "cold"
    alpha: float = 0.95
    """Required chance of a week that keeps the promise."""
    on_progress: Callable[[str], None] = field(default=_quiet, compare=False)
    """Called with the present phase of long preparations."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a policy plays a task."""

    schedule: Floats | None = None
    """Rates by hour and subscriber, (hours, N), where they do not depend on what happens."""
    choose: Callable[[OversubscriptionSimulation], Floats] | None = None
    """Otherwise: rates (N,) for the hour that comes next, from what is seen of the cluster."""
    guard: Guard | None = None
    observation: str = "obs-o"
    peak: PeakPredictor | None = None
    """Otherwise: machines take VMs by their predicted peak, and there are no rates."""


class OversubscriptionPolicy(Protocol):
    """A policy by name."""

    @property
    def name(self) -> str:
        """The text that names it."""

    def plan(self, task: Task) -> Plan:
        """Return how it plays a task; raises BadInput where it cannot."""


@dataclass(frozen=True, slots=True)
class GuardedPolicy:
    """A base policy whose requests are checked one by one."""

    name: str
    base: OversubscriptionPolicy
    kind: str
    """shield or filter."""
    budget: float = USUAL_BUDGET
    """Expected hot hours that a machine may have in the next day."""
    posterior: bool = False
    persistence: float = 0.85
    shared: float = 0.0
    margin: Margin = NO_MARGIN

    def plan(self, task: Task) -> Plan:
        """Return the base's plan with the guard, after the base's rule for each request; raises BadInput."""
        guard = guard_of(
            task.scenario,
            self.kind,
            self.budget,
            posterior=self.posterior,
            persistence=self.persistence,
            shared=self.shared,
            margin=self.margin,
        )
        plan = self.base.plan(task)
        if plan.guard is not None and len(plan.guard.rule.wanted):
            guard = guard._replace(watched=True, rule=plan.guard.rule)
        return replace(plan, guard=guard)


@dataclass(frozen=True, slots=True)
class PredictedPeaks:
    """Machines that take VMs by their predicted peak in place of reserved cores."""

    name: str
    predictor: PeakPredictor

    def plan(self, task: Task) -> Plan:
        """Return the predictor."""
        return Plan(peak=self.predictor)


@dataclass(frozen=True, slots=True)
class FixedRates:
    """The same rate for everybody, or one for each subscriber; the same all day, or in each block of the day."""

    name: str
    rates: tuple[tuple[float, ...], ...]
    """By block, from midnight on: one block for the whole day, four of six hours each."""

    def __post_init__(self) -> None:
        if len({len(block) for block in self.rates}) != 1 or HOURS_PER_DAY % len(self.rates):
            raise BadInput("policy", self.name, "give blocks of equal length that fill a day, with as many rates each")
        for rate in (rate for block in self.rates for rate in block):
            check_rate("policy", rate)

    def plan(self, task: Task) -> Plan:
        """Return the rates for every hour; BadInput when their number is not that of the subscribers."""
        count = task.scenario.subscribers
        if len(self.rates[0]) not in (1, count):
            raise BadInput("policy", self.name, f"give one rate, or one for each of the {count} subscribers")
        return Plan(hourly(np.array(self.rates), task.scenario.hours, count))


@dataclass(frozen=True, slots=True)
class MovingAverage:
    """MA: the mean of the last day's hourly peaks."""

    name: str = "ma"

    def plan(self, task: Task) -> Plan:
        """Return the rates that the week's log gives, hour by hour."""
        return _by_log(task, lambda peaks, n, hour: moving_average_rate(peaks, DAY_BEFORE_H + hour))


@dataclass(frozen=True, slots=True)
class SupervisedRates:
    """SL: ridge regression of the next hour's peak, learnt from the logs of the scenario's other weeks."""

    name: str = "sl"

    def plan(self, task: Task) -> Plan:
        """Return the rates that the regression gives on the week's log; with one week alone it learns from that log."""
        scenario = task.scenario
        others = [name for name in scenario.weeks if name != task.week.name] or [task.week.name]
        fitted = ridge.fit([peak_log(scenario, scenario.week(name)) for name in others], DAY_BEFORE_H)
        return _by_log(task, lambda peaks, n, hour: fitted.rate(peaks, DAY_BEFORE_H + hour, n, hour % HOURS_PER_DAY))


def _by_log(task: Task, rate: Callable[[Floats, int, int], float]) -> Plan:
    """Return a plan of the rates by the week's log of each subscriber: of its peaks, its number and the hour."""
    log = peak_log(task.scenario, task.week)
    hours = range(task.scenario.hours)
    return Plan(np.array([[rate(peaks, n, hour) for n, peaks in enumerate(log)] for hour in hours]))


@dataclass(frozen=True, slots=True)
class StaticOptimum:
    """The best constant rates for the task's own week and start, or for several weeks together (§12.5)."""

    name: str
    alpha: float | None = None
    """Required probability; the task's when None."""
    weeks: tuple[str, ...] = ()
    """Weeks that must all be safe; the task's own when empty."""
    cap: float | None = None
    """Largest allowed risk of any of them, 1 - alpha when None."""
    evaluations: int = EVALUATIONS
    rule: Rule = TAIL

    def search(self, task: Task) -> SearchResult:
        """Return what the search finds for a task."""
        scenario = task.scenario
        weeks = [scenario.week(name) for name in self.weeks] or [task.week]
        assessors = [Assessor(scenario, week, task.start) for week in weeks]
        alpha = task.alpha if self.alpha is None else self.alpha
        limits: dict[str, Any] = {"cap": self.cap, "evaluations": self.evaluations, "rule": self.rule}
        return optimise(assessors, alpha, on_progress=task.on_progress, **limits)

    def plan(self, task: Task) -> Plan:
        """Return the rates that the search finds, for every hour."""
        return Plan(hourly(self.search(task).rates, task.scenario.hours, task.scenario.subscribers))


def as_rates(rates: Floats) -> str:
    """Return the text of a policy with a rate for each subscriber, or for each block of the day and subscriber."""
    return "rates:" + ";".join(",".join(f"{rate:g}" for rate in block) for block in np.atleast_2d(rates).tolist())


KIND, VERSION = "oversubscription-rates", 1
SHIPPED = Path(__file__).parent / "shipped"
"""Rates for the packaged scenarios, SCENARIO-START.json: examples of what `tune oversubscription` writes."""


@dataclass(frozen=True, slots=True)
class RatesFile:
    """Rates by subscriber with the guard they need, None for none, and how they came about."""

    name: str
    scenario: str
    scenario_sha256: str
    start: str
    alpha: float
    actions: tuple[float, ...]
    subscribers: tuple[str, ...]
    rates: tuple[float, ...]
    guard: RateGuard | None = None
    calibration: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    def plan(self, task: Task) -> Plan:
        """Return the rates for every hour, behind their guard; BadInput for another number of subscribers."""
        scenario = task.scenario
        if len(self.rates) != scenario.subscribers:
            misfit = f"it is for {len(self.rates)} subscribers, the scenario has {scenario.subscribers}: train it again"
            raise BadInput("policy", self.name, misfit)
        schedule = np.broadcast_to(np.array(self.rates), (scenario.hours, scenario.subscribers)).copy()
        guard = None if self.guard is None else guard_of(scenario, self.guard.kind, self.guard.budget)
        return Plan(schedule, guard=guard)

    def as_data(self) -> dict[str, Any]:
        """Return the file's content."""
        return {"kind": KIND, "version": VERSION} | {n: v for n, v in asdict(self).items() if n != "name"}


def read_json(path: Path) -> OversubscriptionPolicy:
    """Return the rates, or the rule, in a file; BadInput names the fault."""
    data = _data_in(path)
    return (
        RuleRates(str(path), read_rule(path))
        if isinstance(data, dict) and data.get("kind") == RULE
        else read_rates(path)
    )


def _data_in(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput("policy", str(path), f"give a file of rates that can be read: {error}") from None


def read_rates(path: Path) -> RatesFile:
    """Return the rates in a file; BadInput says what is wrong with it."""
    data = _data_in(path)
    if not isinstance(data, dict) or (data.get("kind"), data.get("version")) != (KIND, VERSION):
        raise BadInput("policy", str(path), f'give a file with "kind": "{KIND}" and "version": {VERSION}')
    try:
        guard = guard_of_file(str(path), data["guard"])
        rates = tuple(check_rate(f"{path.name}: rates", float(rate)) for rate in data["rates"])
        found = RatesFile(
            name=str(path),
            scenario=str(data["scenario"]),
            scenario_sha256=str(data["scenario_sha256"]),
            start=str(data["start"]),
            alpha=float(data["alpha"]),
            actions=check_actions(data["actions"]),
            subscribers=tuple(map(str, data["subscribers"])),
            rates=rates,
            guard=guard,
            calibration=dict(data["calibration"]),
            packages=dict(data["packages"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput("policy", str(path), f"it lacks or misstates {error}: train it again") from None
    if len(found.subscribers) != len(rates) or len(set(found.subscribers)) != len(rates):
        raise BadInput("policy", str(path), "give one rate for each subscriber, each once")
    return found


def shipped_rates(scenario: Scenario, start: str) -> RatesFile | None:
    """Return the rates that ship for a packaged scenario and start, None where the scenario is not that one."""
    path = SHIPPED / f"{scenario.name}-{start}.json"
    if not path.is_file():
        return None
    found = read_rates(path)
    return found if found.scenario_sha256 == scenario_sha256(scenario) else None


def scenario_sha256(scenario: Scenario) -> str:
    """Return the SHA-256 over what makes a scenario apart from its weeks: machines, limits, levels, profiles."""
    facts = (
        *(scenario.subscribers, scenario.machines, scenario.machine_cores, scenario.machine_memory_gb),
        *(scenario.machine_network_gbps, scenario.beta, scenario.violation_hours, scenario.hours, scenario.actions),
        scenario.prefill_rate,
    )
    digest = hashlib.sha256(json.dumps(facts).encode())
    for table in (scenario.mu, scenario.sd):
        digest.update(np.ascontiguousarray(table).tobytes())
    return digest.hexdigest()


def write_rates(rates: RatesFile, path: Path) -> None:
    """Write the file whole or not at all."""
    replace_file(path, json.dumps(rates.as_data(), indent=1, allow_nan=False) + "\n")


def _check_trained(name: str, subscribers: int, actions: tuple[float, ...], scenario: Scenario) -> None:
    """Raise BadInput unless a policy was trained for the scenario's number of subscribers and its levels."""
    if (subscribers, actions) != (scenario.subscribers, scenario.actions):
        theirs = f"{scenario.subscribers} and {scenario.actions}"
        why = f"it is for {subscribers} subscribers and levels {actions}, the scenario has {theirs}"
        raise BadInput("policy", name, f"{why}: train it again")


@dataclass(frozen=True, slots=True, eq=False)
class RuleRates:
    """A rule that sets the rate of each request, from its file."""

    name: str
    file: RuleFile

    def plan(self, task: Task) -> Plan:
        """Return the rule for a task; BadInput when subscribers or levels are not those it was trained for."""
        scenario, file = task.scenario, self.file
        _check_trained(self.name, len(file.subscribers), file.actions, scenario)
        # The rates count for nothing: the rule sets that of each request.
        rates = np.ones((scenario.hours, scenario.subscribers))
        return Plan(rates, guard=ruled(unguarded(scenario), file.rule, scenario.hours))


def shipped_rules(scenario: str, start: str) -> dict[str, Path]:
    """Return the file of each rule that ships for a packaged scenario and start, by objective."""
    begin = f"{scenario}-{start}-"
    return {path.stem.removeprefix(begin): path for path in sorted((SHIPPED / "rules").glob(f"{begin}*.json"))}


def shipped_rule(scenario: str, start: str, objective: str) -> RuleRates:
    """Return the rule that ships for a packaged scenario, start and objective; BadInput where none does."""
    path = shipped_rules(scenario, start).get(objective)
    if path is None:
        known = ", ".join(sorted(one.stem for one in (SHIPPED / "rules").glob("*.json")))
        raise BadInput("policy", f"{MACHINE}:{objective}", f"train one for {scenario}, {start}; there are {known}")
    return RuleRates(f"{MACHINE}:{objective}", read_rule(path))


@dataclass(frozen=True, slots=True)
class ShippedRule:
    """The rule that ships for the task's scenario and start."""

    name: str
    objective: str

    def plan(self, task: Task) -> Plan:
        """Return the rule for a task; BadInput where none ships."""
        return shipped_rule(task.scenario.name, task.start, self.objective).plan(task)


MACHINE, PEAK = "machine", "peak"
FORMS = (
    "none",
    "grid:RATE",
    "rates:RATE,RATE,... (; between blocks of the day)",
    "ma",
    "sl",
    "static:alpha=,weeks=s21+s22+s23,cap=,evaluations=,bound=tail|markov,step=,block_h=",
    "shield:base=POLICY,b=,posterior=,psi=,rho=,level=,turn_h=,spread=",
    "filter:rate=,b=,posterior=,psi=,rho=,level=,turn_h=,spread=",
    "peak:n=,percentile=,window_h=,warmup_h=, or peak:oracle=true",
    "machine:OBJECTIVE, such as machine:cores, the rules for each request that ship",
    "FILE.json of `trimtab tune oversubscription`, FILE.json or FILE.onnx of `trimtab train oversubscription`",
)
"""The texts there are, for help and messages."""
_GUARDS = (SHIELD, FILTER)
_GUARD: Mapping[str, type] = {
    "b": float,
    "posterior": bool,
    "psi": float,
    "rho": float,
    "level": float,
    "turn_h": int,
    "spread": float,
}
_SETTINGS: Mapping[str, Mapping[str, type]] = {
    "none": {},
    "ma": {},
    "sl": {},
    "static": {
        "alpha": float,
        "weeks": str,
        "cap": float,
        "evaluations": int,
        "bound": str,
        "step": float,
        "block_h": int,
    },
    PEAK: {"n": float, "percentile": float, "window_h": int, "warmup_h": int, "oracle": bool},
    SHIELD: {**_GUARD, "base": str},
    FILTER: {**_GUARD, "rate": str},
}


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRates:
    """A learned policy from its file: greedy rates by the observation of each subscriber."""

    name: str
    card: RateCard
    session: onnxruntime.InferenceSession = field(compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process gets it: from the file, for no process can take a session of another one."""
        return read_model, (Path(self.name),)

    def plan(self, task: Task) -> Plan:
        """Return the policy for a task; BadInput when subscribers or levels are not those it was trained for."""
        _check_trained(self.name, self.card.subscribers, self.card.actions, task.scenario)
        return Plan(choose=self._choose, observation=self.card.observation)

    def _choose(self, simulation: OversubscriptionSimulation) -> NDArray[np.float64]:
        q = self.answer(simulation.batch.obs, simulation.batch.local)[0]
        levels: NDArray[np.float64] = np.array(self.card.actions, dtype=np.float64)
        rates: NDArray[np.float64] = levels[q[0].argmax(axis=1)]
        return rates

    def answer(
        self, cluster: NDArray[np.float32], local: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return q and value."""
        q, value = self.session.run(["q", "value"], {"cluster": cluster, "local": local})
        return q, value


def read_model(path: Path) -> LearnedRates:
    """Return the policy in a model file, verified as the agent verifies it. Raises BadInput."""
    _, card, session = open_rate_model(path)
    return LearnedRates(str(path), card, session)


def policy_of(text: str) -> OversubscriptionPolicy:
    """Return the policy of a text; raises BadInput.

    A guard's base may have settings of its own, in brackets: `shield:base=(static:alpha=0.85),b=0.003`. Its `level`,
    `turn_h` and `spread` are the drift of usage it leaves room for, see `domain.rules.oversubscription.rates.Margin`.
    """
    name, _, rest = text.partition(":")
    if text.endswith((".json", ".onnx")) and name not in _GUARDS:
        if text.endswith(".json"):
            return read_json(Path(text))
        return read_model(Path(text))
    if name == MACHINE and rest:
        return ShippedRule(text, rest)
    if name in ("grid", "rates"):
        rates = tuple(tuple(_value(text, "rate", part, float) for part in row.split(",")) for row in rest.split(";"))
        if name == "grid" and (len(rates) != 1 or len(rates[0]) != 1):
            raise BadInput("policy", text, "give grid one rate; rates takes one for each subscriber")
        return FixedRates(text, rates)
    if name not in _SETTINGS:
        raise BadInput("policy", text, f"give one of {'; '.join(FORMS)}")
    given = _settings(text, rest, _SETTINGS[name])
    if name == "none":
        return FixedRates(text, ((1.0,),))
    if name in ("ma", "sl"):
        return MovingAverage() if name == "ma" else SupervisedRates()
    if name in _GUARDS:
        base = policy_of(given.pop("base", "grid:0.5") if name == SHIELD else f"grid:{given.pop('rate', '0.2')}")
        renamed = {"b": "budget", "psi": "persistence", "rho": "shared"}
        margin = Margin(given.pop("level", 0.0), given.pop("turn_h", 0), given.pop("spread", 0.0))
        settings = {renamed.get(setting, setting): value for setting, value in given.items()}
        return GuardedPolicy(text, base, name, margin=margin, **settings)
    if name == PEAK:
        return PredictedPeaks(text, PeakPredictor(given.pop("n", None), **given))
    if given.get("evaluations", 1) < 1:
        raise BadInput("policy", text, "give evaluations as a whole number, 1 or more")
    for setting in ("alpha", "cap"):
        if not 0.0 < given.get(setting, 0.5) < 1.0:
            raise BadInput("policy", text, f"give {setting} as a probability between 0 and 1")
    weeks = tuple(filter(None, given.pop("weeks", "").split("+")))
    rule = Rule(**{setting: given.pop(setting) for setting in ("bound", "step", "block_h") if setting in given})
    return StaticOptimum(text, weeks=weeks, rule=rule, **given)


def margin_text(margin: Margin) -> str:
    """Return the settings of a guard that leave room for a drift, as a policy's text has them; "" for none."""
    given = {"level": margin.level, "turn_h": margin.turn_h, "spread": margin.spread}
    return "".join(f",{name}={value:g}" for name, value in given.items() if value)


def _settings(text: str, rest: str, known: Mapping[str, type]) -> dict[str, Any]:
    """Return name=value settings, each as what it is; commas within brackets belong to the value."""
    parts, depth = [""], 0
    for letter in rest:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    given: dict[str, Any] = {}
    for part in filter(None, parts):
        name, equals, value = part.partition("=")
        if not equals or name not in known:
            raise BadInput("policy", text, f"settings are {', '.join(known)}" if known else "it takes no settings")
        bare = value[1:-1] if value.startswith("(") and value.endswith(")") else value
        given[name] = _value(text, name, bare, known[name])
    return given


def _value(text: str, name: str, value: str, kind: type) -> Any:
    found = value_of(f"policy {text}: {name}", kind, value)
    if kind is float and not math.isfinite(found):
        raise BadInput("policy", text, f"give {name} as a finite number")
    return found
