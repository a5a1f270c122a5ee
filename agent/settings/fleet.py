"""The settings of one fleet: its groups, policies and rails, and their conversion to the domain's classes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, create_model

from agent.models.queue_rule import HorizonS, IdleS, JobCoreS
from agent.rails.base import RailLimits
from agent.rails.schedule import WindowSetting, cron_fault
from agent.settings.kinds import GroupName, HookName, Key, Section, Url, ValueHint, VmTypeName
from agent.settings.plug_ins import POLICIES, installed
from collectors.intake import Claims
from domain.announcements import WEEKDAYS, Recurring
from domain.controls import PauseScope
from domain.fleet import Fleet, Group, VmType
from domain.rules.queue_rule import (
    GUESS_OF_JOBS,
    HORIZON_S,
    IDLE_S,
    JOB_CORE_S,
    LONGEST_GUESS_S,
    SHORTEST_GUESS_S,
    RuleSetting,
    first_horizon_s,
)
from domain.snapshot import OnMissing, Signal, SignalKind, Terms
from domain.units import HOUR_S, MINUTE_S


class MeasuredBy(StrEnum):
    """The source of a fleet's CPU, and of its count of submitted jobs."""

    REPORTS = "reports"
    CLOUDWATCH = "cloudwatch"


class PolicyName(StrEnum):
    """The autoscaling policies whose parameters are settings of a fleet; other packages bring further ones."""

    QUEUE_RULE = "queue-rule"
    LEARNED = "learned"
    THRESHOLD = "threshold"
    TARGET_TRACKING = "target-tracking"
    SIGNAL_TRACKING = "signal-tracking"
    HOLD = "hold"


class SelfTune(StrEnum):
    """The use of a setting of the queue rule that is cheaper on the agent's own record."""

    OFF = "off"
    PROPOSE = "propose"
    ON = "on"


SELF_TUNE: Final = SelfTune.PROPOSE
"""The default."""

_POLICIES = f"one of {', '.join(PolicyName)}, or an installed policy (docs/operate/plug-ins.md)"


def _policy(text: str) -> str:
    if text in set(PolicyName):
        return PolicyName(text)
    if text not in installed(POLICIES):
        raise ValueError(f"give {_POLICIES}")
    return text


Policy = Annotated[
    str,
    AfterValidator(_policy),
    ValueHint(_POLICIES),
]
"""A member of PolicyName, or the name of another package's policy."""

MODEL_FILE = "model:"
_SHADOWS = f"policies separated by commas, each {_POLICIES}, or {MODEL_FILE}FILE with the absolute path of a model"


def _shadows(text: str) -> str:
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name.startswith(MODEL_FILE):
            if not Path(name.removeprefix(MODEL_FILE)).is_absolute():
                raise ValueError(f"give {_SHADOWS}")
        else:
            _policy(name)
    if len(set(names)) < len(names):
        raise ValueError("give each once")
    return ",".join(names)


Shadows = Annotated[str, AfterValidator(_shadows), ValueHint(f"{_SHADOWS}, each of them once")]


SPARES = 10
"""VMs named beside a scale-in's victims; records of older versions have none, and are replayed so."""


class QueueRuleSettings(Section, title="Policy `queue-rule`"):
    """Parameters of the policy `queue-rule`: enough cores for the waiting jobs, idle VMs removed."""

    horizon_s: HorizonS | None = Field(
        None,
        description=f"Time within which the waiting work is to be done. Not set: {HORIZON_S:g}, or where `JOB_CORE_S` "
        f"is set {GUESS_OF_JOBS:g} times that, times the fleet's price of a core, by `WAITING_PRICE_PER_HOUR`; "
        f"{SHORTEST_GUESS_S:g} to {LONGEST_GUESS_S:g}.",
        examples=[300],
    )
    job_core_s: JobCoreS = Field(JOB_CORE_S, description="Work of one job where the job source does not report it.")
    single: bool = Field(False, description="Change at most one VM a minute instead of as many as needed.")


class ThresholdSettings(Section, title="Policy `threshold`"):
    """Parameters of the policy `threshold`: one VM more or fewer in every group on the mean CPU of the fleet."""

    high: float = Field(0.75, gt=0, le=1, description="Share of CPU above which a VM is added.")
    low: float = Field(
        0.75, ge=0, lt=1, description="Share of CPU below which a VM is removed; lower than `high` = hysteresis."
    )
    periods: int = Field(1, ge=1, le=60, description="Minutes in a row beyond a threshold that are needed.")
    exclude_warming: bool = Field(True, description="Leave VMs younger than the warm-up out of the mean.")


