"""Where a pool's rates come from before rails and shield: a moving average, one rate for all, or a file of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from agent.oversubscription.memory import SubscriberMemory
from domain.errors import BadInput
from domain.rules.oversubscription.moving_average import WINDOW_H, moving_average_rate
from domain.rules.oversubscription.rates import check_rate

MOVING_AVERAGE: Final = "moving-average"
STATIC: Final = "static"
RATES: Final = "rates"
KIND: Final = "oversubscription-rates"
LARGEST_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """A policy that is ready. model: digest of its file, "" without one. multiplier: its price of risk, if it has one.

    wanted: from a subscriber and what is remembered of it to a rate; None where the policy knows nothing of it.
    """

    text: str
    model: str
    wanted: Callable[[str, SubscriberMemory], float | None]
    multiplier: float | None = None


def policy_of(text: str) -> RatePolicy:
    """Return the policy that a text names: `moving-average`, `static:RATE`, `rates:FILE`; BadInput says what is wrong.

    A file that changes is read again with every call.
    """
    name, _, given = text.partition(":")
    if name == MOVING_AVERAGE and not given:
        return RatePolicy(text, "", _moving_average)
    if name == STATIC:
        try:
            rate = check_rate("rate", float(given))
        except ValueError:
            raise BadInput("policy", text, "give static:RATE, such as static:0.6") from None
        return RatePolicy(text, "", lambda subscriber, memory: rate)
    if name == RATES and given:
        rates, digest, multiplier = read_rates(Path(given))
        return RatePolicy(text, digest, lambda subscriber, memory: rates.get(subscriber), multiplier)
    raise BadInput("policy", text, f"give {MOVING_AVERAGE}, {STATIC}:RATE or {RATES}:FILE")


def _moving_average(subscriber: str, memory: SubscriberMemory) -> float | None:
    peaks = np.array([np.nan if peak is None else peak for peak in memory.peaks[-WINDOW_H:]])
    return moving_average_rate(peaks, peaks.size)


def read_rates(path: Path) -> tuple[Mapping[str, float], str, float | None]:
    """Return rates by subscriber, the file's digest and its multiplier.

    The file is what `trimtab train oversubscription` writes: `kind`, `subscribers` and `rates` in the same order, or
    `rates` by name. BadInput names what is wrong with it.
    """
    try:
        content = path.read_bytes()
        held: Any = json.loads(content)
    except (OSError, ValueError) as error:
        raise BadInput("rates file", str(path), f"give a JSON file of rates that can be read: {error}") from None
    if len(content) > LARGEST_BYTES or not isinstance(held, dict) or held.get("kind") != KIND:
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
    return MappingProxyType(rates), hashlib.sha256(content).hexdigest()[:16], price
