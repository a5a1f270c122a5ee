"""The daemon: starts every part in order, turns the loop in its interval, and ends in time when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import structlog

from agent.alarms.start import start_alarms
from agent.autoscaling.policies.ppo_lstm import MODEL
from agent.autoscaling.ports import TickReport
from agent.models.background import left_behind
from agent.service import assembly, chores
from agent.service.assembly import Agent, AwsKeys
from agent.service.fleet_finder import LOOK_EVERY_S, FleetFinder
from agent.service.garbage_collection import collect_between_turns, set_aside_what_stays
from agent.service.http import start_http
from agent.service.schedule import TICK, Job, Schedule, next_turn_at, seconds_since
from agent.service.systemd import Heart, Notifier
from agent.settings import Settings
from agent.view.board import Standing, StandingBoard
from agent.view.model_watch import ModelWatch
from domain.clock import Clock, ScaledClock
from domain.decisions import Event, Reason
from domain.errors import TrimtabError

log = structlog.get_logger(__name__)

AGENT = ""
"""The fleet under which the agent's own events stand."""

TURN_GRACE_S = 7.0
"""A stop gives the turn under way so long to end by itself; then it may begin no further call that changes anything."""
CALL_GRACE_S = 2.0
SILENT_INTERVALS = 2.5
"""The loop counts as standing still when no turn has begun for so many intervals."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a part started beside the loop can use: settings, the agent, what it knows of itself, and liveness.

    alive: whether the loop turns. stack: where a part registers how it is stopped; the last one started stops first.
    """

    stack: ExitStack
    settings: Settings
    agent: Agent
    board: StandingBoard
    alive: Callable[[], bool]


def run(
    settings: Settings,
    clock: Clock,
    stop: threading.Event,
    *,
    keys: AwsKeys | None = None,
    notifier: Notifier | None = None,
    started: Callable[[Parts], None] | None = None,
    hangups: list[Callable[[], None]] | None = None,
) -> bool:
    """Run the agent until `stop` is set, and end within about ten seconds then.

    Return whether everything came to its end; False when a call that hangs, or a model that is still being tried, was
    left behind: the caller must end the process by force. Nothing is lost by that: what is open in the ledger is
    followed by the next start. started: called when everything is up, before the first turn. hangups: what to call at
    SIGHUP is added to it.
    Raises BadInput, ConfigurationError or LedgerError when the agent cannot start.
    """
    notifier = notifier or Notifier({})
    notifier.status("starting")
    board = StandingBoard(clock.now())
    with ExitStack() as stack:
        agent = stack.enter_context(assembly.assembled(settings, clock, keys, stop.wait))
        schedule = Schedule()
        finder = _add_finder(schedule, settings, agent, board)
        loop = Loop(agent, board, finder)
        if hangups is not None:
            hangups.append(loop.models.reload)
        tick = _add_tick(schedule, loop, settings, clock)
        loop.watch(tick)
        chores.add(schedule, settings, agent, board)
        heart = Heart(notifier, loop.alive)
        parts = Parts(stack, settings, agent, board, loop.alive)
        _start_parts(parts)
        chores.record_settings(agent)
        loop.note(Reason.STARTED, f"{settings.mode} mode, {len(agent.ports.fleets)} fleets")
        loop.models.look()
        if started is not None:
            started(parts)
        set_aside_what_stays()
        schedule.start()
        heart.start()
        board.change(ready=True)
        board.listen(lambda standing, report: notifier.status(summary(standing, agent)))
        notifier.ready(summary(board.read(), agent))
        log.info("ready", mode=settings.mode, fleets=[managed.fleet.name for managed in agent.ports.fleets])
        stop.wait()
        return _end(agent, loop, schedule, heart, notifier)


def _start_parts(parts: Parts) -> None:
    """Start what stands beside the loop: everything here reads the board and the ledger and stops by the stack."""
    start_http(parts.stack, parts.settings, parts.board, parts.agent, alive=parts.alive)
    alarms = start_alarms(parts.settings, parts.agent.session, parts.board)
    parts.stack.callback(alarms.stop)


def _add_tick(schedule: Schedule, loop: Loop, settings: Settings, clock: Clock) -> Job:
    # On a scaled clock, as in rehearsals and tests, intervals are shorter on the wall.
    speed = clock.speed if isinstance(clock, ScaledClock) else 1.0
    now = clock.now()
    wait_s = (next_turn_at(now, settings.tick_interval_s, settings.grace_s) - now) / speed
    return schedule.add(TICK, loop.turn, settings.tick_interval_s / speed, time.time() + wait_s)


def _add_finder(schedule: Schedule, settings: Settings, agent: Agent, board: StandingBoard) -> FleetFinder | None:
    """Look for tagged fleets in the background, unless fleets are described: then these are meant and no others."""
    if settings.fleets or not settings.discovery.enabled:
        return None
    finder = FleetFinder(settings, agent.session, board)
    schedule.add("discovery", finder.look, LOOK_EVERY_S)
    return finder


def _end(agent: Agent, loop: Loop, schedule: Schedule, heart: Heart, notifier: Notifier) -> bool:
    board = loop.board
    board.change(stopping=True, ready=False)
    notifier.stopping("stopping: the turn under way ends, no other begins")
    log.info("stopping")
    ended = schedule.stop(TURN_GRACE_S)
    agent.leadership.close()
    if not ended:
        log.warning("turn_fenced", detail="the turn under way takes too long: it may begin no further change")
        ended = schedule.stop(CALL_GRACE_S)
    heart.stop()
    if ended:
        open_intents = _count_open(agent)
        loop.note(Reason.STOPPED, f"{open_intents} open intents are left to the next start")
    hanging = left_behind()
    log.info("stopped", everything_ended=ended and not hanging, left_behind=list(hanging))
    return ended and not hanging


