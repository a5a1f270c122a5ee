"""The dry run: fake AWS, real input and the real loop in act mode, four simulated hours with faults, and a summary.

`play` runs this and the other sections on a screen and prints their summaries.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import structlog
from rich.console import Console
from rich.text import Text

from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.report import MinuteReport
from agent.autoscaling.state import DecisionRow, FleetStore
from agent.kernel.turn import TurnReport
from agent.ledger import Ledger, lock_directory
from agent.ledger.journal import JournalEntry
from agent.ledger.witness import NAME as WITNESS
from agent.rehearsal.faults import (
    FaultInjector,
    FaultPlan,
    FaultTarget,
    missing,
    recorded_reasons,
    required_reasons,
)
from agent.rehearsal.scenario import (
    AGENT_KEY,
    DAY,
    FLEET,
    GRACE_S,
    INITIAL,
    LEDGER,
    MAX_CORES,
    ORIGIN,
    SCALED,
    SECRET,
    DryRunCloud,
    Rent,
    beside_learned,
    environment,
    fake_aws,
    groups_of,
    recorded_trace,
    shell_lines,
    shown_path,
    shown_program,
)
from agent.rehearsal.screens import JsonScreen, LineScreen, LiveScreen, Screen, Turn, clock_text
from agent.rehearsal.section_process import SectionRun, Sections, section_process
from agent.rehearsal.sections import ALL, FLEET_ALONE, SectionResult, logging_to, sections
from agent.rehearsal.site import SiteProcess, SiteSpec, site_process
from agent.rehearsal.summary import (
    WAITING_PRICE_PER_HOUR,
    FleetParameters,
    LiveRun,
    RunCost,
    Summary,
    actions_of,
    compare,
)
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.service.http import start_http
from agent.settings import Settings, load_settings
from agent.view.board import ServiceBoard
from domain import decisions
from domain.decisions import Mode, Reason, Verdict
from domain.errors import BadInput, TrimtabError
from domain.fleet import Fleet
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace
from simulator.paced_clock import paced_clock

log = structlog.get_logger(__name__)

TURN_AFTER_S = GRACE_S + 1.0
"""The loop turns so long after each minute's end, exactly: the clock is held until the turn is over."""
COLLECTED_EVERY_S = 15.0
CLOCK_BEGINS = ORIGIN - MINUTE_S - COLLECTED_EVERY_S / 2.0
"""A minute before the hour the workers begin to report. Collectors count from here: in their intervals of 15 s none
falls on the end of a minute, where chance would decide to which of two minutes it belongs."""
FLEET_OLDER_S = HOUR_S
"""The groups are so much older: else their creation would be a change of size, and the agent would let them rest."""
ARRIVED_WITHIN_WALL_S = 5.0
ARRIVAL_CHECKED_EVERY_WALL_S = 0.001
COLLECTED_WITHIN_WALL_S = 30.0
INJECT_EVERY_S = 5.0
RENT_EVERY_TURNS = 5
"""Turns between two readings of the rent on the screen, the largest call to AWS of a turn."""
STOP_WITHIN_WALL_S = 5.0
LOG, CLOCKS, SECTIONS = "dry-run.log", "clock-*", "sections"
EVERYTHING = 1_000_000
MINUTES_PER_HOUR = HOUR_S / MINUTE_S


class PartFailed(TrimtabError):
    """A part of the dry run ended before it was over."""


@dataclass(frozen=True, slots=True)
class DryRunOptions:
    """Faults, most simulated seconds per wall second, seed, minutes, jobs, mode, and the directory of the ledger.

    world: whose fleet it is, see `agent.rehearsal.scenario.groups_of`.
    """

    plan: FaultPlan
    speed: float = 600.0
    seed: int = 1993
    minutes: int = 240
    workload: str = DAY
    mode: str = "act"
    directory: Path = Path(".trimtab/dry-run")
    overrides: Mapping[str, str] = field(default_factory=dict)
    page: bool = False
    world: str | None = None


