"""The settings of one fleet: its groups, policies and rails, and what they become in the domain's words."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from agent.rails.base import RailLimits
from agent.settings.inputs import MeasuredBy
from agent.settings.kinds import GroupName, Key, Section, Url, VmTypeName
from collectors.intake import Claims
from domain.fleet import Fleet, Group, VmType


class PolicyName(StrEnum):
    """The policies a fleet can be run by."""

    QUEUE_RULE = "queue-rule"
    LEARNED = "learned"
    THRESHOLD = "threshold"
    TARGET_TRACKING = "target-tracking"
    HOLD = "hold"


class QueueRuleSettings(Section):
    """Parameters of the policy `queue-rule`: enough cores to take up what waits, idle VMs given back."""

    horizon_s: float = Field(150.0, ge=1, le=86_400, description="Time in which the waiting work should be worked off.")
    job_core_s: float = Field(
        120.0, gt=0, le=1e7, description="Work of one job where the job source does not report it."
    )
    single: bool = Field(False, description="Change at most one VM a minute instead of as many as needed.")


class ThresholdSettings(Section):
    """Parameters of the policy `threshold`: one VM more or fewer in every group on the mean CPU of the fleet."""

    high: float = Field(0.75, gt=0, le=1, description="Share of CPU above which a VM is added.")
    low: float = Field(
        0.75, ge=0, lt=1, description="Share of CPU below which a VM is removed; lower than `high` = hysteresis."
    )
    periods: int = Field(1, ge=1, le=60, description="Minutes in a row beyond a threshold that are needed.")
    exclude_warming: bool = Field(True, description="Leave VMs younger than the warm-up out of the mean.")


class TargetTrackingSettings(Section):
    """Parameters of the policy `target-tracking`: per group, the size that brings its mean CPU to a target."""

    target: float = Field(0.65, gt=0, le=1, description="Share of CPU aimed at.")
    scale_in_factor: float = Field(0.9, gt=0, le=1, description="The low alarm stands at this share of the target.")
    out_periods: int = Field(3, ge=1, le=60, description="Minutes in a row above the target before VMs are added.")
    in_periods: int = Field(
        15, ge=1, le=240, description="Minutes in a row below the low alarm before VMs are removed."
    )


class GroupSettings(Section):
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
    safe_floor: int | None = Field(
        None,
        ge=0,
        le=10_000,
        description="Size to have at least when measurements have been absent for long. Not set: `MIN`.",
    )


class RailsSettings(Section):
    """Limits on what any policy may do; they hold in every mode and are explained by `trimtab explain`."""

    min_coverage: float = Field(
        0.5, ge=0, le=1, description="Share of warm VMs that must report, else the minute counts as absent."
    )
    max_age_s: float = Field(150.0, gt=0, le=3600, description="Oldest age of the newest measurement.")
    hold_bins: int = Field(
        3, ge=1, le=60, description="Minutes held on absent measurements before the safe floor applies."
    )
    sick_share: float = Field(
        0.45,
        ge=0,
        le=1,
        description="No scale-in when more than this share of VMs is unhealthy, silent or overdue (see `SICK_COUNT`).",
    )
    sick_count: int = Field(
        3, ge=1, le=1000, description="Fewer unhealthy, silent or overdue VMs than this never stop a scale-in."
    )
    max_step_out: int = Field(5, ge=1, le=1000, description="Most VMs of one group added by one decision.")
    max_step_in: int = Field(2, ge=1, le=1000, description="Most VMs of one group removed by one decision.")
    max_step_out_percent: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="`MAX_STEP_OUT` as a percentage of the group's size; the larger of the two counts. 0: not used.",
    )
    max_step_in_percent: float = Field(
        0.0,
        ge=0,
        le=100,
        description="`MAX_STEP_IN` as a percentage of the group's size; the larger of the two counts. 0: not used.",
    )
    cooldown_out_s: float = Field(
        300.0, ge=0, le=86_400, description="After VMs were added to a group, no more are for this time."
    )
    cooldown_in_s: float = Field(
        300.0, ge=0, le=86_400, description="After VMs were removed from a group, no more are for this time."
    )
    boot_deadline_s: float = Field(300.0, gt=0, le=86_400, description="A VM that has not reported by then is overdue.")
    stop_deadline_s: float = Field(
        180.0, gt=0, le=86_400, description="A removal that AWS has not begun by then is given up."
    )
    max_replacements: int = Field(3, ge=0, le=1000, description="Interrupted spot VMs replaced per group and minute.")
    in_periods: int = Field(
        3, ge=1, le=240, description="Minutes in a row that must propose scale-in before it is done."
    )
    min_lifetime_s: float = Field(300.0, ge=0, le=604_800, description="Younger VMs are not removed.")
    max_reversals: int = Field(4, ge=0, le=60, description="Changes of direction allowed per group in an hour.")
    budget_per_hour: float | None = Field(
        None, gt=0, le=1e6, description="The fleet does not grow beyond this. Not set: no limit."
    )
    budget_per_day: float | None = Field(
        None, gt=0, le=1e8, description="The fleet does not grow when the day (UTC) would cost more. Not set: no limit."
    )
    capacity_memory_s: float = Field(
        600.0, ge=0, le=86_400, description="How long a shortage of a VM type in a zone is remembered."
    )
    breaker_failures: int = Field(
        3, ge=1, le=100, description="Failures in a row after which a group is left alone for a while."
    )
    breaker_open_s: float = Field(
        300.0, gt=0, le=86_400, description="How long that is at first; it doubles with each failed attempt."
    )
    breaker_max_s: float = Field(1800.0, gt=0, le=86_400, description="How long that is at most.")
    count_booting: bool = Field(
        True, description="Take VMs that boot off the increases of a policy that had not counted them."
    )


class ClaimsSettings(Section):
    """What a fleet's sources may claim at most; a reading beyond it is refused, counted, and absent for the minute."""

    max_waiting: int = Field(1_000_000, ge=1, le=10**12, description="Jobs waiting.")
    max_running: int = Field(1_000_000, ge=1, le=10**12, description="Jobs running.")
    max_submitted_per_minute: int = Field(
        1_000_000,
        ge=1,
        le=10**12,
        description="By how much `submitted_total` and `finished_total` may grow in a minute.",
    )
    max_oldest_wait_s: float = Field(1_209_600.0, ge=60, le=1e9, description="How long the oldest job has waited.")
    max_job_core_s: float = Field(1e6, gt=0, le=1e9, description="Mean work of a job.")
    max_busy_share: float = Field(
        1.0, ge=1, le=100, description="Busy cores of a VM, as a share of its cores; above 1 where jobs share cores."
    )
    max_work_s: float = Field(
        2_592_000.0, ge=60, le=1e9, description="For how long the work under way on a VM's cores can have run."
    )


