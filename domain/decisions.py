"""The record of a decision.

Proposal, rail effects, intents, outcomes, and the one list of reasons for log, metric, ledger, page and docs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from domain.errors import FailureClass
from domain.subject import Subject


class Mode(StrEnum):
    """observe: decide and record, no mutating call leaves the process. act: do it."""

    OBSERVE = "observe"
    ACT = "act"


_REASON_OF_A_PLUG_IN: Final = re.compile(r"[a-z][a-z0-9_-]*/[a-z][a-z0-9_]*")


class Reason(StrEnum):
    """The reason for a proposal, a rail's effect, an outcome or an event.

    A decision of another package adds reasons as `<decision>/<reason>`: Reason("shift/short_of_people").
    """

    # observed by a policy
    LOAD_HIGH = "load_high"
    LOAD_LOW = "load_low"
    LOAD_IN_BAND = "load_in_band"
    QUEUE_GREW = "queue_grew"
    IDLE_CAPACITY = "idle_capacity"
    QUEUE_COVERED = "queue_covered"
    LEARNED = "learned"
    # unusable inputs and policies
    NOT_FINITE = "not_finite"
    SCHEMA_MISMATCH = "schema_mismatch"
    STALE_INPUT = "stale_input"
    SAFE_FLOOR = "safe_floor"
    LOW_COVERAGE = "low_coverage"
    NO_VM_REPORTS = "no_vm_reports"
    FLEET_SICK = "fleet_sick"
    CLOUD_UNREADABLE = "cloud_unreadable"
    GROUP_UNSUPPORTED = "group_unsupported"
    POLICY_FAILED = "policy_failed"
    INTERNAL_ERROR = "internal_error"
    # operator
    PAUSED = "paused"
    PINNED = "pinned"
    # rails
    BELOW_MINIMUM = "below_minimum"
    ABOVE_MAXIMUM = "above_maximum"
    SCHEDULED_MINIMUM = "scheduled_minimum"
    SCHEDULED_MAXIMUM = "scheduled_maximum"
    STEP_LIMIT = "step_limit"
    COOLING_DOWN = "cooling_down"
    WARMING_UP = "warming_up"
    NOT_YET_STABLE = "not_yet_stable"
    TOO_YOUNG = "too_young"
    REVERSAL_BUDGET = "reversal_budget"
    OVER_BUDGET = "over_budget"
    NO_CAPACITY = "no_capacity"
    CAPACITY_FALLBACK = "capacity_fallback"
    CIRCUIT_OPEN = "circuit_open"
    NOT_LEADER = "not_leader"
    OBSERVE_MODE = "observe_mode"
    IN_FLIGHT = "in_flight"
    NOTHING_TO_DO = "nothing_to_do"
    BUSY = "busy"
    # results of cloud calls
    DONE = "done"
    ACCEPTED = "accepted"
    THROTTLED = "throttled"
    CREDENTIALS = "credentials"
    PERMANENT_FAILURE = "permanent_failure"
    UNKNOWN_OUTCOME = "unknown_outcome"
    UNAVAILABLE = "unavailable"
    PARTIAL = "partial"
    OVERDUE = "overdue"
    LAUNCH_SUSPENDED = "launch_suspended"
    TERMINATE_SUSPENDED = "terminate_suspended"
    REFRESH_IN_PROGRESS = "refresh_in_progress"
    VICTIM_GONE = "victim_gone"
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    LEDGER_REPLACED = "ledger_replaced"
    LEDGER_RESTORED = "ledger_restored"
    LEDGER_FOREIGN = "ledger_foreign"
    ACCOUNT_FOREIGN = "account_foreign"
    SUPERSEDED = "superseded"
    # events
    SPOT_INTERRUPTION = "spot_interruption"
    REBALANCE_HINT = "rebalance_hint"
    DRIFT_ADOPTED = "drift_adopted"
    DRIFT_REPORTED = "drift_reported"
    LATE_CALL = "late_call"
    DRAINING = "draining"
    DRAINED = "drained"
    DRAIN_TIMED_OUT = "drain_timed_out"
    NOT_DRAINED = "not_drained"
    PROTECTED = "protected"
    REMOVAL_REFUSED = "removal_refused"
    CLOCK_JUMP = "clock_jump"
    CLOCK_WRONG = "clock_wrong"
    METRICS_LOST = "metrics_lost"
    METRICS_RETURNED = "metrics_returned"
    SENDER_REFUSED = "sender_refused"
    CLAIM_REFUSED = "claim_refused"
    INPUT_CONFLICT = "input_conflict"
    LAUNCHES_FAILING = "launches_failing"
    INPUT_REPEATS = "input_repeats"
    JOBS_NOT_TAKEN = "jobs_not_taken"
    WORK_STUCK = "work_stuck"
    CAPACITY_LOST = "capacity_lost"
    CAPACITY_RETURNED = "capacity_returned"
    LEAD_TAKEN = "lead_taken"
    LEAD_LOST = "lead_lost"
    FLEET_FOUND = "fleet_found"
    FLEET_GONE = "fleet_gone"
    GROUP_SUPPORTED = "group_supported"
    GROUP_RECREATED = "group_recreated"
    LIFECYCLE_UNKNOWN = "lifecycle_unknown"
    STARTED = "started"
    STOPPED = "stopped"
    SETTINGS_RECORDED = "settings_recorded"
    SETTINGS_CHANGED = "settings_changed"
    MODEL_READY = "model_ready"
    MODEL_REFUSED = "model_refused"
    OUTSIDE_TRAINING = "outside_training"
    WITHIN_TRAINING = "within_training"
    LEARNING_OVERDUE = "learning_overdue"
    PROMOTION_ROLLED_BACK = "promotion_rolled_back"
    SETTING_PROPOSED = "setting_proposed"
    SELF_TUNING_FAILED = "self_tuning_failed"
    OPERATOR = "operator"
    # admission of deployments to clusters
    ADMITTED = "admitted"
    REJECTED_FEASIBILITY = "rejected_feasibility"
    REJECTED_PLACEMENT = "rejected_placement"
    REJECTED_RULE = "rejected_rule"
    REJECTED_UNSAFE = "rejected_unsafe"
    REJECTED_INPUT = "rejected_input"
    ADMISSION_LAPSED = "admission_lapsed"
    SIZES_REPAIRED = "sizes_repaired"
    # oversubscription of a pool's CPU
    RATE_OF_POLICY = "rate_of_policy"
    SHIELDED = "shielded"
    NO_SAFE_LEVEL = "no_safe_level"
    NO_MACHINE = "no_machine"
    OPTED_OUT = "opted_out"
    LITTLE_HISTORY = "little_history"
    MINIMUM_RATE = "minimum_rate"
    UNKNOWN_SUBSCRIBER = "unknown_subscriber"
    USAGE_DRIFTED = "usage_drifted"
    MACHINE_WARM = "machine_warm"
    MACHINE_HOT = "machine_hot"
    RATES_CHANGED = "rates_changed"
    RATES_FROZEN = "rates_frozen"
    RATES_ROLLED_BACK = "rates_rolled_back"
    RATES_REARMED = "rates_rearmed"
    RATES_PUBLISHED = "rates_published"
    # placement of containers on a pool's hosts
    PLACED = "placed"
    PLACED_IN_PART = "placed_in_part"
    NO_HOST = "no_host"
    PLACEMENT_CONFIRMED = "placement_confirmed"
    PLACEMENT_CANCELLED = "placement_cancelled"
    PLACEMENT_LAPSED = "placement_lapsed"
    CONTAINERS_RELEASED = "containers_released"
    CONTAINERS_LOST = "containers_lost"
    CONTAINER_MOVED = "container_moved"
    HOST_CHANGED = "host_changed"
    HOST_FAILED = "host_failed"
    POLICY_REPLACED = "policy_replaced"
    POLICY_SWITCHED = "policy_switched"
    INVENTORY_CHANGED = "inventory_changed"
    INVENTORY_REFUSED = "inventory_refused"
    PLACEMENT_GAP = "placement_gap"
    PLACEMENT_REFUSING = "placement_refusing"
    PLACEMENT_DRIFTED = "placement_drifted"
    UNLIKE_TRAINING = "unlike_training"
    HOSTS_COMPARED = "hosts_compared"
    # deferral of jobs to left-over cores
    JOB_SUBMITTED = "job_submitted"
    JOB_REFUSED = "job_refused"
    JOB_CANCELLED = "job_cancelled"
    JOB_EXPIRED = "job_expired"
    JOBS_STARTED = "jobs_started"
    NO_JOB_STARTED = "no_job_started"
    START_REPEATED = "start_repeated"
    STEPS_SKIPPED = "steps_skipped"
    CAPACITY_MISSING = "capacity_missing"
    FORECAST_UNCOVERED = "forecast_uncovered"
    VIOLATION_BUDGET_USED = "violation_budget_used"
    POLICY_FELL_BACK = "policy_fell_back"
    JOBS_AT_RISK = "jobs_at_risk"
    POLICIES_COMPARED = "policies_compared"

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        if not isinstance(value, str) or _REASON_OF_A_PLUG_IN.fullmatch(value) is None:
            return None
        made = str.__new__(cls, value)
        made._name_ = made._value_ = value
        return made


class Origin(StrEnum):
    """The origin of a proposal: a policy, an operator's pin, or the safe floor.

    Pins and floors are not held by cool-down, warm-up or the flap guard.
    """

    POLICY = "policy"
    PIN = "pin"
    FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal: absolute desired capacity per group, and why.

    counts_pending: whether the policy already counted booting VMs (the queue rule does, a CPU threshold does not); if
    not, the warm-up rail subtracts them from the increase once.
    """

    fleet: str
    policy: str
    desired: tuple[int, ...]
    reason: Reason
    detail: str = ""
    counts_pending: bool = True
    origin: Origin = Origin.POLICY


