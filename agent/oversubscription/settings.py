"""The settings of pools whose CPU is oversold: machines, promise, subscribers, and where rates are published.

And what their policies name: rates, files of rates, and places in a model.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from agent.models.regular_files import read_file
from agent.settings.kinds import File, Key, Section, ValueHint
from agent.settings.subjects import Conflict, Subjects
from domain.errors import BadInput
from domain.rules.oversubscription.pool import PoolRules, SubscriberRules
from domain.rules.oversubscription.rates import (
    ACTIONS,
    MOST_SPREAD,
    USUAL_SPREAD,
    RateGuard,
    check_rate,
    guard_of_file,
)
from domain.samples import QUEUE_SEGMENT

if TYPE_CHECKING:
    from agent.settings.model import Settings

MOVING_AVERAGE: Final = "moving-average"
STATIC: Final = "static"
RATES: Final = "rates"
RULE: Final = "rule"
MODEL: Final = "model"
RATES_FILE: Final = "oversubscription-rates"
"""The `kind` of a file of rates."""
DIGITS: Final = 16
"""Of a file's SHA-256, as decisions name it."""
LARGEST_RATES_BYTES: Final = 4 * 2**20

ParameterName = Annotated[
    str,
    Field(pattern=r"^/trimtab/oversubscription(/[A-Za-z0-9_.-]{1,100}){1,5}$"),
    ValueHint("a parameter's name below /trimtab/oversubscription, such as /trimtab/oversubscription/main"),
]
Rate = Annotated[float, Field(gt=0, le=1)]
RatePolicyText = Annotated[
    str,
    Field(pattern=r"^(moving-average|static:[0-9.]+|rates:/.+|rule:/.+|model:/.+|learned)$"),
    ValueHint("moving-average, static:RATE, learned, rates:FILE, rule:FILE or model:FILE with an absolute path"),
]
ObjectiveName = Annotated[Literal["cores", "core-hours", "machines"], ValueHint("`cores`, `core-hours` or `machines`")]


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError from None
    return name


Zone = Annotated[str, AfterValidator(_zone), ValueHint("a time zone such as UTC or Europe/Berlin")]


class SubscriberSettings(Section, title="A subscriber of a pool"):
    """One subscriber of a pool. `<subscriber>` is its key, as in the inventory and in metric paths."""

    internal: bool = Field(
        False, description="It is one of yours and has agreed. External customers are not oversubscribed by default."
    )
    opt_out: bool | None = Field(
        None, description="`true`: every VM of it is reserved in full. Not set: as `internal`."
    )
    minimum_rate: Rate = Field(0.05, description="Its VMs are never reserved less than this share of their cores.")
    fixed_rate: Rate | None = Field(
        None, description="Rate in place of the policy's; drift, hot machines and the shield still raise it."
    )
    model_place: int | None = Field(
        None, ge=0, le=100_000, description="Its number, from 0, among the subscribers that a `model:` was trained for."
    )