class TargetTrackingSettings(Section, title="Policy `target-tracking`"):
    """Parameters of the policy `target-tracking`: per group, the size that brings its mean CPU to a target."""

    target: float = Field(0.65, gt=0, le=1, description="Target share of CPU.")
    scale_in_factor: float = Field(0.9, gt=0, le=1, description="The low alarm is at this share of the target.")
    out_periods: int = Field(3, ge=1, le=60, description="Minutes in a row above the target before VMs are added.")
    in_periods: int = Field(
        15, ge=1, le=240, description="Minutes in a row below the low alarm before VMs are removed."
    )


class SignalTrackingSettings(Section, title="Policy `signal-tracking`"):
    """Parameters of the policy `signal-tracking`: what the fleet's own signals need, of which the most counts."""

    scale_in_factor: float = Field(
        0.9, gt=0, le=1, description="VMs are removed only while the need is below this share of the requested cores."
    )
    out_periods: int = Field(1, ge=1, le=60, description="Minutes in a row with a larger need before VMs are added.")
    in_periods: int = Field(15, ge=1, le=240, description="Minutes in a row below that share before VMs are removed.")


class SignalSettings(Section, title="A signal of a fleet"):
    """A named series of a fleet, such as requests per second. `<signal>` is its name in metric paths."""

    target: float = Field(
        gt=0,
        le=1e15,
        description="Of a `total`, the load per core; of a `level`, the target value. In the signal's unit.",
        examples=[50],
    )
    kind: SignalKind = Field(
        SignalKind.TOTAL,
        description="`total`: the whole fleet's load, such as requests per second or a consumer's lag. `level`: "
        "a value that falls as "
        "cores are added, such as latency.",
    )
    on_missing: OnMissing = Field(
        OnMissing.HOLD,
        description="While it is absent: `hold` changes nothing, `no_scale_in` lets other signals add VMs but none "
        "remove any, `ignore` leaves it out. With all signals absent the fleet is held.",
    )
    max_age_s: float = Field(
        120.0, ge=1, le=600, description="In a minute without a reading the newest one counts, if no older than this."
    )


class GroupSettings(Section, title="A group of a fleet"):
    """One Auto Scaling group of one VM type. `<group>` is its key, here and in metric paths."""

    name: GroupName | None = Field(
        None, description="AWS's name of the Auto Scaling group. Not set: the key.", examples=["web-workers"]
    )
    vm_type: VmTypeName = Field(description="EC2 instance type.", examples=["m5a.large"])
    cores: int = Field(ge=1, le=1024, description="vCPUs of one VM.", examples=[2])
    memory_gb: float = Field(gt=0, le=65_536, description="Memory of one VM.", examples=[8])
    price_per_hour: float = Field(ge=0, le=1000, description="Price of one VM.", examples=[0.086])
    min: int = Field(0, ge=0, le=10_000, description="Fewest VMs.")
    max: int = Field(ge=0, le=10_000, description="Most VMs.", examples=[10])
    boot_low_s: float = Field(
        45.0, ge=0, le=7200, description="Shortest time from an order to a VM that takes jobs, for learned policies."
    )
    boot_high_s: float = Field(
        97.0, ge=0, le=7200, description="Longest such time; counts as `BOOT_LOW_S` where it is less."
    )
    safe_floor: int | None = Field(
        None,
        ge=0,
        le=10_000,
        description="Least size while measurements have been absent for long. Not set: `MIN`.",
    )


class _Rails(Section, title="Rails of a fleet"):
    """Limits on the changes of any policy; they apply in every mode, and `trimtab explain` shows their effect."""

    def limits(self, safe_floor: tuple[int, ...]) -> RailLimits:
        """Return them for the rails."""
        return RailLimits(safe_floor=safe_floor, spares=SPARES, **self.model_dump())


def _rails_fields() -> Iterator[tuple[str, Any]]:
    """Yield by its name the type and setting of each limit that is one."""
    hints = get_type_hints(RailLimits)
    for one in fields(RailLimits):
        if about := one.metadata.get("setting"):
            yield one.name, (hints[one.name], Field(**about))


RailsSettings: Final = create_model("RailsSettings", __base__=_Rails, __doc__=_Rails.__doc__, **dict(_rails_fields()))


