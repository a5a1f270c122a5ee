"""The daemon: starts every part in order, turns the loop in its interval, and ends in time when it is asked to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace

import structlog

from agent.alarms.delivery import start_alarms
from agent.kernel.decision import Part
from agent.kernel.leads import Leads
from agent.kernel.turn import TurnReport
from agent.models.background import left_behind
from agent.service import assembly, chores
from agent.service.assembly import Agent, AwsKeys
from agent.service.chores import collect_between_turns, freeze_live_objects
from agent.service.http import start_http
from agent.service.schedule import TICK, Job, Schedule, next_turn_at, seconds_since
from agent.service.systemd import Heart, Notifier
from agent.settings import Settings
from agent.view.board import ServiceBoard, ServiceState
from domain.clock import Clock, ScaledClock
from domain.decisions import Event, Reason
from domain.errors import TrimtabError
from domain.subject import AGENT

log = structlog.get_logger(__name__)

TURN_GRACE_S = 7.0
"""A stop gives the turn under way so long to end by itself; then it may begin no further call that changes anything."""
CALL_GRACE_S = 2.0
SILENT_INTERVALS = 2.5
"""The loop counts as standing still when no turn has begun for so many intervals."""


def run(
    settings: Settings,
    clock: Clock,
    stop: threading.Event,
    *,
    keys: AwsKeys | None = None,
    notifier: Notifier | None = None,
    started: Callable[[], None] | None = None,
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
    board = ServiceBoard(clock.now())
    with ExitStack() as stack:
        agent = stack.enter_context(assembly.assembled(settings, clock, keys, stop.wait, board.problem))
        schedule = Schedule()
        loop = Loop(agent, board)
        if hangups is not None:
            hangups += [part.reload for part in agent.parts]
        tick = _add_tick(schedule, loop, settings, clock)
        loop.watch(tick)
        chores.add(schedule, settings, agent, board)
        heart = Heart(notifier, loop.alive)
        # What stands beside the loop reads the board and the ledger, and stops by the stack.
        start_http(stack, settings, board, agent, loop.alive)
        alarms = start_alarms(settings, agent.session, board)
        stack.callback(alarms.stop)
        assembly.record_settings(agent.ledger, settings, clock.now())
        agent.note(Reason.STARTED, f"{settings.mode} mode, {counted(agent.parts)}")
        agent_events(agent)
        if started is not None:
            started()
        freeze_live_objects()
        schedule.start()
        heart.start()
        board.listen(lambda state, report: notifier.status(summary(state, agent)))
        notifier.ready(summary(board.read(), agent))
        log.info("ready", mode=settings.mode, **{part.name: list(part.managed()) for part in agent.parts})
        stop.wait()
        return _end(agent, loop, schedule, heart, notifier)


def _add_tick(schedule: Schedule, loop: Loop, settings: Settings, clock: Clock) -> Job:
    # On a scaled clock, as in rehearsals and tests, intervals are shorter on the wall.
    speed = clock.speed if isinstance(clock, ScaledClock) else 1.0
    now = clock.now()
    wait_s = (next_turn_at(now, settings.tick_interval_s, settings.grace_s) - now) / speed
    return schedule.add(TICK, loop.turn, settings.tick_interval_s / speed, time.time() + wait_s)


def _end(agent: Agent, loop: Loop, schedule: Schedule, heart: Heart, notifier: Notifier) -> bool:
    board = loop.board
    board.change(stopping=True)
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
        agent.note(Reason.STOPPED, f"{open_intents} open intents are left to the next start")
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

    def __init__(self, agent: Agent, board: ServiceBoard) -> None:
        self.agent, self.board = agent, board
        self._leads = agent.leadership.leads()
        self._tick: Job | None = None

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
            report = self.agent.turn()
        except Exception as error:
            log.exception("turn_failed")
            report = TurnReport(now, failure=f"{type(error).__name__}: {error}")
        # What came up beside the turns goes with this one, so that alarms and metrics count it.
        came_up = (*self.agent.refusals.events(now), *learning_events(self.agent, now))
        for event in came_up:
            self.agent.note(event.reason, event.detail, event.subject, event.about)
        report = replace(report, events=(*report.events, *agent_events(self.agent), *came_up))
        unread = f"AWS could not be read for {', '.join(report.unread)}" if report.unread else ""
        why = self.agent.session.clock_check.difference or unread
        if self.agent.incapacity.ends_lead(report, why, self.agent.clock.monotonic()) and (
            self.agent.leadership.stand_back()
        ):
            log.warning("lead_given_away", detail=f"nothing could be decided: {why}")
        duration_s = time.monotonic() - began
        leads = self.agent.leadership.leads()
        self._note_lead(leads)
        tick = self._tick
        self.board.change(
            leader=bool(leads.numbers),
            epoch=max(leads.numbers, default=0),
            leaders={subject.path: name for subject, name in sorted(self.agent.leadership.leaders().items())},
            rescued_turns=tick.rescued if tick else 0,
            overran_turns=tick.overruns if tick else 0,
        )
        listeners = self.board.turned(report, duration_s)
        state = self.board.read()
        for listener in listeners:
            try:
                listener(state, report)
            except Exception:
                log.exception("listener_failed", listener=getattr(listener, "__qualname__", repr(listener)))
        collect_between_turns()

    def _note_lead(self, leads: Leads) -> None:
        before, self._leads = self._leads, leads
        if not self.board.read().turns or before == leads:
            return
        if leads.every is not None or before.every is not None:
            moved = {AGENT: (before.every, leads.every)}
        else:
            names = before.epochs.keys() | leads.epochs.keys()
            moved = {name: (before.of(name), leads.of(name)) for name in sorted(names)}
        now = self.agent.clock.now()
        lost = [(subject, old) for subject, (old, new) in moved.items() if new is None]
        taken = [(subject, new) for subject, (old, new) in moved.items() if new not in (None, old)]
        self.agent.note_all(
            [
                *(Event(one, now, Reason.LEAD_LOST, f"epoch {n} is over: no more decisions") for one, n in lost),
                *(Event(one, now, Reason.LEAD_TAKEN, f"this agent leads under epoch {n}") for one, n in taken),
            ]
        )


def agent_events(agent: Agent) -> list[Event]:
    """Return what came up in any part outside its turn; a part that fails at this is logged."""
    events: list[Event] = []
    for part in agent.parts:
        try:
            events += part.events(agent.clock.now())
        except Exception:
            log.exception("part_failed", part=part.name)
    return events


def learning_events(agent: Agent, now: float) -> list[Event]:
    """Return the news of the rounds of learning of the subjects that this agent leads."""
    events: list[Event] = []
    leads = agent.leadership.leads()
    if not leads.numbers:
        return events
    for part in agent.parts:
        try:
            events += [one for one in part.learning_events(now) if leads.of(one.subject) is not None]
        except Exception:
            log.exception("part_failed", part=part.name)
    return events


def counted(parts: Iterable[Part]) -> str:
    """Return how many subjects the parts decide for, such as `2 fleets, 1 pool`; "" for none."""
    counts = [(len(part.managed()), part.subject_word) for part in parts]
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)


def summary(state: ServiceState, agent: Agent) -> str:
    """Return the agent's state in one line: mode, lead, fleets and the last decision."""
    mode = str(agent.settings.mode)
    if not state.leader and state.turns:
        mode += ", not leading"
    none = state.problems.get("discovery") or state.problems.get("fleets") or "no fleet yet"
    subjects = counted(agent.parts) or none
    if state.ledger_failure:
        return f"{mode}; {subjects}; nothing executed: {state.ledger_failure}"
    return f"{mode}; {subjects}; {state.latest or 'waiting for the first turn'}"
