"""Pools, jobs and ledgers that the tests of deferral share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.deferral.capacity import Outlook
from agent.deferral.ladder import Ladder, Rung, ladder_of
from agent.deferral.pool import DeferralPool
from agent.deferral.queue import ReadyQueue, SubmitQueue
from agent.deferral.records import JobOrder, StepDecision
from agent.deferral.settings import DeferralSettings
from agent.deferral.shadow import Shadow
from agent.deferral.turn import PoolTurns
from agent.kernel.decision import Capacity
from agent.ledger import Ledger
from collectors.aws import AwsSession
from domain.clock import Clock, VirtualClock
from domain.decisions import Mode
from domain.units import HOUR_S

START = 1_790_002_800.0
"""2026-09-21 15:00:00 UTC, a Monday: the beginning of a step."""
STEP = round(START / HOUR_S)
POOL = "night"


def made(ledger: Ledger, clock: Clock, *, mode: Mode = Mode.ACT, name: str = POOL, **settings: Any) -> DeferralPool:
    """A pool on a ledger; the knapsack decides unless a policy is given, and nothing beside it."""
    given = DeferralSettings(**{"policy": "knapsack", "shadow": None, **settings})
    return DeferralPool(name, given, ledger, clock, mode)


def turning(
    pool: DeferralPool,
    *,
    session: AwsSession | None = None,
    rungs: dict[str, Rung] | None = None,
    capacity_of: Callable[[str, str], Capacity | None] = lambda decision, subject: None,
    shadow: str | None = None,
    versions: Callable[[], Mapping[str, str]] = dict,
) -> PoolTurns:
    """The turns of a pool."""
    settings = pool.settings

    def ladder(first: str) -> Ladder:
        return ladder_of(settings, first, rungs or {}, {})

    main, beside = ladder(settings.policy), ladder(shadow or "fifo")
    submit, ready = settings.submit_queue_url, settings.ready_queue_url
    return PoolTurns(
        pool,
        main,
        None if shadow is None else Shadow(pool.name, settings.step_s, settings.policy, shadow, beside),
        capacity_of,
        SubmitQueue(session, submit, pool.clock) if session is not None and submit else None,
        ReadyQueue(session, pool.name, settings) if session is not None and ready else None,
        Outlook(settings.step_s),
        versions,
    )


def order(job_id: str, cores: int = 2, duration: int = 1, window: int = 5, **more: Any) -> JobOrder:
    """A job that may start in this step and so many more."""
    given: dict[str, Any] = {"latest_at": START + window * HOUR_S, **more}
    return JobOrder(job_id=job_id, cores=cores, duration_steps=duration, **given)


def decided(turns: PoolTurns, now: float, cores: float | None = None, epoch: int = 1) -> StepDecision:
    """Turn once at a time, with cores that were posted right before, and return the newest step."""
    if cores is not None:
        turns.pool.report(cores)
    turns.turn(now, epoch)
    newest = turns.pool.store.newest(turns.pool.name, 1, "step")[0]
    assert isinstance(newest, StepDecision)
    return newest


def stages(pool: DeferralPool) -> dict[str, str]:
    """The stage of every job."""
    return {job.job_id: job.stage.value for job in pool.jobs()}


def begun(made: StepDecision) -> list[str]:
    """The jobs that a step started."""
    return sorted(one.job_id for one in made.starts)


@dataclass
class Queues:
    """A pool between two queues of a simulated AWS."""

    client: Any
    session: AwsSession
    pool: DeferralPool
    turns: PoolTurns
    clock: VirtualClock

    @property
    def submit(self) -> str:
        url = self.pool.settings.submit_queue_url
        assert url is not None
        return url

    def put(self, *bodies: str) -> None:
        for body in bodies:
            self.client.send_message(QueueUrl=self.submit, MessageBody=body)

    def ready(self) -> list[dict[str, Any]]:
        """What lies on the ready queue; it is taken off."""
        url = self.pool.settings.ready_queue_url
        assert url is not None
        return taken_off(self.client, url)

    def left(self) -> int:
        about = self.client.get_queue_attributes(QueueUrl=self.submit, AttributeNames=["All"])["Attributes"]
        return int(about["ApproximateNumberOfMessages"]) + int(about["ApproximateNumberOfMessagesNotVisible"])


Make = Callable[..., Queues]


def queues_of(client: Any, name: str = "", *bodies: str, fifo: bool = True) -> tuple[str, str]:
    """The URLs of a new submit queue with messages on it, and of an empty ready queue."""
    submit = client.create_queue(QueueName=f"submit{name}")["QueueUrl"]
    about, suffix = ({"FifoQueue": "true"}, ".fifo") if fifo else ({}, "")
    ready = client.create_queue(QueueName=f"ready{name}{suffix}", Attributes=about)["QueueUrl"]
    for body in bodies:
        client.send_message(QueueUrl=submit, MessageBody=body)
    return submit, ready


def taken_off(client: Any, url: str) -> list[dict[str, Any]]:
    """What lies on a queue, which is empty then."""
    found = []
    while messages := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
        for message in messages:
            found.append(json.loads(message["Body"]))
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return found


def job(job_id: str, cores: float = 4, duration: int = 2, **more: Any) -> str:
    return json.dumps(
        {"job_id": job_id, "cores": cores, "duration_steps": duration, "latest_at": START + 9 * HOUR_S, **more}
    )
