"""The dry run: fake AWS, real input and the real loop in act mode, one simulated hour, a story and a reckoning."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from agent.assembly import Agent, AwsKeys, assembled
from agent.ledger.records import JournalEntry, Kind
from agent.rehearsal.cloud import AGENT_KEY, REGION, SECRET, CloudStage, DryRunCloud, fake_aws
from agent.rehearsal.scenario import FLEET, GRACE_S, INITIAL, ORIGIN, Scenario, environment, recorded_trace
from agent.rehearsal.screen import Screen
from agent.rehearsal.site import SiteSpec
from agent.rehearsal.story import Story, Teller, missing
from agent.rehearsal.summary import Lived, Summary, compare
from agent.schedule import TickSchedule
from agent.settings import Settings, load_settings
from agent.spending import dollars_per_hour
from agent.tick import TickReport
from domain.clock import ScaledClock
from domain.decisions import Reason
from domain.fleet import Fleet

TICK_S = 60.0
START_DELAY_WALL_S = 6.0
"""The simulated hour begins this long after the start, when every part is up."""


@dataclass(frozen=True, slots=True)
class DryRunOptions:
    """One dry run: the story, seconds of simulated time per wall second, seed, minutes, where to keep the ledger."""

    story: Story
    speed: float = 60.0
    seed: int = 1993
    minutes: int = 60
    workload: str = "nasa"
    mode: str = "act"
    directory: Path = Path(".trimtab/dry-run")
    overrides: Mapping[str, str] = field(default_factory=dict)


class DryRun:
    """One dry run from start to reckoning."""

    def __init__(self, options: DryRunOptions, screen: Screen) -> None:
        self._options, self._screen = options, screen
        self._scenario: Scenario = recorded_trace(options.workload, options.seed)
        self._clock = ScaledClock(ORIGIN, time.time() + START_DELAY_WALL_S, options.speed)
        self._teller = Teller(options.story)
        self._ended = Event()
        self._dollars = 0.0
        self._rent = 0.0

    @property
    def scenario(self) -> Scenario:
        """The jobs and where they come from."""
        return self._scenario

    def run(self) -> Summary:
        """Live the hour and reckon; everything started is stopped however it ends."""
        options = self._options
        directory = fresh_directory(options.directory)
        groups = load_settings(environment(directory, "http://127.0.0.1:1", "", "", "observe", {})).fleet(FLEET).groups
        with fake_aws(groups, INITIAL, self._clock, options.seed) as cloud:
            self._screen.check("fake AWS", cloud.endpoint)
            values = environment(
                directory,
                cloud.endpoint,
                cloud.job_queue_url,
                cloud.interruption_queue_url,
                options.mode,
                options.overrides,
            )
            settings = load_settings(values)
            with assembled(settings, self._clock, AwsKeys(AGENT_KEY, SECRET)) as agent:
                self._screen.check("agent", f"{settings.mode} mode, metrics on TCP port {agent.listener.port}")
                self._screen.check("ledger", str(directory / "ledger.db"))
                return self._live(agent, settings, cloud, directory)

    def _live(self, agent: Agent, settings: Settings, cloud: DryRunCloud, directory: Path) -> Summary:
        fleet = settings.fleet(FLEET)
        with site_process(self._site_spec(fleet, cloud, agent)) as site:
            self._screen.check("job source and workers", f"{self._scenario.trace.job_id.size} jobs")
            stage = CloudStage(cloud, fleet, site.order, lambda: busiest(agent, fleet, self._clock.now()))
            first_at = self._clock.wall_origin + (TICK_S + GRACE_S + 1.0) / self._clock.speed
            schedule = TickSchedule(lambda: self._turn(agent, fleet, stage), TICK_S / self._clock.speed, first_at)
            self._teller.advance(0.0, stage)
            self._screen.begin()
            schedule.start()
            try:
                self._ended.wait()
            finally:
                schedule.stop()
                self._screen.end()
            books = site.finish()
        return self._reckon(agent, settings, fleet, books, directory)

    def _turn(self, agent: Agent, fleet: Fleet, stage: CloudStage) -> None:
        report = agent.turn()
        minute = (self._clock.now() - ORIGIN) / 60.0
        for title in self._teller.advance(minute, stage):
            self._screen.beat(title, self._clock.now())
        finished = 0
        for snapshot in report.snapshots:
            if snapshot.queue is not None:
                finished = snapshot.queue.submitted - snapshot.queue.waiting - snapshot.queue.running
        self._pay(agent, fleet, report)
        self._screen.show(fleet, report, self._rent, minute, max(0, finished))
        if minute >= self._options.minutes:
            self._ended.set()

    def _pay(self, agent: Agent, fleet: Fleet, report: TickReport) -> None:
        """Pay for the minute that begins at what is requested after the tick, as the simulator does."""
        sizes = {snapshot.fleet: list(snapshot.requested) for snapshot in report.snapshots}.get(fleet.name)
        if sizes is None:
            self._rent += self._dollars
            return
        for decision in report.decisions:
            for intent in decision.intents:
                sizes[fleet.index(intent.group)] = intent.target
        self._dollars = dollars_per_hour(fleet, tuple(sizes)) * TICK_S / 3600.0
        self._rent += self._dollars

    def _site_spec(self, fleet: Fleet, cloud: DryRunCloud, agent: Agent) -> SiteSpec:
        return SiteSpec(
            endpoint=cloud.endpoint,
            region=REGION,
            queue_url=cloud.job_queue_url,
            fleet=fleet.name,
            groups={g.name: (g.key, g.vm_type.cores, g.vm_type.memory_gb) for g in fleet.groups},
            workload=self._options.workload,
            seed=self._options.seed,
            origin=self._clock.origin,
            wall_origin=self._clock.wall_origin,
            speed=self._clock.speed,
            listener_host=agent.listener.host,
            listener_port=agent.listener.port,
        )

    def _reckon(
        self, agent: Agent, settings: Settings, fleet: Fleet, books: Mapping[str, Any], directory: Path
    ) -> Summary:
        ledger = agent.ports.ledger
        told = [reason for entry in ledger.journal(limit=1_000_000) for reason in reasons_of(entry)]
        decisions = ledger.decisions(FLEET, limit=1_000_000)
        changed = [row for row in decisions if row.changed]
        managed = agent.ports.fleets[0]
        horizon_s = self._options.minutes * 60.0
        others = compare(
            fleet, self._scenario.trace, INITIAL, horizon_s, managed.aggregation.idle_s, self._options.seed
        )
        lived = Lived(
            managed.policy,
            self._rent,
            int(books["submitted"]),
            int(books["finished"]),
            float(books["mean_wait_s"]),
            float(books["p95_wait_s"]),
            int(books["interrupted"]),
        )
        shown = most_telling(changed or decisions)
        return Summary(
            lived,
            others,
            len(decisions),
            len(changed),
            missing(self._options.story.required, told),
            str(directory / "ledger.db"),
            shown,
        )


def most_telling(rows: list[Any]) -> str:
    """Return the id of the decision whose rails had the most to say."""
    return str(max(rows, key=lambda row: sum(bool(e.detail) for e in row.decision.effects)).decision.decision_id)


def reasons_of(entry: JournalEntry) -> list[Reason]:
    """Return the reasons that a journal row gives, those of a decision's rails included."""
    reasons = [entry.reason]
    if entry.kind is Kind.DECISION:
        reasons = [effect["reason"] for effect in entry.body["effects"] if effect["reason"]] + reasons
    return [Reason(reason) for reason in reasons if reason in Reason._value2member_map_]