class ClaimsSettings(Section, title="Limits of a fleet's reports"):
    """Upper limits of a fleet's reports; a reading beyond its limit is refused, counted, and absent for the minute."""

    max_waiting: int = Field(1_000_000, ge=1, le=10**12, description="Jobs waiting.")
    max_running: int = Field(1_000_000, ge=1, le=10**12, description="Jobs running.")
    max_submitted_per_minute: int = Field(
        1_000_000,
        ge=1,
        le=10**12,
        description="Growth of `submitted_total` and `finished_total` in a minute.",
    )
    max_oldest_wait_s: float = Field(1_209_600.0, ge=60, le=1e9, description="Wait of the oldest job.")
    max_job_core_s: float = Field(1e6, gt=0, le=1e9, description="Mean work of a job.")
    max_busy_share: float = Field(
        1.0, ge=1, le=100, description="Busy cores of a VM, as a share of its cores; above 1 where jobs share cores."
    )
    max_work_s: float = Field(2_592_000.0, ge=60, le=1e9, description="Age of the work in progress on a VM's cores.")


def _weekdays(text: str) -> str:
    days = text.split(",")
    if not set(days) <= set(WEEKDAYS) or len(set(days)) < len(days):
        raise ValueError
    return text


class AnnouncementSettings(Section, title="Work announced for a fleet"):
    """Jobs that come at a time of day, every day or on some. `<announcement>` is a key of your choice."""

    at: Annotated[
        str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$"), ValueHint("a time of day in UTC such as 02:30")
    ] = Field(description="When the first of them comes, in UTC.", examples=["02:30"])
    days: Annotated[str, AfterValidator(_weekdays), ValueHint(f"some of {','.join(WEEKDAYS)}")] = Field(
        ",".join(WEEKDAYS), description="Days of the week, in UTC."
    )
    jobs: int = Field(ge=1, le=10_000_000, description="How many jobs.", examples=[200])
    job_core_s: float = Field(gt=0, le=1e7, description="Mean work of one of them.", examples=[120])
    over_minutes: float = Field(0.0, ge=0, le=1440, description="Minutes over which they come, evenly. 0: all at once.")

    def recurring(self) -> Recurring:
        """Return it for the domain."""
        hours, minutes = self.at.split(":")
        at_s = int(hours) * HOUR_S + int(minutes) * MINUTE_S
        days = () if self.days == ",".join(WEEKDAYS) else tuple(self.days.split(","))
        return Recurring(at_s, self.jobs, self.job_core_s, self.over_minutes * MINUTE_S, days)


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, OSError) as error:
        raise ValueError from error
    return text


FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 9998


def _local_time(text: str) -> str:
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}", text) is None:
        raise ValueError
    # Beyond them a zone's offset leads out of the calendar, and the page could not show the window's end.
    if not FIRST_YEAR <= datetime.fromisoformat(text).year <= LAST_YEAR:
        raise ValueError
    return text


def _cron(text: str) -> str:
    if len(text) > 200 or cron_fault(text) is not None:
        raise ValueError
    return text


Cron = Annotated[
    str,
    AfterValidator(_cron),
    ValueHint("a cron expression of five fields such as 0 18 * * mon-fri, with one day field at most"),
]
LocalTime = Annotated[
    str,
    AfterValidator(_local_time),
    ValueHint(
        f"a date of the years {FIRST_YEAR} to {LAST_YEAR} and a time of day without an offset, such as 2026-11-27T18:00"
    ),
]


class WindowSettings(Section, title="A window of a fleet's schedule"):
    """Limits, a policy or a pause for a while: again and again (CRON, FOR_MINUTES), or once (BEGINS, ENDS).

    `<window>` is a key of your choice. See docs/operate/schedules.md.
    """

    cron: Cron | None = Field(
        None,
        description="When it begins: minute, hour, day of the month, month and day of the week, by the clock of "
        "`TIME_ZONE`.",
        examples=["0 18 * * mon-fri"],
    )
    for_minutes: float | None = Field(
        None, ge=1, le=10_080, description="Length of a window that `CRON` begins, in minutes.", examples=[240]
    )
    begins: LocalTime | None = Field(
        None,
        description="When a window of one time begins, by the clock of `TIME_ZONE`.",
        examples=["2026-11-27T18:00"],
    )
    ends: LocalTime | None = Field(None, description="When it ends.", examples=["2026-11-28T02:00"])
    time_zone: Annotated[str, AfterValidator(_zone), ValueHint("a time zone such as Europe/Berlin")] = Field(
        "UTC", description="Time zone of the window's times."
    )
    min: int | None = Field(None, ge=0, le=100_000, description="Fewest VMs of the whole fleet meanwhile.")
    max: int | None = Field(None, ge=0, le=100_000, description="Most VMs of the whole fleet meanwhile.")
    policy: Policy | None = Field(None, description="Policy that decides meanwhile.")
    pause: PauseScope | None = Field(None, description="Direction that is held meanwhile: of scaling out, in, or all.")

    def planned(self, name: str, policy: str) -> WindowSetting:
        """Return it for the rails, with the full text of its policy."""
        return WindowSetting(
            name,
            self.cron or "",
            self.for_minutes or 0.0,
            self.begins or "",
            self.ends or "",
            self.time_zone,
            self.min,
            self.max,
            policy,
            self.pause,
        )


