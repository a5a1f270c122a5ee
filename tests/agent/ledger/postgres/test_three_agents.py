"""Three real agents on a real PostgreSQL and a fake AWS, with faults: the histories of virtual time, in processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import time
from collections import defaultdict
from pathlib import Path

import psycopg
import pytest

from agent.ledger import Ledger
from domain.clock import ScaledClock
from simulator.aws.client import start_process
from tests.agent.ledger.postgres.server import EMPTY_LEDGER, Proxy, Server
from tests.agent.service.site import FLEET, GROUP, ORIGIN, VM_READINGS, Daemon, Site

pytestmark = [pytest.mark.needs_postgresql, pytest.mark.exhaustive]

SPEED, LEASE_S, RENEW_S = 30.0, 4.0, 1.0
FLEETS = [f"f{n}" for n in range(6)]
NAMES = ("north", "east", "west")
FAULTS = ("kill", "stop", "freeze", "cut", "server")
UNDECIDED_S = LEASE_S + 2 * 60.0 / SPEED + 3.0
"""Between two decisions of a fleet: see the histories; and three seconds for a busy machine."""
_numbers = itertools.count(1)


class ManyFleets(Site):
    """A site of six fleets whose queues ask for more and more."""

    def _report(self) -> None:
        while not self._stopping.wait(10.0 / self.clock.speed):
            at = self.clock.now()
            groups = self.groups.describe_auto_scaling_groups()["AutoScalingGroups"]
            lines = []
            for group in groups:
                fleet = group["AutoScalingGroupName"].removesuffix("-s")
                waiting = 10.0 + (at - ORIGIN) / 20.0
                queue = {"waiting": waiting, "running": 0.0, "submitted_total": waiting}
                lines += [f"trimtab.{fleet}.queue.{metric} {value} {at}" for metric, value in queue.items()]
                for vm in group["Instances"]:
                    series = f"trimtab.{fleet}.workers.{vm['InstanceId']}"
                    lines += [f"{series}.{metric} {value} {at}" for metric, value in VM_READINGS.items()]
            text = "".join(f"{line}\n" for line in lines).encode()
            for port in tuple(self.listeners):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
                    connection.sendall(text)


def settings_of_all() -> dict[str, str]:
    found = {}
    for fleet in FLEETS:
        for name, value in FLEET.items():
            found[name.replace("__web__", f"__{fleet}__")] = f"{fleet}-s" if value == GROUP else value
        found[f"TRIMTAB_FLEETS__{fleet}__RAILS__COOLDOWN_OUT_S"] = "0"
        found[f"TRIMTAB_FLEETS__{fleet}__RAILS__MAX_STEP_OUT"] = "1"
        found[f"TRIMTAB_FLEETS__{fleet}__GROUPS__workers__MAX"] = "200"
    return found


class Installation:
    """Three agents, each with its own way to the database."""

    def __init__(self, site: Site, server: Server, url: str, directory: Path) -> None:
        self.site, self.server, self.url, self.directory = site, server, url, directory
        self.proxies = {name: Proxy(server.port) for name in NAMES}
        self.agents: dict[str, Daemon] = {}
        self.name_of_process: dict[str, str] = {}
        self.away_s = 0.0

    def start(self, name: str) -> None:
        url = self.url.replace(str(self.server.port), str(self.proxies[name].port))
        agent = Daemon(
            self.site,
            self.directory / name,
            AWS_ACCESS_KEY_ID=name,
            TRIMTAB_LEDGER__URL=url,
            TRIMTAB_LEADER__NAME=name,
            TRIMTAB_LEADER__LEASE_S=str(LEASE_S),
            TRIMTAB_LEADER__RENEW_S=str(RENEW_S),
            **settings_of_all(),
        )
        agent.start()
        assert agent.popen is not None
        self.agents[name], self.name_of_process[f"{socket.gethostname()}:{agent.popen.pid}"] = agent, name

    def fault(self, kind: str, name: str, seconds: float) -> None:
        agent = self.agents[name]
        assert agent.popen is not None
        if kind == "kill":
            agent.popen.kill()
        elif kind == "stop":
            agent.terminate()
        elif kind == "freeze":
            os.kill(agent.popen.pid, signal.SIGSTOP)
        elif kind == "cut":
            self.proxies[name].cut()
        else:
            self.server.freeze()
            self.away_s += seconds
        time.sleep(seconds)
        if kind in ("kill", "stop"):
            agent.wait()
            agent.close()
            self.start(name)
        elif kind == "freeze":
            os.kill(agent.popen.pid, signal.SIGCONT)
        elif kind == "cut":
            self.proxies[name].mend()
        else:
            self.server.thaw()

    def close(self) -> None:
        for agent in self.agents.values():
            if agent.popen is not None and agent.popen.poll() is None:
                os.kill(agent.popen.pid, signal.SIGCONT)
            agent.close()
        for proxy in self.proxies.values():
            proxy.close()


@pytest.mark.parametrize("seed", range(20))
def test_three_agents_with_faults(server: Server, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    url = server.new_database(f"three_{next(_numbers)}_{seed}", EMPTY_LEDGER)
    clock = ScaledClock(ORIGIN, time.time(), SPEED)
    numbers = ["--origin", repr(ORIGIN), "--wall-origin", repr(clock.wall_origin), "--speed", repr(SPEED)]
    with start_process(numbers) as process:
        site = ManyFleets(process.endpoint, clock)
        for fleet in FLEETS:
            site.make_group(f"{fleet}-s", MaxSize=200)
        there = Installation(site, server, url, tmp_path)
        faults = []
        try:
            site.start()
            for name in NAMES:
                there.start(name)
            for agent in there.agents.values():
                agent.await_ready()
            time.sleep(3.0 * 60.0 / SPEED)
            began = clock.now()
            for _ in range(2):
                kind, name, seconds = dice.choice(FAULTS), dice.choice(NAMES), dice.uniform(1.0, 6.0)
                faults.append((kind, name, round(seconds, 1)))
                there.fault(kind, name, seconds)
                time.sleep(UNDECIDED_S)
            ended = clock.now()
            calls = {name: site.mutations("SetDesiredCapacity", name) for name in NAMES}
        finally:
            there.close()
            site.stop()
    wrong = _wrong(there, url, calls, began, ended)
    assert wrong == [], (seed, faults)
    assert sum(map(len, calls.values())) >= 2 * len(FLEETS)


def _wrong(
    there: Installation, url: str, calls: dict[str, list[dict[str, object]]], began: float, ended: float
) -> list[str]:
    wrong = []
    with psycopg.connect(url.replace("+psycopg", "")) as truth:
        epochs = truth.execute("SELECT subject, epoch, owner, since FROM leader ORDER BY epoch").fetchall()
        decided = truth.execute("SELECT subject, at FROM decisions ORDER BY at").fetchall()
    leaders: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for subject, _, owner, since in epochs:
        name = there.name_of_process[owner.rpartition(":")[0]]
        leaders[subject.removeprefix("autoscaling/")].append((since, name))
    # A second for the way of a request, and for the wait of a transaction for the one before.
    slack = 1.0 * SPEED
    for name, made in calls.items():
        for call in made:
            at, fleet = float(str(call["at"])), str(dict(call["params"])["AutoScalingGroupName"]).removesuffix("-s")  # type: ignore[call-overload]
            by = {who for since, who in leaders[fleet] if since <= at + slack}
            last = [who for since, who in leaders[fleet] if since <= at - slack][-1:]
            recent = [who for since, who in leaders[fleet] if at - slack < since <= at + slack]
            if name not in (*last, *recent):
                wrong.append(f"{name} sized {fleet} at {at - ORIGIN:.0f} s, led by {last or by}")
    times: dict[str, list[float]] = defaultdict(list)
    for fleet, at in decided:
        times[fleet].append(at)
    with Ledger.open(url, read_only=True) as ledger:
        assert ledger.epoch() >= len(FLEETS)
    for fleet in FLEETS:
        minutes = [int((at - 5.0) // 60.0) for at in times[fleet]]
        if len(minutes) != len(set(minutes)):
            wrong.append(f"a minute of {fleet} was decided twice")
        bounds = [began, *(at for at in times[fleet] if began <= at <= ended), ended]
        gap_s = max(b - a for a, b in itertools.pairwise(bounds)) / SPEED
        if gap_s > UNDECIDED_S + there.away_s:
            wrong.append(f"{fleet} was undecided for {gap_s:.1f} s")
    return wrong
