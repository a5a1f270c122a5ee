"""No event ever breaks a rule: the engine and the book against feasibility decided anew (placement §11, B11)."""

from __future__ import annotations

import numpy as np
import pytest

from domain.rules.placement.cluster import hosts_of
from domain.rules.placement.instance import Application, HostType, Instance, Request, symmetric
from domain.rules.placement.policies import BF, WF, Policy
from simulator.placement.engine import (
    DRAIN,
    FAIL,
    JOIN,
    PLACE,
    RELEASE,
    RESUME,
    arrays_of,
    clear,
    new_state,
    rules_of,
    turn,
)
from tests.oracles.plain_placement import Reference, Twin, twin_of
from tests.simulator.placement.vectors import FIRST
from tests.stages import exhaustive

KINDS = (HostType("big", (32, 128, 900), 7), HostType("small", (16, 96, 400), 5, label="ssd"))


def crowded(seed: int, requests: int) -> Instance:
    """Ten applications that compete for twelve hosts."""
    draws = np.random.default_rng(seed)
    apps = [
        Application(
            f"a{k}",
            (int(draws.integers(1, 9)), int(draws.integers(1, 40)), int(draws.integers(1, 200))),
            int(draws.choice([1, 2, 3, 1000])),
            frozenset(f"a{other}" for other in draws.integers(0, 10, 1) if other != k),
            [None, 1, 2][draws.integers(0, 3)],
            ["", "", "ssd"][draws.integers(0, 3)],
        )
        for k in range(10)
    ]
    pairs = zip(draws.integers(0, 10, requests).tolist(), draws.integers(1, 5, requests).tolist(), strict=True)
    wanted = tuple(Request(f"r{k}", f"a{app}", count) for k, (app, count) in enumerate(pairs))
    return Instance("crowded", KINDS, symmetric(apps)[0], wanted)


class History:
    """One stream of events, applied to the engine and, while it is given, to the twin; each is checked as it comes."""

    def __init__(self, instance: Instance, policy: Policy, seed: int) -> None:
        self.draws = np.random.default_rng(seed)
        self.arrays, self.rules, self.prices = arrays_of(instance), rules_of(policy), np.zeros((2, 4))
        self.state = new_state(self.arrays)
        clear(self.arrays, self.state, self.rules)
        self.names = [host.name for host in hosts_of(instance)]
        self.app = np.repeat(self.arrays.apps, self.arrays.counts).tolist()
        self.plain = Reference(
            {host.name: host for host in hosts_of(instance)}, {app.name: app for app in instance.applications}
        )
        self.live: list[int] = []
        self.next_request = 0
        self.rejected = self.moved = 0

    def draw(self) -> tuple[int, int]:
        """Return the next event: mostly requests while there is room, and releases."""
        kind = self.draws.random()
        if kind < 0.02:
            return int(self.draws.choice([DRAIN, RESUME, RESUME, FAIL, JOIN, JOIN])), int(self.draws.integers(12))
        if kind < 0.70 and self.live:
            return RELEASE, self.live[self.draws.integers(len(self.live))]
        self.next_request += 1
        return PLACE, self.next_request - 1

    def step(self, kind: int, subject: int, twin: Twin | None) -> None:
        """Apply an event, and hold what it did to the reference."""
        before = [number for number in self.live if self.state.where[number] == subject] if kind == FAIL else []
        turn(self.arrays, self.state, self.rules, kind, subject, self.prices)
        if twin is not None:
            twin.turn(kind, subject)
        if kind == PLACE:
            first, last = self.arrays.begin[subject], self.arrays.begin[subject + 1]
            self.placed(range(first, last))
        elif kind == RELEASE:
            self.plain.running.remove(self.entry(subject, self.host_before))
            self.live.remove(subject)
        else:
            self.host_event(kind, subject, before)

    def entry(self, number: int, host: int) -> tuple[str, str]:
        return self.names[host], f"a{self.app[number]}"

    def placed(self, numbers: range | list[int]) -> None:
        """Check each container in the order in which it was placed."""
        for number in numbers:
            host, app = int(self.state.where[number]), f"a{self.app[number]}"
            if host < 0:
                assert not any(self.plain.takes(name, app) for name in self.names), f"{app} was rejected"
                self.rejected += 1
                continue
            assert self.plain.takes(self.names[host], app), f"{app} on {self.names[host]}"
            self.plain.running.append((self.names[host], app))
            self.live.append(number)

    def host_event(self, kind: int, host: int, before: list[int]) -> None:
        name = self.names[host]
        if kind == DRAIN:
            self.plain.drained.add(name)
        elif kind == RESUME:
            self.plain.drained.discard(name)
        elif kind == JOIN:
            self.plain.failed.discard(name)
            self.plain.drained.discard(name)
        elif name not in self.plain.failed:
            self.plain.failed.add(name)
            self.plain.running = [one for one in self.plain.running if one[0] != name]
            self.live = [number for number in self.live if number not in set(before)]
            self.moved += len(before)
            self.placed(sorted(before, key=lambda number: (self.app[number], number)))

    def run(self, events: int, twin: Twin | None, compared: int) -> None:
        for k in range(events):
            kind, subject = self.draw()
            if kind == RELEASE:
                self.host_before = int(self.state.where[subject])
            self.step(kind, subject, twin if k < compared else None)
            if k + 1 == min(compared, events):
                assert twin is not None
                assert self.state.where.tolist() == twin.where.tolist()
                assert self.state.totals[:4].tolist() == list(twin.cluster.headroom.values())
            if k % 100 == 0:
                assert self.state.totals[:4].tolist() == [self.plain.counts(q) for q in (4, 8, 16, 32)]


@pytest.mark.parametrize(
    ("events", "compared"),
    [(1_500, 1_500), *exhaustive((100_000, 10_000))],
)
@pytest.mark.parametrize("policy", [BF, WF, FIRST], ids=lambda policy: policy.name)
def test_random_events_break_no_rule(policy: Policy, events: int, compared: int) -> None:
    instance = crowded(5, events // 2)
    history = History(instance, policy, 1)
    history.run(events, twin_of(instance, policy), compared)
    assert history.rejected > events // 100, "the pool is crowded"
    assert history.moved > events // 1000, "hosts fail"
