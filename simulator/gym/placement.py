"""Placement where containers end as a Gymnasium environment: Trimtab/Placement-v0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.placement.cluster import Cluster, cluster_of
from domain.rules.placement.policies import TIERS, View
from domain.units import HOUR_S, MINUTE_S
from simulator.gym.base import EpisodeEnv, Info
from simulator.placement.engine import PLACE, arrays_of, events_of
from simulator.placement.instances import instance_of

Observation = dict[str, NDArray[Any]]
HOST_FEATURES = ("cores", "memory", "disk", "closed", "left", "openings")
CONTAINER_FEATURES = ("cores", "memory", "disk", "declared", "life")


class PlacementEnv(EpisodeEnv[Observation, np.int64]):
    """One container at a time: a host for it, while containers come and end (placement with lifetimes, §2).

    Observation: `hosts` (rows, 6), the hosts that can take the container, in order of their index and at most `rows` of
    them: the share of cores, memory and disk that is free before it comes, 1 for a closed host, ln(1 + R / min) of the
    predicted seconds R until the last container ends, and ln(1 + openings since its own), 0 for a closed host; 0
    in the other rows. `mask` (rows,): 1 for rows with a host. `container` (5,): its shares of the largest host, 1
    where its lifetime is declared, and ln(1 + r / min) of its predicted seconds r. The action is a row; one without a
    host is taken as row 0. The reward is -1 times the host-hours until the next decision, so the sum of an episode is
    that from the first request to the last one. A container that no host can take is rejected without a step.

    `reset(seed=n)` draws `requests` from the distributions fitted to the trace, at `speed`. With an `instance`
    every episode is that one. info: `host` (rows,), indexes, -1 in rows without one; `time` in seconds; `rejected`.
    """

    def __init__(
        self,
        trace: str = "gaia-azure",
        *,
        requests: int = 1000,
        speed: float = 20.0,
        hints: str = "0.5",
        instance: str = "",
        rows: int = 64,
        render_mode: None = None,
    ) -> None:
        """Make an environment; hints: as `simulator.placement.traces` has them. BadInput for fewer than two rows."""
        if rows < 2:
            raise BadInput("rows", rows, "give 2 or more: one for an open host and one for a closed one")
        self._name = instance or f"{trace}~{{seed}}:0+{requests}@{speed:g}"
        self._hints, self.rows, self.render_mode = hints, rows, render_mode
        high = np.float32(np.inf)
        boxes: dict[str, spaces.Space[Any]] = {
            "hosts": spaces.Box(0.0, high, (rows, len(HOST_FEATURES)), np.float32),
            "mask": spaces.Box(0, 1, (rows,), np.int8),
            "container": spaces.Box(0.0, high, (len(CONTAINER_FEATURES),), np.float32),
        }
        self.observation_space = cast("spaces.Space[Observation]", spaces.Dict(boxes))
        self.action_space = cast("spaces.Space[np.int64]", spaces.Discrete(rows))
        self.view: View | None = None
        """The view of policies on the present container; None before the first reset and after the end."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin an episode; BadInput for a seed below 0, or an instance without a time between its requests."""
        number, _ = self.drawn_episode(seed, None)
        made = instance_of(self._name.format(seed=number % 10_000_000), self._hints)
        if not made.requests or not made.requests[-1].at_s > made.requests[0].at_s:
            raise BadInput("instance", made.name, "its requests come at once: give their times")
        self._instance, self._events = made, events_of(made)
        arrays = arrays_of(made)
        self._begin, self._owner = arrays.begin, arrays.owner
        self._cluster: Cluster = cluster_of(made, len(arrays.kind))
        self._where: dict[int, int] = {}
        self._largest = arrays.size.max(axis=1)
        self._event, self._number, self._last_s = -1, 0, made.requests[0].at_s
        self._request, self._left, self._rejected = 0, 0, 0
        self._advance()
        return self._seen()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        """Place the container and go on to the next one; raises ResetNeeded before a reset and after the end."""
        view = self.view
        if view is None:
            raise ResetNeeded("call reset() to begin an episode")
        shown = self._shown(view)
        host = int(shown[int(action)] if int(action) < shown.size else shown[0])
        self._cluster.place(host, int(self._owner[self._number]), self._number)
        self._where[self._number] = host
        self._number, self._left = self._number + 1, self._left - 1
        hours = self._advance()
        seen, info = self._seen()
        return seen, -hours, self.view is None, False, info

    def _advance(self) -> float:
        """Go to the next container that a host can take, or to the end; return the host-hours until then."""
        (events, times), cluster = self._events, self._cluster
        host_s, self.view = 0.0, None
        while True:
            if self._left:
                app, count = int(self._owner[self._number]), self._instance.requests[self._request].count
                hosts = cluster.feasible(app)
                if hosts.size:
                    self.view = cluster.view(app, count, hosts, TIERS[1])
                    break
                self._rejected, self._number, self._left = self._rejected + self._left, self._number + self._left, 0
            self._event += 1
            if self._event >= len(events):
                break
            (kind, subject), now = events[self._event].tolist(), float(times[self._event])
            until_s = min(now, self._instance.requests[-1].at_s)
            if until_s > self._last_s:
                host_s, self._last_s = host_s + (until_s - self._last_s) * cluster.open_hosts, until_s
            cluster.lives.predict(now)
            if kind == PLACE:
                request = self._instance.requests[subject]
                cluster.saw(request.count)
                cluster.declare(request.lifetime_s, now)
                self._request, self._number, self._left = subject, int(self._begin[subject]), request.count
            elif subject in self._where:
                cluster.release(self._where.pop(subject), int(self._owner[subject]))
                cluster.lives.end(subject, now)
        return host_s / HOUR_S

    def _shown(self, view: View) -> NDArray[np.int64]:
        """Return the hosts that have a row: the last one is a closed host if there is one."""
        if view.hosts.size <= self.rows:
            return view.hosts
        closed = view.hosts[view.new]
        return np.concatenate((view.hosts[~view.new][: self.rows - min(closed.size, 1)], closed))[: self.rows]

    def _seen(self) -> tuple[Observation, Info]:
        hosts = np.zeros((self.rows, len(HOST_FEATURES)), np.float32)
        mask, container = np.zeros(self.rows, np.int8), np.zeros(len(CONTAINER_FEATURES), np.float32)
        host = np.full(self.rows, -1, dtype=np.int64)
        if self.view is not None:
            view, shown = self.view, self._shown(self.view)
            at = np.searchsorted(view.hosts, shown)
            free, new = view.free[:, at] / view.capacity[:, at], view.new[at]
            left = np.where(new, 0.0, np.log1p(view.left_s[at] / MINUTE_S))
            since = np.where(new, 0.0, np.log1p(view.openings - view.opening[at]))
            hosts[: shown.size] = np.stack([*free, new, left, since], axis=1)
            mask[: shown.size], host[: shown.size] = 1, shown
            life = np.log1p(view.life_s / MINUTE_S)
            container[:] = (*(np.array(view.demand) / self._largest), view.life_s > 0.0, life)
        info: Info = {"host": host, "time": self._last_s, "rejected": self._rejected}
        return {"hosts": hosts, "mask": mask, "container": container}, info