class DryRun:
    """One dry run from start to summary."""

    def __init__(self, options: DryRunOptions, screen: Screen) -> None:
        self.turns = 0
        self._rent = 0.0
        self.page = ""
        self._met: list[str] = []
        self._options, self._screen = options, screen
        self._end = ORIGIN + options.minutes * MINUTE_S
        self._injector = FaultInjector(options.plan)
        self._ended = Event()
        self._busiest: str | None = None
        self._on_turn: Callable[[TurnReport, float], None] = lambda report, duration_s: None

    def run(self) -> Summary:
        """Run and summarise it, as `living`; everything is stopped then."""
        with self.living() as summary:
            return summary

    @contextmanager
    def living(self) -> Iterator[Summary]:
        """Run, and yield the summary while the agent still serves its page; everything started is stopped in any case.

        Raises BadInput or ConfigurationError for options and settings, PartFailed or SiteFailed when a part dies,
        LedgerUnavailable when the directory is in use, KeyboardInterrupt as it comes.
        """
        options, screen = self._options, self._screen
        directory = options.directory.resolve()
        groups = groups_of(options.world)
        planned = load_settings(
            environment(directory, "http://127.0.0.1:1", "", "", options.mode, options.overrides, groups)
        )
        overrides = {**beside_learned(options.overrides), **options.overrides}
        if options.page:
            overrides = {**page_settings(), **overrides}
        fleet = planned.fleet(FLEET)
        max_cores = fleet.max_cores if options.world is not None else MAX_CORES
        initial = INITIAL if options.world is None else tuple(group.minimum for group in fleet.groups)
        trace, description = recorded_trace(options.workload, options.seed, max_cores)
        with (
            site_process(options.workload, options.seed, max_cores) as site,
            paced_clock(directory, CLOCK_BEGINS - FLEET_OLDER_S, options.speed) as self._clock,
            fake_aws(fleet.groups, initial, self._clock, options.seed) as cloud,
        ):
            self._clock.skip_to(CLOCK_BEGINS)
            queues = cloud.job_queue_url, cloud.interruption_queue_url
            settings = load_settings(environment(directory, cloud.endpoint, *queues, options.mode, overrides, groups))
            with assembled(settings, self._clock, AwsKeys(AGENT_KEY, SECRET)) as agent, ExitStack() as stack:
                if options.page:
                    self.page = self._serve_page(stack, settings, agent)
                    screen.check("page", self.page)
                screen.workload(description)
                screen.check("fake AWS", cloud.endpoint)
                screen.check("agent", f"{settings.mode} mode, metrics on TCP port {agent.listener.port}")
                screen.check("ledger", shown_path(directory / LEDGER))
                try:
                    live = self._play(agent, settings.fleet(FLEET), cloud, site, trace)
                except BaseException:
                    # While the agent still listens: its senders must be gone first.
                    site.abort()
                    raise
                yield self._summary(agent, live, trace, directory, initial)

    def _serve_page(self, stack: ExitStack, settings: Settings, agent: Agent) -> str:
        """Serve the agent's page on this machine, and return its URL with the token as a browser takes a password."""
        board = ServiceBoard(agent.clock.now())
        server = start_http(stack, settings, board, agent).server

        def on_turn(report: TurnReport, duration_s: float) -> None:
            board.change(leader=True, epoch=agent.leadership.leads().every or 0)
            for listener in board.turned(report, duration_s):
                try:
                    listener(board.read(), report)
                except Exception:
                    log.exception("listener_failed")

        self._on_turn = on_turn
        token = settings.http.token.get_secret_value() if settings.http.token else ""
        return f"http://trimtab:{token}@127.0.0.1:{server.port}/"

    def _play(self, agent: Agent, fleet: Fleet, cloud: DryRunCloud, site: SiteProcess, trace: Trace) -> LiveRun:
        clock, managed = self._clock, agent.part(AutoscalingPart).loop.fleets[0]
        site.begin(
            SiteSpec(
                endpoint=cloud.endpoint,
                queue_url=cloud.job_queue_url,
                fleet=fleet.name,
                groups={g.name: (g.key, g.vm_type.cores, g.vm_type.memory_gb) for g in fleet.groups},
                start=ORIGIN,
                end=self._end,
                clock_file=str(clock.path),
                listener_host=agent.listener.host,
                listener_port=agent.listener.port,
            )
        )
        # Every process has opened it: no file is left, whatever ends this process now.
        clock.path.unlink()
        self._screen.check("job source and workers", f"{trace.job_id.size} jobs")
        target = FaultTarget(cloud.control, cloud.interruption_queue_url, site.lose_metrics, lambda: self._busiest)
        rent = Rent(cloud.endpoint, fleet, ORIGIN)
        loop = Thread(target=self._loop, args=[agent, fleet, rent, target], name="loop", daemon=True)
        with self._screen.running(clock, ORIGIN, self._options.minutes, managed.policy, managed.shadows):
            loop.start()
            try:
                while not self._ended.wait(timeout=0.25):
                    if not site.alive or cloud.process.poll() is not None:
                        part = "the fake AWS" if site.alive else "the job source and its workers"
                        raise PartFailed(f"{part} ended before the hour was over: see {LOG} and the output above")
            finally:
                self._ended.set()
                loop.join(timeout=STOP_WITHIN_WALL_S)
        jobs = site.finish()
        waiting_cost = jobs["waiting_job_s"] / HOUR_S * WAITING_PRICE_PER_HOUR
        waits = jobs["mean_wait_s"], jobs["p95_wait_s"], jobs["finished"]
        cost = RunCost(managed.policy, rent.until(self._end), waiting_cost, *waits)
        return LiveRun(cost, jobs["submitted"], jobs["waiting_job_s"], jobs["lost"], jobs["handed_back"])

    def _loop(self, agent: Agent, fleet: Fleet, rent: Rent, target: FaultTarget) -> None:
        """Let the time pass from one instant to the next, and hold it there while faults or the loop are at work."""
        turns = ORIGIN + MINUTE_S * np.arange(1, self._options.minutes + 1) + TURN_AFTER_S
        instants: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = [
            *((float(at), self._turn, (agent, fleet, rent)) for at in turns),
            *((float(at), self._inject, (target,)) for at in np.arange(ORIGIN, turns[-1], INJECT_EVERY_S)),
            *((float(at), self._collect, (agent,)) for at in np.arange(CLOCK_BEGINS, turns[-1], COLLECTED_EVERY_S)),
        ]
        # The loop lets collectors run from here on: their own thread keeps wall time.
        agent.poller.stop()
        try:
            for at, act, about in sorted(instants, key=lambda instant: instant[0]):
                if not self._clock.pace(at, self._ended):
                    return
                self._let_arrive(agent)
                act(*about)
        finally:
            self._ended.set()

    def _let_arrive(self, agent: Agent) -> None:
        counters, before = agent.listener.counters, time.monotonic()
        while counters.accepted + counters.rejected_total < self._clock.sent:
            if time.monotonic() - before > ARRIVED_WITHIN_WALL_S or self._ended.wait(ARRIVAL_CHECKED_EVERY_WALL_S):
                return

    def _collect(self, agent: Agent) -> None:
        agent.poller.poll_and_wait(COLLECTED_WITHIN_WALL_S)

    def _turn(self, agent: Agent, fleet: Fleet, rent: Rent) -> None:
        try:
            began = time.monotonic()
            report = agent.turn()
            self.turns += 1
            now = self._clock.now()
            self._on_turn(report, time.monotonic() - began)
            minute = agent.part(AutoscalingPart).minute
            self._busiest = busiest(agent, fleet, minute, now)
            if self.turns % RENT_EVERY_TURNS == 1:
                self._rent = rent.so_far(min(now, self._end))
            self._screen.turn(Turn(fleet, replace(minute, events=report.events, failure=report.failure), self._rent))
        except Exception:
            log.exception("turn_failed")

    def _inject(self, target: FaultTarget) -> None:
        """Inject what is due; what fails is tried again, and is missing from the ledger if it never succeeds."""
        now = self._clock.now()
        try:
            for injected in self._injector.advance((now - ORIGIN) / MINUTE_S, now, target):
                self._met.append(injected.fault.title)
                self._screen.fault(injected)
        except Exception:
            log.exception("fault_not_injected")

    def _summary(self, agent: Agent, live: LiveRun, trace: Trace, directory: Path, initial: tuple[int, ...]) -> Summary:
        options, ledger, managed = self._options, agent.ledger, agent.part(AutoscalingPart).loop.fleets[0]
        decisions = FleetStore(ledger).decisions(FLEET, limit=EVERYTHING)
        fold = managed.aggregation
        parameters = FleetParameters(managed.fleet, managed.limits, fold.idle_s, fold.job_core_s, fold.terms)
        with self._screen.comparing():
            horizon_s = options.minutes * MINUTE_S
            *others, largest = compare(
                parameters,
                managed.policy,
                trace,
                initial,
                horizon_s,
                options.seed,
                agent.part(AutoscalingPart).models,
                options.plan.simulated(),
            )
        recorded = recorded_reasons(ledger.journal(limit=EVERYTHING))
        # What a fault leads to was seen to happen with the fleet and the jobs of the dry run, not with any others.
        own = options.world is not None or options.workload not in SCALED
        required = () if own else required_reasons(options.plan, managed.policy, options.minutes)
        whole = () if own else required_reasons(options.plan, managed.policy)
        return Summary(
            plan=options.plan.name,
            live=live,
            others=tuple(others),
            decisions=len(decisions),
            changes=sum(row.changed for row in decisions),
            held=sum(any(e.verdict is not Verdict.PASSED for e in row.decision.effects) for row in decisions),
            missing=missing(required, recorded),
            not_due=tuple(reason for reason in missing(whole, recorded) if reason not in required),
            program=shown_program(),
            ledger=shown_path(directory / LEDGER),
            explain=most_informative(decisions),
            largest=largest,
            mode=Mode(options.mode),
            simulated=self._simulated(managed.fleet, live.submitted),
            actions=actions_of([row.decision for row in reversed(decisions)], self._met),
        )

    def _simulated(self, fleet: Fleet, jobs: int) -> str:
        options, sizes = self._options, "+".join(str(group.maximum) for group in fleet.groups)
        jobs_of = f"{jobs:,} {'recorded ' if options.workload in SCALED else ''}jobs ({options.workload})"
        return f"{options.minutes / MINUTES_PER_HOUR:g} h, {jobs_of}, at most {sizes} VMs, {options.speed:g}x"


