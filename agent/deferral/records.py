"""Orders to a deferral pool, its decisions, and its jobs and capacity as the ledger has them.

Steps are whole numbers: seconds since the epoch over the pool's step length, rounded down. A job that starts in step t
holds its cores in the steps t to t + duration - 1.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StrictBool

from agent.deferral.settings import DeferralSettings
from agent.kernel.http import NUMERIC, Body
from domain.decisions import Reason

LONGEST_ID: Final = 80
ID: Final = r"^[A-Za-z0-9_.-]{1,80}$"
"""Of a job: it is a deduplication id of SQS, and part of logs and paths."""
MOST_CORES: Final = 1_000_000
MOST_STEPS: Final = 10_000
LATEST_AT: Final = 1e11
LONGEST_PAYLOAD: Final = 4096
VERSION: Final = 1
"""Of the description of a job, over HTTP and in messages."""

STEP: Final = "step"
COMPARISON: Final = "comparison"
REFUSAL: Final = "refusal"
"""Kinds of decisions: of a step, a day's comparison of two policies, and the refusal of a message."""


class Stage(StrEnum):
    """The state of a job.

    submit --> WAITING --start recorded--> STARTING --sent--> RUNNING --duration over--> ENDED
                 |  ^                        |    |             |
                 |  +------ never sent ------+    |             |
                 |                                |             |
                 +--cancel---------cancel---------+---cancel----+----------------------> CANCELLED
                 |
                 +--window over--------------------------------------------------------> EXPIRED

    Without a ready queue a job runs once its start is recorded. A start that is being sent cannot be cancelled.
    """

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


FINAL: Final = frozenset({Stage.ENDED, Stage.EXPIRED, Stage.CANCELLED})


JobId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=ID)]
Moment = Annotated[float, Field(ge=0, le=LATEST_AT, allow_inf_nan=False), NUMERIC]


