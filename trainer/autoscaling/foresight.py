"""A value that knows what comes: while training only, advantages are taken against a critic that sees the jobs to come.

Of what an episode costs from here on, most is decided by jobs that have yet to come, and not by what the policy does. A
critic that is told of them explains that part, and leaves the policy a far quieter signal. What an action is compared
with may depend on anything but the action, so the same policies are best; and the policy never sees what the critic
sees.
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
from domain.workload import NO_STAGE, Trace
from simulator.autoscaling.reference import SimulationConfig

AHEAD_MIN = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80)
"""Ends, in minutes from now, of the stretches whose jobs the critic is told of."""
TOLD = 2 * len(AHEAD_MIN) + 5
"""How many numbers the critic is told besides the observation."""
WIDTHS = (128, 128)
PART = 1024
"""Steps of a minibatch."""
WORK_GAIN, TOLD_GAIN = 100.0, 0.25
"""Bring logarithms of work, and all that is told, to about the size of the observations."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def outlook(trace: Trace, scale: float, steps: int, step_s: float, fleet_cores: int) -> Floats:
    """Return what the critic is told after 0, 1, ... `steps` steps of a trace, shape (steps + 1, TOLD).

    Per stretch between AHEAD_MIN: logarithms of the jobs and of the hours of the whole fleet's work that arrive in it.
    The same of all that is still to come; how long until the next and the last job; `scale`, by which the trace's
    rewards are divided. Raises BadInput for a closed loop, whose jobs to come depend on the policy.
    """
    if (trace.release_after != NO_STAGE).any():
        raise BadInput(
            "foresight", trace.name, "train without it where jobs wait for other jobs: what comes is not known"
        )
    order = np.argsort(trace.arrival_s, kind="stable")
    arrival_s = trace.arrival_s[order]
    work_h = np.append(0.0, np.cumsum((trace.service_s * trace.width)[order])) / 3600.0 / fleet_cores
    now_s = np.arange(steps + 1) * step_s
    until = [np.searchsorted(arrival_s, now_s + 60.0 * ahead, side="right") for ahead in (0, *AHEAD_MIN)]
    columns = []
    for first, last in (*pairwise(until), (until[0], np.full_like(until[0], arrival_s.size))):
        columns += [np.log1p(last - first), np.log1p(WORK_GAIN * (work_h[last] - work_h[first]))]
    coming_s = np.append(arrival_s, arrival_s[-1:])[np.minimum(until[0], arrival_s.size)]
    columns += [np.log1p(np.maximum(at_s - now_s, 0.0) / 60.0) for at_s in (coming_s, arrival_s[-1])]
    columns.append(np.full(now_s.size, np.log(scale)))
    return (TOLD_GAIN * np.stack(columns, axis=1)).astype(np.float32)


class Foresight:
    """A small network of observation and outlook that estimates what is still to come, and its optimiser."""

    def __init__(self, features: int, seed: int) -> None:
        """features: of the observation."""
        generator = torch.Generator().manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs in zip((features + TOLD, *WIDTHS), WIDTHS, strict=False):
            layer = nn.Linear(inputs, outputs)
            nn.init.orthogonal_(layer.weight, 2.0**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
        last = nn.Linear(WIDTHS[-1], 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self._network = nn.Sequential(*layers, last)
        self._optimiser = torch.optim.Adam(self._network.parameters(), eps=1e-5)
        self._outlooks = np.zeros((1, 1, TOLD), dtype=np.float32)

    def enter(self, world: SimulationConfig, traces: Sequence[Trace], scales: Sequence[float], steps: int) -> None:
        """Look at the traces of a stage. scales: what their rewards are divided by, none for 1; steps: of an episode.

        Raises BadInput.
        """
        pairs = zip(traces, scales or (1.0,) * len(traces), strict=True)
        self._outlooks = np.stack([outlook(*pair, steps, world.step_s, world.max_cores) for pair in pairs])

    def told(self, traces: Ints, elapsed: Ints) -> Floats:
        """Return what the critic is told [B, TOLD] of copies that are `elapsed` steps into `traces`."""
        found: Floats = self._outlooks[traces, np.minimum(elapsed, self._outlooks.shape[1] - 1)]
        return found

    @torch.no_grad()
    def values(self, observations: Floats, told: Floats) -> Floats:
        """Return the values [B] of observations [B, F] and what is told."""
        seen = torch.from_numpy(np.concatenate([observations, told], axis=1))
        found: Floats = self._network(seen).squeeze(-1).numpy()
        return found

    def learn(
        self, observations: Floats, told: Floats, returns: Floats, epochs: int, rate: float, rng: np.random.Generator
    ) -> float:
        """Descend towards the returns [T, B] of observations [T, B, F]; return the mean loss."""
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        seen = torch.from_numpy(np.concatenate([observations, told], axis=2)).flatten(0, 1)
        goals = torch.from_numpy(returns).flatten()
        losses = []
        for _ in range(epochs):
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
