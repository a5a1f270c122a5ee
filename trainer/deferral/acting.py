"""Networks at work: what they see of several worlds at once, which jobs start, and what whole episodes come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from domain.rules.deferral.choosing import Decoding, Floats, View, decode
from domain.rules.deferral.jobs import Ints, Score, objective
from domain.rules.deferral.tokens import THETA, Tokens, scores_of, stacked, tokens, values_of, window, with_waiting
from simulator.deferral.scenarios import Episode
from simulator.deferral.world import World
from trainer.deferral.networks import Inputs, Network

SIDE_BY_SIDE = 32
"""Episodes that are judged together."""


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


def starts(view: View, scores: Floats, kind: Decoding, worth: Floats | None = None) -> Ints:
    """Return the positions in `view.cur` that start, by scores [K]; raises ScoresUnusable.

    worth: [K]; a job that is worth nothing does not start, whatever its confidence.
    """
    if worth is not None and kind != "knapsack":
        scores = with_waiting(scores, worth)
        return decode(scores, view.cur.cores, view.free, kind, ties=view.cur.submitted, theta=THETA)
    values = values_of(scores, view.cur.cores) if kind == "knapsack" else scores
    return decode(values, view.cur.cores, view.free, kind, ties=view.cur.submitted)


def starts_of(seen: Seen, scores: Tensor, kind: Decoding, worth: Tensor | None = None) -> list[Ints]:
    """Return for each world the positions that start, by the scores [B, M] of its rows; worth: as for `starts`."""
    known = [column.detach().double().numpy() for column in ((scores,) if worth is None else (scores, worth))]
    return [
        starts(view, own[0], kind, *own[1:])
        for k, (view, state) in enumerate(zip(seen.views, seen.states, strict=True))
        for own in [[scores_of(view, state, column[k]) for column in known]]
    ]


def judge(
    network: Network, cref: float, episodes: Sequence[Episode], kind: Decoding, *, waits: bool = False
) -> list[Score]:
    """Return what the deterministic policy of a network comes to in each episode.

    waits: whether jobs that are worth nothing wait, in the decodings by order.
    """
    found = []
    for first in range(0, len(episodes), SIDE_BY_SIDE):
        worlds = [World(episode) for episode in episodes[first : first + SIDE_BY_SIDE]]
        while going := [world for world in worlds if not world.done]:
            seen = see(going, cref)
            with torch.no_grad():
                answer = network(seen.inputs)
            chosen_by = starts_of(seen, answer.mean(kind), kind, answer.worth if waits else None)
            for world, chosen in zip(going, chosen_by, strict=True):
                world.step(chosen)
        found += [objective(world.episode.jobs, world.start, world.episode.capacity) for world in worlds]
    return found


def mean_total(scores: Sequence[Score]) -> float:
    """Return the mean total of episodes."""
    return float(np.mean([score.total for score in scores]))
