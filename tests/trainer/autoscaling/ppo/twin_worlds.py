"""B reference simulations behind the batch's interface, and a small task; shared by the tests here."""

from __future__ import annotations

import numpy as np

from domain.workload import Trace, make_trace
from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.twin import Simulation
from trainer.autoscaling.tasks import Stage, Task

WORLD = SimulationConfig(limits=(3, 2, 1), initial=(1, 0, 0), max_steps=200)
TRACE = make_trace("three batches", np.repeat([0.0, 300.0, 900.0], [12, 18, 6]), np.full(36, 90.0))
SHORT = make_trace("one batch", np.repeat([0.0, 240.0], [9, 1]), np.full(10, 60.0))
SMALL = Task("small", (Stage(WORLD, (TRACE, SHORT)),), (TRACE, SHORT))


class TwinWorlds:
    """As slow as it is plain; a copy that is over costs nothing until its reset."""

    def __init__(
        self, config: SimulationConfig, traces: tuple[Trace, ...], copies: int, *, observation: str, actions: str
    ) -> None:
        self.config, self.traces, self.multi = config, traces, actions == "act-multi"
        self.extended = observation == "obs-v2"
        kinds = len(config.types)
        self.n_actions = len(MULTI_CHANGES) * kinds if self.multi else 1 + 2 * kinds
        self.copies = [Simulation(config, traces[0], 0) for _ in range(copies)]
        self.n_features = self._observe().shape[1]

    def _observe(self) -> np.ndarray:
        return np.stack([copy.observe_v2() if self.extended else copy.observe() for copy in self.copies])

    def reset(self, seeds: np.ndarray, trace_index: np.ndarray) -> np.ndarray:
        return self.reset_where(np.ones(len(self.copies), dtype=bool), seeds, trace_index)

    def reset_where(self, which: np.ndarray, seeds: np.ndarray, trace_index: np.ndarray) -> np.ndarray:
        for b in np.flatnonzero(which):
            self.copies[b] = Simulation(self.config, self.traces[trace_index[b]], int(seeds[b]))
        return self._observe()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        rewards = np.zeros(len(self.copies))
        for b, copy in enumerate(self.copies):
            if copy.finished or copy.truncated:
                continue
            if self.multi:
                result = copy.step([MULTI_CHANGES[index] for index in actions[b]])
            else:
                result = copy.step(int(actions[b]))
            rewards[b] = result.reward
        finished = np.array([copy.finished for copy in self.copies])
        return self._observe(), rewards, finished, np.array([copy.truncated for copy in self.copies])

    def masks(self) -> np.ndarray:
        return np.stack([copy.mask_multi() if self.multi else copy.mask() for copy in self.copies])

    @property
    def finished(self) -> np.ndarray:
        return np.array([copy.info().finished for copy in self.copies])

    @property
    def rent(self) -> np.ndarray:
        return np.array([copy.measures().rent for copy in self.copies])

    @property
    def penalty(self) -> np.ndarray:
        return np.array([copy.measures().penalty for copy in self.copies])
