"""The loop over the fleets, on any clock and any cloud: observe, settle, fold, decide, record, act, record.

A turn knows four sizes of each group, in VMs:

    requested   the desired capacity that AWS holds, or the larger size of an open scale-out
    observed    the VMs that AWS shows in service
    effective   the observed VMs that are warm: each has reported, and takes jobs
    planned     the size decided for this minute: the policy's proposal after the rails

Where planned and requested differ, an intent changes the requested size, one per group. AWS brings the observed size
after it, and a boot later the effective one. The states of an intent are drawn at `domain.decisions.Status`.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog

from actuators.activities import Resize
from actuators.base import Act, Actuator, ChangingCall, Permit, Protects, Refusal
from actuators.drain import known_busy
from actuators.drift import drift
from actuators.outcomes import asked, is_booting
from actuators.protection import owned_from_now, still_owned
from agent.autoscaling import announcements
from agent.autoscaling.announcements import Announcements
from agent.autoscaling.decide import DecisionInputs, DecisionResult, decide_alone, with_shadows
from agent.autoscaling.fleets import ManagedFleet, vm_names
from agent.autoscaling.intents import (
    INTERRUPTION_S,
    state_after_outcome,
    state_without,
    with_cause,
    with_open_targets,
    with_past_resizes,
)
from agent.autoscaling.late_calls import recognise, with_former_call
from agent.autoscaling.minutes import MinuteMeasurements, Refusals
from agent.autoscaling.permit import FleetPermit, Grounds, grounds_of, is_unsent, late_grounds
from agent.autoscaling.policies.fallback import Proposer
from agent.autoscaling.refusals import refusal_events, with_refusals
from agent.autoscaling.report import MinuteReport
from agent.autoscaling.snapshot.aggregate import Aggregator, FleetInputs, FoldedMinute
from agent.autoscaling.stalls import Stalls
from agent.autoscaling.state import FleetStore
from agent.autoscaling.state_events import state_events
from agent.autoscaling.turn import FleetTurn, Made
from agent.kernel.guards import refused_by_pause
from agent.kernel.leads import Leads
from agent.rails.base import utc
from agent.rails.schedule import with_pauses
from agent.rails.state import Ages, LoopState, not_ahead, on_this_clock, shifted, without_group
from collectors.interruptions import Interruption, InterruptionKind, InterruptionQueue
from collectors.mapping import Hosts
from domain.clock import BothTimes, Clock, JumpDetector
from domain.controls import Controls, Window
from domain.decisions import Decision, Direction, Event, Intent, Mode, Outcome, Reason, Status
from domain.errors import BadInput, CloudError, FailureClass, Fenced, LedgerError, LedgerReplaced, LedgerUnavailable
from domain.fleet import Fleet
from domain.observed import Lifecycle, Observed, ReadFailure
from domain.snapshot import Snapshot
from domain.subject import AGENT, AUTOSCALING, Subject, fleet_subject

log = structlog.get_logger(__name__)


AHEAD_S = 120.0
"""The clock of the agent before may be ahead by so much: longer no fleet waits for the minute after its last one."""
_NEVER_DECIDED: Mapping[str, float] = MappingProxyType({})

ResizesSince = Callable[[Collection[str], float], Sequence[Resize]]
"""AWS's changes of the sizes of groups, by their names, since a time; raises CloudError."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A fleet's minute before it is folded: see `Loop._begun`. failure: why its groups cannot be read."""

    managed: ManagedFleet
    windows: tuple[Window, ...]
    failure: ReadFailure | None
    in_flight: tuple[str, ...]
    events: tuple[Event, ...]
    minute: FleetInputs


def _on_no_probation(fleet: str) -> str | None:
    return None


def _as_set(fleets: Sequence[ManagedFleet]) -> Sequence[ManagedFleet]:
    return fleets


class Loop:
    """The loop of one agent, turned once a minute by one thread.

    clock: read again before each call; wall and monotonic time together show whether the clock was set. leads: the
    fleets that it decides for, with the epochs that fence a deposed leader; it measures those without a leader, and
    none of another agent. fence: raises Fenced when nothing new may be decided any more, by default once one of these
    epochs is over. acting: see `Host`.
    is_elsewhere: whether a fleet that is not configured may be another agent's. protect_busy: the actuator keeps
    scale-in protection on busy VMs. probationer: of a fleet, the policy on probation, which is a shadow of it then.
    tuned: the fleets of a turn under their tuned settings. hosts: the names of the VMs, for the map of other senders'
    paths. resized is asked until it has answered once as the leader. listening_since: when the process began to take
    readings.
    """

    def __init__(
        self,
        fleets: Sequence[ManagedFleet],
        store: FleetStore,
        actuator: Actuator,
        aggregator: Aggregator,
        proposer: Proposer,
        clock: Clock,
        mode: Mode,
        leads: Leads,
        *,
        protect_busy: bool = True,
        interruptions: InterruptionQueue | None = None,
        fence: Callable[[Collection[int]], None] | None = None,
        acting: Callable[[int], AbstractContextManager[object]] = contextlib.nullcontext,
        is_elsewhere: Callable[[Subject], bool] = lambda subject: False,
        probationer: Callable[[str], str | None] = _on_no_probation,
        tuned: Callable[[Sequence[ManagedFleet]], Sequence[ManagedFleet]] = _as_set,
        hosts: Hosts | None = None,
        resized: ResizesSince | None = None,
        listening_since: float = -math.inf,
    ) -> None:
        self.fleets, self.store, self.actuator = tuple(fleets), store, actuator
        self.aggregator, self.proposer, self.clock = aggregator, proposer, clock
        self.mode, self.leads, self.protect_busy = mode, leads, protect_busy
        self.interruptions, self.fence, self.probationer = interruptions, fence, probationer
        self.acting, self.is_elsewhere = acting, is_elsewhere
        self.tuned = tuned
        self.hosts, self.resized = hosts, resized
        self.listening_since = listening_since
        self._jumps, self._ages, self._refusals, self._stalls = JumpDetector(), Ages(), Refusals(), Stalls()
        # A step of the clock that is not recorded yet, and the states moved by it.
        self._clock_step_s = 0.0
        self._stepped: Mapping[str, LoopState] = {}
        self._unrecorded: Sequence[Event] = ()
        self._fresh: frozenset[str] = frozenset()
        self._decided_at: dict[str, float] = {}

    def take_over(
        self,
        leads: Leads,
        actuator: Actuator,
        resized: ResizesSince | None,
        decided_at: Mapping[str, float] = _NEVER_DECIDED,
    ) -> None:
        """Lead fleets by new epochs, forgetting their protection and clock steps: another leader may have changed both.

        Fleets that were led already continue. decided_at: when the newest decision of a fleet was made, by the clock of
        the agent that led it: no minute is decided twice.
        """
        names = [one.fleet.name for one in self.fleets]
        self._fresh |= {name for name in names if leads.of(fleet_subject(name)) != self.leads.of(fleet_subject(name))}
        self._decided_at |= {name: at for name, at in decided_at.items() if name in self._fresh}
        self.leads, self.actuator, self.resized = leads, actuator, resized
        if self._fresh.issuperset(names):
            self._jumps, self._clock_step_s = JumpDetector(), 0.0

    def follow(self, leads: Leads) -> None:
        """Take the leads of a turn, and forget the fleets that other agents lead.

        A fleet that is taken later begins as after a restart, from the ledger and AWS.
        """
        self.leads = leads
        others = {one.fleet.name for one in self.fleets if fleet_subject(one.fleet.name) in leads.others}
        self.aggregator.leave(others, self.clock.now())
        self._stalls.leave(others)
        self._refusals.recorded(others)

    @property
    def measured(self) -> Sequence[ManagedFleet]:
        """The fleets that this agent leads, and fleets without a leader; readable from any thread."""
        others = self.leads.others
        return [one for one in self.fleets if fleet_subject(one.fleet.name) not in others] if others else self.fleets

    def _decided_before(self, now: float) -> set[str]:
        """Return the fleets just taken of which another agent has decided this minute or a later one already."""
        of = {one.fleet.name: one.aggregation for one in self.fleets if one.fleet.name in self._decided_at}
        ahead_s = {name: it.bin_end(self._decided_at[name]) - it.bin_end(now) for name, it in of.items()}
        # Further ahead the other clock was wrong.
        waiting = {name for name, seconds in ahead_s.items() if 0.0 <= seconds <= AHEAD_S}
        self._decided_at = {name: at for name, at in self._decided_at.items() if name in waiting}
        return waiting

    def _led(self) -> dict[str, int]:
        """Return the epoch of each managed fleet that this process leads."""
        of = {one.fleet.name: self.leads.of(fleet_subject(one.fleet.name)) for one in self.fleets}
        return {name: epoch for name, epoch in of.items() if epoch is not None}

    def turn(self, now: float, times: BothTimes | None = None) -> MinuteReport:
        """Turn the loop once for every fleet that it leads; times: `now` with the monotonic time of then, where known.

        One fleet's trouble never stops another's decision. When the ledger cannot be read or written, or a newer leader
        has taken over, nothing more is executed: the report holds the failure and the records before it. Measuring
        continues and the next turn tries again.
        """
        # Read before anything that takes time: later, that time would look like a step of the clock.
        began = times or BothTimes(now, self.clock.monotonic())
        turn = None
        try:
            waiting = self._decided_before(now)
            epochs = {name: epoch for name, epoch in self._led().items() if name not in waiting}
            self._check_fence(epochs.values() or self.leads.numbers)
            fleets = [one for one in self.tuned(self.fleets) if one.fleet.name in epochs]
            turn = FleetTurn(
                now, began, fleets, self.store, epochs, self.leads.numbers, self._refusals, self._unrecorded
            )
            self._run(turn)
        except (LedgerError, Fenced) as error:
            if turn is not None and isinstance(error, LedgerUnavailable) and not isinstance(error, LedgerReplaced):
                self._keep_drains(turn)
            reason = Reason.LEDGER_REPLACED if isinstance(error, LedgerReplaced) else Reason.LEDGER_UNAVAILABLE
            report = MinuteReport(now) if turn is None else turn.report(self.listening_since)
            log.error("ended_by_the_ledger", reason=reason, outcomes=len(report.outcomes), detail=str(error))
            return replace(report, failure=str(error), failure_reason=reason)
        finally:
            if turn is not None:
                self._unrecorded = turn.unrecorded
        return turn.report(self.listening_since)

    def measure(self, now: float) -> MinuteReport:
        """Fold the minute of every fleet that no agent leads and that can be read; nothing is decided or changed.

        Without the ledger it measures as if nothing were remembered, and the report has the failure.
        """
        led = self._led()
        unled = {one.fleet.name for one in self.measured} - led.keys()
        managed = [one for one in self.tuned(self.fleets) if one.fleet.name in unled]
        fleets = [one.fleet for one in managed]
        observed = self.actuator.observe(fleets, now)
        failure, reason = None, Reason.LEDGER_UNAVAILABLE
        states: dict[str, LoopState] = {}
        try:
            self.store.ledger.check_same()
            states = self.store.loop_states([fleet.name for fleet in fleets])
        except LedgerError as error:
            failure = str(error)
            reason = Reason.LEDGER_REPLACED if isinstance(error, LedgerReplaced) else reason
        snapshots: list[Snapshot] = []
        unread = tuple(fleet.name for fleet in fleets if _unreadable(fleet, observed) is not None)
        asked = [(one.fleet, observed, states.get(one.fleet.name, LoopState()), one.aggregation) for one in managed]
        for (fleet, *_), folded in zip(asked, self.aggregator.snapshots(asked, now), strict=True):
            if isinstance(folded, FoldedMinute):
                snapshots.append(folded.snapshot)
            elif not isinstance(folded, BadInput):
                # Else a group could not be read: the next minute tries again.
                log.error("fleet_failed", fleet=fleet.name, exc_info=folded)
        return MinuteReport(now, tuple(snapshots), failure=failure, failure_reason=reason, unread=unread)

    def _check_fence(self, epochs: Collection[int]) -> None:
        if self.fence is None:
            self.store.ledger.check_epoch(*set(epochs))
        else:
            self.fence(set(epochs))

    def _open_intents(self, turn: FleetTurn) -> list[Intent]:
        """Return the open intents of the turn's fleets, and of fleets that no agent has in its settings any more."""
        configured = {one.fleet.name for one in self.fleets}
        return [
            one
            for one in self.store.ledger.open_intents()
            if one.fleet in turn.managed or not (one.fleet in configured or self.is_elsewhere(fleet_subject(one.fleet)))
        ]

    def _run(self, turn: FleetTurn) -> None:
        """Take the turn; LedgerError and Fenced end it where they come up."""
        clock_set = self._carry_over_clock_step(turn)
        before = dict(turn.states)
        turn.observed = self.actuator.observe(turn.fleets, turn.now)
        if self.hosts is not None:
            self.hosts.update(vm_names(turn.fleets, turn.observed))
        _recognise_groups(turn)
        with_cooldowns = self._take_up_cooldowns(turn)
        settled = self._settle(turn)
        if any(may_have_changed(intent, outcome) for intent, outcome in settled):
            turn.observed = self.actuator.observe(turn.fleets, turn.now)
        notices = self._read_interruptions(turn)
        _note_undrained(turn)

        records: list[Made] = []
        open_intents = _by_fleet(self.store.ledger.open_intents())
        controls = self.store.ledger.all_controls(AUTOSCALING, list(turn.managed))
        announced = announcements.kept(self.store, list(turn.managed))
        self.proposer.begin_turn()
        begun: dict[str, _Begun] = {}
        skipped = "this minute was skipped"
        for name, managed in turn.managed.items():
            with turn.contained("fleet_failed", name, skipped):
                begun[name] = self._begun(turn, managed, open_intents.get(name, ()))
        readable = {name: one.minute for name, one in begun.items() if one.failure is None}
        folds = dict(zip(readable, self.aggregator.snapshots(list(readable.values()), turn.now), strict=True))
        for name, one in begun.items():
            with turn.contained("fleet_failed", name, skipped):
                record, folded = self._decide(turn, one, folds.get(name), controls[name], announced[name])
                inputs, decided = record
                turn.events += state_events(
                    name, before[name], decided.state, inputs.snapshot, turn.now, self.listening_since
                )
                if folded is not None:
                    turn.events += self._stalls.events(folded.snapshot, folded.stuck, turn.now)
                records.append(record)
        # Asked when every fleet's own policy has answered: no shadow comes before any of these.
        records = [self._beside(turn, inputs, decided) for inputs, decided in records]
        turn.superseded = _superseded_by(turn, [decided for _, decided in records])
        records = [(inputs, _without_superseded(turn, decided)) for inputs, decided in records]
        noted: dict[str, list[str]] = defaultdict(list)
        for event in turn.events:
            if event.reason is Reason.SPOT_INTERRUPTION:
                noted[event.subject.name].append(event.about)
        turn.measured = {
            inputs.fleet.name: self._measure(turn, inputs.fleet, noted[inputs.fleet.name], clock_set)
            for inputs, _ in records
        }
        if self.fence is not None:
            self._check_fence(turn.epochs.values() or turn.numbers)
        turn.write_decisions(records)
        self._refusals.recorded(inputs.fleet.name for inputs, _ in turn.made)
        self._stalls.recorded()
        if with_cooldowns:
            self.resized = None
        if self.interruptions is not None and notices:
            self.interruptions.acknowledge(notices)

        with turn.calls():
            for inputs, decided in turn.made:
                _log(decided.decision)
                intents = decided.decision.intents
                busy = self.aggregator.busy_cores(inputs.fleet, turn.now) if intents else {}
                grounds = grounds_of(inputs, decided, busy)
                for intent in intents:
                    what = f"{intent.intent_id} could not be carried out and stays open"
                    with turn.contained("execute_failed", intent.fleet, what):
                        self._execute(turn, intent, grounds)
            if self.mode is Mode.ACT:
                self._tend(turn)
                self._record_protection(turn)
        turn.write()

    def _carry_over_clock_step(self, turn: FleetTurn) -> bool:
        """Move every remembered time along when the clock was set, and record that before anything else is done."""
        seen_s = self._jumps.observe(turn.began.now, turn.began.monotonic, turn.began.doubt_s)
        if seen_s:
            self.listening_since += seen_s
            self._stalls.clock_stepped(seen_s)
            self.aggregator.clock_stepped(seen_s)
            self.actuator.clock_stepped(seen_s)
        # What could not be recorded the last time is still to be carried over; where it was, its answer was lost.
        states = {name: state for name, state in turn.states.items() if name in self._stepped or not self._stepped}
        is_recorded = all(state == self._stepped.get(name) for name, state in states.items())
        self._clock_step_s = seen_s + (0.0 if is_recorded else self._clock_step_s)
        step_s = self._clock_step_s
        # The times of a fleet that was just taken are by the clock of the agent before.
        moved = turn.states.keys() - self._fresh if step_s else frozenset[str]()
        open_intents = _by_fleet(self.store.ledger.open_intents())
        for name, state in turn.states.items():
            ours = open_intents.get(name, ())
            turn.states[name] = not_ahead(shifted(state, step_s, ours) if name in moved else state, ours, turn.now)
        self._fresh = frozenset()
        if not step_s:
            return False
        direction = "forward" if step_s > 0 else "back"
        for name in sorted(moved):
            detail = f"the clock was set {direction} by {abs(step_s):.0f} s; stored times moved with it"
            turn.note(name, Reason.CLOCK_JUMP, detail)
        self._stepped = dict(turn.states)
        turn.write()
        self._clock_step_s, self._stepped = 0.0, {}
        return True

    def _take_up_cooldowns(self, turn: FleetTurn) -> bool:
        """Let changes of size that AWS made before this process count towards the cool-downs; return whether it did."""
        if self.resized is None:
            return False
        fleets = turn.managed.values()
        longest_s = max((max(one.limits.cooldown_out_s, one.limits.cooldown_in_s) for one in fleets), default=0.0)
        try:
            found = self.resized({group.name for fleet in turn.fleets for group in fleet.groups}, turn.now - longest_s)
        except CloudError as error:
            # What the ledger knows holds meanwhile; the next turn asks again.
            log.warning("activities_unread", detail=str(error))
            return False
        for managed in fleets:
            name = managed.fleet.name
            state, events = with_past_resizes(turn.states[name], managed.fleet, managed.limits, found, turn.now)
            turn.states[name] = state
            turn.events += events
        return True

    def _settle(self, turn: FleetTurn) -> list[tuple[Intent, Outcome]]:
        """Follow every open intent and record its outcome; when that cannot be recorded, none is followed.

        An intent that cannot be followed for an unexpected error stays open, and an event says so of its fleet.
        """
        states, observed, now, ledger = turn.states, turn.observed, turn.now, self.store.ledger
        settled: list[tuple[Intent, Outcome]] = []
        open_intents = self._open_intents(turn)
        self._ages.keep(frozenset(intent.intent_id for intent in open_intents))
        if open_intents and self.mode is Mode.ACT:
            ledger.check_writable()
        for intent in open_intents:
            managed = turn.managed.get(intent.fleet)
            if managed is not None:
                state = states[intent.fleet]
                intent = on_this_clock(intent, state)
                if ledger.shared:
                    epoch = turn.epochs[intent.fleet]
                    states[intent.fleet] = with_former_call(state, intent, managed.fleet, observed, epoch, now)
            found: list[Outcome] = []
            if managed is None:
                found.append(_closed(intent, Reason.SUPERSEDED, "the fleet is no longer configured", now))
            elif (why := turn.recreated.get((intent.fleet, intent.group))) is not None:
                found.append(_closed(intent, Reason.SUPERSEDED, why, now))
            elif self.mode is Mode.OBSERVE:
                found.append(_closed(intent, Reason.OBSERVE_MODE, "this process only observes", now))
            else:
                # Without a second decision nothing is sent, and the intent still ends by its deadline.
                what = f"{intent.intent_id} could not be decided again"
                grounds: Grounds | Refusal | None = Refusal(Reason.INTERNAL_ERROR, what, over=False)
                with turn.contained("late_grounds_failed", intent.fleet, what, intent.intent_id):
                    grounds = self._late_grounds(turn, managed, intent)
                what = f"{intent.intent_id} could not be followed and stays open"
                with turn.contained("follow_failed", intent.fleet, what, intent.intent_id):
                    permit = self._permit(turn, managed, grounds)
                    with self.acting(turn.epochs[intent.fleet]):
                        found.append(self.actuator.follow(intent, observed, now, permit))
            if not found:
                continue
            before, what = dict(states), f"{intent.intent_id} could not be settled and stays open"
            recorded: list[Outcome] = []
            with turn.contained("settle_failed", intent.fleet, what, intent.intent_id):
                recorded.append(self._settled(turn, intent, found[0]))
            settled += [(intent, outcome) for outcome in recorded]
            if not recorded:
                states.update(before)
        return settled

    def _settled(self, turn: FleetTurn, intent: Intent, outcome: Outcome) -> Outcome:
        """Record an outcome with the state after it, and return it with its cause."""
        if outcome.reason is Reason.OVERDUE:
            outcome = with_cause(outcome, self.store.last_outcome(intent.intent_id))
            if intent.direction is Direction.REPLACE:
                groups = turn.observed.groups.values()
                serving = {vm for group in groups for vm in (one.vm for one in group.serving)}
                late = [vm for vm in intent.victims if vm in serving]
                turn.events.append(_not_drained(intent.fleet, intent.group, late, turn.now))
        if intent.fleet in turn.managed:
            _take_in(turn, intent, outcome)
        turn.write(outcomes=[(intent, outcome)], fleet=intent.fleet)
        if is_booting(intent, outcome):
            turn.booting[intent.fleet, intent.group] = intent, outcome
        return outcome

    def _permit(self, turn: FleetTurn, managed: ManagedFleet, grounds: Grounds | Refusal | None = None) -> FleetPermit:
        """Return the permit of calls on a fleet, as far as the turn has come."""
        fleet = managed.fleet
        return FleetPermit(
            now=turn.now,
            began=turn.began,
            clock=self.clock,
            controls=lambda now: self._controls(managed, now),
            busy_cores=lambda group, vm, now: self.aggregator.busy_cores_of(fleet, group, vm, now),
            retained=lambda vm: self.aggregator.is_retained(fleet.name, vm),
            ages=self._ages,
            breakers=turn.states[fleet.name].breakers,
            recorded=fleet.name in turn.decided,
            grounds=grounds,
        )

    def _controls(self, managed: ManagedFleet, now: float) -> Controls:
        """Return the operators' controls as the ledger has them now, with the pause of an open window."""
        controls = self.store.ledger.controls(AUTOSCALING, managed.fleet.name)
        return with_pauses(controls, managed.in_minute(now)[1], now)

    def _late_grounds(self, turn: FleetTurn, managed: ManagedFleet, intent: Intent) -> Grounds | Refusal | None:
        """Decide this minute as if an open intent that AWS does not show had never been made; None where AWS does."""
        fleet = managed.fleet
        names = {group.key: group.name for group in fleet.groups}
        seen = turn.observed.groups.get(names.get(intent.group, ""))
        if seen is None or not is_unsent(intent, seen):
            return None
        if any(name not in turn.observed.groups for name in names.values()):
            return Refusal(Reason.CLOUD_UNREADABLE, f"groups of {fleet.name} could not be read", over=False)
        managed, windows = managed.in_minute(turn.now)
        ours = self.store.ledger.open_intents(fleet.name)
        others = {one.group: one for one in ours if one.group != intent.group}
        coming = with_open_targets(fleet, turn.observed, others)
        state = state_without(turn.states[fleet.name], intent)
        folded = self.aggregator.snapshot(fleet, coming, state, managed.aggregation, turn.now)
        inputs = self._inputs(
            turn,
            managed,
            windows,
            intent.decision_id,
            folded.snapshot,
            folded.state,
            self._controls(managed, turn.now),
            tuple(others),
        )
        decided = decide_alone(inputs, self.proposer)
        grounds = grounds_of(inputs, decided, self.aggregator.busy_cores(fleet, turn.now))
        return late_grounds(intent, seen, inputs, decided, grounds)

    def _inputs(
        self,
        turn: FleetTurn,
        managed: ManagedFleet,
        windows: tuple[Window, ...],
        decision_id: str,
        snapshot: Snapshot | None,
        state: LoopState,
        controls: Controls,
        in_flight: tuple[str, ...],
        booting: tuple[str, ...] = (),
        interrupted: tuple[tuple[str, str], ...] = (),
        failure: ReadFailure | None = None,
    ) -> DecisionInputs:
        fleet = managed.fleet
        return DecisionInputs(
            decision_id=decision_id,
            now=turn.now,
            fleet=fleet,
            snapshot=snapshot,
            state=replace(state, protected=(), busy=(), identities={}),
            controls=controls,
            limits=managed.limits,
            mode=self.mode,
            leader=True,
            epoch=turn.epochs[fleet.name],
            policy=self.proposer.resolve(managed.policy, fleet),
            in_flight=in_flight,
            booting=booting,
            interrupted=interrupted,
            cloud_failure=failure,
            windows=windows,
            tuned=managed.tuned,
        )

    def _read_interruptions(self, turn: FleetTurn) -> Sequence[Interruption]:
        """Put new notices into the states of the fleets whose VMs they name; each VM counts once.

        Returns the notices to forget once that is recorded. A notice of a VM that no group shows is forgotten
        too, it is not the agent's, but not while a group cannot be read: the VM may be in there, and the notice comes
        again. On a shared ledger it goes to the other agents first: the queue gives each notice to one of them.
        """
        source, observed, now = self.interruptions, turn.observed, turn.now
        if source is None or self.mode is not Mode.ACT:
            return ()
        notices: Sequence[Interruption] = ()
        # The queue is everybody's: its trouble must not cost any fleet its minute.
        with turn.contained("notices_failed", AGENT.name, "spot notices could not be read this minute"):
            notices = source.receive(now)
        homes = {
            instance.vm: (fleet.name, instance)
            for fleet in turn.fleets
            for group in fleet.groups
            if group.name in observed.groups
            for instance in observed.groups[group.name].instances
        }
        handed_over: Sequence[Interruption] = ()
        if self.store.ledger.shared:
            self.store.hand_over([one for one in notices if one.vm not in homes], now)
            handed_over = self.store.handed_over()
        forgotten = []
        for notice in (*notices, *handed_over):
            home = homes.get(notice.vm)
            if notice.receipt and not (home is None and observed.failures):
                forgotten.append(notice)
            if home is None:
                continue
            name, instance = home
            state = turn.states[name]
            if notice.vm in state.interrupted or notice.vm in state.seen_interruptions:
                continue
            if notice.kind is InterruptionKind.REBALANCE:
                detail = f"AWS hints that {notice.vm} is at risk; it is not replaced before its notice comes"
                turn.note(name, Reason.REBALANCE_HINT, detail, notice.vm)
            elif notice.kind is InterruptionKind.SPOT:
                # No later than now, whatever the host's clock says, and no older than a notice whose VM is there.
                at = max(now - INTERRUPTION_S, min(now, notice.at))
                detail = f"AWS takes {notice.vm} back within two minutes: "
                if instance.lifecycle in (Lifecycle.DRAINING, Lifecycle.TERMINATING):
                    seen = {**state.seen_interruptions, notice.vm: at}
                    turn.states[name] = replace(state, seen_interruptions=seen)
                    detail += "it leaves already"
                else:
                    turn.states[name] = replace(state, interrupted={**state.interrupted, notice.vm: at})
                    detail += "to be drained and replaced"
                turn.note(name, Reason.SPOT_INTERRUPTION, detail, notice.vm)
        return forgotten

    def _begun(self, turn: FleetTurn, managed: ManagedFleet, open_intents: Sequence[Intent]) -> _Begun:
        """Return the inputs of a fleet's fold, and the events of its sizes."""
        observed, now = turn.observed, turn.now
        managed, windows = managed.in_minute(now)
        fleet, state = managed.fleet, turn.states[managed.fleet.name]
        failure = _unreadable(fleet, observed)
        ours = {intent.group: intent for intent in open_intents}
        in_flight = tuple(group.key for group in fleet.groups if group.key in ours)
        events: tuple[Event, ...] = ()
        if failure is None:
            state, late = recognise(fleet, state, observed, in_flight, turn.epochs[fleet.name], now)
            drifts, known = drift(fleet, state.known_desired, observed, in_flight, managed.drift, now)
            events = (*late, *drifts)
            state = state if known == state.known_desired else replace(state, known_desired=known)
            observed = with_open_targets(fleet, observed, ours)
        return _Begun(managed, windows, failure, in_flight, events, (fleet, observed, state, managed.aggregation))

    def _decide(
        self,
        turn: FleetTurn,
        begun: _Begun,
        folded: FoldedMinute | Exception | None,
        controls: Controls,
        announced: Announcements,
    ) -> tuple[Made, FoldedMinute | None]:
        """Decide a fleet's minute; without a folded minute where a group could not be read."""
        observed, now = turn.observed, turn.now
        managed, windows, failure, in_flight = begun.managed, begun.windows, begun.failure, begun.in_flight
        fleet, before = managed.fleet, turn.states[managed.fleet.name]
        snapshot, state = None, before
        turn.events += begun.events
        if isinstance(folded, Exception):
            raise folded
        if folded is not None:
            turn.measured[fleet.name] = folded.measured
            snapshot, coming = folded.snapshot, announcements.seen(announced, managed.schedule, now)
            if coming is not None:
                snapshot = replace(snapshot, announced=coming)
            # A group at its minimum keeps its VMs, whoever protects them.
            refused = [
                one
                for group, seen in zip(fleet.groups, snapshot.groups, strict=True)
                if seen.requested > max(group.minimum, seen.minimum)
                for one in seen.refused
                if one.reason is Reason.PROTECTED
            ]
            state = folded.state
            marks = with_refusals(state.refusals, refused, now)
            if marks != state.refusals:
                state = replace(state, refusals=marks)
                turn.events += refusal_events(fleet.name, folded.state, state, now)
        else:
            self.aggregator.show(fleet, observed, managed.aggregation.bin_end(now))
        booting = tuple(key for key in in_flight if _may_supersede(turn, fleet.name, key, snapshot))
        inputs = self._inputs(
            turn,
            managed,
            windows,
            f"{fleet.name}-{state.decisions + 1}",
            snapshot,
            state,
            with_pauses(controls, windows, now),
            tuple(key for key in in_flight if key not in booting),
            booting,
            interrupted_vms(fleet, state, observed),
            failure,
        )
        decided = decide_alone(inputs, self.proposer)
        busy, mine = self.aggregator.busy_cores(fleet, now), before.protected
        if self.protect_busy and self.mode is Mode.ACT:
            # Written before the actuator changes any, so that a restart knows whose protection it is.
            gives_back = isinstance(self.actuator, Protects)
            gives_back &= refused_by_pause(Act.UNPROTECT, inputs.controls, now) is None
            mine = owned_from_now(fleet, observed, before.protected, busy, gives_back=gives_back)
        others = known_busy(fleet, observed, {*before.protected, *before.busy}, busy).difference(mine)
        after = replace(decided.state, identities=state.identities, protected=mine, busy=tuple(sorted(others)))
        decided = replace(decided, state=after)
        for why in decided.decision.policy_failures:
            turn.note(fleet.name, Reason.POLICY_FAILED, why)
        return (inputs, decided), folded

    def _beside(self, turn: FleetTurn, inputs: DecisionInputs, decided: DecisionResult) -> Made:
        """Return a decision with the proposals of its shadows; without any when they cannot be asked."""
        made = inputs, decided
        with turn.contained("shadows_failed", inputs.fleet.name, "no shadow was asked this minute"):
            shadows = self._shadows(turn.managed[inputs.fleet.name], inputs.policy)
            asked_too = replace(inputs, shadows=shadows) if shadows else inputs
            made = asked_too, with_shadows(asked_too, decided, self.proposer)
        return made

    def _shadows(self, managed: ManagedFleet, live: str) -> tuple[str, ...]:
        """Return the names of a fleet's shadows, its probationer first; one that two settings lead to is there once."""
        fleet = managed.fleet
        found = [self.proposer.resolve(text, fleet) for text in managed.shadows]
        probationer = self.probationer(fleet.name)
        if probationer is not None:
            found.insert(0, probationer)
        return tuple(name for name in dict.fromkeys(found) if name != live)

    def _measure(self, turn: FleetTurn, fleet: Fleet, noted: Collection[str], clock_set: bool) -> MinuteMeasurements:
        """Return the measurements of the minute's row for learning; noted: VMs with a new spot notice."""
        groups = turn.observed.groups
        interrupted = Counter(
            position
            for position, group in enumerate(fleet.groups)
            if noted and group.name in groups
            for instance in groups[group.name].instances
            if instance.vm in noted
        )
        measured = turn.measured.get(fleet.name, MinuteMeasurements())
        return replace(measured, interrupted=interrupted, refused=self._refusals.of(fleet), clock_set=clock_set)

    def _execute(self, turn: FleetTurn, intent: Intent, grounds: Grounds | None) -> None:
        """Act on one recorded intent and record its outcome."""
        permit = self._permit(turn, turn.managed[intent.fleet], grounds)
        with self.acting(turn.epochs[intent.fleet]):
            outcome = self.actuator.apply(intent, turn.observed, turn.now, permit)
        _take_in(turn, intent, outcome)
        turn.write(outcomes=[(intent, outcome)], fleet=intent.fleet)
        log.info(
            "outcome",
            decision_id=intent.decision_id,
            fleet=intent.fleet,
            group=intent.group,
            status=outcome.status,
            reason=outcome.reason,
            detail=outcome.detail,
        )

    def _tend(self, turn: FleetTurn, permit: Permit | None = None) -> None:
        """Care for the VMs of every fleet; permit: by default that of this turn."""
        for managed in turn.managed.values():
            fleet = managed.fleet
            with turn.contained("tend_failed", fleet.name, "its VMs were not cared for this minute"):
                busy, may = self.aggregator.busy_cores(fleet, turn.now), permit or self._permit(turn, managed)
                with self.acting(turn.epochs[fleet.name]):
                    turn.events += self.actuator.tend(fleet, turn.observed, busy, turn.now, may)

    def _keep_drains(self, turn: FleetTurn) -> None:
        """Send heartbeats of busy drains in a turn that the ledger ended: their hooks run out within minutes.

        Nothing else is sent, and no heartbeat where the fence cannot be read.
        """
        with turn.calls():
            if self.mode is Mode.ACT:
                with contextlib.suppress(LedgerError, Fenced):
                    self._tend(turn, _heartbeats_alone)

    def _record_protection(self, turn: FleetTurn) -> None:
        """Put into the states which protection is the agent's, where that is less or more than was recorded before."""
        if not self.protect_busy or not isinstance(self.actuator, Protects):
            return
        ours = self.actuator.ours
        for fleet in turn.fleets:
            state = turn.states[fleet.name]
            protected = still_owned(fleet, turn.observed, state.protected, ours)
            if protected != state.protected:
                turn.states[fleet.name] = replace(state, protected=protected)


