"""The dry run: fake AWS, real input and the real loop in act mode, one simulated hour, a story and a reckoning."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import numpy as np
import structlog

from agent.assembly import Agent, AwsKeys, assembled
from agent.ledger import lock_directory
from agent.ledger.records import DecisionRow
from agent.ledger.witness import NAME as WITNESS
from agent.ports import TickReport
from agent.rehearsal.cloud import AGENT_KEY, REGION, SECRET, CloudStage, DryRunCloud, bill, fake_aws
from agent.rehearsal.counterfactual import Settled
from agent.rehearsal.page import RehearsalPage, page_settings
from agent.rehearsal.scenario import (
    FLEET,
    GRACE_S,
    INITIAL,
    ORIGIN,
    Scenario,
    default_policy,
    environment,
    recorded_trace,
)
from agent.rehearsal.screen import Moment, Screen
from agent.rehearsal.site import SiteSpec
from agent.rehearsal.site_process import SiteProcess, site_process
from agent.rehearsal.story import Story, Teller, missing, required_of, told_by
from agent.rehearsal.summary import Lived, Summary, compare
from agent.settings import Settings, load_settings
from domain.decisions import Reason, Verdict
from domain.errors import BadInput, TrimtabError
from domain.fleet import Fleet
from simulator.paced_clock import paced_clock

log = structlog.get_logger(__name__)

TICK_S = 60.0
TURN_AFTER_S = GRACE_S + 1.0
"""The loop turns so long after each minute's end, exactly: the clock is held until the turn is over."""
SITE_STARTS_WITHIN_WALL_S = 1.0
COLLECTED_EVERY_S = 15.0
TELL_EVERY_S = 5.0
STOP_WITHIN_WALL_S = 5.0
LEDGER, LOG, CLOCKS = "ledger.db", "dry-run.log", "clock-*"
EVERYTHING = 1_000_000


class PartFailed(TrimtabError):
    """A part of the dry run ended before it was over."""


@dataclass(frozen=True, slots=True)
class DryRunOptions:
    """One dry run: the story, most simulated seconds per wall second, seed, minutes, where to keep the ledger."""

    story: Story
    speed: float = 60.0
    seed: int = 1993
    minutes: int = 60
    workload: str = "nasa"
    mode: str = "act"
    directory: Path = Path(".trimtab/dry-run")
    overrides: Mapping[str, str] = field(default_factory=dict)
    page: bool = False


