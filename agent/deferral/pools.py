"""The deferral pools of one agent, from its settings, each with its ladder of policies, its queues and its turns."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from agent.deferral.capacity import ExpectedCores, Outlook, believed, margin_in_force, read_capacity
from agent.deferral.explain import JobExplained, explain_job, next_step
from agent.deferral.ladder import Ladder, LearnedRung, Rung, ladder_of
from agent.deferral.pool import DeferralPool, reserved_cores
from agent.deferral.queue import ReadyQueue, SubmitQueue
from agent.deferral.records import Drain, Stage, StepDecision, Totals, step_at
from agent.deferral.settings import LEARNED, DeferralSettings, PoolMode
from agent.deferral.shadow import Shadow
from agent.deferral.state import DEFERRAL, PoolState
from agent.deferral.turn import PoolTurns, Watch
from agent.kernel.guards import held_by_pause
from agent.kernel.part import Host
from agent.kernel.text import time_text
from agent.models.directory import ModelsDirectory
from agent.settings import Settings
from domain.decisions import Direction


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool now. step: the newest that was decided, None before the first; next_at: when the next one is.

    capacity: cores that the pool goes by, None where it knows none; margin: of them kept free; running: cores of jobs;
    free: what starts could take. jobs: by stage. coverage: of the forecast, by quantile. at_risk: jobs that may not
    start in their window. budget_used: share of the violation budget. problem: what a person should look into.
    expected: what is forecast of the step after `step`.
    """

    pool: str
    mode: PoolMode
    at: float
    step: int | None
    next_at: float
    capacity: int | None
    measured: bool
    source: str
    margin: int
    running: int
    free: int
    policy: str
    shadow: str
    jobs: Mapping[str, int]
    totals: Totals
    budget_used: float
    coverage: Mapping[str, float]
    fallback_share: float
    at_risk: tuple[str, ...]
    drain: Drain | None
    decision_ms: float
    last: str
    problem: str
    expected: ExpectedCores | None


@dataclass(frozen=True, slots=True)
class CapacityForecast:
    """What is forecast of a pool's capacity, for each step from the next one on.

    by_calendar: by hour and weekday; before two days are known, every step is forecast to be as the newest one.
    """

    pool: str
    at: float
    by_calendar: bool
    steps: tuple[ExpectedCores, ...]