def busiest(agent: Agent, fleet: Fleet, now: float) -> str | None:
    """Return the VM with the most busy cores, None while none is busy."""
    busy = {vm: cores for vm, cores in agent.ports.aggregator.busy_cores(fleet, now).items() if cores}
    return max(busy, key=lambda vm: (busy[vm], vm)) if busy else None


def fresh_directory(directory: Path) -> Path:
    """Return the directory, absolute, without the ledger of an earlier dry run."""
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("ledger.db*"):
        stale.unlink()
    return directory


class SiteProcess:
    """The running site: takes orders, and its books at the end."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    def order(self, order: dict[str, Any]) -> None:
        """Send one order."""
        if self._popen.stdin is not None:
            self._popen.stdin.write(json.dumps(order) + "\n")
            self._popen.stdin.flush()

    def finish(self) -> Mapping[str, Any]:
        """End it and return its books."""
        self.order({"stop": True})
        line = self._popen.stdout.readline() if self._popen.stdout is not None else ""
        books: dict[str, Any] = json.loads(line)
        return books


@contextmanager
def site_process(spec: SiteSpec) -> Iterator[SiteProcess]:
    """Run the site in a process of its own; it ends when its input does, so it cannot outlive this one."""
    command = [sys.executable, "-m", "agent.rehearsal.site"]
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    site = SiteProcess(popen)
    try:
        if popen.stdin is not None:
            popen.stdin.write(json.dumps(asdict(spec)) + "\n")
            popen.stdin.flush()
        if popen.stdout is None or not popen.stdout.readline():
            raise RuntimeError(f"the site did not start (exit {popen.wait()})")
        yield site
    finally:
        if popen.stdin is not None:
            popen.stdin.close()
        try:
            popen.wait(timeout=10)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        if popen.stdout is not None:
            popen.stdout.close()
