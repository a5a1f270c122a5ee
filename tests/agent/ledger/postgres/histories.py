"""Three agents on one PostgreSQL in virtual time: leases, ledger, loop and actuator are the agent's own.

What is not real: time (of the database, of each host), the threads (each beat of a lease and each turn is one step),
the cloud, the load, and the policy, which asks for another size every minute. A process that is frozen in a call lets
the others go on inside it. This command plays histories on a server of its own, prints each and the totals as lines of
JSON, and exits with 1 when one is wrong:

    python -m tests.agent.ledger.postgres.histories --seeds 0-999
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pytest
import structlog

from actuators.autoscaling_group import AutoScalingActuator
from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.loop import Loop
from agent.autoscaling.policies.fallback import Proposer
from agent.autoscaling.report import with_fleets
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger, leases
from agent.ledger.database import Database
from agent.ledger.leases import AgentRecord
from agent.rails.base import RailLimits
from agent.service import leader as leader_module
from agent.service.assembly import Acting
from agent.service.leader import UNDECIDED_S as PATIENCE_S
from agent.service.leader import Incapacity, LeaseLeader
from agent.service.shares import Managed, units
from benchmarks.loaded_cloud import GRACE_S, SAMPLE_S, START, LoadedCloud, make_fleets
from collectors.inventory import Inventory
from domain.decisions import Mode, Proposal, Reason
from domain.errors import CloudError, FailureClass, LedgerUnavailable, TrimtabError
from domain.fleet import Fleet
from domain.snapshot import Snapshot
from domain.subject import Subject, fleet_subject
from tests.agent.ledger.postgres.server import EMPTY_LEDGER, running_server

FLEETS, VMS = 4, 24
LEASE_S, RENEW_S, TURN_S = 30.0, 10.0, 60.0
MINUTES = 11
NAMES = ("north", "east", "west")
LIMITS = RailLimits(cooldown_out_s=0.0, cooldown_in_s=0.0)
BETWEEN_FAULTS_S = LEASE_S + 2.0 * TURN_S + 5.0
SLACK_S = 5.0
LATER_S = {
    "kill": LEASE_S + TURN_S,
    "freeze": LEASE_S + TURN_S,
    "freeze in a call": LEASE_S + TURN_S,
    "cut": LEASE_S + TURN_S,
    "stop": RENEW_S + TURN_S,
    "lost answer": TURN_S,
    "aws": PATIENCE_S + 2.0 * RENEW_S + TURN_S,
    "server": TURN_S,
    "settings": 0.0,
}
"""By how much a fault delays a fleet's next decision at most, as docs/operate/operating.md promises.

While the server is away or settings differ, that time is added. Where faults overlap their times add up.
"""
FAULTS = (
    "kill",
    "stop",
    "freeze",
    "freeze in a call",
    "cut",
    "lost answer",
    "server",
    "failover",
    "settings",
    "upgrade",
    "aws",
)


def restless(policy: object, fleet: Fleet, snapshot: Snapshot, memory: Mapping[str, float]) -> tuple[Proposal, Any]:
    """Ask for one VM more every minute."""
    first, *others = snapshot.requested
    wanted = (first + 1, *others)
    return Proposal(fleet.name, "restless", wanted, Reason.QUEUE_COVERED, "another size each minute"), memory


class HostClock:
    """The clock of a host that runs `rate` times as fast as true time."""

    def __init__(self, history: History, rate: float) -> None:
        self._history, self.rate = history, rate

    def now(self) -> float:
        return START + (self._history.now - START) * self.rate

    def monotonic(self) -> float:
        return self._history.now * self.rate

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits in virtual time")


class CutDatabase(Database):
    """A database that its agent may not reach, or whose answer to a commit may be lost."""

    reachable: Callable[[], bool] = staticmethod(lambda: True)
    loses_answer = False

    def _reach(self) -> None:
        if not self.reachable():
            raise LedgerUnavailable("the network is cut")

    @contextlib.contextmanager
    def read(self) -> Iterator[Any]:
        self._reach()
        with super().read() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Any]:
        self._reach()
        with super().write() as connection:
            yield connection
        if self.loses_answer:
            self.loses_answer = False
            raise LedgerUnavailable("the answer was lost")

    def fetch(self, query: Any, **values: Any) -> Any:
        self._reach()
        return super().fetch(query, **values)


class SharedCloud(LoadedCloud):
    """The cloud of all agents: each change passes the fence of the agent that makes it."""

    history: History

    def read(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        agent = self.history.acting
        assert agent is not None
        if agent.no_aws_until > self.history.now:
            raise CloudError(operation, FailureClass.UNAVAILABLE, "Timeout", "no route to AWS")
        return super().read(service, operation, **parameters)

    def mutate(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        agent = self.history.acting
        assert agent is not None
        if agent.freezes_in_call_s:
            seconds, agent.freezes_in_call_s = agent.freezes_in_call_s, 0.0
            self.history.frozen_in_call(agent, seconds)
        agent.fence()
        self.history.sent(agent, operation)
        return super().mutate(service, operation, **parameters)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, by true time: from `since` to `until` it delays the decisions of a fleet, or of all, by `later_s`."""

    kind: str
    since: float
    until: float
    later_s: float
    fleet: str = ""


