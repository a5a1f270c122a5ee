"""What deferral brings to the agent: pools of left-over cores in which discounted jobs are started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog

from agent.deferral.records import Stage
from agent.deferral.settings import HTTP, LEARNED, POOL, ROLLING, SUBJECTS
from agent.deferral.state import DEFERRAL, KEPT, DeferralStore, read_decision
from agent.kernel.checks import advice, needed_to_act, ok, permitted
from agent.kernel.decision import (
    Capacity,
    Card,
    Explanation,
    Host,
    ModelSummary,
    Part,
    ReplayResult,
    Services,
    Status,
    Summary,
    Turn,
)
from agent.kernel.metrics import Section, counter, gauge
from agent.kernel.store import Record
from agent.kernel.turn import Severity, TurnReport
from agent.ledger import codec
from domain.decisions import Event, Reason
from domain.errors import BadInput, CloudError, LedgerError
from domain.subject import Subject

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from fastapi import APIRouter

    from agent.deferral.look import PoolService
    from agent.kernel.checks import Account, CheckResult
    from agent.kernel.metrics import Reading
    from agent.settings import Settings

log = structlog.get_logger(__name__)

NEWEST = 10
QUEUE_ACTIONS: Final = {"submit": ("sqs:DeleteMessage", "sqs:ReceiveMessage"), "ready": ("sqs:SendMessage",)}
"""What the agent does on each queue; deploy/iam/act.json allows it, and a test compares it with the calls made."""


class DeferralPart(Part):
    """The deferral pools of one agent."""

    name = DEFERRAL
    subject_word = "deferral"
    id_letters = "d"
    order = 50
    kept = KEPT
    configured_in = SUBJECTS.name
    model_suffixes = (".onnx",)
    asks = ("jobs", "pools/*/jobs", "pools/*/jobs/*/cancel", "pools/*/capacity")
    rehearsal = "agent.rehearsal.deferrals:SECTION"
    sections = (
        Section(
            "Deferral",
            (
                gauge("deferral_capacity_cores", "Left-over cores; absent where none are known.", "pool"),
                gauge("deferral_margin_cores", "Cores of them that are kept free.", "pool"),
                gauge("deferral_running_cores", "Cores of jobs that run.", "pool"),
                gauge(
                    "deferral_utilisation_ratio",
                    "Running cores over the left-over cores, at most 1.",
                    "pool",
                    unit="ratio",
                ),
                gauge("deferral_jobs", "Jobs that are remembered.", "pool", "stage"),
                gauge("deferral_at_risk_jobs", "Waiting jobs without room in the rest of their window.", "pool"),
                gauge("deferral_capacity_missing", "1 while nothing starts, since no capacity is known.", "pool"),
                gauge(
                    "deferral_violation_budget_used_ratio",
                    "Core-steps beyond the capacity in 24 hours, over the budget.",
                    "pool",
                ),
                gauge(
                    "deferral_forecast_coverage_ratio",
                    "Steps of 7 days that lay on the right side of a forecast quantile; nominal 0.9.",
                    "pool",
                    "quantile",
                ),
                gauge(
                    "deferral_forecast_cores",
                    "Left-over cores forecast of the next step: mean, and quantiles 0.1 and 0.9.",
                    "pool",
                    "quantile",
                ),
                gauge("deferral_fallback_ratio", "Steps of a day that another policy decided.", "pool"),
                gauge("deferral_decision_seconds", "Duration of the newest decision's policies.", "pool"),
                counter("deferral_submitted_jobs", "Jobs that were submitted.", "pool"),
                counter("deferral_refused_messages", "Messages that are not valid jobs.", "pool"),
                counter("deferral_unlikely_jobs", "Jobs larger than any capacity of 28 days.", "pool"),
                counter(
                    "deferral_started_jobs",
                    "Jobs that started; cores: the power of two at or above them; a delay of 6 includes longer ones.",
                    "pool",
                    "cores",
                    "delay",
                ),
                counter(
                    "deferral_started_core_steps", "Cores times steps of starts, those never sent included.", "pool"
                ),
                counter("deferral_expired_jobs", "Jobs that were not started in their window.", "pool"),
                counter("deferral_expired_core_steps", "Cores times steps of those.", "pool"),
                counter("deferral_cancelled_jobs", "Jobs that were taken back.", "pool"),
                counter("deferral_cancelled_core_steps", "Core-steps that these had used.", "pool"),
                counter("deferral_violation_steps", "Steps in which jobs ran beyond the capacity.", "pool"),
                counter("deferral_violation_core_steps", "Cores beyond the capacity, summed over steps.", "pool"),
                counter("deferral_duplicate_messages", "Messages with a job that was recorded before.", "pool"),
                counter("deferral_repeated_starts", "Starts that may have been sent twice.", "pool"),
                counter("deferral_unsent_starts", "Starts given up since the queue did not take them in time.", "pool"),
                counter("deferral_fallback_decisions", "Steps that another policy than the first decided.", "pool"),
                counter("deferral_skipped_steps", "Steps in which nothing was decided.", "pool"),
            ),
        ),
    )
    alarms = MappingProxyType(
        {
            Reason.CAPACITY_MISSING: Severity.CRITICAL,
            Reason.FORECAST_UNCOVERED: Severity.WARNING,
            Reason.VIOLATION_BUDGET_USED: Severity.WARNING,
            Reason.POLICY_FELL_BACK: Severity.WARNING,
            Reason.JOBS_AT_RISK: Severity.WARNING,
            Reason.JOB_REFUSED: Severity.WARNING,
            Reason.START_REPEATED: Severity.WARNING,
        }
    )

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.store = DeferralStore(host.ledger)

    @cached_property
    def pools(self) -> Services[PoolService]:
        """The pools that the settings describe; where there are none, nothing of them is loaded."""
        if self.host.settings is None or not self.configured:
            return Services()
        from agent.deferral.look import PoolService

        agent = self.host.settings
        return Services({name: PoolService(name, own, self.host, agent) for name, own in SUBJECTS.of(agent).items()})

    def capacity(self, subject: str) -> Capacity | None:
        """Return the cores that starts could take, those of jobs that could start, and those of jobs that run."""
        if subject not in self.configured:
            return None
        from agent.deferral.pool import reserved_cores
        from agent.deferral.records import step_at

        pool = self.pools[subject]
        view = pool.view()
        state = pool.current()
        step = view.step or 0
        held = reserved_cores(state, step_at(view.at, pool.settings.step_s), advised=False)
        pending = sum(
            job.cores for job in state.jobs.values() if job.stage == "waiting" and job.earliest <= step <= job.latest
        )
        return Capacity(None if view.capacity is None else float(view.free), float(pending), float(held))

    # In the daemon

    def start(self, stack: ExitStack) -> None:
        """Warn of a policy that cannot run: another would decide every step without a word."""
        for name, service in self.pools.items():
            if problem := service.ladder_problem():
                log.warning("policy_cannot_run", pool=name, detail=problem)

    def turn(self, turn: Turn) -> TurnReport:
        """Turn every pool after the fleets; one pool's trouble stops no other."""

        def turned(name: str, epoch: int) -> tuple[Event, ...]:
            self.pools[name].look()
            return self.pools[name].turns.turn(turn.now, epoch)

        return self.turn_led(turn, turned)

    def couples(self) -> Iterator[tuple[Subject, Subject]]:
        """Yield each pool with the oversold pool whose cores it takes."""
        settings = self.host.settings
        for name, pool in SUBJECTS.of(settings).items() if settings is not None else ():
            source, _, named = pool.capacity.partition(":")
            if source == POOL:
                yield Subject(self.name, name), Subject("oversubscription", named)

    def events(self, now: float) -> tuple[Event, ...]:
        """Return what happened in the pools since the last call."""
        return tuple(event for service in self.pools.values() for event in service.taken_alarms())

    def problems(self) -> Mapping[str, str]:
        """Return what keeps a pool from its capacity, its queues or its model."""
        told = {f"deferral {name}": service.problem() for name, service in self.pools.items()}
        try:
            left = self._left_behind
        except LedgerError:
            # The ledger's own trouble is said elsewhere; it is asked again.
            return told
        for name, windows in left.items():
            waiting = sum(self.host.clock.now() < end for end in windows)
            detail = (
                f"{waiting} jobs wait in the ledger for a pool that the settings do not have: "
                f"put TRIMTAB_DEFERRALS__{name}__... back, or submit them to another pool"
            )
            told[f"deferral {name}"] = detail if waiting else ""
        return told

    @cached_property
    def _left_behind(self) -> Mapping[str, list[float]]:
        """Ends of the windows of jobs that wait in pools without settings, which do not change while this runs."""
        if self.host.settings is None:
            return {}
        found = {}
        for name in self.store.pools():
            if name not in self.configured:
                state = self.store.read(name)
                found[name] = [
                    float((job.latest + 1) * state.head.step_s)
                    for job in state.jobs.values()
                    if job.stage in (Stage.WAITING, Stage.STARTING)
                ]
        return found

    def reload(self) -> None:
        """Read the models again, also those that were given up."""
        for service in self.pools.values():
            service.learned.look(anew=True)

    # For people and programs

    def readings(self) -> Iterator[Reading]:
        """Yield every pool's figures and counts."""
        for name, service in self.pools.items():
            yield from _readings(name, service)

    def status(self, subject: str, now: float) -> Status:
        """Return a pool's capacity, its jobs, how its policies fare, and its newest decisions."""
        if subject not in self.configured:
            return super().status(subject, now)
        from agent.deferral.view import pool_lines

        view = self.pools[subject].view()
        newest = self.store.newest(subject, NEWEST)
        lines = pool_lines(view, [f"{made.decision_id}  {made.detail}" for made in newest])
        data = {**codec.plain(view), "newest": [codec.plain(made) for made in newest]}
        return Status(subject, (*lines, *(f"  {line}" for line in self.held(subject, now))), data)

    def card(self, subject: str, now: float) -> Card | None:
        """Return a pool's card, None for one that the settings do not describe."""
        if subject not in self.configured:
            return None
        from agent.deferral.view import pool_card

        service = self.pools[subject]
        paused = any(pause.active(now) for pause in self.controls(subject).pauses)
        return pool_card(service.view(), service.last_step(), paused=paused)

    def router(self) -> APIRouter:
        """Return the routes of deferral."""
        from agent.deferral.api import create_router

        return create_router(self)

    def summary(self, record: Record) -> Summary:
        """Return a decision in one line."""
        made = read_decision(record)
        return Summary(made.detail, made.reason.value)

    def explain(self, record: Record) -> Explanation:
        """Return a step's capacity, the policies that were asked, the starts with their scores, and who waits."""
        from agent.deferral.records import Comparison, RefusedMessage
        from agent.deferral.view import comparison_lines, refusal_lines, step_lines

        made = read_decision(record)
        if isinstance(made, Comparison):
            lines = comparison_lines(made)
        elif isinstance(made, RefusedMessage):
            lines = refusal_lines(made)
        else:
            lines = step_lines(made)
        return Explanation(tuple(lines), codec.plain(made))

    def replay(self, subject: str, since: float | None, until: float | None) -> Iterator[ReplayResult]:
        """Decide recorded steps with since <= at < until again, each by the policy that decided it.

        A policy that was passed over, since it was late, is not asked again.
        """
        from agent.deferral.deciding import replay_step

        service = self.pools.get(subject)
        if service is not None:
            service.learned.look()
        for record in self.store.steps(subject, since, until):
            if record.inputs:
                yield replay_step(record, None if service is None else service.learned)

    @classmethod
    def model(cls, path: Path) -> ModelSummary:
        """Return the model in a file, verified as before it is used; ModelRefused says why it would be refused."""
        from agent.deferral.model import load_score_model

        card = load_score_model(path).card
        plain = {
            name: getattr(card, name) for name in ("kind", "version", "tokens_version", "cref", "scenario", "decoding")
        }
        return ModelSummary(
            plain, does=f"scores jobs, trained on {card.scenario}, decoded by {card.decoding}", limits=cls.name
        )

    @classmethod
    def preflight(cls, settings: Settings, account: Account) -> Iterator[CheckResult]:
        """Yield whether each pool's capacity, policies and queues can be used."""
        from agent.deferral.rolling import check_available

        for name, pool in SUBJECTS.of(settings).items():
            subject, prefix = f"deferral {name}", f"TRIMTAB_DEFERRALS__{name}__"
            if pool.capacity == HTTP:
                yield ok(subject, f"its capacity is posted to /api/v1/deferral/pools/{name}/capacity, once a step")
            if pool.policy in (LEARNED, ROLLING) or pool.shadow in (LEARNED, ROLLING):
                try:
                    check_available()
                    yield ok(subject, "rolling plans can be solved")
                except BadInput as error:
                    yield advice(subject, "rolling plans cannot be solved, knapsack decides", error.remedy)
            if pool.submit_queue_url is not None and pool.ready_queue_url is None:
                yield advice(subject, "starts are sent to no queue", f"set {prefix}READY_QUEUE_URL")
            for word, url in (("submit", pool.submit_queue_url), ("ready", pool.ready_queue_url)):
                if url is None:
                    continue
                try:
                    about = account.session.read("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
                except CloudError as error:
                    remedy = f"correct {prefix}{word.upper()}_QUEUE_URL, or allow sqs:GetQueueAttributes"
                    yield needed_to_act(settings.mode, subject, f"the {word} queue: {error}", remedy)
                else:
                    yield permitted(
                        settings.mode,
                        account,
                        f"{subject}, {word} queue",
                        QUEUE_ACTIONS[word],
                        [about["Attributes"]["QueueArn"]],
                        f"IAM allows {' and '.join(QUEUE_ACTIONS[word])}",
                    )
                if word == "ready" and not url.endswith(".fifo"):
                    detail = "the ready queue is not a FIFO queue: a repeated start arrives twice"
                    yield advice(subject, detail, "use a FIFO queue, or let workers ignore a job id they have seen")


def _readings(name: str, service: PoolService) -> Iterator[Reading]:
    view = service.view()
    totals = view.totals
    if view.capacity is not None:
        yield "deferral_capacity_cores", (name,), view.capacity
        share = min(1.0, view.running / view.capacity) if view.capacity else float(view.running > 0)
        yield "deferral_utilisation_ratio", (name,), share
    yield "deferral_margin_cores", (name,), view.margin
    yield "deferral_running_cores", (name,), view.running
    for stage, number in view.jobs.items():
        yield "deferral_jobs", (name, stage), number
    yield "deferral_at_risk_jobs", (name,), len(view.at_risk)
    yield "deferral_capacity_missing", (name,), view.capacity is None
    yield "deferral_violation_budget_used_ratio", (name,), view.budget_used
    for quantile, share in view.coverage.items():
        yield "deferral_forecast_coverage_ratio", (name, quantile), share
    if (expected := view.expected) is not None:
        for level, amount in (("mean", expected.cores), ("0.1", expected.low), ("0.9", expected.high)):
            if amount is not None:
                yield "deferral_forecast_cores", (name, level), amount
    yield "deferral_fallback_ratio", (name,), view.fallback_share
    yield "deferral_decision_seconds", (name,), view.decision_ms / 1000.0
    yield "deferral_submitted_jobs_total", (name,), totals.submitted
    yield "deferral_refused_messages_total", (name,), totals.refused
    yield "deferral_unlikely_jobs_total", (name,), totals.unlikely
    for key, number in totals.delays.items():
        cores, delay = key.split("/")
        yield "deferral_started_jobs_total", (name, cores, delay), number
    # A start that was given back has been counted: what a counter has said stays.
    yield "deferral_started_core_steps_total", (name,), totals.started_core_steps + totals.unsent_core_steps
    yield "deferral_expired_jobs_total", (name,), totals.expired
    yield "deferral_expired_core_steps_total", (name,), totals.expired_core_steps
    yield "deferral_cancelled_jobs_total", (name,), totals.cancelled
    yield "deferral_cancelled_core_steps_total", (name,), totals.cancelled_core_steps
    yield "deferral_violation_steps_total", (name,), totals.violation_steps
    yield "deferral_violation_core_steps_total", (name,), totals.violation_core_steps
    yield "deferral_duplicate_messages_total", (name,), totals.duplicates
    yield "deferral_repeated_starts_total", (name,), totals.repeated_starts
    yield "deferral_unsent_starts_total", (name,), totals.unsent_starts
    yield "deferral_fallback_decisions_total", (name,), totals.fallbacks
    yield "deferral_skipped_steps_total", (name,), totals.skipped_steps