class DryRun:
    """One dry run from start to reckoning."""

    def __init__(self, options: DryRunOptions, screen: Screen) -> None:
        self._options, self._screen = options, screen
        self._teller = Teller(options.story)
        self._ended = Event()
        self._busiest: str | None = None
        self._turns = 0
        self._page: RehearsalPage | None = None

    @property
    def turns(self) -> int:
        """How often the loop has turned."""
        return self._turns

    def run(self) -> Summary:
        """Live the hour and reckon; everything started is stopped however it ends.

        Raises BadInput or ConfigurationError for options and settings, PartFailed or SiteFailed when a part dies,
        LedgerUnavailable when the directory is in use, KeyboardInterrupt as it comes.
        """
        options = self._options
        directory = options.directory.resolve()
        unconnected = environment(directory, "http://127.0.0.1:1", "", "", options.mode, options.overrides)
        planned = load_settings(unconnected)
        groups = planned.fleet(FLEET).groups
        overrides = {**default_policy(planned, options.overrides), **options.overrides}
        with site_process(options.workload, options.seed) as site:
            scenario = recorded_trace(options.workload, options.seed)
            self._screen.workload(scenario.description)
            with (
                paced_clock(directory, clock_begins(options.speed), options.speed) as self._clock,
                fake_aws(groups, INITIAL, self._clock, options.seed) as cloud,
            ):
                self._screen.check("fake AWS", cloud.endpoint)
                settings = load_settings(
                    environment(
                        directory,
                        cloud.endpoint,
                        cloud.job_queue_url,
                        cloud.interruption_queue_url,
                        options.mode,
                        {**(page_settings() if options.page else {}), **overrides},
                    )
                )
                with assembled(settings, self._clock, AwsKeys(AGENT_KEY, SECRET)) as agent, ExitStack() as stack:
                    self._screen.check("agent", f"{settings.mode} mode, metrics on TCP port {agent.listener.port}")
                    self._screen.check("ledger", shown_path(directory / LEDGER))
                    if options.page:
                        self._page = RehearsalPage(stack, settings, agent)
                        self._screen.check("page", self._page.url)
                    try:
                        lived = self._live(agent, settings, cloud, site, scenario)
                    except BaseException:
                        # While the agent still listens: what reports to it must be gone first.
                        site.abort()
                        raise
                    return self._reckon(agent, settings, lived, scenario, directory)

    def _live(
        self, agent: Agent, settings: Settings, cloud: DryRunCloud, site: SiteProcess, scenario: Scenario
    ) -> Lived:
        fleet = settings.fleet(FLEET)
        clock, horizon_s = self._clock, self._options.minutes * TICK_S
        site.begin(self._site_spec(fleet, cloud, agent))
        # Every process has opened it: whatever ends this one now, no file is left.
        clock.path.unlink()
        self._screen.check("job source and workers", f"{scenario.trace.job_id.size} jobs")
        stage = CloudStage(cloud, site.order, lambda: self._busiest)
        managed = agent.ports.fleets[0]
        loop = Thread(target=self._keep_turning, args=[agent, fleet, cloud, stage], name="loop", daemon=True)
        with self._screen.living(clock, ORIGIN, self._options.minutes, managed.policy, managed.shadow):
            loop.start()
            try:
                while not self._ended.wait(timeout=0.25):
                    if not site.alive or cloud.process.poll() is not None:
                        part = "the fake AWS" if site.alive else "the job source and its workers"
                        raise PartFailed(f"{part} ended before the hour was over: see {LOG} and what was written above")
            finally:
                self._ended.set()
                loop.join(timeout=STOP_WITHIN_WALL_S)
        books = site.finish()
        return Lived(
            policy=managed.policy,
            rent=bill(cloud, fleet, ORIGIN, ORIGIN + horizon_s),
            waiting_job_s=float(books["waiting_job_s"]),
            submitted=int(books["submitted"]),
            finished=int(books["finished"]),
            mean_wait_s=float(books["mean_wait_s"]),
            p95_wait_s=float(books["p95_wait_s"]),
            lost=int(books["lost"]),
            handed_back=int(books["handed_back"]),
        )

    def _keep_turning(self, agent: Agent, fleet: Fleet, cloud: DryRunCloud, stage: CloudStage) -> None:
        """Let the time pass from one instant to the next, and hold it there while the story or the loop goes on."""
        turns = [(ORIGIN + minute * TICK_S + TURN_AFTER_S, True) for minute in range(1, self._options.minutes + 1)]
        beats = np.arange(ORIGIN, turns[-1][0], TELL_EVERY_S)
        try:
            for at, is_turn in sorted([*turns, *((float(beat), False) for beat in beats)]):
                if not self._clock.pace(at, self._ended):
                    return
                if is_turn:
                    self._turn(agent, fleet, cloud)
                else:
                    self._tell(stage)
        finally:
            self._ended.set()

    def _turn(self, agent: Agent, fleet: Fleet, cloud: DryRunCloud) -> None:
        try:
            began = time.monotonic()
            report = agent.turn()
            self._turns += 1
            now = self._clock.now()
            if self._page is not None:
                self._page.told(report, time.monotonic() - began)
            self._busiest = busiest(agent, fleet, report, now)
            end = min(now, ORIGIN + self._options.minutes * TICK_S)
            self._screen.show(Moment(fleet, report, bill(cloud, fleet, ORIGIN, end)))
        except Exception:
            log.exception("turn_failed")

    def _tell(self, stage: CloudStage) -> None:
        """Strike what is due; what fails is tried again, and is missing from the ledger if it never works."""
        now = self._clock.now()
        try:
            for struck in self._teller.advance((now - ORIGIN) / TICK_S, now, stage):
                self._screen.beat(struck)
        except Exception:
            log.exception("fault_not_struck")

    def _site_spec(self, fleet: Fleet, cloud: DryRunCloud, agent: Agent) -> SiteSpec:
        return SiteSpec(
            endpoint=cloud.endpoint,
            region=REGION,
            queue_url=cloud.job_queue_url,
            fleet=fleet.name,
            groups={g.name: (g.key, g.vm_type.cores, g.vm_type.memory_gb) for g in fleet.groups},
            start=ORIGIN,
            end=ORIGIN + self._options.minutes * TICK_S,
            clock_file=str(self._clock.path),
            listener_host=agent.listener.host,
            listener_port=agent.listener.port,
        )

    def _reckon(self, agent: Agent, settings: Settings, lived: Lived, scenario: Scenario, directory: Path) -> Summary:
        ledger, managed = agent.ports.ledger, agent.ports.fleets[0]
        journal = ledger.journal(limit=EVERYTHING)
        decisions = ledger.decisions(FLEET, limit=EVERYTHING)
        settled = Settled(
            settings.fleet(FLEET), managed.limits, managed.aggregation.idle_s, managed.aggregation.job_core_s
        )
        horizon_s = self._options.minutes * TICK_S
        with self._screen.comparing():
            seed, models = self._options.seed, agent.models
            others = compare(settled, managed.policy, scenario.trace, INITIAL, horizon_s, seed, models)
        return Summary(
            story=self._options.story.name,
            lived=lived,
            others=others,
            decisions=len(decisions),
            changes=sum(row.changed for row in decisions),
            held=sum(held_by_rails(row) for row in decisions),
            missing=missing(required_of(self._options.story, managed.policy), told_by(journal)),
            program=shown_program(),
            ledger=shown_path(directory / LEDGER),
            explain=most_telling(decisions),
        )