class JobOrder(Body, frozen=True):
    """A job that may start at any time in its window, and then runs to its end; over HTTP and in messages alike."""

    version: Annotated[int, Field(ge=VERSION, le=VERSION, description="Of this description: 1."), NUMERIC] = VERSION
    job_id: Annotated[
        JobId, Field(description="Of your choice; the same one again gets the same answer.", examples=["night-17"])
    ]
    cores: Annotated[int, Field(ge=1, le=MOST_CORES, description="Cores that it holds.", examples=[4]), NUMERIC]
    duration_steps: Annotated[
        int,
        Field(ge=1, le=MOST_STEPS, description="Steps that it runs at most; an hour each by default.", examples=[2]),
        NUMERIC,
    ]
    earliest_at: Annotated[
        Moment | None,
        Field(description="Not started before, in seconds since the epoch; not given: now.", examples=[1795300000]),
    ] = None
    latest_at: Annotated[Moment, Field(description="Not started later.", examples=[1795340000])]
    clamp_late: Annotated[
        StrictBool | None, Field(description="Accept an earliest start that has passed; not given: as the pool is set.")
    ] = None
    requested_by: Annotated[str, Field(max_length=LONGEST_ID, description="Name of the requester, for the record.")] = (
        ""
    )
    payload: Annotated[
        str, Field(max_length=LONGEST_PAYLOAD, description="Text that its worker gets; it is not looked into.")
    ] = ""

    @property
    def fingerprint(self) -> str:
        """A digest of the order, equal for equal orders."""
        asked = [self.cores, self.duration_steps, self.earliest_at, self.latest_at, self.payload]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the ledger has it.

    number: counts the pool's jobs, which orders equal ones. earliest, latest, submitted: steps; the earliest is that of
    the order, and may lie before `submitted` where `late` is set. unlikely: larger than any capacity seen. start: its
    first step. free_from: the step from which its cores are free again. attempts: times that its start was, or may have
    been, sent; uncertain: those of them that may have arrived, the first at `attempted_at`; sent_to: the queue;
    repeats: whether the attempt under way may bring a second copy. duplicates: messages with this job that came after
    the first.
    """

    job_id: str
    number: int
    fingerprint: str
    cores: int
    duration: int
    earliest: int
    latest: int
    submitted: int
    at: float
    stage: Stage = Stage.WAITING
    late: bool = False
    unlikely: bool = False
    start: int | None = None
    free_from: int | None = None
    decision_id: str = ""
    advice: bool = False
    attempts: int = 0
    uncertain: int = 0
    attempted_at: float | None = None
    sent_to: str = ""
    repeats: bool = False
    duplicates: int = 0
    ended_at: float | None = None
    detail: str = ""
    requested_by: str = ""
    payload: str = ""

    def holds(self, step: int) -> bool:
        """Return whether its cores are taken in a step."""
        return self.start is not None and self.free_from is not None and self.start <= step < self.free_from


@dataclass(frozen=True, slots=True)
class Report:
    """A posted number of cores, its time and its sender."""

    cores: float
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """The order that no job runs into this step or beyond it: its owner and reason."""

    by_step: int
    owner: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the ledger began. core_steps: cores times steps.

    repeated_starts: starts that were sent again and may have arrived twice. duplicates: messages with a job that was
    recorded before. delays: started jobs by "CORES/DELAY", cores as the power of two at or above
    them, delay in steps, 6 for 6 and more.
    """

    submitted: int = 0
    refused: int = 0
    unlikely: int = 0
    started: int = 0
    started_core_steps: int = 0
    ended: int = 0
    expired: int = 0
    expired_core_steps: int = 0
    cancelled: int = 0
    cancelled_core_steps: int = 0
    violation_steps: int = 0
    violation_core_steps: int = 0
    duplicates: int = 0
    repeated_starts: int = 0
    unsent_starts: int = 0
    unsent_core_steps: int = 0
    fallbacks: int = 0
    skipped_steps: int = 0
    delays: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolHead:
    """The part of a pool that changes with every write.

    jobs, decisions: how many there were. step: the last that was decided. step_s: length of the steps by which all
    is counted, 0 before the first write. capacity, capacity_step: cores that were last measured, and in which step.
    """

    revision: int = 0
    jobs: int = 0
    decisions: int = 0
    step: int | None = None
    step_s: int = 0
    capacity: int | None = None
    capacity_step: int | None = None
    report: Report | None = None
    drain: Drain | None = None
    totals: Totals = field(default_factory=Totals)


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step that was decided: its cores (None where they were not measured), and the forecast of it.

    low, high: the quantiles 0.1 and 0.9 that the step before forecast, None where it had no forecast. held: cores of
    jobs before the starts of this step; running: with them. violation: cores of jobs beyond the capacity. waiting: jobs
    that could start, of that many cores and steps in the mean. asked: whether a policy was; fallback: whether another
    one decided than the first.
    """

    step: int
    capacity: int | None
    held: int = 0
    running: int = 0
    violation: int = 0
    low: float | None = None
    high: float | None = None
    waiting: int = 0
    mean_cores: float = 0.0
    mean_duration: float = 0.0
    started: int = 0
    asked: bool = False
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """The steps of the last 28 days, oldest first, and the forecast of the next one.

    next_mean: cores to expect; next_low, next_high: quantiles 0.1 and 0.9, None without a forecast.
    """

    rows: tuple[StepRow, ...] = ()
    next_step: int | None = None
    next_mean: float | None = None
    next_low: float | None = None
    next_high: float | None = None


@dataclass(frozen=True, slots=True)
class PolicyAttempt:
    """A policy that was asked: its name, why it did not decide ("" where it did), and the time it took."""

    policy: str
    failure: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class Start:
    """A job that starts: delay in steps behind the ordered earliest start; rank among the jobs able to start."""

    job_id: str
    cores: int
    duration: int
    delay: int
    score: float | None
    rank: int


@dataclass(frozen=True, slots=True)
class JobScore:
    """A job that could start in a step and its score, by the policy that decided or, without scores, its value."""

    job_id: str
    score: float


@dataclass(frozen=True, slots=True)
class StepDecision:
    """The decision of a step, recorded before anything is sent.

    capacity: cores that were believed, None where nothing is known. measured: whether they were read in this step, else
    they are held from an earlier one. margin: cores kept free. free: cores that starts could take. running: cores of
    jobs before the starts. best: jobs that could start, by score. waiting, future: how many could start, and not yet.
    expired: jobs whose window ended. skipped: steps before this one in which nothing was decided. violation: cores
    beyond the capacity. advice: nothing is started. versions: of program and model. state_hash: of the inputs.
    """

    decision_id: str
    pool: str
    at: float
    step: int
    reason: Reason
    detail: str
    capacity: int | None
    measured: bool
    source: str
    margin: int
    free: int
    running: int
    policy: str
    tried: tuple[PolicyAttempt, ...] = ()
    starts: tuple[Start, ...] = ()
    best: tuple[JobScore, ...] = ()
    waiting: int = 0
    future: int = 0
    expired: tuple[str, ...] = ()
    skipped: int = 0
    violation: int = 0
    drain_by: int | None = None
    advice: bool = False
    state_hash: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A day of two policies side by side: the earnings of each, in core-steps (revenue less delay and violation)."""

    decision_id: str
    pool: str
    at: float
    since_step: int
    until_step: int
    policy: str
    shadow: str
    total: float
    shadow_total: float
    started: int
    shadow_started: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A refused message of the submit queue, whole, and the reason."""

    decision_id: str
    pool: str
    at: float
    message_id: str
    body: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """The answer to a job. already: it was recorded before with the same content."""

    already: bool
    job: JobRecord


@dataclass(frozen=True, slots=True)
class CancellationResult:
    """The answer to a cancellation. core_steps: those that a running job has used, its revenue pro rata."""

    already: bool
    job: JobRecord
    core_steps: int = 0


def step_at(at: float, step_s: int) -> int:
    """Return the step in which a time lies."""
    return math.floor(at / step_s)


def margin_cores(settings: DeferralSettings, capacity: int) -> int:
    """Return the cores that the settings keep free of a capacity, rounded up."""
    text = settings.margin
    return math.ceil(float(text[:-1]) / 100.0 * capacity) if text.endswith("%") else int(text)