class PoolSettings(Section, title="A pool"):
    """One pool of machines whose CPU is oversubscribed. `<pool>` is its key."""

    machines: int = Field(ge=1, le=100_000, description="Machines that it has.", examples=[500])
    machine_cores: float = Field(gt=0, le=100_000, description="Cores of one machine.", examples=[96])
    machine_memory_gb: float = Field(gt=0, le=1_000_000, description="Memory of one machine.", examples=[1536])
    machine_network_gbit: float = Field(100.0, gt=0, le=100_000, description="Network capacity of one machine.")
    inventory_file: File | None = Field(
        None,
        description="CSV file of the VMs alive: vm, subscriber, machine, cores, memory_gb, network_gbit, rate. "
        "Read when it changes; older than an hour and `stale_s`, nothing is oversubscribed.",
        examples=["/var/lib/trimtab/inventory.csv"],
    )
    policy: RatePolicyText = Field(
        "moving-average",
        description="Rates: `moving-average` of the last day's peaks, `static:RATE`, `learned` for the model "
        "promoted by `trimtab promote oversubscription`, or `rates:FILE`, `rule:FILE` and `model:FILE` from `trimtab "
        "train oversubscription`, not evaluated. A rule sets the rate of each request.",
    )
    objective: ObjectiveName = Field(
        "core-hours",
        description="Saving that `trimtab learn oversubscription` trains a rule for: requested cores, the same by the "
        "hours that VMs stay, or machines in use. Of a folder as `rule:`, rule.json in it decides, else "
        "OBJECTIVE/rule.json.",
    )
    actions: tuple[float, ...] = Field(ACTIONS, description="Levels of rates, rising, the last 1.0, as a JSON list.")
    alpha: float = Field(
        0.95, ge=0.5, le=0.999, description="Chance, over the horizon, to stay below the hot hours that break it."
    )
    beta: float = Field(0.6, ge=0.3, le=0.95, description="Share of a machine's cores in use from which it is hot.")
    horizon_h: int = Field(120, ge=24, le=8760, description="Hours that the promise is about.")
    hot_hours: int | None = Field(
        None, ge=2, le=1000, description="Hot hours in the horizon that break the promise. Not set: one in forty."
    )
    shield_budget: float | None = Field(
        None,
        gt=0,
        le=24,
        description="Limit of the expected hot hours per day of a machine after a request. Not set: the "
        "guard of the file of rates or of a rule, 0.003 without one, and at most 0.003 if `drift_spread` is not 0. "
        "More than the guard's is refused.",
    )
    drift_level: float = Field(
        0.0,
        ge=0,
        le=2,
        description="Shield and filter leave room for a rise of all usage by this share, before there is one.",
    )
    drift_hours: int = Field(
        0,
        ge=0,
        le=12,
        description="Reserve for a shift of daily usage by this number of hours, in either direction, per subscriber.",
    )
    drift_spread: float = Field(
        USUAL_SPREAD,
        ge=0,
        le=MOST_SPREAD,
        description="Reserve for independent drifts of subscribers, in standard deviations of a machine's usage over "
        "usual drifts (levels by 15 %, days by up to 2 hours). 0: no reserve.",
    )
    risk_filter: bool = Field(
        False,
        description="`true`: the response names the best-fitting machine within the "
        "budget, at the subscriber's rate; your allocator must use it. `false`: the rate is raised until best "
        "fit stays within it.",
    )
    rho: float | None = Field(
        None,
        ge=0,
        le=0.99,
        description="Share of a usage's variance that an owner's VMs have in common. Not set: learnt.",
    )
    persistence: float | None = Field(
        None, ge=0, le=0.99, description="Share that is each VM's own level. Not set: learnt, 0.85 until then."
    )
    cooldown_s: float = Field(7200.0, ge=3600, le=604_800, description="Between two steps down of a rate.")
    stale_s: float = Field(
        7200.0,
        ge=3600,
        le=86_400,
        description="Maximum age of a subscriber's measurements; without newer ones its VMs are reserved in full.",
    )
    start_within_s: float = Field(
        3600.0,
        ge=60,
        le=86_400,
        description="Room promised to a request is given back when its VM is not listed by then.",
    )
    timezone: Zone = Field("UTC", description="Where the pool's days begin at midnight.", examples=["Europe/Berlin"])
    parameter: ParameterName | None = Field(
        None,
        description="Parameter of Systems Manager that the rates are put into each hour. Not set: into none.",
        examples=["/trimtab/oversubscription/main"],
    )
    subscribers: dict[Key, SubscriberSettings] = Field({}, description="The subscribers, by their key.")


def pool_rules_of(name: str, settings: PoolSettings) -> PoolRules:
    """Return a pool's rules; BadInput names the setting that does not fit the others."""
    same = [one.name for one in fields(PoolRules) if one.init and one.name in PoolSettings.model_fields]
    subscribers = {key: SubscriberRules(**one.model_dump()) for key, one in settings.subscribers.items()}
    return PoolRules(name=name, **{key: getattr(settings, key) for key in same} | {"subscribers": subscribers})


def check_policy(text: str, rules: PoolRules) -> None:
    """Check what a policy asks of the other settings of its pool; BadInput names the setting that does not fit.

    A file of rates that cannot be used is no mistake of the settings: it may be usable later, and the service says so.
    """
    name, _, given = text.partition(":")
    if name == STATIC:
        static_rate(text)
    elif name in (RATES, RULE):
        # Of a rule the array library is needed, which other settings do without.
        from agent.oversubscription.rule_model import read_rule

        try:
            guard = read_rates(Path(given)).guard if name == RATES else read_rule(rule_path(given, rules)).guard
        except BadInput:
            return
        rules.budget(guard)
    elif name == MODEL:
        if os.path.isdir(given):
            raise BadInput("policy", text, "name a model file; `learned` follows the models directory")
        places_of(rules.subscribers)


