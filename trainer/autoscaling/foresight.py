"""A critic that sees the jobs to come; while training only, advantages are taken against its values.

Most of what an episode costs from here on is decided by jobs that have yet to come, and not by what the policy does. A
critic that knows these jobs explains that part, and leaves the policy a far quieter signal. The value that an action is
compared with may depend on anything but the action, so the same policies are best; the policy never sees the jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from domain.errors import BadInput
from domain.units import HOUR_S, MINUTE_S
from domain.workload import NO_STAGE, Trace
from simulator.autoscaling.configuration import SimulationConfig
from trainer.autoscaling.configuration import PPOConfig

AHEAD_MIN = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80)
"""Ends, in minutes from now, of the stretches whose jobs are summed up for the critic."""
WIDTH = 2 * len(AHEAD_MIN) + 5
"""Numbers that the critic knows besides the observation."""
WIDTHS = (128, 128)
PART = 1024
"""Steps of a minibatch."""
WORK_GAIN, FUTURE_GAIN = 100.0, 0.25
"""Bring logarithms of work, and all numbers of a future, to about the size of the observations."""
LAST_RATE = 0.2
"""Share of its first learning rate that the critic keeps to the end."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def outlook(trace: Trace, scale: float, steps: int, step_s: float, fleet_cores: int) -> Floats:
    """Return the jobs to come after 0, 1, ... `steps` steps of a trace in numbers, shape (steps + 1, WIDTH).

    Per stretch between AHEAD_MIN: logarithms of the jobs and of the hours of the whole fleet's work that arrive in it.
    The same of all that is still to come; how long until the next and the last job; `scale`, by which the trace's
    rewards are divided. Raises BadInput for a closed loop, whose jobs to come depend on the policy.
    """
    if (trace.release_after != NO_STAGE).any():
        raise BadInput(
            "foresight", trace.name, "train without it where jobs wait for other jobs: arrivals are not known"
        )
    order = np.argsort(trace.arrival_s, kind="stable")
    arrival_s = trace.arrival_s[order]
    work_h = np.append(0.0, np.cumsum((trace.service_s * trace.width)[order])) / HOUR_S / fleet_cores
    now_s = np.arange(steps + 1) * step_s
    until = [np.searchsorted(arrival_s, now_s + MINUTE_S * ahead, side="right") for ahead in (0, *AHEAD_MIN)]
    columns = []
    for first, last in (*pairwise(until), (until[0], np.full_like(until[0], arrival_s.size))):
        columns += [np.log1p(last - first), np.log1p(WORK_GAIN * (work_h[last] - work_h[first]))]
    coming_s = np.append(arrival_s, arrival_s[-1:])[np.minimum(until[0], arrival_s.size)]
    columns += [np.log1p(np.maximum(at_s - now_s, 0.0) / MINUTE_S) for at_s in (coming_s, arrival_s[-1])]
    columns.append(np.full(now_s.size, np.log(scale)))
    return (FUTURE_GAIN * np.stack(columns, axis=1)).astype(np.float32)


class Foresight:
    """A small network of observation and outlook that estimates what is still to come, and its optimiser."""

    def __init__(self, config: PPOConfig, features: int) -> None:
        """features: of the observation."""
        self._config = config
        generator = torch.Generator().manual_seed(config.seed)
        layers: list[nn.Module] = []
        for inputs, outputs in zip((features + WIDTH, *WIDTHS), WIDTHS, strict=False):
            layer = nn.Linear(inputs, outputs)
            nn.init.orthogonal_(layer.weight, 2.0**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
        last = nn.Linear(WIDTHS[-1], 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self._network = nn.Sequential(*layers, last)
        self._optimiser = torch.optim.Adam(self._network.parameters(), eps=1e-5)
        self._outlooks = np.zeros((1, 1, WIDTH), dtype=np.float32)

    def enter(self, world: SimulationConfig, traces: Sequence[Trace], scales: Sequence[float]) -> None:
        """Take the traces of a stage. scales: what their rewards are divided by, none for 1. Raises BadInput."""
        pairs = zip(traces, scales or (1.0,) * len(traces), strict=True)
        steps = self._config.most_episode_steps
        self._outlooks = np.stack([outlook(*pair, steps, world.step_s, world.max_cores) for pair in pairs])

    def future(self, traces: Ints, elapsed: Ints) -> Floats:
        """Return the jobs to come [B, WIDTH] of copies that are `elapsed` steps into `traces`."""
        found: Floats = self._outlooks[traces, np.minimum(elapsed, self._outlooks.shape[1] - 1)]
        return found

    @torch.no_grad()
    def values(self, observations: Floats, future: Floats) -> Floats:
        """Return the values [B] of observations [B, F] and futures [B, WIDTH]."""
        seen = torch.from_numpy(np.concatenate([observations, future], axis=1))
        found: Floats = self._network(seen).squeeze(-1).numpy()
        return found

    def learn(
        self, observations: Floats, futures: Floats, returns: Floats, left: float, rng: np.random.Generator
    ) -> float:
        """Descend towards the returns [T, B] of observations [T, B, F] and futures; return the mean loss.

        left: share of the run that is still to come.
        """
        config = self._config
        for group in self._optimiser.param_groups:
            group["lr"] = config.critic_rate * (max(left, LAST_RATE) if config.anneal_rate else 1.0)
        seen = torch.from_numpy(np.concatenate([observations, futures], axis=2)).flatten(0, 1)
        goals = torch.from_numpy(returns).flatten()
        losses = []
        for _ in range(config.critic_epochs):
            order = torch.from_numpy(rng.permutation(len(goals)))
            for first in range(0, len(goals), PART):
                part = order[first : first + PART]
                loss = nn.functional.smooth_l1_loss(self._network(seen[part]).squeeze(-1), goals[part])
                self._optimiser.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
                self._optimiser.step()
                losses.append(loss.detach())
        return float(torch.stack(losses).mean())

    def state(self) -> dict[str, Any]:
        """Return weights and optimiser, as a tree for `trainer.kit.checkpoint`."""
        weights = {name: tensor.detach().clone() for name, tensor in self._network.state_dict().items()}
        return {"weights": weights, "optimiser": deepcopy(self._optimiser.state_dict())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._network.load_state_dict(state["weights"])
        self._optimiser.load_state_dict(deepcopy(state["optimiser"]))
