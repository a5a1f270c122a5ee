"""The input of a decision: one minute of one fleet, folded to counts, ratios and observation vectors.

None means absent, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from domain.announcements import Announcement
from domain.decisions import VmRefusal
from domain.units import DAY_S

NO_REPORTS_S = DAY_S
"""VMs of a fleet that sent no report for so long are not due to report, where the deciding policy reads none."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group at the end of the minute.

    requested: desired capacity that AWS holds. in_service: instances AWS counts as in service. warm: those of them that
    have reported at least once; in a fleet without reports, all.
    booting: requested or launching and not yet warm, within the boot deadline. overdue:
    the same beyond the deadline. draining: leaving, no longer capacity. silent: warm but without enough samples this
    minute. idle_long: warm and without a busy core for the idle period; idle: without one now. mature: warm and older
    than the minimum lifetime. minimum, maximum, suspended: as AWS holds them. removable: VMs that may be removed, least
    work lost first. refused: VMs idle for long that may not go, which neither `removable` nor `idle_long` counts.
    cpu_mean, ram_mean: 0..1 over reporting warm VMs; busy_cores: their sum. cooldown_out_s, cooldown_in_s: seconds left
    per direction. cannot_add, cannot_remove: why one VM more, or fewer, is not possible, ""
    where it is; filled in only for the policy (`agent.autoscaling.decide`). Sizes are VMs. requested_units: what AWS
    counts `requested` as, in its capacity units, None where that is the same number, and in older records; weight: the
    units of a VM launched from now on.
    """

    key: str
    requested: int
    in_service: int
    warm: int
    booting: int
    overdue: int
    draining: int
    silent: int
    unhealthy: int
    idle_long: int
    mature: int
    minimum: int
    maximum: int
    suspended: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    refreshing: bool = False
    removable: tuple[str, ...] = ()
    cpu_mean: float | None = None
    ram_mean: float | None = None
    busy_cores: float | None = None
    cooldown_out_s: float = 0.0
    cooldown_in_s: float = 0.0
    cannot_add: str = ""
    cannot_remove: str = ""
    idle: int = 0
    requested_units: int | None = None
    weight: int = 1
    refused: tuple[VmRefusal, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The job queue.

    Jobs waiting and running, submitted in all and in this minute, age of the oldest, mean core-seconds of a job.
    """

    waiting: int
    running: int
    submitted: int
    submitted_recent: int
    oldest_wait_s: float | None = None
    job_core_s: float | None = None
    submitted_is_late: bool = False


class SignalKind(StrEnum):
    """What a signal's target is compared with.

    total: the fleet's whole load, whose target is what one core carries (requests per second, messages that lag).
    level: what each VM sees of it, whose target is the level aimed at (latency, requests under way per core); it counts
    as proportional to load by cores.
    """

    TOTAL = "total"
    LEVEL = "level"


class OnMissing(StrEnum):
    """What an absent signal does to a decision: nothing is changed, no VM is removed, or it is left out."""

    HOLD = "hold"
    NO_SCALE_IN = "no_scale_in"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Signal:
    """One of a fleet's own signals, as the settings have it: see SignalKind and OnMissing.

    max_age_s: without a reading in the minute the newest one counts if it is no older.
    """

    name: str
    target: float
    kind: SignalKind = SignalKind.TOTAL
    on_missing: OnMissing = OnMissing.HOLD
    max_age_s: float = 120.0

    @property
    def input_name(self) -> str:
        """What it is called among a snapshot's absent inputs."""
        return f"signal {self.name}"


@dataclass(frozen=True, slots=True)
class SignalSnapshot:
    """A signal over the minute: the mean of its readings, else the newest; None when it is absent."""

    signal: Signal
    value: float | None


@dataclass(frozen=True, slots=True)
class Terms:
    """What the settings say of a fleet's world, for a policy that weighs what its choices cost.

    waiting_price_per_hour: dollars for an hour that a job waits. horizon_s: of the queue rule, which stands beside it.
    job_core_s: core-seconds of a job until the job source has reported one. cooldown_s: after a growth. boot_low_s,
    boot_high_s: from an order to a VM that takes jobs, per group. idle_s: a VM idle for so long may be removed; None in
    older records.
    """

    waiting_price_per_hour: float
    horizon_s: float
    job_core_s: float
    cooldown_s: float
    boot_low_s: tuple[float, ...]
    boot_high_s: tuple[float, ...]
    idle_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One fleet over the minute that ended at `bin_end` (epoch seconds), taken at `taken_at`.

    due: VMs that should have reported: the warm ones that are not new in this minute, and those in service beyond the
    boot deadline that never did. reported: those of them with enough samples; both None in older records. coverage:
    reported of due, 1.0 where none is due. age_s: seconds since the newest sample of any kind, None when there never
    was one; vm_age_s, queue_age_s: since the newest of a VM and of the queue. stale_bins: consecutive minutes, this one
    included, in which a needed input was absent. absent: the names of absent inputs. cpu_mean..ram_p90: 0..1 over the
    fleet's reporting VMs; cpu_mean_warmed_up: the same over those older than the warm-up, None where none is.
    obs7, obs_v2: observation vectors (domain.observations.autoscaling), None when an input they need is absent.
    announced: coming work that is known, by time; None where the fleet has no announcements at all, and in older
    records. terms: None in older records too. signals: the fleet's own, by name.
    """

    fleet: str
    bin_end: float
    taken_at: float
    groups: tuple[GroupSnapshot, ...]
    queue: QueueSnapshot | None
    coverage: float
    age_s: float | None
    stale_bins: int = 0
    absent: tuple[str, ...] = ()
    cpu_mean: float | None = None
    cpu_mean_warmed_up: float | None = None
    cpu_p90: float | None = None
    ram_mean: float | None = None
    ram_p90: float | None = None
    obs7: tuple[float, ...] | None = None
    obs_v2: tuple[float, ...] | None = None
    due: int | None = None
    reported: int | None = None
    vm_age_s: float | None = None
    queue_age_s: float | None = None
    announced: tuple[Announcement, ...] | None = None
    terms: Terms | None = None
    signals: tuple[SignalSnapshot, ...] = ()

    @property
    def without_reports(self) -> bool:
        """Whether VMs are in service, no VM reported within a day, and the deciding policy reads no VM reports."""
        lately = self.vm_age_s is not None and self.vm_age_s <= NO_REPORTS_S
        return self.due == 0 and not lately and sum(self.warm) > 0

    @property
    def requested(self) -> tuple[int, ...]:
        """Desired capacity per group."""
        return tuple(group.requested for group in self.groups)

    @property
    def warm(self) -> tuple[int, ...]:
        """Warm VMs per group."""
        return tuple(group.warm for group in self.groups)

    @property
    def booting(self) -> tuple[int, ...]:
        """Booting VMs per group."""
        return tuple(group.booting for group in self.groups)
