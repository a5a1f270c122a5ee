"""Imitation of the offline optimum (specification §10.4), by its prices or by its starts.

What a start is worth: the linear programme of an episode that is known whole prices the cores of every step. A start
now is then worth its revenue, less its delay, less the price of the cores that it holds after this step, less what the
best later start would be worth. The network learns what that is on average, given what it can know; the cores of this
step itself are shared out by the decoding. Prices tell the worth of every job in whatever state a policy has come to,
so that the network learns in the states that it brings about itself.

The order of starts: by cross-entropy, which jobs start, of the most valuable set that fits (`prices`), or of the
optimum's own schedule in the states of that schedule (`starts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog
from torch import Tensor

from domain.errors import TrimtabError
from domain.rules.deferral.choosing import View, knapsack, packed
from domain.rules.deferral.jobs import W1, W2, Ints, Jobs
from domain.rules.deferral.tokens import WORTH
from simulator.deferral.scenarios import Episode
from simulator.deferral.world import World
from trainer.deferral.acting import Seen, see, starts_of
from trainer.deferral.networks import Answer, Inputs, Network, widened

Floats = NDArray[np.float64]
KNAPSACK_SHARE = 0.25
"""Share of the episodes of a round that the per-step knapsack plays, so that its states stay known."""
LARGEST = 0.95
"""Of the worth that is learnt: a score of 1 is never reached."""
ORDER_SHARE = 0.01
"""Weight of the order's cross-entropy beside the squared error of the worth, which is a hundred times smaller."""
EXPLORED = 0.03
"""Deviation of what is added to the network's scores where it plays a round."""


class NoPrices(TrimtabError):
    """The linear programme of an episode was not solved."""


class Programme(NamedTuple):
    """The linear programme of an episode: matrices that do not depend on its capacity."""

    cost: Floats
    rows: sparse.csr_matrix
    jobs: Jobs
    steps: int


def programme(jobs: Jobs, steps: int) -> Programme:
    """Return the linear programme of §1.2 for jobs in steps 0 to `steps` - 1, with whole starts relaxed."""
    starts = jobs.latest - jobs.earliest + 1
    job = np.repeat(np.arange(jobs.size), starts)
    late = _counting(starts)
    start = jobs.earliest[job] + late
    length = np.minimum(start + jobs.duration[job], steps) - start
    column = np.repeat(np.arange(start.size), length)
    held = sparse.csr_matrix(
        (jobs.cores[job][column].astype(np.float64), (start[column] + _counting(length), column)),
        shape=(steps, start.size),
    )
    once = sparse.csr_matrix((np.ones(start.size), (job, np.arange(start.size))), shape=(jobs.size, start.size + steps))
    rows = sparse.vstack([sparse.hstack([held, -sparse.eye(steps)]), once]).tocsr()
    cost = np.concatenate([W1 * late - jobs.revenue[job], np.full(steps, W2)])
    return Programme(cost, rows, jobs, steps)


def prices(made: Programme, capacity: NDArray[np.floating]) -> Floats:
    """Return the price of a core in each step, [T] core-steps; NoPrices when the programme is not solved."""
    bounds = np.concatenate([np.maximum(capacity, 0.0), np.ones(made.jobs.size)])
    solved = linprog(made.cost, A_ub=made.rows, b_ub=bounds, bounds=(0, None), method="highs")
    if solved.status != 0:
        raise NoPrices(f"the prices of an episode were not found: {solved.message}")
    return np.asarray(-solved.ineqlin.marginals[: made.steps], dtype=np.float64)


