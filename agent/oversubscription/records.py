"""What is decided about overselling and what it rests on: frozen records, as the ledger keeps them (§13).

Times are seconds since the epoch, hours whole hours since the epoch, rates shares of the requested cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from agent.kernel.http import NUMERIC, Body
from domain.decisions import Direction, Intent, Reason

GIVEN_UP_S: Final = 7200.0
"""Seconds after which a publication that did not come about is over."""


class Source(StrEnum):
    """The part of the agent that set a rate last."""

    POLICY = "policy"
    SHIELD = "shield"
    FALLBACK = "fallback"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM that is alive: what it asked for, where it is, and the share of its cores that is reserved."""

    vm: str
    subscriber: str
    machine: str
    cores: float
    memory_gb: float
    network_gbit: float
    rate: float


LONGEST: Final = 128
LARGEST: Final = 1e9
PoolName = Annotated[
    str | None, Field(max_length=63, description="Pool meant; not needed when there is one.", examples=["main"])
]
Size = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False), NUMERIC]


class RateRequest(Body, frozen=True):
    """A VM that will be created."""

    pool: PoolName = None
    subscriber: Annotated[
        str, Field(min_length=1, max_length=LONGEST, description="Whose VM it will be.", examples=["batch"])
    ]
    cores: Annotated[
        float,
        Field(gt=0, le=LARGEST, allow_inf_nan=False, description="Cores that it asks for.", examples=[8]),
        NUMERIC,
    ]
    memory_gb: Annotated[Size, Field(description="Memory that it asks for.", examples=[32])]
    network_gbit: Annotated[Size, Field(description="Network capacity that it asks for.")] = 0.0
    vm: Annotated[str, Field(max_length=LONGEST, description="Its name in the inventory, where it has one.")] = ""
    request_id: Annotated[
        str, Field(max_length=LONGEST, description="The same one again gets the same answer.", examples=["batch-17"])
    ] = ""
    requested_by: Annotated[str, Field(max_length=LONGEST, description="Name of the requester, for the record.")] = ""


@dataclass(frozen=True, slots=True)
class LevelTried:
    """One level that the shield looked at, on the machine best fit would take: "" where none has room."""

    rate: float
    machine: str
    hot_hours: float | None
    mean: tuple[float, ...] = ()
    """Cores in use on that machine with the VM on it, by hour of day; so are variance and third central moment."""
    variance: tuple[float, ...] = ()
    third: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class HourRule:
    """A rule for requests as the hours after it use it (`domain.rules.oversubscription.request_rule`).

    base: b by subscriber. day: the daily harmonics, (4,). weights: by the names of `Weights`.
    """

    base: Mapping[str, float]
    day: tuple[float, ...]
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RuleLevel:
    """A level that a rule looked at, on the machine that best fit takes at it: "" where none has room.

    mean, variance: cores in use on that machine with the VM on it, by hour of day, with the first level on it.
    """

    level: float
    machine: str
    need: float | None
    margin: float | None
    free: float | None
    mean: tuple[float, ...] = ()
    variance: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleDecision:
    """The level that a rule chose for a request: the last one seen. wanted: b + d of the subscriber and hour.

    weights: by the names of `Weights`.
    """

    wanted: float
    weights: Mapping[str, float]
    seen: tuple[RuleLevel, ...]

    @property
    def level(self) -> float:
        """The level chosen."""
        return self.seen[-1].level


@dataclass(frozen=True, slots=True)
class ShadowRate:
    """What a model on probation would have answered to a request, by its digest."""

    model: str
    rate: float
    safe: bool


@dataclass(frozen=True, slots=True)
class ShadowRates:
    """What a model on probation would have decided for an hour: rates by subscriber, and its shield's budget.

    The same rails as the decision's, from its own rates of the hour before and without the cool-down. failed: why there
    are none, "" where there are. rule: of requests, None where rates alone count; held: subscribers without it.
    """

    model: str
    rates: tuple[tuple[str, float], ...]
    budget: float
    failed: str = ""
    rule: HourRule | None = None
    held: tuple[str, ...] = ()

    def rate(self, subscriber: str) -> float:
        """Return a subscriber's rate, 1.0 where there is none."""
        return dict(self.rates).get(subscriber, 1.0)