def page_settings() -> dict[str, str]:
    """Return the settings that open the page on a free port, with a token for this run, as environment variables."""
    return {"TRIMTAB_HTTP__HOST": "127.0.0.1", "TRIMTAB_HTTP__PORT": "0", "TRIMTAB_HTTP__TOKEN": secrets.token_hex(16)}


def most_informative(rows: Sequence[DecisionRow]) -> str:
    """Return the id of the decision to explain first: a fallback, else one that rails changed and that changed VMs."""

    def worth(row: DecisionRow) -> tuple[bool, bool, int]:
        changed = [effect for effect in row.decision.effects if effect.verdict is not Verdict.PASSED]
        acted = bool(row.decision.intents)
        fallback = any(effect.reason is Reason.CAPACITY_FALLBACK for effect in changed)
        return (acted and fallback, acted and bool(changed), len(changed) + 2 * acted)

    return str(max(rows, key=worth).decision.decision_id) if rows else "last"


def busiest(agent: Agent, fleet: Fleet, minute: MinuteReport, now: float) -> str | None:
    """Return the VM in service with the most busy cores, None while none is busy."""
    staying = {vm for snapshot in minute.snapshots for group in snapshot.groups for vm in group.removable}
    busy = {
        vm: n
        for vm, n in agent.part(AutoscalingPart).loop.aggregator.busy_cores(fleet, now).items()
        if n and vm in staying
    }
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


