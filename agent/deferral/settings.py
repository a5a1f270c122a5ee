"""The settings of deferral pools: where their capacity is read, how they decide, and the queues of their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from agent.settings.kinds import Section, Url, ValueHint
from agent.settings.subjects import Conflict, Subjects, refers, refers_to_fleet
from domain.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    from agent.settings import Settings

HTTP: Final = "http"
FLEET: Final = "fleet"
POOL: Final = "pool"
LEARNED: Final = "learned"
ROLLING: Final = "rolling"
KNAPSACK: Final = "knapsack"
FIFO: Final = "fifo"
LADDER: Final = (LEARNED, ROLLING, KNAPSACK, FIFO)
"""The policies from the first that is tried to the last; one that has no answer is followed by the next."""

_KEY: Final = r"[a-z][a-z0-9_-]{0,62}"


class PoolMode(StrEnum):
    """observe: decide and record, start nothing. enforce: start jobs."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


CapacityText = Annotated[
    str,
    Field(max_length=1000, pattern=rf"^({HTTP}|{POOL}:{_KEY}|{FLEET}:{_KEY}(,{_KEY})*)$"),
    ValueHint("http, fleet:NAME or fleet:NAME,NAME of fleets that are managed, or pool:NAME of an oversubscribed pool"),
]
MarginText = Annotated[
    str,
    Field(pattern=r"^([0-9]{1,7}|[0-9]{1,2}(\.[0-9]{1,3})?%)$"),
    ValueHint("whole cores such as 4, or a share of the capacity such as 10%"),
]
PolicyText = Annotated[str, Field(pattern=rf"^({'|'.join(LADDER)})$"), ValueHint(f"one of {', '.join(LADDER)}")]


class DeferralSettings(Section, title="A deferral pool"):
    """One pool of left-over cores in which deferred jobs are started. `<pool>` is its key."""

    mode: PoolMode = Field(
        PoolMode.ENFORCE,
        description="`observe` decides and records the starts it would make, receives no message and sends "
        "none; so does "
        "`enforce` while the agent itself observes.",
    )
    capacity: CapacityText = Field(
        HTTP,
        description="Source of the left-over cores. `fleet:web,batch`: cores of warm "
        "VMs minus busy cores. `pool:NAME`: unreserved cores of an oversubscribed pool. `http`: cores posted to "
        "`.../capacity`.",
        examples=["fleet:web"],
    )
    step_s: int = Field(
        int(HOUR_S),
        ge=60,
        le=int(DAY_S),
        description="Length of a step. Once in each, jobs are started; durations count in steps.",
    )
    margin: MarginText = Field("0", description="Cores that are kept free for a fall of the capacity.", examples=["5%"])
    violation_budget: float = Field(
        24.0,
        ge=0,
        le=1e9,
        description="Core-steps that jobs may run beyond the capacity in 24 hours. As it is used, the margin widens by "
        "as large a share of the largest excess of that time.",
    )
    policy: PolicyText = Field(
        ROLLING,
        description="The policy that is asked first; the ladder below it is rolling, knapsack, fifo. Set `learned` "
        "only for a model that was above `rolling` on held-out seeds.",
    )
    shadow: PolicyText | None = Field(
        KNAPSACK,
        description="Shadow policy, which starts nothing; compared once a day. Unused if it is the policy itself.",
    )
    model_pin: Annotated[str, Field(pattern=r"^([0-9a-f]{8,64})?$"), ValueHint("the beginning of a model's digest")] = (
        Field("", description="Digest of the only model that `learned` may take, or its beginning. Not set: any.")
    )
    learned_within_ms: float = Field(50.0, ge=1, le=10_000, description="The model must answer within that time.")
    rolling_within_ms: float = Field(
        200.0,
        ge=10,
        le=10_000,
        description="Processor time of a rolling plan; it is awaited ten times as long, up to 5 s.",
    )
    submit_queue_url: Url | None = Field(
        None,
        description="SQS queue from which jobs are taken. A message is deleted once its job is recorded.",
        examples=["https://sqs.eu-west-1.amazonaws.com/123456789012/deferred-jobs"],
    )
    ready_queue_url: Url | None = Field(
        None,
        description="SQS queue to which a job is sent when it starts. Not set: its workers read the starts over HTTP.",
        examples=["https://sqs.eu-west-1.amazonaws.com/123456789012/ready-jobs.fifo"],
    )
    clamp_late: bool = Field(
        False, description="Accept a job whose earliest start has passed; its delay counts from there."
    )
    keep_days: float = Field(
        7.0, ge=0.1, le=365, description="A job that ended is remembered for so long, and its id refused to another."
    )


_OWN_QUEUES: Final = {
    "submit_queue_url": "give each pool a separate queue: each message reaches one pool at random",
    "ready_queue_url": "give each pool a separate queue: a FIFO queue drops a job whose id repeats in another pool",
}


def _conflicts(name: str, pool: DeferralSettings, settings: Settings) -> Iterator[Conflict]:
    path = ("deferrals", name)
    if int(DAY_S) % pool.step_s:
        yield Conflict((*path, "step_s"), (), "give a length of which a day has a whole number, such as 3600 or 900")
    if pool.submit_queue_url is not None and pool.submit_queue_url == pool.ready_queue_url:
        remedy = "use another queue: sent starts would be received as jobs"
        yield Conflict((*path, "ready_queue_url"), ((*path, "submit_queue_url"),), remedy)
    kind, _, named = pool.capacity.partition(":")
    if kind == FLEET:
        for fleet in named.split(","):
            yield from refers_to_fleet((*path, "capacity"), fleet, settings)
    elif kind == POOL:
        yield from refers((*path, "capacity"), named, getattr(settings, "pools", {}), "oversubscription pool")
    for other, own in SUBJECTS.of(settings).items():
        if other >= name:
            continue
        for field, remedy in _OWN_QUEUES.items():
            if getattr(pool, field) is not None and getattr(pool, field) == getattr(own, field):
                yield Conflict((*path, field), (("deferrals", other, field),), remedy)


def _on_aws(pool: DeferralSettings) -> bool:
    return pool.submit_queue_url is not None or pool.ready_queue_url is not None


SUBJECTS = Subjects(
    "deferrals", "deferral pools", DeferralSettings, {"deferrals": "<deferral>"}, conflicts=_conflicts, on_aws=_on_aws
)
