"""Where a pool's rates come from before rails and shield: a moving average, one for all, a file of them, or a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from agent.models.regular_files import read_file
from agent.oversubscription.memory import SubscriberMemory
from agent.oversubscription.observation import Sight
from agent.oversubscription.rules import PoolRules
from domain.errors import BadInput
from domain.rules.oversubscription.guards import RateGuard, guard_of_file
from domain.rules.oversubscription.moving_average import WINDOW_H, moving_average_rate
from domain.rules.oversubscription.rates import check_rate

MOVING_AVERAGE: Final = "moving-average"
STATIC: Final = "static"
RATES: Final = "rates"
MODEL: Final = "model"
KIND: Final = "oversubscription-rates"
DIGITS: Final = 16
"""Of a file's SHA-256, as decisions name it."""
LARGEST_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """A policy that is ready. model: digest of its file, "" without one. multiplier: its price of risk, if it has one.

    budget: expected hot hours of a machine in a day that its requests may leave, by its file's guard and the settings.

    rates: from what is seen of a pool to rates by subscriber, without those of which the policy knows nothing; it
    raises BadInput when it fails.
    """

    text: str
    model: str
    budget: float
    rates: Callable[[Sight], Mapping[str, float | None]]
    multiplier: float | None = None


def policy_of(text: str, rules: PoolRules) -> RatePolicy:
    """Return the policy that a text names: `moving-average`, `static:RATE`, `rates:FILE`, `model:PATH`.

    A file that changes is read again with every call. BadInput says what is wrong, also where a file's guard and the
    rules contradict each other.
    """
    name, _, given = text.partition(":")
    if name == MOVING_AVERAGE and not given:
        return RatePolicy(text, "", rules.budget(None), _moving_averages)
    if name == STATIC:
        try:
            rate = check_rate("rate", float(given))
        except ValueError:
            raise BadInput("policy", text, "give static:RATE, such as static:0.6") from None
        return RatePolicy(text, "", rules.budget(None), lambda sight: dict.fromkeys(sight.memories, rate))
    if name == RATES and given:
        held = read_rates(Path(given))
        return RatePolicy(text, held.digest, rules.budget(held.guard), lambda sight: held.rates, held.multiplier)
    if name == MODEL and given:
        # ONNX Runtime costs a third of a second and 30 MB: only who has a model pays for it.
        from agent.oversubscription.model_directory import model_in_use
        from agent.oversubscription.rate_model import load_rate_model

        model = load_rate_model(model_in_use(Path(given)), rules)
        return RatePolicy(text, model.name[:DIGITS], rules.budget(None), model.rates)
    raise BadInput("policy", text, f"give {MOVING_AVERAGE}, {STATIC}:RATE, {RATES}:FILE or {MODEL}:PATH")


def _moving_averages(sight: Sight) -> dict[str, float | None]:
    return {name: _moving_average(memory) for name, memory in sight.memories.items()}


def _moving_average(memory: SubscriberMemory) -> float | None:
    peaks = np.array([np.nan if peak is None else peak for peak in memory.peaks[-WINDOW_H:]])
    return moving_average_rate(peaks, peaks.size)


@dataclass(frozen=True, slots=True)
class HeldRates:
    """What a file of rates holds: rates by subscriber, its digest, price of risk and guard, None where it has none."""

    rates: Mapping[str, float]
    digest: str
    multiplier: float | None
    guard: RateGuard | None


def read_rates(path: Path) -> HeldRates:
    """Return what a file holds that `trimtab train oversubscription` wrote; BadInput names what is wrong with it.

    `kind`, `subscribers` and `rates` in the same order, or `rates` by name; `guard` and `multiplier` may be missing.
    """
    try:
        content = read_file(path, LARGEST_BYTES)
        held: Any = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput("rates file", str(path), f"give a JSON file of rates that can be read: {error}") from None
    if not isinstance(held, dict) or held.get("kind") != KIND:
        raise BadInput("rates file", str(path), f'give a JSON object whose "kind" is "{KIND}"')
    given = held.get("rates")
    names = held.get("subscribers")
    if isinstance(given, list) and isinstance(names, list) and len(given) == len(names):
        pairs = list(zip(names, given, strict=True))
    elif isinstance(given, dict):
        pairs = list(given.items())
    else:
        raise BadInput("rates file", str(path), "give as many rates as subscribers, or rates by their names")
    rates: dict[str, float] = {}
    for name, rate in pairs:
        if not isinstance(name, str) or not name or name in rates:
            raise BadInput(f"rates file {path}, subscriber", name, "name every subscriber once")
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise BadInput(f"rates file {path}, rate of {name}", rate, "give a number")
        rates[name] = check_rate(f"rates file {path}, rate of {name}", float(rate))
    multiplier = held.get("multiplier")
    price = float(multiplier) if isinstance(multiplier, int | float) and not isinstance(multiplier, bool) else None
    guard = guard_of_file(f"rates file {path}", held.get("guard"))
    return HeldRates(MappingProxyType(rates), hashlib.sha256(content).hexdigest()[:DIGITS], price, guard)