def rule_path(given: str, rules: PoolRules) -> Path:
    """Return the file that `rule:` names: itself, or in a folder rule.json, else the one of the pool's objective."""
    # `Path.is_dir` raises for a path without permission, or with a name that is too long.
    if not os.path.isdir(given):
        return Path(given)
    one = Path(given, "rule.json")
    return one if os.path.isfile(one) else Path(given, rules.objective, "rule.json")


def static_rate(text: str) -> float:
    """Return the rate of `static:RATE`; BadInput, `policy`, unless it is in (0, 1]."""
    try:
        return check_rate("policy", float(text.partition(":")[2]))
    except (ValueError, BadInput):
        raise BadInput("policy", text, "give static:RATE with a rate above 0 and up to 1, such as static:0.6") from None


def places_of(subscribers: Mapping[str, SubscriberRules]) -> tuple[str, ...]:
    """Return the subscribers in the order of their places in a model; BadInput for a place missing or taken twice."""
    placed = sorted((own.model_place, name) for name, own in subscribers.items() if own.model_place is not None)
    if [place for place, _ in placed] != list(range(len(placed))) or not placed:
        placed_as = ", ".join(f"{name} {place}" for place, name in placed) or "none"
        remedy = f"give the subscribers the places 0, 1, ... of the model's, each once; they have: {placed_as}"
        raise BadInput("model_place", placed_as, remedy)
    return tuple(name for _, name in placed)


@dataclass(frozen=True, slots=True)
class FileRates:
    """What a file of rates holds: rates by subscriber, its digest, price of risk and guard, None where it has none."""

    rates: Mapping[str, float]
    digest: str
    multiplier: float | None
    guard: RateGuard | None


def read_rates(path: Path) -> FileRates:
    """Return what a file holds that `trimtab train oversubscription` wrote; BadInput names what is wrong with it.

    `kind`, `subscribers` and `rates` in the same order, or `rates` by name; `guard` and `multiplier` may be missing.
    """
    try:
        return rates_in(read_file(path, LARGEST_RATES_BYTES), path)
    except OSError as error:
        raise BadInput(
            "rates file", str(path), f"give a JSON file of rates that can be read: {error.strerror}"
        ) from None


def rates_in(content: bytes, path: Path) -> FileRates:
    """Return what the content of a file of rates holds; BadInput names what is wrong with it."""
    try:
        # A whole number too large for a float is inf, which the checks refuse.
        data: Any = json.loads(content, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise BadInput("rates file", str(path), f"give a JSON file of rates that can be read: {error}") from None
    if not isinstance(data, dict) or data.get("kind") != RATES_FILE:
        raise BadInput("rates file", str(path), f'give a JSON object whose "kind" is "{RATES_FILE}"')
    given = data.get("rates")
    names = data.get("subscribers")
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
        if not isinstance(rate, float):
            raise BadInput(f"rates file {path}, rate of {name}", rate, "give a number")
        rates[name] = check_rate(f"rates file {path}, rate of {name}", rate)
    multiplier = data.get("multiplier")
    price = multiplier if isinstance(multiplier, float) else None
    if price is not None and not math.isfinite(price):
        raise BadInput(f"rates file {path}, multiplier", multiplier, "give a finite number")
    guard = guard_of_file(f"rates file {path}", data.get("guard"))
    return FileRates(MappingProxyType(rates), hashlib.sha256(content).hexdigest()[:DIGITS], price, guard)


def _conflicts(name: str, pool: PoolSettings, settings: Settings) -> Iterator[Conflict]:
    path = (SUBJECTS.name, name)
    if name in settings.fleets:
        yield Conflict(path, (("fleets", name),), "choose another key: a fleet has it, and metric paths begin with it")
    if QUEUE_SEGMENT in pool.subscribers:
        remedy = f"choose another key: {QUEUE_SEGMENT} is the queue's segment in metric paths"
        yield Conflict((*path, "subscribers", QUEUE_SEGMENT), (), remedy)
    try:
        check_policy(pool.policy, pool_rules_of(name, pool))
    except BadInput as error:
        # The place of a subscriber in a model is asked for by the policy.
        setting = error.field if error.field in PoolSettings.model_fields else "policy"
        others = ("actions", "rho", "horizon_h", "policy")
        yield Conflict((*path, setting), tuple((*path, other) for other in others if other != setting), error.remedy)


SUBJECTS = Subjects(
    "pools",
    "pools",
    PoolSettings,
    {"pools": "<pool>", "subscribers": "<subscriber>"},
    _conflicts,
    lambda one: one.parameter is not None,
)