@dataclass
class Agent:
    """A process of a name. next_beat_at, next_turn_at, and what a fault does until when: by true time."""

    history: History
    name: str
    rate: float
    revision: str
    number: int
    settings: dict[Subject, str]
    next_beat_at: float = 0.0
    next_turn_at: float = 0.0
    frozen_until: float = 0.0
    cut_until: float = 0.0
    no_aws_until: float = 0.0
    freezes_in_call_s: float = 0.0
    acting: Acting = field(default_factory=Acting)

    def __post_init__(self) -> None:
        history = self.history
        self.clock = HostClock(history, self.rate)
        self.database = CutDatabase(history.url, read_only=False, busy_timeout_s=20.0)
        self.database.reachable = lambda: max(self.cut_until, history.server_away_until) <= history.now
        self.ledger = Ledger(self.database)
        managed = Managed(self.settings, units(self.settings, []))
        me = AgentRecord(self.name, f"{self.name}:{self.number}", self.revision)
        self.leader = LeaseLeader(self.ledger, me, self.clock, LEASE_S, RENEW_S, lambda: managed)
        self.series = SeriesStore(watched=history.fleets)
        self.store = FleetStore(self.ledger)
        aggregation = AggregationSettings(limits=LIMITS, grace_s=GRACE_S, needed=())
        self.loop = Loop(
            fleets=tuple(ManagedFleet(fleet, LIMITS, "hold", (), aggregation) for fleet in history.fleets),
            store=self.store,
            actuator=self._actuator(),
            aggregator=Aggregator(self.series),
            proposer=Proposer(restless),
            clock=self.clock,
            mode=Mode.ACT,
            leads=Leads(),
            fence=self.leader.fence,
            acting=self.acting.under,
            is_elsewhere=self.leader.is_elsewhere,
            protect_busy=False,
        )
        self.incapacity = Incapacity()
        self.next_beat_at = history.now
        self._plan_turn()

    def _actuator(self) -> AutoScalingActuator:
        cloud = self.history.cloud
        return AutoScalingActuator(cloud, Inventory(cloud), self.history.fleets, protect_busy=False)

    def _plan_turn(self) -> None:
        # A quarter of a second after the grace of a minute of its own clock.
        own = self.clock.now() - GRACE_S - 0.25
        wait = ((own + 1.0) // TURN_S + 1.0) * TURN_S - own
        self.next_turn_at = self.history.now + wait / self.rate

    def fence(self) -> None:
        self.leader.fence(self.leader.leads().numbers if self.acting.epochs is None else self.acting.epochs)

    def beat(self) -> None:
        self.next_beat_at = self.history.now + self.leader._beat() / self.rate

    def turn(self) -> None:
        """Do as `Agent.turn` and the part of the fleets do."""
        self._plan_turn()
        with self.leader.turning(), contextlib.suppress(TrimtabError):
            leads = self.leader.leads()
            if not leads.numbers:
                return
            with self.acting.under(*leads.numbers):
                if any(leads.of(one) not in (None, self.loop.leads.of(one)) for one in self.settings):
                    newest = self.store.newest_of([one.name for one in self.settings])
                    decided_at = {name: made.at for name, (_, made) in newest.items()}
                    self.loop.take_over(leads, self._actuator(), None, decided_at)
                self.loop.follow(leads)
                report = self.loop.turn(self.clock.now())
            self.history.turned(self, report)
            whole = with_fleets(TurnReport(report.at), report)
            if self.incapacity.ends_lead(whole, ", ".join(whole.unread or ()), self.clock.monotonic()):
                self.history.given_away += self.leader.stand_back()


class History:
    """One history: a seed draws the hosts' clocks and the faults, with time to recover between two of them."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.dice, self.now = url, random.Random(seed), START
        self.fleets = tuple(
            replace(one, groups=tuple(replace(group, maximum=1000) for group in one.groups))
            for one in make_fleets(FLEETS, VMS)
        )
        self.subjects = [fleet_subject(fleet.name) for fleet in self.fleets]
        self.cloud = SharedCloud(self.fleets, VMS // FLEETS, [0.6] * FLEETS, seed)
        self.cloud.history = self
        self.truth = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self.acting: Agent | None = None
        self.server_away_until = self.server_ahead_s = 0.0
        self.revision = "0014"
        self.calls = self.given_away = 0
        self.faults: list[str] = []
        self.wrong: list[str] = []
        self.decided: dict[str, tuple[float, str]] = defaultdict(lambda: (START, ""))
        self.delays: list[tuple[str, float]] = []
        self.minutes: dict[str, set[float]] = defaultdict(set)
        self.overlapping: list[Fault] = []
        self.refused: tuple[Subject, float, float] | None = None
        self.started = 0
        fast = self.dice.choice([*NAMES, ""])
        self.rates = {name: 1.05 if name == fast else 1.0 for name in NAMES}
        self.agents: dict[str, Agent] = {}
        self.returns: dict[str, float] = {}

    # What the code under test sees of time

    def database_now(self, connection: object) -> float:
        return self.now + self.server_ahead_s

    def since_boot(self) -> float:
        assert self.acting is not None
        return self.acting.clock.monotonic()

    # What happens

    def run(self) -> None:
        for name in NAMES:
            self.start(name)
        end, next_fault = START + MINUTES * TURN_S, START + self.dice.uniform(70.0, 130.0)
        while self.now < end:
            self.step(next_fault)
            if self.now >= next_fault:
                self.fault()
                next_fault = self.now + BETWEEN_FAULTS_S + self.dice.uniform(0.0, 60.0)
        for fleet in self.fleets:
            self._look_at_gap(fleet.name, self.now, "")
        self.truth.close()
        for agent in self.agents.values():
            agent.ledger.close()

    def step(self, until: float, without: Agent | None = None) -> None:
        """Let the next thing happen: a beat, a turn, ten seconds of load, the return of a process, or nothing."""
        there = [one for one in self.agents.values() if one is not without]
        beats = [(max(one.next_beat_at, one.frozen_until), "beat", one.name) for one in there]
        turns = [(max(one.next_turn_at, one.frozen_until), "turn", one.name) for one in there]
        returns = [(at, "start", name) for name, at in self.returns.items()]
        at, what, name = min([*beats, *turns, *returns, (self.cloud.clock.now() - GRACE_S + SAMPLE_S, "load", "")])
        if at > until:
            self.now = until
            return
        self.now = max(self.now, at)
        if what == "load":
            self.load()
        elif what == "start":
            del self.returns[name]
            self.start(name)
        else:
            before, self.acting = self.acting, self.agents[name]
            try:
                self.acting.beat() if what == "beat" else self.acting.turn()
            finally:
                self.acting = before

    def load(self) -> None:
        """Let ten seconds of load be reported to every agent."""
        self.cloud.clock.advance(SAMPLE_S)
        self.cloud._settle()
        at = self.cloud.clock.now() - GRACE_S
        for workers in self.cloud._workers:
            workers.work(at)
            for agent in self.agents.values():
                with contextlib.suppress(RuntimeError):
                    workers.report(agent.series, at)

    def start(self, name: str, settings: Mapping[Subject, str] | None = None) -> None:
        self.started += 1
        given = dict(settings or dict.fromkeys(self.subjects, "same"))
        self.agents[name] = Agent(self, name, self.rates[name], self.revision, self.started, given)

    def end(self, name: str, back_in_s: float, *, gracefully: bool) -> None:
        agent = self.agents.pop(name)
        self._note("stop" if gracefully else "kill")
        if gracefully:
            before, self.acting = self.acting, agent
            agent.leader.stop()
            self.acting = before
        agent.ledger.close()
        self.returns[name] = self.now + back_in_s

    def fault(self) -> None:
        kind, dice = self.dice.choice(FAULTS), self.dice
        name = dice.choice(sorted(self.agents))
        agent = self.agents[name]
        seconds = dice.uniform(5.0, 90.0)
        self.faults.append(f"{self.now - START:.0f} s: {kind} {name} {seconds:.0f} s")
        if kind in ("kill", "stop"):
            self.end(name, seconds, gracefully=kind == "stop")
        elif kind == "freeze":
            agent.frozen_until = self.now + seconds
            self._note(kind, seconds)
        elif kind == "freeze in a call":
            agent.freezes_in_call_s = seconds
        elif kind == "cut":
            agent.cut_until = self.now + seconds
            self._note(kind, seconds)
        elif kind == "aws":
            # Five minutes and a turn without a decision, then its lead is given away.
            agent.no_aws_until = self.now + 400.0
            self._note(kind, 400.0)
        elif kind == "lost answer":
            agent.database.loses_answer = True
            # The next write is the next beat at the latest.
            self._note(kind, RENEW_S + 1.0)
        elif kind in ("server", "failover"):
            self.server_away_until = self.now + seconds / 3.0
            self._note("server", seconds / 3.0, away_s=seconds / 3.0)
            if kind == "failover":
                self.server_ahead_s += dice.uniform(-2.0, 2.0)
        elif kind == "settings":
            subject = dice.choice(self.subjects)
            self.end(name, 1e9, gracefully=True)
            del self.returns[name]
            self.start(name, {**dict.fromkeys(self.subjects, "same"), subject: "other"})
            self.refused = (subject, self.now + RENEW_S + 1.0, self.now + seconds)
            self._note(kind, seconds, away_s=seconds, fleet=subject.name)
            until = self.now + seconds
            while self.now < until:
                self.step(until)
            self.end(name, 1.0, gracefully=True)
        elif kind == "upgrade":
            self.revision = f"{int(self.revision) + 1:04d}"
            for each in sorted(self.agents):
                if each in self.agents:
                    self.end(each, 2.0, gracefully=True)
                    until = self.now + 20.0
                    while self.now < until:
                        self.step(until)

    # What must hold

    def frozen_in_call(self, agent: Agent, seconds: float) -> None:
        before, until = self.acting, self.now + seconds
        self._note("freeze in a call", seconds)
        while self.now < until:
            self.step(until, without=agent)
        self.acting = before

    def sent(self, agent: Agent, operation: str) -> None:
        """Note a call that has passed the fence: its epoch must be the newest one of its subject."""
        self.calls += 1
        assert agent.acting.epochs is not None
        (epoch,) = agent.acting.epochs
        query = (
            "SELECT (SELECT max(n.epoch) FROM leader n WHERE n.subject = m.subject) FROM leader m WHERE m.epoch = %s"
        )
        newest = self.truth.execute(query, [epoch]).fetchone()
        if newest != (epoch,):
            self.wrong.append(f"{self.now - START:.0f} s: {agent.name} sent {operation} under {epoch} of {newest}")

    def turned(self, agent: Agent, report: Any) -> None:
        for made in report.decisions:
            minute = (made.at - GRACE_S) // 60.0
            if minute in self.minutes[made.fleet]:
                self.wrong.append(f"{self.now - START:.0f} s: {agent.name} decided {made.decision_id} twice")
            self.minutes[made.fleet].add(minute)
            if made.reason is Reason.CLOUD_UNREADABLE:
                continue
            self._look_at_gap(made.fleet, self.now, agent.name)
            self.decided[made.fleet] = self.now, agent.name
            if self.refused is not None and made.fleet == self.refused[0].name:
                _, since, until = self.refused
                if since <= self.now <= until:
                    self.wrong.append(f"{self.now - START:.0f} s: {made.decision_id} with settings that differ")

    def _note(self, kind: str, lasts_s: float = 0.0, away_s: float = 0.0, fleet: str = "") -> None:
        self.overlapping.append(Fault(kind, self.now, self.now + lasts_s, away_s + LATER_S[kind], fleet))

    def _look_at_gap(self, fleet: str, at: float, agent: str) -> None:
        before, leader = self.decided[fleet]
        faults = [one for one in self.overlapping if before < one.until and one.fleet in ("", fleet)]
        # A minute that a fast clock was ahead of is waited for.
        ahead_s = (max(self.rates.values()) - 1.0) * (at - START)
        gap, allowed = at - before, TURN_S + SLACK_S + ahead_s + sum(one.later_s for one in faults)
        if gap > allowed:
            self.wrong.append(f"{at - START:.0f} s: {fleet} was undecided for {gap:.0f} s, {allowed:.0f} are stated")
        kinds = {one.kind for one in faults}
        if agent and leader not in ("", agent) and len(kinds) == 1:
            self.delays.append((kinds.pop(), max(0.0, gap - TURN_S)))


def play(monkeypatch: pytest.MonkeyPatch, url: str, seed: int) -> History:
    """Play one history to its end."""
    history = History(url, seed)
    monkeypatch.setattr(leases, "database_now", history.database_now)
    monkeypatch.setattr(leader_module, "since_boot", history.since_boot)
    history.run()
    return history


def main(arguments: list[str]) -> int:
    """Play the histories of these seeds, print each and their totals, and return the exit code."""
    parser = argparse.ArgumentParser(description="Plays histories of three agents on a PostgreSQL server.")
    parser.add_argument("--seeds", required=True, metavar="FIRST-LAST")
    first, last = map(int, parser.parse_args(arguments).seeds.split("-"))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    calls = minutes = wrong = 0
    delays: dict[str, list[float]] = defaultdict(list)
    with running_server() as server, pytest.MonkeyPatch.context() as patch:
        Ledger.open(server.new_database(EMPTY_LEDGER)).close()
        for seed in range(first, last + 1):
            name = f"history_{seed}"
            played = play(patch, server.new_database(name, EMPTY_LEDGER), seed)
            with server.connected() as admin:
                admin.execute(f'DROP DATABASE "{name}"')
            decided = sum(map(len, played.minutes.values()))
            calls, minutes, wrong = calls + played.calls, minutes + decided, wrong + bool(played.wrong)
            for kind, delay_s in played.delays:
                delays[kind].append(delay_s)
            line = {"seed": seed, "calls": played.calls, "minutes": decided, "delays": played.delays}
            print(json.dumps({**line, "faults": played.faults, "wrong": played.wrong}), flush=True)
    takeovers = {kind: {"number": len(found), **_quantiles(found)} for kind, found in sorted(delays.items())}
    print(json.dumps({"histories": last + 1 - first, "wrong": wrong, "calls": calls, "minutes": minutes} | takeovers))
    return 1 if wrong else 0


def _quantiles(delays_s: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the longest of delays, in seconds."""
    shares = {"p50_s": 0.5, "p99_s": 0.99, "longest_s": 1.0}
    last = len(delays_s) - 1
    return {name: round(sorted(delays_s)[math.ceil(share * last)], 1) for name, share in shares.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