class Outlook(NamedTuple):
    """What prices of cores say of the jobs of an episode; [N, starts], a start at earliest + k in column k."""

    price: Floats
    """[T]"""
    net: Floats
    """What a start earns less the price of all cores that it holds; -inf outside the window."""
    later: Floats
    """The best net of the later starts, 0 where none earns anything."""

    def worths(self, jobs: Jobs) -> Floats:
        """Return what a start is worth, but for the cores of its own step, [N, starts]."""
        start = np.minimum(jobs.earliest[:, None] + np.arange(self.net.shape[1]), self.price.size - 1)
        return np.asarray(self.net + jobs.cores[:, None] * self.price[start] - self.later, dtype=np.float64)

    def lost(self, view: View, picked: Ints) -> float:
        """Return what is lost by these starts in a step, core-steps, 0 or more.

        Summed over an episode it is what the total falls short of a bound that no policy changes: a step's rewards
        without the noise of the jobs and the capacity that happened to come.
        """
        jobs = view.cur
        net, later = (column[jobs.job, view.step - jobs.earliest] for column in (self.net, self.later))
        started = np.zeros(jobs.size, dtype=np.bool_)
        started[picked] = True
        spare = view.free - int(jobs.cores[picked].sum())
        price = float(self.price[view.step])
        idle = price * spare if spare >= 0 else (price - W2) * spare
        return float((np.maximum(net, later) - np.where(started, net, later)).sum() + idle)


def outlook(jobs: Jobs, price: Floats) -> Outlook:
    """Return what prices [T] say of jobs."""
    steps, most = price.size, int((jobs.latest - jobs.earliest).max(initial=0)) + 1
    sums = np.concatenate([[0.0], np.cumsum(price)])
    late = np.arange(most)
    start = np.minimum(jobs.earliest[:, None] + late, steps - 1)
    end = np.minimum(start + jobs.duration[:, None], steps)
    net = jobs.revenue[:, None] - W1 * late - jobs.cores[:, None] * (sums[end] - sums[start])
    net = np.where(jobs.earliest[:, None] + late <= jobs.latest[:, None], net, -np.inf)
    later = np.zeros_like(net)
    for k in range(most - 2, -1, -1):
        later[:, k] = np.maximum(later[:, k + 1], net[:, k + 1])
    return Outlook(price, net, later)


def outlook_of(episode: Episode) -> Outlook:
    """Return what the prices of an episode that is known whole say of its jobs."""
    return outlook(episode.jobs, prices(programme(episode.jobs, episode.steps), episode.capacity.astype(float)))


def labels(episode: Episode, draws: int, noise: float, rng: np.random.Generator) -> Floats:
    """Return the mean worth of starts, [N, starts], over `draws` capacities with normal `noise` (cores) added."""
    made = programme(episode.jobs, episode.steps)
    shaken = [episode.capacity + np.round(rng.normal(0.0, noise, episode.steps)) for _ in range(draws)]
    found: Floats = np.mean(
        [outlook(episode.jobs, prices(made, capacity)).worths(episode.jobs) for capacity in shaken], axis=0
    )
    return found


class Lesson(NamedTuple):
    """States with what the network should say of them."""

    inputs: Inputs
    worth: Tensor
    """[B, M]: what a start is worth, for each core, in units of WORTH."""
    starts: Tensor
    """[B, M]: 1 for a job that starts, 0 for others."""
    weight: Tensor
    """[B, M]: how much each row counts, 0 where there is no job that may start."""
    following: Tensor
    """[B, 4]: the next step, see `networks.TASKS`; nan where there is none."""

    def rows(self, chosen: Tensor) -> Lesson:
        """Return the states at these places."""
        inputs = self.inputs.rows(chosen)
        most = inputs.mask.shape[1]
        worth, starts, weight = (column[chosen, :most] for column in (self.worth, self.starts, self.weight))
        return Lesson(inputs, worth, starts, weight, self.following[chosen])


