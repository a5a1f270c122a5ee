"""A policy that is asked beside the one that decides, and starts nothing: the same jobs on books of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from agent.deferral.deciding import StepPlan, total_of
from agent.deferral.ladder import Ladder
from agent.deferral.records import FINAL, Comparison, JobRecord, Stage
from agent.deferral.state import PoolState
from agent.deferral.views import seen_by
from domain.decisions import Reason
from domain.rules.deferral.jobs import W2
from domain.rules.deferral.tokens import WINDOW
from domain.units import DAY_S


class Shadow:
    """The books of one pool's shadow, in memory: a process that starts anew begins a new day."""

    def __init__(self, pool: str, step_s: int, first: str, policy: str, ladder: Ladder) -> None:
        self._pool, self._step_s, self._first, self.policy, self._ladder = pool, step_s, first, policy, ladder
        self._started: dict[str, int] = {}
        self._since: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._total = self._shadow_total = 0.0
        self._count = self._shadow_count = 0
        self._decided: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()

    @property
    def problem(self) -> str:
        """Why the shadow's policy cannot run at all, "" where it can."""
        problem = self._ladder.problem
        return problem and f"shadow: {problem}"

    def follow(self, state: PoolState, decided: StepPlan) -> Comparison | None:
        """Ask the shadow about a step that was decided; return the comparison of a day that is over, not numbered."""
        made = decided.made
        if self._since is None:
            # What runs was started by the other policy; it runs in both books.
            self._since = made.step
            self._started = {
                name: job.start for name, job in state.jobs.items() if job.start is not None and job.start < made.step
            }
        if decided.seen is None or decided.believed.cores is None:
            return None
        jobs = [self._as_shadow(job, made.step) for job in state.jobs.values()]
        held = sum(job.cores for job in jobs if job.holds(made.step))
        violation = max(0, held - made.capacity) if made.measured and made.capacity is not None else 0
        seen = seen_by(
            jobs,
            state.history.rows[-WINDOW - 1 : -1],
            made.step,
            decided.seen.view.capacity,
            self._step_s,
            made.drain_by,
        )
        chosen = self._ladder.decide(seen.view, decided.path)
        revenue = delay = 0
        for position in chosen.positions.tolist():
            job = state.jobs[seen.ids[int(seen.view.cur.job[position])]]
            self._started[job.job_id] = made.step
            revenue += job.cores * job.duration
            delay += made.step - job.earliest
        self._shadow_total += total_of(revenue, delay, violation, W2)
        self._shadow_count += chosen.positions.size
        self._total += total_of(
            sum(one.cores * one.duration for one in made.starts),
            sum(one.delay for one in made.starts),
            made.violation,
            W2,
        )
        self._count += len(made.starts)
        self._decided.update(filter(None, [made.policy]))
        self._answered.update(filter(None, [chosen.policy]))
        self._started = {name: start for name, start in self._started.items() if name in state.jobs}
        if made.step - self._since < round(DAY_S / self._step_s):
            return None
        # A policy is not compared with itself under the name of one that could not decide.
        alone = len(self._decided) == 1 and self._decided.keys() == self._answered.keys()
        compared = None if alone else self._comparison(made.at, made.step)
        self._since = made.step
        self._reset()
        return compared

    def _as_shadow(self, job: JobRecord, step: int) -> JobRecord:
        start = self._started.get(job.job_id)
        if start is not None:
            ends = start + job.duration
            if job.stage is Stage.CANCELLED and job.free_from is not None:
                ends = min(ends, max(job.free_from, start + 1))
            return replace(job, stage=Stage.RUNNING, start=start, free_from=ends)
        if job.stage is Stage.CANCELLED or (job.stage in FINAL and job.latest < step):
            return replace(job, start=None, free_from=None)
        return replace(job, stage=Stage.WAITING, start=None, free_from=None)

    def _comparison(self, now: float, step: int) -> Comparison:
        assert self._since is not None, "it follows"
        apart = self._shadow_total - self._total
        words = f"{abs(apart):,.0f} core-steps {'more' if apart >= 0 else 'less'}"
        detail = (
            f"in {step - self._since} steps {_spelled(self._first, self._decided)} earned {self._total:,.0f} "
            f"core-steps with {self._count} starts; {_spelled(self.policy, self._answered)} would have earned {words} "
            f"with {self._shadow_count}"
        )
        return Comparison(
            "",
            self._pool,
            now,
            self._since,
            step,
            self._first,
            self.policy,
            self._total,
            self._shadow_total,
            self._count,
            self._shadow_count,
            Reason.POLICIES_COMPARED,
            detail,
        )


def _spelled(policy: str, answered: Counter[str]) -> str:
    """Return a policy's name, and in how many steps another answered in its place."""
    others = [f"{name} in {count} steps" for name, count in sorted(answered.items()) if name != policy]
    return f"{policy} ({', '.join(others)})" if others else policy
