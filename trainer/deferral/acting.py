"""Networks at work: what they see of several worlds at once, which jobs start, and what whole episodes come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domain.rules.deferral.choosing import Decoding, View, decode
from domain.rules.deferral.jobs import Ints, Score, objective
from domain.rules.deferral.tokens import Tokens, scores_of, stacked, tokens, values_of, window
from simulator.deferral.scenarios import Episode
from simulator.deferral.world import World
from trainer.deferral.networks import Inputs, Network

SIDE_BY_SIDE = 32
"""Episodes that are judged together."""
Answers = Callable[[Inputs], Tensor]


class Seen(NamedTuple):
    """Several worlds at one moment."""

    views: list[View]
    states: list[Tokens]
    inputs: Inputs


def see(worlds: Sequence[World], cref: float) -> Seen:
    """Return what a network sees of worlds that are not done; cref: mean capacity in training, cores."""
    views = [world.view() for world in worlds]
    states = [tokens(view, cref) for view in views]
    matrices, masks = stacked(states)
    windows = np.stack([window(view, cref) for view in views])
    return Seen(views, states, Inputs(*(torch.from_numpy(array) for array in (matrices, masks, windows))))


def starts(view: View, scores: NDArray[np.floating], kind: Decoding) -> Ints:
    """Return the positions in `view.cur` that start, by scores [K]; raises ScoresUnusable."""
    values = values_of(scores.astype(np.float64), view.cur.cores) if kind == "knapsack" else scores
    return decode(values, view.cur.cores, view.free, kind, ties=view.cur.submitted)


def starts_of(seen: Seen, answers: Tensor, kind: Decoding) -> list[Ints]:
    """Return for each world the positions that start, by the answers [B, M] to its rows."""
    rows = answers.detach().double().numpy()
    return [
        starts(view, scores_of(view, state, row), kind)
        for view, state, row in zip(seen.views, seen.states, rows, strict=True)
    ]


def judge(network: Network, cref: float, episodes: Sequence[Episode], kind: Decoding) -> list[Score]:
    """Return what the deterministic policy of a network comes to in each episode."""
    found = []
    for first in range(0, len(episodes), SIDE_BY_SIDE):
        worlds = [World(episode) for episode in episodes[first : first + SIDE_BY_SIDE]]
        while going := [world for world in worlds if not world.done]:
            seen = see(going, cref)
            with torch.no_grad():
                scores = network(seen.inputs).mean(kind)
            for world, chosen in zip(going, starts_of(seen, scores, kind), strict=True):
                world.step(chosen)
        found += [objective(world.episode.jobs, world.start, world.episode.capacity) for world in worlds]
    return found


def mean_total(scores: Sequence[Score]) -> float:
    """Return the mean total of episodes."""
    return float(np.mean([score.total for score in scores]))