def play_round(
    network: Network | None,
    episodes: Sequence[Episode],
    cref: float,
    rng: np.random.Generator,
    *,
    kind: str,
    draws: int,
    noise: float,
) -> Lesson:
    """Play episodes of equal length side by side and return every state with its labels.

    network: plays three quarters of the episodes, the per-step knapsack the others, or all of them where it is None.
    kind: `prices`, or `starts`, where the optimum itself plays them all. draws, noise: see `labels`.
    """
    fallback = packed()
    known = [labels(episode, draws, noise, rng) for episode in episodes]
    best = [best_starts(episode) for episode in episodes] if kind == "starts" else None
    worlds = [World(episode) for episode in episodes]
    own = len(episodes) if network is None else int(np.ceil(KNAPSACK_SHARE * len(episodes)))
    moments: list[tuple[Inputs, Tensor, Tensor, Tensor]] = []
    present: list[Floats] = []
    while not worlds[0].done:
        seen = see(worlds, cref)
        present.append(np.stack([facts(world) for world in worlds]))
        worth = [told[v.cur.job, v.step - v.cur.earliest] for told, v in zip(known, seen.views, strict=True)]
        if best is None:
            picks = [knapsack(w, v.cur.cores, v.free) for w, v in zip(worth, seen.views, strict=True)]
            chosen = [fallback(view) for view in seen.views]
            if network is not None:
                with torch.no_grad():
                    mean = network(seen.inputs).worth
                shaken = mean + torch.from_numpy(rng.normal(0.0, EXPLORED, mean.shape).astype(np.float32))
                chosen[own:] = starts_of(seen, shaken, "knapsack")[own:]
        else:
            picks = [np.flatnonzero(s[v.cur.job] == v.step) for s, v in zip(best, seen.views, strict=True)]
            chosen = picks
        moments.append((seen.inputs, *_told(seen, worth, picks)))
        for world, picked in zip(worlds, chosen, strict=True):
            world.step(picked)
    following = np.stack([*present[1:], np.full_like(present[0], np.nan)])
    return _joined(moments, following)


def best_starts(episode: Episode) -> Ints:
    """Return the offline optimum's schedule, [N]."""
    from trainer.deferral.exact import solve

    found = solve(episode.jobs, episode.capacity)
    if found is None:
        raise NoPrices(f"the optimum of seed {episode.seed} was not found in time")
    return found.start


def loss_of(answer: Answer, lesson: Lesson) -> tuple[Tensor, Tensor]:
    """Return the squared error of the worth and the cross-entropy of the order, each a mean over the jobs."""
    weight = lesson.weight / lesson.weight.sum().clamp(min=1.0)
    confidence = (0.5 + 0.5 * answer.order).clamp(1e-6, 1.0 - 1e-6)
    missed = torch.nn.functional.binary_cross_entropy(confidence, lesson.starts, reduction="none")
    return ((answer.worth - lesson.worth).square() * weight).sum(), (missed * weight).sum()


def facts(world: World) -> Floats:
    """Return what the auxiliary predictor foretells, of the present step: [4], see `networks.TASKS`."""
    view = world.view()
    jobs = view.cur
    means = (jobs.cores.mean(), jobs.duration.mean()) if jobs.size else (0.0, 0.0)
    return np.array([view.capacity, *means, W2 * max(0, -view.free)], dtype=np.float64)


def _told(seen: Seen, worth: Sequence[Floats], picks: Sequence[Ints]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the worth, the starts and the weights of the rows, [B, M] each."""
    found = np.zeros((3, *seen.inputs.mask.shape), dtype=np.float32)
    for k, (view, state) in enumerate(zip(seen.views, seen.states, strict=True)):
        rows = np.flatnonzero(state.job >= 0)
        jobs, cores = state.job[rows], view.cur.cores
        started = np.zeros(view.cur.size)
        started[picks[k]] = 1.0
        found[0, k, rows] = np.clip(worth[k] / (WORTH * cores), -LARGEST, LARGEST)[jobs]
        found[1, k, rows] = started[jobs]
        found[2, k, rows] = cores[jobs]
    worths_of, starts, weight = torch.from_numpy(found)
    return worths_of, starts, weight


def _joined(moments: Sequence[tuple[Inputs, Tensor, Tensor, Tensor]], following: Floats) -> Lesson:
    most = max(inputs.mask.shape[1] for inputs, *_ in moments)
    inputs = Inputs(
        torch.cat([widened(inputs.tokens, most) for inputs, *_ in moments]),
        torch.cat([widened(inputs.mask, most) for inputs, *_ in moments]),
        torch.cat([inputs.window for inputs, *_ in moments]),
    )
    worth, starts, weight = (
        torch.cat([widened(row, most) for row in column]) for column in list(zip(*moments, strict=True))[1:]
    )
    after = torch.from_numpy(following.reshape(-1, following.shape[-1]).astype(np.float32))
    return Lesson(inputs, worth, starts, weight, after)


def _counting(lengths: Ints) -> Ints:
    """Return 0, 1, ... up to each length, one after another."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