def clock_begins(speed: float) -> float:
    """Return when the clock begins: so long before the hour that the workers come up, and between two minutes.

    Collectors count from here. In their intervals of 15 s no collection falls on the end of a minute, where chance
    would decide to which of two minutes it belongs.
    """
    before_s = math.ceil(SITE_STARTS_WITHIN_WALL_S * speed / COLLECTED_EVERY_S) * COLLECTED_EVERY_S
    return ORIGIN - before_s - COLLECTED_EVERY_S / 2.0


def held_by_rails(row: DecisionRow) -> bool:
    """Return whether rails changed what the policy proposed."""
    return any(effect.verdict is not Verdict.PASSED for effect in row.decision.effects)


def most_telling(rows: Sequence[DecisionRow]) -> str:
    """Return the id of the decision that has the most to tell.

    One that rails changed and that was carried out tells more than one of either kind, and a fallback more than both.
    """

    def worth(row: DecisionRow) -> tuple[bool, bool, int]:
        changed = [effect for effect in row.decision.effects if effect.verdict is not Verdict.PASSED]
        acted = bool(row.decision.intents)
        fallback = any(effect.reason is Reason.CAPACITY_FALLBACK for effect in changed)
        return (acted and fallback, acted and bool(changed), len(changed) + 2 * acted)

    return str(max(rows, key=worth).decision.decision_id) if rows else "last"


def busiest(agent: Agent, fleet: Fleet, report: TickReport, now: float) -> str | None:
    """Return the VM in service with the most busy cores, None while none is busy."""
    staying = {vm for snapshot in report.snapshots for group in snapshot.groups for vm in group.removable}
    busy = {vm: n for vm, n in agent.ports.aggregator.busy_cores(fleet, now).items() if n and vm in staying}
    return max(busy, key=lambda vm: (busy[vm], vm)) if busy else None


def fresh_directory(directory: Path) -> Path:
    """Return the directory, absolute, without the ledger of an earlier dry run.

    Raises LedgerUnavailable when another process uses it, BadInput when the ledger in it is not a dry run's.
    """
    directory = directory.resolve()
    if (directory / LEDGER).exists() and not (directory / LOG).exists():
        raise BadInput(
            "--keep", str(directory), "it holds a ledger that no dry run has written: name another directory"
        )
    with lock_directory(directory):
        for pattern in (f"{LEDGER}*", WITNESS, LOG, CLOCKS):
            for stale in directory.glob(pattern):
                stale.unlink()
        (directory / LOG).touch()
    return directory


def shown_path(path: Path) -> str:
    """Return the path as one would type it here: relative where that is shorter."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def shown_program() -> str:
    """Return how this program was called: by its name where the shell finds that, else by its path."""
    name = Path(sys.argv[0]).name
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve():
        return name
    return shown_path(Path(sys.argv[0]).absolute()) if Path(sys.argv[0]).exists() else "trimtab"