def _count_open(agent: Agent) -> int:
    try:
        return len(agent.ledger.open_intents())
    except TrimtabError:
        return 0


class Loop:
    """Turns the agent, and tells the board and its listeners; nothing that goes wrong in one turn ends it."""

    def __init__(self, agent: Agent, board: StandingBoard, finder: FleetFinder | None = None) -> None:
        self.agent, self.board = agent, board
        self._finder = finder
        self._tick: Job | None = None
        file = agent.settings.learned.model_file
        ready = None if file is None else f"{MODEL}:{file}"
        self.models = ModelWatch(agent.models, board, self.note, lambda: agent.ports.fleets, ready)

    def watch(self, tick: Job) -> None:
        """Take liveness and counts from this job."""
        self._tick = tick

    def alive(self) -> bool:
        """Return whether the loop turns: its last turn began no longer ago than a few intervals."""
        tick = self._tick
        return tick is not None and seconds_since(tick) <= SILENT_INTERVALS * tick.interval_s

    def turn(self) -> None:
        """Turn once; never raises."""
        began = time.monotonic()
        now = self.agent.clock.now()
        try:
            report = self._turn(now)
        except Exception as error:
            log.exception("turn_failed")
            report = TickReport(now, failure=f"{type(error).__name__}: {error}")
        # What happened to clusters is told with the turn, so that alarms and metrics hear of it.
        refused = self.agent.door.events(now)
        for event in refused:
            self.note(event.reason, event.detail, event.fleet, event.subject)
        report = replace(report, events=(*report.events, *self.agent.clusters.alarms(), *refused))
        self.models.look()
        duration_s = time.monotonic() - began
        epoch = self.agent.leadership.epoch()
        self._note_lead(epoch)
        tick = self._tick
        self.board.change(
            leader=epoch is not None,
            epoch=epoch or 0,
            rescued_turns=tick.rescued if tick else 0,
            overran_turns=tick.overruns if tick else 0,
        )
        listeners = self.board.turned(report, duration_s)
        standing = self.board.read()
        for listener in listeners:
            try:
                listener(standing, report)
            except Exception:
                log.exception("listener_failed", listener=getattr(listener, "__qualname__", repr(listener)))
        collect_between_turns()

    def _turn(self, now: float) -> TickReport:
        finder = self._finder
        if finder is None:
            return self.agent.turn()
        if not finder.known:
            # Turned without fleets, it would close the intents that are open as nobody's.
            return TickReport(now)
        changed = finder.changed
        if changed is not None:
            self._adopt(changed)
            finder.taken(changed)
        return self.agent.turn()

    def _adopt(self, settings: Settings) -> None:
        """Manage what was found, and tell what is new and what is gone."""
        before, after = self.agent.settings.fleets, settings.fleets
        self.agent.adopt(settings)
        gone = before.keys() - after.keys()
        self.board.forget(gone)
        if self.agent.leadership.epoch() is None:
            # The leader finds them too, and one word about it is enough.
            return
        chores.record_settings(self.agent)
        for name in sorted(after.keys() - before.keys()):
            groups = ", ".join(f"{group.name} ({group.vm_type})" for _, group in after[name].ordered_groups)
            self.note(Reason.FLEET_FOUND, f"found by its tags: {groups}", name)
        for name in sorted(gone):
            why = self._finder.refused.get(name, "no group carries its tag any more") if self._finder else "not found"
            self.note(Reason.FLEET_GONE, f"{why}: it is left as it is", name)

    def _note_lead(self, epoch: int | None) -> None:
        before = self.board.read()
        if not before.turns:
            return
        if epoch is None and before.leader:
            self.note(Reason.LEAD_LOST, f"epoch {before.epoch} is over: this agent only measures")
        elif epoch is not None and epoch != before.epoch:
            self.note(Reason.LEAD_TAKEN, f"this agent leads under epoch {epoch}")

    def note(self, reason: Reason, detail: str, fleet: str = AGENT, subject: str = "") -> None:
        """Record an event of the agent itself, or of a fleet; without a ledger it is only logged."""
        log.info("event", reason=reason, fleet=fleet, detail=detail)
        try:
            self.agent.ledger.record((), events=[Event(fleet, self.agent.clock.now(), reason, detail, subject)])
        except TrimtabError as error:
            log.error("event_not_recorded", reason=reason, detail=str(error))


def summary(standing: Standing, agent: Agent) -> str:
    """Return the agent's state in one line: mode, lead, fleets and the last decision."""
    mode = str(agent.settings.mode)
    if not standing.leader and standing.turns:
        mode += ", not leading"
    fleets = len(agent.ports.fleets)
    none = standing.problems.get("discovery") or standing.problems.get("fleets") or "no fleet yet"
    counted = f"{fleets} fleet{'' if fleets == 1 else 's'}" if fleets else none
    if standing.ledger_failure:
        return f"{mode}; {counted}; nothing executed: {standing.ledger_failure}"
    last = max(standing.last_decisions.values(), key=lambda decision: decision.at, default=None)
    said = "waiting for the first turn" if last is None else f"{_utc(last.at)} {last.fleet}: {last.sentence}"
    return f"{mode}; {counted}; {said}"


def _utc(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))