def _by_fleet(intents: Sequence[Intent]) -> dict[str, list[Intent]]:
    found: dict[str, list[Intent]] = {}
    for intent in intents:
        found.setdefault(intent.fleet, []).append(intent)
    return found


def _recognise_groups(turn: FleetTurn) -> None:
    """Forget the state of a group that another one has replaced, with an event.

    It was recreated under its name, or the settings name another one. It is accepted: tools replace groups by
    others of the same name, and one that launches another type is held.
    """
    for fleet in turn.fleets:
        state = turn.states[fleet.name]
        for group in fleet.groups:
            seen = turn.observed.groups.get(group.name) or turn.observed.held.get(group.name)
            known = state.identities.get(group.key)
            if seen is None or seen.identity is None or seen.identity == known:
                continue
            if known is not None:
                is_other = known.group not in ("", seen.identity.group)
                why = "the settings name another group now" if is_other else "its group was recreated"
                turn.recreated[fleet.name, group.key] = why
                state = without_group(state, group.key)
                made = f"was recreated at {utc(seen.identity.created_at)}"
                what = f"replaces {known.group} in the settings" if is_other else made
                turn.note(fleet.name, Reason.GROUP_RECREATED, f"{group.name} {what}: its size is accepted", group.key)
            state = replace(state, identities={**state.identities, group.key: seen.identity})
        turn.states[fleet.name] = state