class PoolService:
    """One pool with everything around it; any thread may ask, `turns` are the loop's."""

    def __init__(self, name: str, settings: DeferralSettings, host: Host, agent: Settings) -> None:
        self.name, self.settings, self._host = name, settings, host
        self.pool = DeferralPool(name, settings, host.ledger, host.clock, agent.mode)
        self.learned = LearnedRung(name, settings, ModelsDirectory(agent.models_directory, agent.promotion_key))
        self._ladder = self.ladder(settings.policy)
        shadow = None
        if settings.shadow is not None and settings.shadow != settings.policy:
            beside = self.ladder(settings.shadow)
            shadow = Shadow(name, settings.step_s, settings.policy, settings.shadow, lambda: beside)
        session, clock = host.session, host.clock
        submit = settings.submit_queue_url
        self.turns = PoolTurns(
            self.pool,
            lambda: self._ladder,
            shadow,
            host.capacity,
            SubmitQueue(session, submit, clock) if session is not None and submit is not None else None,
            ReadyQueue(session, name, settings) if session is not None and settings.ready_queue_url else None,
            Outlook(settings.step_s),
            self._versions,
        )
        self._asked = Outlook(settings.step_s)
        self._asking = threading.Lock()
        # Of its own: whoever looks at the pool, as admission does, waits for no explanation.
        self._looked = Outlook(settings.step_s)
        self._looking = threading.Lock()
        self._watched: tuple[PoolState, Watch] | None = None

    def ladder(self, first: str) -> Ladder:
        """Return a ladder of the pool's policies that begins with one of them."""
        rungs: dict[str, Rung] = {LEARNED: self.learned}
        return ladder_of(self.settings, first, rungs, {})

    def _versions(self) -> Mapping[str, str]:
        from importlib.metadata import version

        found = {"trimtab": version("trimtab")}
        return {**found, "model": self.learned.digest} if self.learned.digest else found

    def look(self) -> None:
        """Read the model again, where the pool has one."""
        if LEARNED in (self.settings.policy, self.settings.shadow):
            self.learned.look()

    def explain(self, job_id: str) -> JobExplained:
        """Return why a job is where it is; UnknownName."""
        missing = self.watch().missing
        with self._asking:
            return explain_job(self.pool, self._asked, job_id, self.paused(), missing)

    def watch(self) -> Watch:
        """Return what is to be looked at, from the ledger: this agent may not be the one that leads."""
        with self._looking:
            state = self.pool.current()
            if self._watched is None or self._watched[0] is not state:
                self._watched = state, self.turns.watched(state, self._host.clock.now(), self._looked)
            return self._watched[1]

    def forecast(self, steps: int) -> CapacityForecast:
        """Return what is forecast of the steps after the newest that was decided."""
        with self._asking:
            state, now = self.pool.current(), self._host.clock.now()
            step = state.head.step
            known = step_at(now, self.settings.step_s) if step is None else step + 1
            self._asked.follow(state.history.rows, known)
            made = self._asked.expected(steps) if state.history.rows else []
            return CapacityForecast(self.name, now, self._asked.forecast is not None, tuple(made))

    def paused(self) -> str:
        """Return why operators let nothing start now, "" where they do."""
        held = held_by_pause(self._host.ledger.controls(DEFERRAL, self.name), (Direction.OUT,), self._host.clock.now())
        return "" if held is None else held.detail

    def last_step(self) -> StepDecision | None:
        """Return the newest decision of a step."""
        newest = self.pool.store.newest(self.name, 1, "step")
        return newest[0] if newest and isinstance(newest[0], StepDecision) else None

    def problem(self) -> str:
        """Return what a person should look into."""
        learned = self.learned.problem if LEARNED in (self.settings.policy, self.settings.shadow) else ""
        return "; ".join(filter(None, (self.turns.problem, self.watch().missing, learned, self.ladder_problem())))

    def ladder_problem(self) -> str:
        """Return why the pool's policy, or its shadow, cannot run at all, "" where both can."""
        shadow = None if self.turns.shadow is None else self.turns.shadow.problem
        return "; ".join(filter(None, (self._ladder.problem, shadow)))

    def view(self) -> PoolView:
        """Return the pool now."""
        state, now, settings = self.pool.current(), self._host.clock.now(), self.settings
        step = step_at(now, settings.step_s)
        reading = read_capacity(settings, state, self._host.capacity, now, step)
        cores = believed(reading, state, step, self.turns.outlook.spread)
        margin, used = margin_in_force(settings, state.history.rows, step, cores.cores or 0)
        running = reserved_cores(state, step)
        watch, last = self.watch(), self.last_step()
        counts = {stage.value: 0 for stage in Stage}
        for job in state.jobs.values():
            counts[job.stage.value] += 1
        coming, expected = state.history, None
        if coming.next_step is not None and coming.next_mean is not None:
            expected = ExpectedCores(coming.next_step, coming.next_mean, coming.next_low, coming.next_high)
        return PoolView(
            self.name,
            PoolMode.OBSERVE if self.pool.advises else PoolMode.ENFORCE,
            now,
            state.head.step,
            float(next_step(state, now, settings.step_s) * settings.step_s),
            cores.cores,
            cores.measured,
            settings.capacity,
            margin,
            running,
            max(0, (cores.cores or 0) - margin - running),
            settings.policy,
            settings.shadow or "",
            counts,
            state.head.totals,
            used,
            watch.coverage,
            watch.fallback_share,
            watch.at_risk,
            state.head.drain,
            sum(one.took_ms for one in last.tried) if last is not None else 0.0,
            f"{last.decision_id} {time_text(last.at)}: {last.detail}" if last is not None else "",
            self.problem(),
            expected,
        )