class Verdict(StrEnum):
    """The effect of a rail on a proposal."""

    PASSED = "passed"
    SHRUNK = "shrunk"
    VETOED = "vetoed"
    RAISED = "raised"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class RailEffect:
    """One rail's effect on a proposal: desired before and after, and a sentence when it changed anything."""

    rail: str
    verdict: Verdict
    before: tuple[int, ...]
    after: tuple[int, ...]
    reason: Reason | None = None
    detail: str = ""


class Direction(StrEnum):
    """out: more VMs. in: fewer. replace: the same number, but not these VMs."""

    OUT = "out"
    IN = "in"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Intent:
    """A change of one group, written to the ledger before it is made.

    `target` is the absolute desired capacity afterwards; `victims` are the VM ids that a scale-in or replacement
    removes. `deadline_at` is when it is given up if the cloud has not carried it out. `spares`: VMs of a scale-in, in
    order, each of which goes in place of a victim that may not go.
    """

    intent_id: str
    decision_id: str
    fleet: str
    group: str
    direction: Direction
    before: int
    target: int
    victims: tuple[str, ...]
    epoch: int
    created_at: float
    deadline_at: float
    spares: tuple[str, ...] = ()

    @property
    def follows_launches(self) -> bool:
        """Whether this replacement took the place of a scale-out, and lasts until its VMs are in service."""
        return self.direction is Direction.REPLACE and self.before < self.target

    @property
    def candidates(self) -> tuple[str, ...]:
        """Every VM that it may remove, those to go first in front."""
        return (*self.victims, *self.spares)