def _note_undrained(turn: FleetTurn) -> None:
    """Report VMs whose notice is over and whose drain has not begun, once each, in one event per group."""
    for fleet in turn.fleets:
        state = turn.states[fleet.name]
        over = {vm: at for vm, at in state.interrupted.items() if turn.now - at >= INTERRUPTION_S}
        fresh = over.keys() - state.seen_interruptions.keys()
        for group in fleet.groups:
            seen = turn.observed.groups.get(group.name)
            late = [one.vm for one in seen.instances if one.vm in fresh] if seen is not None else []
            if late:
                turn.events.append(_not_drained(fleet.name, group.key, late, turn.now))
        if fresh:
            turn.states[fleet.name] = replace(state, seen_interruptions={**state.seen_interruptions, **over})


def _may_supersede(turn: FleetTurn, fleet: str, group: str, snapshot: Snapshot | None) -> bool:
    """Return whether a larger size may end the group's open intent: a scale-out that boots, and is no probe.

    Not where another party has set another size since: it is reported when the intent is over. Nor where a VM is
    overdue: then the intent ends by its deadline.
    """
    seen = next((one for one in snapshot.groups if one.key == group), None) if snapshot is not None else None
    if (fleet, group) not in turn.booting or seen is None:
        return False
    intent, _ = turn.booting[fleet, group]
    is_probe = any(breaker.group == group for breaker in turn.states[fleet].breakers)
    return seen.requested == intent.target and not seen.overdue and not is_probe