@dataclass(frozen=True, slots=True)
class RateDecision:
    """The rate for one request and all that it rests on; `hot_hours` are those of the machine in the next day.

    base_rate: of the rule where one decided (`rule`), else of the hour. held: why the pool's rule did not decide.
    """

    decision_id: str
    at: float
    pool: str
    request_id: str
    vm: str
    subscriber: str
    cores: float
    memory_gb: float
    network_gbit: float
    rate: float
    base_rate: float
    source: Source
    reasons: tuple[Reason, ...]
    detail: str
    machine: str
    hot_hours: float | None
    budget: float
    threshold_cores: float
    safe: bool
    tried: tuple[LevelTried, ...]
    policy: str
    model: str
    config_hash: str
    state_hash: str
    hour: int
    evaluation_us: float
    requested_by: str = ""
    shadow: ShadowRate | None = None
    rule: RuleDecision | None = None
    held: Reason | None = None


@dataclass(frozen=True, slots=True)
class SubscriberRate:
    """One subscriber's rate for VMs created from now on.

    saved_cores: of its present VMs, unreserved. risk_24h: its share of the expected hot hours of the next day, by its
    part of the load of each machine. days: of data behind it. wanted_rate: what the policy asked for. held: why the
    pool's rule does not set the rates of its requests, None where it does or there is none.
    """

    subscriber: str
    rate: float
    previous_rate: float
    source: Source
    reasons: tuple[Reason, ...]
    wanted_rate: float | None
    vms: int
    reporting: int
    saved_cores: float
    risk_24h: float
    days: float
    vm_days: float
    lowered_at: float | None
    drifting: bool
    held: Reason | None = None


@dataclass(frozen=True, slots=True)
class MachineRisk:
    """A machine's chance to be hot in its worst hour of the next day, and its expected hot hours."""

    machine: str
    peak_hour: int
    peak_probability: float
    hot_hours: float
    cores_in_use: float
    closed: bool


@dataclass(frozen=True, slots=True)
class PoolRisk:
    """The pool as it stands, if no VM comes or goes.

    violation: chance of too many hot hours in the horizon; low and high: the same with every mean lower and higher by
    what the data leave open (95 %). multiplier: the price of risk that a learned policy carries, None without one.
    saved_share: of the cores requested since the start, None before any. machines_without: machines that the present
    VMs need at least with every core reserved.
    """

    violation: float
    violation_low: float
    violation_high: float
    expected_hot_hours: float
    hot_hours_seen: int
    riskiest: tuple[MachineRisk, ...]
    machines_used: int
    peak_machines: int
    machines_without: int
    saved_share: float | None
    multiplier: float | None


@dataclass(frozen=True, slots=True)
class HourDecision:
    """What was decided for an hour: every subscriber's rate, and the pool's risk.

    budget: expected hot hours of a machine in a day that a request may leave; None where it was not recorded.
    shadow: None where no model is on probation. rule: sets the rates of requests, None where the rows' rates do.
    """

    decision_id: str
    at: float
    hour: int
    pool: str
    policy: str
    model: str
    config_hash: str
    state_hash: str
    subscribers: tuple[SubscriberRate, ...]
    risk: PoolRisk
    frozen: bool
    rolled_back: bool
    closed: tuple[str, ...]
    detail: str
    evaluation_us: float
    budget: float | None = None
    shadow: ShadowRates | None = None
    rule: HourRule | None = None


class Step(StrEnum):
    """writing: the value is to be put, or whether it was is not known. settled: nothing is left to do."""

    WRITING = "writing"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Publication:
    """The latest value of a pool's parameter. told: the reason last written to the journal, with its detail."""

    pool: str
    number: int
    step: Step
    decision_id: str
    parameter: str
    value: str
    epoch: int
    at: float
    told: str = ""

    @property
    def open(self) -> bool:
        """Whether something is left to do."""
        return self.step is Step.WRITING

    @property
    def intent(self) -> Intent:
        """The intent to put the value."""
        return Intent(
            intent_id=f"{self.pool}.rates.{self.number}",
            decision_id=self.decision_id,
            fleet=self.pool,
            group=self.parameter,
            direction=Direction.REPLACE,
            before=1,
            target=1,
            victims=(),
            epoch=self.epoch,
            created_at=self.at,
            deadline_at=self.at + GIVEN_UP_S,
        )