class Status(StrEnum):
    """The state of an intent; all but IN_PROGRESS and UNKNOWN are final.

      recorded --permit refuses, or nothing to do--> SKIPPED
         |
         | call sent, or put off: throttled, paused, AWS unreadable
         v
    IN_PROGRESS <--readable again-- UNKNOWN       call sent, answer lost
         |      -----answer lost--->   |          (both followed once a minute)
         |                             |
         +-----------------------------+-- all of it achieved ----------------> DONE
                                       +-- part of it; deadline, superseded --> PARTIAL
                                       +-- none of it; AWS refuses, deadline -> FAILED
                                       +-- permit refuses, fleet gone --------> SKIPPED
    """

    DONE = "done"
    PARTIAL = "partial"
    FAILED = "failed"
    SKIPPED = "skipped"
    IN_PROGRESS = "in_progress"
    UNKNOWN = "unknown"

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to the intent."""
        return self not in (Status.IN_PROGRESS, Status.UNKNOWN)


@dataclass(frozen=True, slots=True)
class CapacityShortage:
    """AWS had no VM of this type in this zone ("" = zone not named).

    failing: it had, and they ended one after another before they were in service.
    """

    vm_type: str
    zone: str
    failing: bool = False


@dataclass(frozen=True, slots=True)
class VmRefusal:
    """A VM that may not go: another party protects it (PROTECTED), or AWS refuses it (REMOVAL_REFUSED)."""

    vm: str
    reason: Reason
    detail: str = ""


def refusals_text(refusals: Sequence[VmRefusal]) -> str:
    """Return which VMs may not go and why, as a phrase."""
    why = {Reason.PROTECTED: "protected by another party", Reason.REMOVAL_REFUSED: "refused by AWS"}
    return ", ".join(f"{one.vm} is {why.get(one.reason, one.reason.value)}" for one in refusals)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an intent: `achieved` of `asked` VMs, why, AWS's message, and the VMs that may not go."""

    intent_id: str
    status: Status
    reason: Reason
    asked: int
    achieved: int
    at: float
    detail: str = ""
    failure: FailureClass | None = None
    shortages: tuple[CapacityShortage, ...] = ()
    refusals: tuple[VmRefusal, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """An event outside a decision, with a sentence. about: a group, VM or request of the subject.

    data: figures of the event for programs, JSON texts by name.
    """

    subject: Subject
    at: float
    reason: Reason
    detail: str
    about: str = ""
    data: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """One fleet's minute: the proposal, the effects of the rails, the intents.

    shadows: what policies beside the live one proposed, in the order in which they were asked; none of it is done.
    """

    decision_id: str
    fleet: str
    at: float
    mode: Mode
    proposal: Proposal
    effects: tuple[RailEffect, ...]
    desired: tuple[int, ...]
    reason: Reason
    sentence: str
    intents: tuple[Intent, ...] = ()
    shadows: tuple[Proposal, ...] = ()
    policy_failures: tuple[str, ...] = ()
