"""The settings of pools whose CPU is oversold: machines, promise, subscribers, and where rates are published."""

from __future__ import annotations

from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from agent.oversubscription.rules import PoolRules, SubscriberRules
from agent.settings.kinds import Expected, File, Key, Section
from domain.rules.oversubscription.rates import ACTIONS

ParameterName = Annotated[
    str,
    Field(pattern=r"^/trimtab/oversubscription(/[A-Za-z0-9_.-]{1,100}){1,5}$"),
    Expected("a parameter's name below /trimtab/oversubscription, such as /trimtab/oversubscription/main"),
]
Rate = Annotated[float, Field(gt=0, le=1)]
RatePolicyText = Annotated[
    str,
    Field(pattern=r"^(moving-average|static:[0-9.]+|rates:/.+|model:/.+)$"),
    Expected("moving-average, static:RATE, rates:FILE or model:PATH with an absolute path"),
]


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError from None
    return name


Zone = Annotated[str, AfterValidator(_zone), Expected("a time zone such as UTC or Europe/Berlin")]


class SubscriberSettings(Section):
    """One subscriber of a pool. `<subscriber>` is its key, as in the inventory and in metric paths."""

    internal: bool = Field(
        False, description="It is one of yours and has agreed. External customers are not oversold by default."
    )
    opt_out: bool | None = Field(
        None, description="`true`: every VM of it is reserved in full. Not set: as `internal` says."
    )
    minimum_rate: Rate = Field(0.05, description="Its VMs are never reserved less than this share of their cores.")
    fixed_rate: Rate | None = Field(
        None, description="Rate in place of the policy's; drift, hot machines and the shield still raise it."
    )
    model_place: int | None = Field(
        None, ge=0, le=100_000, description="Its number, from 0, among the subscribers that a `model:` was trained for."
    )


class PoolSettings(Section):
    """One pool of machines whose CPU is oversold. `<pool>` is its key."""

    machines: int = Field(ge=1, le=100_000, description="Machines that it has.", examples=[500])
    machine_cores: float = Field(gt=0, le=100_000, description="Cores of one machine.", examples=[96])
    machine_memory_gb: float = Field(gt=0, le=1_000_000, description="Memory of one machine.", examples=[1536])
    machine_network_gbit: float = Field(100.0, gt=0, le=100_000, description="Network capacity of one machine.")
    inventory_file: File | None = Field(
        None,
        description="CSV file of the VMs alive: vm, subscriber, machine, cores, memory_gb, network_gbit, rate. "
        "Read when it changes; older than an hour and `stale_s`, nothing is oversold.",
        examples=["/var/lib/trimtab/inventory.csv"],
    )
    policy: RatePolicyText = Field(
        "moving-average",
        description="Rates: `moving-average` of the last day's peaks, `static:RATE`, `rates:FILE` or `model:FILE` as "
        "`trimtab train oversubscription` writes them, or `model:DIRECTORY` for `trimtab pool-model`.",
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
        description="Expected hot hours of a machine in a day that a request may leave. Not set: what the guard of the "
        "file of rates says, 0.003 without one. More than the guard's is refused.",
    )
    risk_filter: bool = Field(
        False,
        description="`true`: a request is told the best-fitting machine that stays within the budget, at its rate; "
        "your allocator must take it. `false`: the rate is raised until best fit stays within it.",
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
        7200.0, ge=3600, le=86_400, description="Nothing is oversold for whom nothing was measured for longer."
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
    return PoolRules(
        name=name,
        machines=settings.machines,
        machine_cores=settings.machine_cores,
        machine_memory_gb=settings.machine_memory_gb,
        machine_network_gbit=settings.machine_network_gbit,
        subscribers={
            key: SubscriberRules(one.internal, one.opt_out, one.minimum_rate, one.fixed_rate, one.model_place)
            for key, one in settings.subscribers.items()
        },
        policy=settings.policy,
        actions=settings.actions,
        alpha=settings.alpha,
        beta=settings.beta,
        horizon_h=settings.horizon_h,
        hot_hours=settings.hot_hours,
        shield_budget=settings.shield_budget,
        rho=settings.rho,
        persistence=settings.persistence,
        cooldown_s=settings.cooldown_s,
        stale_s=settings.stale_s,
        start_within_s=settings.start_within_s,
        timezone=settings.timezone,
        parameter=settings.parameter,
        risk_filter=settings.risk_filter,
    )
