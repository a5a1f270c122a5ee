"""The dry run's section on deferral: three days of a valley that is filled with jobs, an agent that dies among them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent.deferral.decision import DeferralPart
from agent.deferral.records import Comparison, StepDecision, StepRow
from agent.rehearsal.scenario import LEDGER, ORIGIN, OWNER_KEY, aws_client, shown_path
from agent.rehearsal.sections import OnEvent, Section, SectionResult, agent_at, cloud_at
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.units import HOUR_S
from simulator.aws.client import CloudControl

POOL: Final = "valley"
HOURS: Final = 72
CORES: Final = 160
"""Of the machines, of which on-demand work leaves the rest."""
DAY_SHARE, NIGHT_SHARE = 0.85, 0.35
"""Of them that on-demand work takes at three in the afternoon, and at three at night."""
NOISE: Final = 4.0
JOBS_PER_HOUR: Final = 1.0
"""With the sizes below about six tenths of the left-over cores, so that nearly every job starts in time."""
SIZES, SIZE_SHARES = (4, 8, 12), (0.45, 0.4, 0.15)
STEPS, STEP_SHARES = (4, 6, 8), (0.4, 0.35, 0.25)
"""A job of few core-hours is worth less than its delay until the night, and no plan starts it then."""
WINDOW_H: Final = 20
"""A job may wait for so long."""
MISSING_AT, MISSING_H = 40, 2
"""Hours without a measurement of the capacity."""
DIES_AT: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralResult(SectionResult):
    """The result of the section on deferral. by_hour: mean cores of (on-demand work, jobs) for each hour of the day."""

    kind = "deferral"
    question = "why a job started when it did"

    pool: str
    jobs: int
    started: int
    core_steps: int
    expired: int
    advised: int
    sent: int
    sent_twice: int
    left: int
    utilisation: float
    violation: int
    delay_h: float
    decided_by: Mapping[str, int]
    gained: float | None
    shadow: str
    by_hour: Mapping[int, tuple[float, float]]
    happened: Mapping[str, int]

    def brief(self) -> str:
        """Return the result in a line, with its figure."""
        used = f"{self.utilisation:.0%} of left-over cores used"
        return f"{self.started} of {self.jobs} jobs started, {self.expired} expired; {used}"


class Submitter:
    """Sends jobs to the submit queue, most of them by day, and reads the ready queue as their workers do."""

    def __init__(self, client: Any, submit: str, ready: str, seed: int) -> None:
        self._client, self._submit, self._ready = client, submit, ready
        self._draws = np.random.default_rng([seed, 16])
        self.sent = 0
        self.started: Counter[str] = Counter()

    def on_demand(self, hour: int) -> float:
        """Return the cores that on-demand work takes in an hour of the day."""
        wave = 0.5 * (1.0 + np.cos(2.0 * np.pi * ((hour % 24) - 15) / 24.0))
        share = NIGHT_SHARE + (DAY_SHARE - NIGHT_SHARE) * wave
        return float(np.clip(CORES * share + NOISE * self._draws.normal(), 0.0, CORES))

    def submit(self, now: float, hour: int) -> None:
        """Send the jobs of an hour: more by day, when there is little room."""
        wave = 1.0 + 0.6 * np.cos(2.0 * np.pi * ((hour % 24) - 15) / 24.0)
        entries = []
        for _ in range(int(self._draws.poisson(JOBS_PER_HOUR * wave))):
            self.sent += 1
            job = {
                "job_id": f"job-{self.sent}",
                "cores": int(self._draws.choice(SIZES, p=SIZE_SHARES)),
                "duration_steps": int(self._draws.choice(STEPS, p=STEP_SHARES)),
                "latest_at": now + WINDOW_H * HOUR_S,
            }
            entries.append({"Id": str(self.sent), "MessageBody": json.dumps(job)})
        for start in range(0, len(entries), 10):
            self._client.send_message_batch(QueueUrl=self._submit, Entries=entries[start : start + 10])

    def work(self) -> None:
        """Take the starts from the ready queue."""
        while True:
            found = self._client.receive_message(QueueUrl=self._ready, MaxNumberOfMessages=10).get("Messages", [])
            if not found:
                return
            for message in found:
                self.started[json.loads(message["Body"])["job_id"]] += 1
                self._client.delete_message(QueueUrl=self._ready, ReceiptHandle=message["ReceiptHandle"])

    def left(self) -> int:
        """Return how many messages are still on the submit queue."""
        about = self._client.get_queue_attributes(QueueUrl=self._submit, AttributeNames=["All"])["Attributes"]
        return int(about["ApproximateNumberOfMessages"]) + int(about["ApproximateNumberOfMessagesNotVisible"])


def play_deferral(
    directory: Path,
    seed: int,
    mode: str,
    overrides: Mapping[str, str],
    on_event: OnEvent,
    *,
    hours: int = HOURS,
) -> DeferralResult:
    """Run the hours and return the result; `on_event` is called with every event of the pool.

    Halfway another agent takes over, on the same ledger. Raises RuntimeError when this process serves a simulated
    AWS, ConfigurationError for wrong settings, LedgerUnavailable when the directory is in use.
    """
    start = ORIGIN // HOUR_S * HOUR_S
    prefix = f"TRIMTAB_DEFERRALS__{POOL}__"
    happened: Counter[str] = Counter()
    demand: dict[int, list[float]] = {}
    with cloud_at(start, seed) as endpoint:
        client, control = aws_client("sqs", endpoint, OWNER_KEY), CloudControl(endpoint)
        submit = client.create_queue(QueueName="deferred-jobs")["QueueUrl"]
        ready = client.create_queue(QueueName="ready-jobs.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        given = {
            "TRIMTAB_AWS__CALLS_PER_MINUTE": "1000",
            f"{prefix}SUBMIT_QUEUE_URL": submit,
            f"{prefix}READY_QUEUE_URL": ready,
            f"{prefix}MARGIN": "3%",
            # A machine that is busy with other work may make the solver late, and the result another one.
            f"{prefix}ROLLING_WITHIN_MS": "10000",
            **{name: text for name, text in overrides.items() if name.startswith(prefix)},
        }
        submitter = Submitter(client, submit, ready, seed)
        lives = [range(min(hours, DIES_AT)), range(DIES_AT, hours)]
        for life in lives:
            with agent_at(start + life.start * HOUR_S, directory, endpoint, mode, given) as (agent, clock):
                part = agent.part(DeferralPart)
                for hour in life:
                    demand.setdefault(hour, []).append(_hour(hour, start, part, submitter, clock))
                    agent.turn()
                    submitter.work()
                    for event in part.events(clock.now()):
                        happened[event.reason.value] += 1
                        on_event(event)
                    clock.advance(HOUR_S)
                    control.advance(HOUR_S)
                if life is lives[-1]:
                    result = _result(part, submitter, hours, demand, happened, shown_path(directory / LEDGER))
    return result


def _hour(hour: int, start: float, part: DeferralPart, submitter: Submitter, clock: VirtualClock) -> float:
    """Let an hour begin: jobs are sent, and the capacity is posted; return the cores of on-demand work."""
    of_day = int((start + hour * HOUR_S) // HOUR_S) % 24
    submitter.submit(clock.now(), of_day)
    on_demand = submitter.on_demand(of_day)
    if not MISSING_AT <= hour < MISSING_AT + MISSING_H:
        part.pools[POOL].report(CORES - on_demand)
    return on_demand


def _result(
    part: DeferralPart,
    submitter: Submitter,
    hours: int,
    demand: Mapping[int, list[float]],
    happened: Counter[str],
    ledger: str,
) -> DeferralResult:
    service = part.pools[POOL]
    state = service.current()
    made = service.store.newest(POOL, 10_000)
    steps = [one for one in made if isinstance(one, StepDecision)]
    days = [one for one in made if isinstance(one, Comparison)]
    rows = state.history.rows
    room = sum(row.capacity for row in rows if row.capacity is not None)
    taken = sum(min(row.running, row.capacity) for row in rows if row.capacity is not None)
    totals = state.head.totals
    starts = [one for step in steps for one in step.starts]
    return DeferralResult(
        pool=POOL,
        hours=hours,
        jobs=submitter.sent,
        started=totals.started,
        core_steps=totals.started_core_steps,
        expired=totals.expired,
        advised=totals.started if service.advises else 0,
        sent=sum(submitter.started.values()),
        sent_twice=sum(number > 1 for number in submitter.started.values()),
        left=submitter.left(),
        utilisation=taken / room if room else 0.0,
        violation=totals.violation_core_steps,
        delay_h=sum(one.delay for one in starts) / len(starts) if starts else 0.0,
        decided_by=dict(Counter(step.policy for step in steps if step.policy)),
        gained=(days[0].shadow_total - days[0].total) if days else None,
        shadow=days[0].shadow if days else "",
        by_hour=_by_hour(rows, demand),
        happened=dict(happened),
        examples={one.reason.value: one.decision_id for one in reversed(made)},
        ledger=ledger,
    )


def _by_hour(rows: tuple[StepRow, ...], demand: Mapping[int, list[float]]) -> dict[int, tuple[float, float]]:
    first = rows[0].step if rows else 0
    found: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        taken = demand.get(row.step - first, [0.0])
        found.setdefault(row.step % 24, []).append((taken[0], float(row.running)))
    return {
        hour: (sum(one for one, _ in pairs) / len(pairs), sum(two for _, two in pairs) / len(pairs))
        for hour, pairs in sorted(found.items())
    }


SECTION = Section(
    play_deferral,
    shown=frozenset(
        {
            Reason.CAPACITY_MISSING,
            Reason.JOB_REFUSED,
            Reason.JOB_EXPIRED,
            Reason.START_REPEATED,
            Reason.POLICIES_COMPARED,
            Reason.VIOLATION_BUDGET_USED,
            Reason.POLICY_FELL_BACK,
        }
    ),
)
