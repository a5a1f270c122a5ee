"""One policy on one case, step by step: the measures of §11 and what only the steps tell.

Beyond `simulator.autoscaling.view.Measures` these are the idle shutdown (§12.6), the recovery after a burst
(§12.1) and, where a plot needs it, the history of the fleet and the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from domain.units import MINUTE_S
from simulator.autoscaling.view import Measures, StepInfo, StepResult
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy, run_policy

Ints = NDArray[np.int64]

IDLE_STRETCH_S = 1800.0
"""A stretch without jobs counts for the idle shutdown when it lasts at least so long."""


@dataclass(frozen=True, slots=True)
class Idle:
    """How long the fleet stayed above its minimum after the jobs had ended.

    stretches: how often nothing waited or ran for half an hour or longer. worst_min: minutes from the end of the step
    in which the last job ended until only the minimum was left, the longest of them; None without a stretch. released:
    whether the minimum was reached in every stretch; otherwise worst_min is that of the next job at least.
    """

    stretches: int = 0
    worst_min: float | None = None
    released: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one episode. truncated: the step limit came before the last job's end."""

    measures: Measures
    idle: Idle
    truncated: bool


@dataclass(slots=True)
class IdleWatch:
    """Follows an episode and measures its idle stretches."""

    minimum: tuple[int, ...]
    step_s: float
    _submitted: int = 0
    _idle_steps: int = 0
    _released_after: int | None = None
    _found: list[tuple[float, bool]] = field(default_factory=list)

    def see(self, info: StepInfo) -> None:
        """Take note of a step's end."""
        # A short job may come and go within a step: only the count of the submitted tells.
        worked = info.waiting > 0 or info.executing > 0 or info.submitted > self._submitted
        self._submitted = info.submitted
        if worked:
            self._close()
        if info.waiting > 0 or info.executing > 0 or info.finished == 0:
            return
        others = sum(info.booting) + sum(info.draining)
        if self._released_after is None and others == 0 and info.ready == self.minimum:
            self._released_after = self._idle_steps
        self._idle_steps += 1

    def _close(self) -> None:
        if self._idle_steps * self.step_s >= IDLE_STRETCH_S:
            released = self._released_after is not None
            steps = self._released_after if self._released_after is not None else self._idle_steps
            self._found.append((steps * self.step_s / MINUTE_S, released))
        self._idle_steps, self._released_after = 0, None

    def result(self) -> Idle:
        """Return the idle stretches that a later job has ended."""
        if not self._found:
            return Idle()
        return Idle(len(self._found), max(minutes for minutes, _ in self._found), all(r for _, r in self._found))


@dataclass(slots=True)
class History:
    """The steps of an episode in columns, for plots; index 0 is the end of the first step."""

    infos: list[StepInfo] = field(default_factory=list)

    @property
    def minutes(self) -> NDArray[np.float64]:
        """Minutes since the start."""
        return np.array([info.now_s for info in self.infos]) / MINUTE_S

    @property
    def ready(self) -> Ints:
        """Ready VMs, shape (steps, types)."""
        return np.array([info.ready for info in self.infos], dtype=np.int64)

    @property
    def waiting(self) -> Ints:
        """Waiting jobs."""
        return np.array([info.waiting for info in self.infos], dtype=np.int64)

    @property
    def cores(self) -> Ints:
        """Cores of ready VMs."""
        return np.array([info.cores_ready for info in self.infos], dtype=np.int64)

    @property
    def busy(self) -> Ints:
        """Cores that run a job."""
        return np.array([info.cores_busy for info in self.infos], dtype=np.int64)


def run_episode(policy: SimulatedPolicy, case: Case, history: History | None = None) -> Run:
    """Run one policy on one case from its start, and add its steps to a history; BadInput when it does not fit."""
    idle = IdleWatch(case.config.minimum, case.config.step_s)

    def seen(_: AnySimulation, result: StepResult) -> None:
        idle.see(result.info)
        if history is not None:
            history.infos.append(result.info)

    measures = run_policy(policy, case.config, case.trace, case.seed, seen)
    return Run(measures, idle.result(), truncated=measures.jobs_finished < case.trace.jobs)
