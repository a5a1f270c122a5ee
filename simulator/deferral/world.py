"""An episode played step by step: what a policy sees, what its starts earn (deferral specification §1, §2).

It is the plain twin of the compiled engine, and the world in which learned policies act.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.deferral.choosing import Group, History, Policy, View
from domain.rules.deferral.jobs import W1, W2, Ints
from domain.units import HOURS_PER_DAY, HOURS_PER_WEEK
from simulator.deferral.scenarios import Episode


class World:
    """One episode. `view` shows the step, `step` starts jobs and moves on; `start` holds the schedule so far."""

    def __init__(self, episode: Episode, *, guarded: bool = True) -> None:
        """Begin at step 0; guarded: refuse starts that take more cores than are free, as an agent never makes them."""
        self.episode, self.guarded = episode, guarded
        self.t = 0
        self.start: Ints = np.full(episode.jobs.size, -1, dtype=np.int64)
        """[N]: the step in which each job started, -1 for none."""
        self.expired = self.expired_core_steps = 0
        """Jobs whose window closed, and their work."""
        steps = episode.steps
        order = np.argsort(episode.jobs.submitted, kind="stable")
        bounds = np.searchsorted(episode.jobs.submitted[order], np.arange(steps + 1))
        self._arrivals = [order[a:b] for a, b in pairwise(bounds.tolist())]
        self._latest, self._earliest = episode.jobs.latest, episode.jobs.earliest
        self._waiting = np.empty(0, dtype=np.int64)
        self._running = np.empty(0, dtype=np.int64)
        whole = [np.zeros(steps, dtype=np.int64) for _ in range(6)]
        mean = [np.zeros(steps) for _ in range(2)]
        self._past = History(whole[0], whole[1], whole[2], mean[0], mean[1], *whole[3:])
        self._view: View | None = None
        self._submit()

    @property
    def done(self) -> bool:
        """Return whether the last step has passed."""
        return self.t >= self.episode.steps

    def view(self) -> View:
        """Return what is known in this step; BadInput after the last."""
        if self._view is None:
            self._view = self._look()
        return self._view

    def step(self, chosen: Ints | Sequence[int]) -> float:
        """Start the jobs at these positions of `view().cur`, and move on; return the reward of the step (§1.3).

        Raises BadInput, and starts nothing, for positions that there are not, positions given twice, more cores than
        are free, and after the last step.
        """
        view = self.view()
        picked = self._checked(chosen, view)
        jobs, t = view.cur, view.step
        self.start[jobs.job[picked]] = t
        cores = int(jobs.cores[picked].sum())
        free = view.free
        violation = max(0, cores - free)
        past, waiting = self._past, jobs.size
        past.capacity[t], past.free[t], past.waiting[t] = view.capacity, free, waiting
        if waiting:
            past.mean_cores[t], past.mean_duration[t] = jobs.cores.mean(), jobs.duration.mean()
        past.cores_started[t], past.jobs_started[t], past.violation[t] = cores, picked.size, violation
        reward = float((jobs.revenue[picked] - W1 * (t - jobs.earliest[picked])).sum()) - W2 * violation
        self._move_on(view, picked)
        return reward

    def _checked(self, chosen: Ints | Sequence[int], view: View) -> Ints:
        picked: NDArray[np.int64] = np.asarray(chosen, dtype=np.int64).reshape(-1)
        if not picked.size:
            return picked
        if picked.min() < 0 or picked.max() >= view.cur.size:
            raise BadInput("chosen", picked.tolist(), f"give positions in 0..{view.cur.size - 1}")
        if np.unique(picked).size != picked.size:
            raise BadInput("chosen", picked.tolist(), "give each position once")
        cores = int(view.cur.cores[picked].sum())
        if self.guarded and cores > view.free:
            raise BadInput("chosen", picked.tolist(), f"these take {cores} cores and {max(0, view.free)} are free")
        return picked

    def _move_on(self, view: View, picked: Ints) -> None:
        self.t += 1
        self._view = None
        jobs, t = self.episode.jobs, self.t
        ends = np.concatenate([view.his.remaining, view.cur.duration[picked]])
        running = np.concatenate([view.his.job, view.cur.job[picked]])[ends > 1]
        self._running = np.sort(running)
        self._waiting = self._waiting[self.start[self._waiting] < 0]
        if not self.done:
            self._submit()
        gone = self._latest[self._waiting] < t
        if gone.any():
            lost = self._waiting[gone]
            self.expired += lost.size
            self.expired_core_steps += int((jobs.cores[lost] * jobs.duration[lost]).sum())
            self._waiting = self._waiting[~gone]

    def _submit(self) -> None:
        if self.episode.steps and self._arrivals[self.t].size:
            self._waiting = np.concatenate([self._waiting, self._arrivals[self.t]])
            self._waiting.sort()

    def _look(self) -> View:
        if self.done:
            raise BadInput("step", self.t, f"the episode has {self.episode.steps} steps: begin another")
        t, waiting = self.t, self._waiting
        ready = self._earliest[waiting] <= t
        running = self._running
        hour = (self.episode.start_h + t) % HOURS_PER_WEEK
        his = self._group(running)
        his = his._replace(remaining=his.remaining - (t - self.start[running]))
        return View(
            step=t,
            hour=hour % HOURS_PER_DAY,
            weekday=hour // HOURS_PER_DAY,
            capacity=int(self.episode.capacity[t]),
            cur=self._group(waiting[ready]),
            fut=self._group(waiting[~ready]),
            his=his,
            history=self._past.before(t),
        )

    def _group(self, numbers: Ints) -> Group:
        cores, duration, earliest, latest, submitted = (column[numbers] for column in self.episode.jobs)
        return Group(numbers, cores, duration, earliest, latest, submitted, duration)


def play(episode: Episode, policy: Policy) -> Ints:
    """Return the schedule that a policy makes of an episode, [N]: the step of each start, -1 for none."""
    world = World(episode)
    while not world.done:
        world.step(policy(world.view()))
    return world.start


class Worlds:
    """Several episodes side by side; one that ends is followed by the next of its source at once.

    sources: for each place the episodes that are played in it, one after another, without end.
    """

    def __init__(self, sources: Sequence[Iterable[Episode]]) -> None:
        """Begin the first episode of each source."""
        self._sources = [iter(source) for source in sources]
        self.worlds = [World(next(source)) for source in self._sources]

    def views(self) -> list[View]:
        """Return what is known in each."""
        return [world.view() for world in self.worlds]

    def step(self, chosen: Sequence[Ints]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Start jobs in each, [E] rewards and whether the episode ended with this step."""
        rewards = np.array([world.step(picked) for world, picked in zip(self.worlds, chosen, strict=True)])
        over = np.array([world.done for world in self.worlds], dtype=np.bool_)
        for place in np.flatnonzero(over).tolist():
            self.worlds[place] = World(next(self._sources[place]))
        return rewards, over
