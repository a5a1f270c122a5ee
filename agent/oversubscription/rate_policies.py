"""Where a pool's rates come from before rails and shield: a moving average, one for all, a file of them, or a model.

A file may also have a rule that sets the rate of each request; its rates are those of the hours without it. A model, or
a file of rates or of a rule, decides once it was promoted or forced (`agent.models.directory`), or because the settings
name its file, which forces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from agent.models.directory import Champion, ModelsDirectory, forced_reason, read_model_file
from agent.oversubscription.choice import PolicyRates
from agent.oversubscription.memory import SubscriberMemory
from agent.oversubscription.observation import Sight
from agent.oversubscription.records import HourRule
from agent.oversubscription.rule_model import RuleFile, is_rule, read_rule, rule_in
from agent.oversubscription.settings import (
    DIGITS,
    MODEL,
    MOVING_AVERAGE,
    RATES,
    RULE,
    STATIC,
    FileRates,
    rates_in,
    read_rates,
    rule_path,
    static_rate,
)
from domain.errors import BadInput
from domain.rules.oversubscription.pool import PoolRules
from domain.rules.oversubscription.ridge import WINDOW_H, moving_average_rate
from domain.subject import Subject

LEARNED: Final = "learned"
PROBATION: Final = "on probation"
OVERSUBSCRIPTION: Final = "oversubscription"
BY_SETTINGS: Final = "its file is named in the settings"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """A policy that is ready. model: digest of its file, "" without one. multiplier: its price of risk, if it has one.

    forced: why the file decides although it has not passed an evaluation, "" when it has.

    budget: expected hot hours of a machine in a day that its requests may leave, by its file's guard and the settings.

    rates: from the observation of a pool to rates by subscriber, without subscribers unknown to the policy; it
    raises BadInput when it fails. rule: sets the rates of requests in their place, where the hour permits it.
    """

    text: str
    model: str
    budget: float
    rates: Callable[[Sight], Mapping[str, float | None]]
    multiplier: float | None = None
    forced: str = ""
    rule: HourRule | None = None

    def wanted(self, sight: Sight) -> PolicyRates:
        """Return its rates for an hour, and its rule; BadInput when it fails."""
        return PolicyRates(self.rates(sight), self.budget, self.model, self.multiplier, self.rule)


def policy_of(text: str, rules: PoolRules, models: ModelsDirectory | None = None) -> RatePolicy:
    """Return the policy of a text: `moving-average`, `static:RATE`, `rates:FILE`, `rule:FILE`, `model:FILE`, `learned`.

    models: the directory of the champion that `learned` takes. A file that changes is read again with every call.
    BadInput names the fault, also where a file's guard and the rules contradict each other.
    """
    name, _, given = text.partition(":")
    if name == MOVING_AVERAGE and not given:
        return RatePolicy(text, "", rules.budget(None), _moving_averages)
    if name == STATIC:
        rate = static_rate(text)
        return RatePolicy(text, "", rules.budget(None), lambda sight: dict.fromkeys(sight.memories, rate))
    if name == RATES and given:
        return _by_rates(read_rates(Path(given)), text, rules, BY_SETTINGS)
    if name == RULE and given:
        path = rule_path(given, rules)
        return _by_rule(read_rule(path), path, text, rules, BY_SETTINGS)
    if name == MODEL and given:
        return _by_model(Path(given), text, rules, BY_SETTINGS)
    if text == LEARNED and models is not None:
        champion = champion_of(models, rules)
        forced = forced_reason(models.check(subject_of(rules), champion))
        content = models.read(champion.model).content
        return verify_rates(models.file_of(champion.model), rules, content, text=text, forced=forced)
    forms = f"{MOVING_AVERAGE}, {STATIC}:RATE, {RATES}:FILE, {RULE}:FILE, {MODEL}:FILE or {LEARNED}"
    raise BadInput("champion" if text == LEARNED else "policy", text, f"give {forms}")


def probationer_of(rules: PoolRules, models: ModelsDirectory | None) -> RatePolicy | None:
    """Return the policy of the model on probation for a pool, None for none; BadInput when it is refused."""
    subject = subject_of(rules)
    one = None if models is None else models.probationers().get(subject)
    if models is None or one is None:
        return None
    models.check_probationer(subject, one)
    content = models.read(one.model).content
    return verify_rates(models.file_of(one.model), rules, content, text=PROBATION)


def subject_of(rules: PoolRules) -> Subject:
    """Return the pool as a subject of models."""
    return Subject(OVERSUBSCRIPTION, rules.name)


def verify_rates(
    path: Path, rules: PoolRules, content: bytes | None = None, *, text: str = LEARNED, forced: str = ""
) -> RatePolicy:
    """Return the policy in a model file or a file of rates or of a rule; BadInput when the pool cannot use it.

    content: of the file, where it was read already; an ONNX file is checked against its name, its SHA-256, in any case.
    """
    if path.suffix == ".onnx":
        return _by_model(path, text, rules, forced)
    content = content or read_model_file(path).content
    if is_rule(content):
        return _by_rule(rule_in(content, path), path, text, rules, forced)
    return _by_rates(rates_in(content, path), text, rules, forced)


def champion_of(directory: ModelsDirectory, rules: PoolRules) -> Champion:
    """Return the champion of a pool; BadInput when it has none."""
    found = directory.champions().get(subject_of(rules))
    if found is None:
        remedy = f"promote one: trimtab promote {subject_of(rules)} FILE"
        raise BadInput("champion", str(directory.path), f"the pool {rules.name} has no model: {remedy}")
    return found


def _by_model(path: Path, text: str, rules: PoolRules, forced: str) -> RatePolicy:
    # ONNX Runtime costs a third of a second and 30 MB: paid only where there is a model.
    from agent.oversubscription.rate_model import load_rate_model

    model = load_rate_model(path, rules)
    return RatePolicy(text, model.name[:DIGITS], rules.budget(None), model.rates, forced=forced)


def _by_rates(file: FileRates, text: str, rules: PoolRules, forced: str) -> RatePolicy:
    budget = rules.budget(file.guard)
    return RatePolicy(text, file.digest, budget, lambda sight: file.rates, file.multiplier, forced)


def _by_rule(file: RuleFile, path: Path, text: str, rules: PoolRules, forced: str) -> RatePolicy:
    file.check(rules, f"rule file {path}")
    rates: dict[str, float | None] = dict(zip(file.subscribers, file.rates, strict=True))
    base = dict(zip(file.subscribers, file.rule.base.tolist(), strict=True))
    rule = HourRule(base, tuple(file.rule.day.tolist()), file.rule.weights._asdict())
    budget = rules.budget(file.guard)
    return RatePolicy(text, file.digest[:DIGITS], budget, lambda sight: rates, forced=forced, rule=rule)


def _moving_averages(sight: Sight) -> dict[str, float | None]:
    return {name: _moving_average(memory) for name, memory in sight.memories.items()}


def _moving_average(memory: SubscriberMemory) -> float | None:
    peaks = np.array([np.nan if peak is None else peak for peak in memory.peaks[-WINDOW_H:]])
    return moving_average_rate(peaks, peaks.size)