class Ending(Enum):
    """How a dry run ended."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    STOPPED = "stopped"


def play(
    options: DryRunOptions, section: str, *, headless: bool = False, as_json: bool = False, verbose: bool = False
) -> Ending:
    """Run and print a section, one of `section_names`; in ten lines, unless it is verbose.

    With a page the agent serves it until Ctrl-C or SIGTERM. Return COMPLETE when the ledger holds every event that the
    fault plan requires (always so in observe mode), STOPPED after such a signal before the end.
    """
    console, directory, acts = Console(), options.directory, options.mode == "act"
    screen: Screen
    if as_json:
        screen = JsonScreen()
    elif headless or not console.is_terminal or console.is_dumb_terminal:
        screen = LineScreen()
    else:
        screen = LiveScreen(console, options.plan.name)
    fresh_directory(directory)
    run = DryRun(options, screen)
    with_fleet, alone = section in (ALL, FLEET_ALONE), section not in (ALL, FLEET_ALONE)
    names = tuple(
        name for name, one in sections().items() if section == name or (section == ALL and (acts or not one.acts_only))
    )
    # Beside the fleet they run at the same time, and a directory is one agent's.
    beside = directory / SECTIONS if section == ALL else directory
    show = show_events(console, screen) if verbose or alone else _show_nothing
    common = options.seed, options.mode, options.overrides
    results: list[SectionResult] = []
    summary: Summary | None = None
    with ExitStack() as stack:
        stack.enter_context(termination_as_interrupt())
        try:
            stack.enter_context(logging_to(directory / LOG))
            played: Iterator[SectionRun] | None = None
            if section == ALL:
                fresh_directory(beside)
                about = Sections(names, beside.resolve(), *common, beside.resolve() / LOG)
                played = stack.enter_context(section_process(about))
            if with_fleet:
                summary = stack.enter_context(run.living()) if options.page else run.run()
            for name in names:
                with _playing(console, screen, name):
                    if played is None:
                        results.append(sections()[name].play(beside.resolve(), *common, show))
                        continue
                    one = next(played)
                for event in one.events:
                    show(event)
                results.append(one.result)
        except KeyboardInterrupt:
            # The agent with the page is stopped before the message.
            stack.close()
            _print_stopped(console, screen, run.turns, directory)
            return Ending.STOPPED
        if isinstance(screen, JsonScreen):
            for place in dict.fromkeys((directory, beside)):
                _write_ledger(screen, place)
            for data in (*(result.as_json() for result in results), *([summary.as_json()] if summary else [])):
                screen.write(**data)
        else:
            for result in results if verbose or alone else ():
                _print_result(console, result)
            if summary is not None:
                _print_summary(console, summary, results, verbose=verbose)
        if run.page:
            _hold_page(console, screen, run.page)
    return Ending.INCOMPLETE if acts and summary is not None and summary.missing else Ending.COMPLETE


def _hold_page(console: Console, screen: Screen, url: str) -> None:
    if isinstance(screen, JsonScreen):
        screen.write(kind="page", detail=url)
    else:
        console.print("\nThe page stays up until Ctrl-C:", highlight=False)
        console.print(url, style="cyan", highlight=False, soft_wrap=True)
    with suppress(KeyboardInterrupt):
        Event().wait()


def _playing(console: Console, screen: Screen, name: str) -> AbstractContextManager[object]:
    return console.status(f"playing {name}") if isinstance(screen, LiveScreen) else nullcontext()


def _show_nothing(event: decisions.Event) -> None:
    """Show nothing of a section's events: the ledger has them."""