class FleetSettings(Section):
    """One fleet: one queue, one policy and one group per VM type. `<fleet>` is its key."""

    queue_url: Url | None = Field(
        None,
        description="SQS queue of the jobs. Not set: the job source reports to the listener.",
        examples=["https://sqs.eu-west-1.amazonaws.com/123456789012/web-jobs"],
    )
    submitted_from: MeasuredBy = Field(
        MeasuredBy.REPORTS,
        description="Who counts submitted jobs: `reports` is the job source itself; `cloudwatch` takes what SQS tells "
        "it was sent, minutes late, and marks it so. It needs `QUEUE_URL`.",
    )
    cpu_from: MeasuredBy = Field(
        MeasuredBy.REPORTS,
        description="Who measures CPU: `reports` is `trimtab collect` on each VM; `cloudwatch` needs nothing on the "
        "VMs and is minutes late.",
    )
    policy: PolicyName = Field(PolicyName.QUEUE_RULE, description="Who decides the fleet's size.")
    shadow: PolicyName | None = Field(
        None, description="A second policy whose proposals are recorded beside, never done.", examples=["threshold"]
    )
    idle_s: float = Field(120.0, ge=0, le=86_400, description="A VM without a busy core for this long counts as idle.")
    queue_rule: QueueRuleSettings = QueueRuleSettings()
    threshold: ThresholdSettings = ThresholdSettings()
    target_tracking: TargetTrackingSettings = TargetTrackingSettings()
    groups: dict[Key, GroupSettings] = Field(description="The fleet's groups, by their key.")
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
    def shadow_text(self) -> str | None:
        """The shadow policy in the same form."""
        return None if self.shadow is None else self._text(self.shadow)

    @property
    def needs_model(self) -> bool:
        """Whether a learned policy decides for the fleet, or is its shadow."""
        return PolicyName.LEARNED in (self.policy, self.shadow)

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

    def limits(self) -> RailLimits:
        """Return the rails' limits; a group without a safe floor of its own has its minimum."""
        floor = tuple(group.min if group.safe_floor is None else group.safe_floor for _, group in self.ordered_groups)
        return RailLimits(safe_floor=floor, **self.rails.model_dump())

    def believed(self) -> Claims:
        """Return what the fleet's sources may claim at most."""
        return Claims(**self.claims.model_dump())

    def _text(self, policy: PolicyName) -> str:
        parameters: Section | None = {
            PolicyName.QUEUE_RULE: self.queue_rule,
            PolicyName.THRESHOLD: self.threshold,
            PolicyName.TARGET_TRACKING: self.target_tracking,
        }.get(policy)
        pairs = [] if parameters is None else [f"{name}={value}" for name, value in parameters]
        return f"{policy}:{','.join(pairs)}" if pairs else str(policy)