def _superseded_by(turn: FleetTurn, made: Sequence[DecisionResult]) -> list[tuple[Intent, Outcome]]:
    """Return the scale-outs that end with these decisions, whose intents take their places."""
    ended = []
    for intent in (one for decided in made for one in decided.decision.intents):
        if (intent.fleet, intent.group) in turn.booting:
            before, outcome = turn.booting[intent.fleet, intent.group]
            detail = f"{outcome.detail}; superseded by {intent.intent_id}"
            closed = replace(outcome, status=Status.PARTIAL, reason=Reason.SUPERSEDED, at=turn.now, detail=detail)
            ended.append((before, closed))
    return ended


def _without_superseded(turn: FleetTurn, decided: DecisionResult) -> DecisionResult:
    ended = {before.intent_id for before, _ in turn.superseded if before.fleet == decided.decision.fleet}
    times = {name: one for name, one in decided.state.intent_times.items() if name not in ended}
    return replace(decided, state=replace(decided.state, intent_times=times)) if ended else decided


def _take_in(turn: FleetTurn, intent: Intent, outcome: Outcome) -> None:
    """Take an outcome into the fleet's state, with an event where a VM was refused again."""
    fleet, state = intent.fleet, turn.states[intent.fleet]
    after = state_after_outcome(state, intent, outcome, turn.managed[fleet].limits, turn.now)
    turn.events += refusal_events(fleet, state, after, turn.now)
    turn.states[fleet] = after