def show_events(console: Console, screen: Screen) -> Callable[[decisions.Event], None]:
    """Return a function that prints an event of a section as a line; the terminal view omits some.

    With JSON it prints nothing: the entries of the ledger have the events.
    """
    lines = isinstance(screen, LineScreen)
    shown = {reason for one in sections().values() for reason in (one.shown if lines else one.shown - one.in_lines)}

    def show(event: decisions.Event) -> None:
        if not isinstance(screen, JsonScreen) and event.reason in shown:
            line = f"{clock_text(event.at)} {event.reason} {event.detail}"
            # A line of a pipe stays one; on a terminal no word is broken.
            console.print(line, highlight=False, soft_wrap=lines, style="" if lines else "dim")

    return show


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that everything started is stopped."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_stopped(console: Console, screen: Screen, turns: int, directory: Path) -> None:
    ledger = shown_path(directory / LEDGER)
    if isinstance(screen, JsonScreen):
        screen.write(kind="stopped", turns=turns, ledger=ledger)
        return
    console.print(f"stopped after {turns} turns of the loop; nothing is left running", highlight=False)
    if turns:
        console.print("the decisions until then:")
        _print_command(console, (shown_program(), "decisions", "--ledger", ledger))


def _write_ledger(screen: JsonScreen, directory: Path) -> None:
    with Ledger.open(f"sqlite:///{(directory / LEDGER).resolve()}", read_only=True) as ledger:
        journal: list[JournalEntry] = []
        while entries := ledger.journal(journal[-1].seq if journal else 0):
            journal += entries
    for entry in journal:
        screen.write(
            kind=entry.kind,
            ledger=shown_path(directory / LEDGER),
            seq=entry.seq,
            at=entry.at,
            **entry.subject.fields(),
            ref=entry.ref,
            reason=entry.reason,
            reasons=[recorded.reason for recorded in recorded_reasons([entry])],
            detail=entry.body.get("sentence") or entry.body.get("detail", ""),
        )


def _print_result(console: Console, result: SectionResult) -> None:
    console.print(f"\n{result.kind}: {result.brief()}", highlight=False)
    for note in (*result.figures(), *result.notes()):
        console.print(f"  {note}", style="dim", highlight=False)
    console.print(f"{result.question}:", highlight=False)
    _print_command(console, result.next_words())


def _print_command(console: Console, words: Sequence[str]) -> None:
    console.print(Text(shell_lines(words, console.width), style="cyan"), soft_wrap=True)


def _print_summary(console: Console, summary: Summary, results: Sequence[SectionResult], *, verbose: bool) -> None:
    console.print()
    if verbose:
        console.print(summary.table(), highlight=False)
        console.print()
    if summary.missing:
        console.print(f"missing from the ledger: {', '.join(summary.missing)}", style="bold red")
    if summary.not_due and verbose:
        console.print(f"not due before the end of the run: {', '.join(summary.not_due)}", style="dim")
    lines = {result.kind: result.brief() for result in results}
    console.print(summary.brief(lines, console.width), highlight=False)