class FleetSettings(Section, title="A fleet"):
    """One fleet: one queue, one policy and one group per VM type. `<fleet>` is its key."""

    queue_url: Url | None = Field(
        None,
        description="SQS queue of the jobs. Not set: the job source reports to the listener.",
        examples=["https://sqs.eu-west-1.amazonaws.com/123456789012/web-jobs"],
    )
    submitted_from: MeasuredBy = Field(
        MeasuredBy.REPORTS,
        description="Source of the count of submitted jobs: `reports` is the job source; `cloudwatch` is that of "
        "SQS, which is minutes late and marked so. It needs `QUEUE_URL`.",
    )
    cpu_from: MeasuredBy = Field(
        MeasuredBy.REPORTS,
        description="Source of CPU: `reports` is `trimtab collect` on each VM; `cloudwatch` needs nothing on the "
        "VMs and is minutes late.",
    )
    policy: Policy = Field(PolicyName.QUEUE_RULE, description="Policy that decides the fleet's size.")
    shadow: Shadows | None = Field(
        None,
        description="Policies whose proposals are recorded and never executed. A model on probation is added to them.",
        examples=["threshold", "learned,queue-rule"],
    )
    idle_s: IdleS = Field(IDLE_S, description="A VM without a busy core for this long counts as idle.")
    self_tune: SelfTune = Field(
        SELF_TUNE,
        description="For a fleet with the policy `queue-rule` that sets neither `QUEUE_RULE__HORIZON_S` "
        "nor `IDLE_S`: once an hour, in act mode, a process at low priority replays the fleet's record under other "
        "values of both. `on` puts a cheaper setting in use and takes one back that costs more than expected, "
        "`propose` leaves it to `trimtab approve queue-rule <fleet>`, `off` looks for none. In observe mode nothing is "
        "sought: the record shows sizes that others chose; nor under `learned`, where a setting in use is the rule "
        "that the model is compared with. A setting in use stays in use in every mode, and with "
        "`off`, until `trimtab promote queue-rule <fleet> --rollback` or until one of both is set.",
    )
    drain_deadline_s: float = Field(
        3600.0,
        ge=60,
        le=172_800,
        description="Time limit of a drain in seconds, after which a "
        "busy VM is terminated too: longer than the longest job. The lifecycle hook's own limit, 48 hours or "
        "100 times its heartbeat timeout, holds as well.",
    )
    drain_hook: HookName = Field(
        "drain",
        description="Name of the lifecycle hook that drains the VMs of the fleet's groups. A group's tag "
        "`trimtab:drain-hook` goes before it. Other hooks belong to other parties: none is completed or extended.",
    )
    drain_notice_s: float = Field(
        30.0,
        ge=5,
        le=3600,
        description="Time in seconds for a worker to notice the drain and to report "
        "again; no idle VM is terminated earlier. Longer than the interval of its reports.",
    )
    waiting_price_per_hour: float = Field(
        0.036,
        gt=0,
        le=1000,
        description="Cost in dollars of an hour that a job waits; a learned policy weighs the rent of VMs against it.",
    )
    queue_rule: QueueRuleSettings = QueueRuleSettings()
    threshold: ThresholdSettings = ThresholdSettings()
    target_tracking: TargetTrackingSettings = TargetTrackingSettings()
    signal_tracking: SignalTrackingSettings = SignalTrackingSettings()
    signals: dict[Key, SignalSettings] = Field(
        {}, description="The fleet's own signals for the policy `signal-tracking`, by their name."
    )
    groups: dict[Key, GroupSettings] = Field(description="The fleet's groups, by their key.")
    announcements: dict[Key, AnnouncementSettings] = Field(
        {}, description="Work that comes at known times of day, by a key of your choice."
    )
    schedule: dict[Key, WindowSettings] = Field(
        {}, description="Time windows with limits, a policy or a pause, by a key of your choice."
    )
    rails: RailsSettings = RailsSettings()
    claims: ClaimsSettings = ClaimsSettings()

    @property
    def ordered_groups(self) -> list[tuple[str, GroupSettings]]:
        """The groups by cores, then price, then key: the order of every vector over the fleet."""
        return sorted(self.groups.items(), key=lambda item: (item[1].cores, item[1].price_per_hour, item[0]))

    @property
    def policy_text(self) -> str:
        """The live policy with its parameters, as `agent.autoscaling.policies.registry.policy_from_name` reads it."""
        return self._text(self.policy)

    @property
    def follows(self) -> frozenset[str]:
        """Parameters of the queue rule that a tuned setting gives: none where HORIZON_S or IDLE_S is set by hand."""
        by_hand = {*self.queue_rule.model_fields_set, *self.model_fields_set & {"idle_s"}}
        if self.policy not in (PolicyName.QUEUE_RULE, PolicyName.LEARNED) or by_hand & {"horizon_s", "idle_s"}:
            return frozenset()
        return frozenset({"horizon_s", "idle_s", "job_core_s"} - by_hand)

    @property
    def shadows(self) -> tuple[str, ...]:
        """The names of the shadows, as they are set."""
        return () if self.shadow is None else tuple(self.shadow.split(","))

    @property
    def shadow_texts(self) -> tuple[str, ...]:
        """The shadows in the same form as the live policy."""
        return tuple(self._text(name) for name in self.shadows)

    def fleet(self, name: str) -> Fleet:
        """Return the fleet of the domain under this name."""
        groups = tuple(
            Group(
                key=key,
                name=group.name or key,
                vm_type=VmType(group.vm_type, group.cores, group.memory_gb, group.price_per_hour),
                minimum=group.min,
                maximum=group.max,
            )
            for key, group in self.ordered_groups
        )
        return Fleet(name, groups, self.queue_url)

    @property
    def rule_horizon_s(self) -> float:
        """The queue rule's horizon: as set, else the first guess for the job length that is set, else the default."""
        rule = self.queue_rule
        if rule.horizon_s is not None:
            return rule.horizon_s
        if "job_core_s" not in rule.model_fields_set:
            return HORIZON_S
        return first_horizon_s(rule.job_core_s, self.fleet("any").core_price_per_hour, self.waiting_price_per_hour)

    @property
    def own_rule(self) -> RuleSetting:
        """The rule of day 0: the queue rule as it is set, before any tuning; the work of a job is that of the terms."""
        return RuleSetting(self.rule_horizon_s, self.idle_s)

    @property
    def terms(self) -> Terms:
        """What policies that weigh costs are told of the fleet's world."""
        groups = [group for _, group in self.ordered_groups]
        return Terms(
            waiting_price_per_hour=self.waiting_price_per_hour,
            horizon_s=self.rule_horizon_s,
            job_core_s=self.queue_rule.job_core_s,
            cooldown_s=self.limits().cooldown_out_s,
            boot_low_s=tuple(group.boot_low_s for group in groups),
            boot_high_s=tuple(max(group.boot_low_s, group.boot_high_s) for group in groups),
            idle_s=self.idle_s,
        )

    @property
    def announced_work(self) -> tuple[Recurring, ...]:
        """The work that is announced for times of day, by its key."""
        return tuple(one.recurring() for _, one in sorted(self.announcements.items()))

    @property
    def planned(self) -> tuple[WindowSetting, ...]:
        """The windows of the schedule, by their key; a policy with its parameters."""
        return tuple(
            one.planned(key, "" if one.policy is None else self._text(one.policy))
            for key, one in sorted(self.schedule.items())
        )

    @property
    def own_signals(self) -> tuple[Signal, ...]:
        """The fleet's own signals, by name."""
        return tuple(Signal(name, **one.model_dump()) for name, one in sorted(self.signals.items()))

    def limits(self) -> RailLimits:
        """Return the rails' limits; the safe floor of a group is by default its minimum."""
        floor = tuple(group.min if group.safe_floor is None else group.safe_floor for _, group in self.ordered_groups)
        return self.rails.limits(floor)

    def claim_limits(self) -> Claims:
        """Return the upper limits of the fleet's reports."""
        return Claims(**self.claims.model_dump())

    def _text(self, policy: str) -> str:
        of_ours: dict[str, Section] = {
            PolicyName.QUEUE_RULE: self.queue_rule.model_copy(update={"horizon_s": self.rule_horizon_s}),
            PolicyName.THRESHOLD: self.threshold,
            PolicyName.TARGET_TRACKING: self.target_tracking,
            PolicyName.SIGNAL_TRACKING: self.signal_tracking,
        }
        parameters = of_ours.get(policy)
        pairs = [] if parameters is None else [f"{name}={value}" for name, value in parameters]
        return f"{policy}:{','.join(pairs)}" if pairs else str(policy)