def _heartbeats_alone(call: ChangingCall) -> Refusal | None:
    refusal = Refusal(Reason.LEDGER_UNAVAILABLE, "it cannot be recorded now", over=False)
    return None if call.act is Act.HEARTBEAT else refusal


def _not_drained(fleet: str, group: str, vms: Sequence[str], now: float) -> Event:
    detail = f"the drain of {', '.join(vms)} in {group} had not begun when AWS's notice ended: their work is lost; "
    detail += "see the decisions since the notice, MAX_REPLACEMENTS and MAX_REPLACEMENTS_PERCENT"
    return Event(fleet_subject(fleet), now, Reason.NOT_DRAINED, detail, group)


def _unreadable(fleet: Fleet, observed: Observed) -> ReadFailure | None:
    failures = [(group.key, observed.failures[group.name]) for group in fleet.groups if group.name in observed.failures]
    for key, failed in failures:
        # Named first, by its key in the settings: it needs a person, whatever else AWS does meanwhile.
        if failed.failure is FailureClass.UNSUPPORTED:
            return replace(failed, detail=f"group {key} cannot be managed: {failed.detail}")
    return failures[0][1] if failures else None


def _log(decision: Decision) -> None:
    log.info(
        "decision",
        decision_id=decision.decision_id,
        fleet=decision.fleet,
        reason=decision.reason,
        desired=decision.desired,
        sentence=decision.sentence,
    )


def may_have_changed(intent: Intent, outcome: Outcome) -> bool:
    """Return whether settling the intent may have changed its group since it was read.

    A scale-out is done when its VMs are there: then nothing more was sent.
    """
    grown = intent.direction is Direction.OUT and outcome.status is Status.DONE
    return outcome.status is not Status.IN_PROGRESS and not grown


def _closed(intent: Intent, reason: Reason, detail: str, now: float) -> Outcome:
    return Outcome(intent.intent_id, Status.SKIPPED, reason, asked(intent), 0, now, detail)


def interrupted_vms(fleet: Fleet, state: LoopState, observed: Observed) -> tuple[tuple[str, str], ...]:
    """Return (group key, VM) of the fleet's VMs in service whose notice has not been acted on yet."""
    return tuple(
        (group.key, instance.vm)
        for group in fleet.groups
        if group.name in observed.groups
        for instance in observed.groups[group.name].instances
        if instance.vm in state.interrupted and instance.lifecycle is Lifecycle.IN_SERVICE
    )
