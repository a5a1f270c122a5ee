"""One turn of the loop, on any clock and any cloud: observe, settle, aggregate, decide, record, act, record."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import structlog

from actuators.base import Act, ChangingCall, Permit, Protects, Refusal
from actuators.drift import drift
from actuators.outcomes import asked, is_booting
from actuators.protection import owned_from_now, still_owned
from agent.autoscaling import announcements
from agent.autoscaling.announcements import Announcements
from agent.autoscaling.decide import Decided, DecisionInputs, decide_alone, with_shadows
from agent.autoscaling.intents import (
    INTERRUPTION_S,
    state_after_outcome,
    with_cause,
    with_open_targets,
    with_past_resizes,
)
from agent.autoscaling.late_calls import recognise, with_former_call
from agent.autoscaling.minutes import Measured
from agent.autoscaling.permission import Permission
from agent.autoscaling.policies.ppo_lstm import outside_training
from agent.autoscaling.ports import ManagedFleet, Ports
from agent.autoscaling.refusals import refusal_events, with_refusals
from agent.autoscaling.snapshot.aggregate import BIN_S
from agent.autoscaling.store import AUTOSCALING, FleetStore
from agent.kernel.guards import refused_by_pause
from agent.kernel.turn import TickReport
from agent.models.card import SCORER_MEMORY
from agent.rails.base import utc
from agent.rails.schedule import with_pauses
from agent.rails.state import LoopState, not_ahead, on_this_clock, shifted, without_group
from collectors.interruptions import Interruption, InterruptionKind
from domain.clock import BothTimes
from domain.controls import Controls
from domain.decisions import AGENT, Decision, Direction, Event, Intent, Mode, Outcome, Reason, Status
from domain.errors import (
    BadInput,
    CloudError,
    FailureClass,
    Fenced,
    LedgerError,
    LedgerReplaced,
    LedgerUnavailable,
    TrimtabError,
)
from domain.fleet import Fleet
from domain.observations.autoscaling import obs_v2_names
from domain.observations.autoscaling_scorer import STATE_FEATURES
from domain.observed import Lifecycle, Observed, ReadFailure
from domain.snapshot import Snapshot

log = structlog.get_logger(__name__)


def run_tick(now: float, ports: Ports, times: BothTimes | None = None) -> TickReport:
    """Turn the loop once for every fleet; times: `now` and the monotonic time of the same moment, where both were read.

    One fleet's trouble never stops another's decision. When the ledger cannot be read or written, or a newer leader has
    taken over, nothing more is executed: the report holds the failure and the records before it. Measuring continues
    and the next tick tries again.
    """
    # Before anything that takes time: read later, the monotonic time would make the wait look like a step of the clock.
    times = times or BothTimes(now, ports.monotonic())
    turn = None
    try:
        if ports.fence is None:
            ports.ledger.check_epoch(ports.epoch)
        else:
            ports.fence()
        turn = _Turn(now, ports, times)
        turn.run(times)
    except (LedgerError, Fenced) as error:
        if turn is not None and isinstance(error, LedgerUnavailable) and not isinstance(error, LedgerReplaced):
            turn.keep_drains()
        reason = Reason.LEDGER_REPLACED if isinstance(error, LedgerReplaced) else Reason.LEDGER_UNAVAILABLE
        report = TickReport(now) if turn is None else turn.recorded()
        log.error("ended_by_the_ledger", reason=reason, outcomes=len(report.outcomes), detail=str(error))
        return replace(report, failure=str(error), failure_reason=reason)
    return turn.recorded()


class _Turn:
    """The readings of one turn, the state of each fleet as it changes, and the part that the ledger has.

    `_write` is the only way to the ledger; the turn reports its writes, however the turn ends.
    """

    def __init__(self, now: float, ports: Ports, times: BothTimes) -> None:
        self._now, self._ports = now, ports
        self._store = FleetStore(ports.ledger)
        self._managed = {managed.fleet.name: managed for managed in ports.fleets}
        self._fleets = [managed.fleet for managed in ports.fleets]
        self._states = self._store.loop_states(list(self._managed))
        self._stored = dict(self._states)
        self._permission = Permission(now, ports, self._states, times)
        self._observed = Observed(now)
        # Of calls of the last turn, whose record the ledger refused.
        self._events: list[Event] = list(ports.unrecorded)
        self._facts = set(range(len(self._events)))
        self._written: set[int] = set()
        self._outcomes: list[Outcome] = []
        self._made: list[tuple[DecisionInputs, Decided]] = []
        self._superseded: list[tuple[Intent, Outcome]] = []
        self._cooldowns_taken_up = False
        self._measured: dict[str, Measured] = {}
        self._recreated: dict[tuple[str, str], str] = {}
        self._booting: dict[tuple[str, str], tuple[Intent, Outcome]] = {}

    def run(self, times: BothTimes) -> None:
        """Take the turn; LedgerError and Fenced end it where they come up."""
        ports, states = self._ports, self._states
        clock_set = self._carry_over_clock_step(times)
        before = dict(states)
        self._observed = ports.actuator.observe(self._fleets, self._now)
        if ports.hosts is not None:
            ports.hosts.update(vm_names(self._fleets, self._observed))
        self._permission.read(self._observed)
        self._recognise_groups()
        self._take_up_cooldowns()
        settled = self._settle()
        if any(may_have_changed(intent, outcome) for intent, outcome in settled):
            self._observed = ports.actuator.observe(self._fleets, self._now)
        notices = self._read_interruptions()
        self._note_undrained()

        records: list[tuple[DecisionInputs, Decided]] = []
        open_intents = ports.ledger.open_intents()
        controls = ports.ledger.all_controls(AUTOSCALING, list(self._managed))
        announced = announcements.kept(self._store, list(self._managed))
        ports.proposer.begin_turn()
        for name, managed in self._managed.items():
            with self._contained("fleet_failed", name, "this minute was skipped"):
                record = self._decide(managed, controls[name], announced[name], open_intents)
                inputs, decided = record
                self._events += state_events(
                    name, before[name], decided.state, inputs.snapshot, self._now, ports.listening_since
                )
                if inputs.snapshot is not None:
                    stuck = ports.aggregator.stuck(name)
                    self._events += ports.stalls.events(inputs.snapshot, stuck, self._now)
                records.append(record)
        # Asked when every fleet's own policy has answered: no shadow comes before any of these.
        records = [self._beside(self._managed[inputs.fleet.name], inputs, decided) for inputs, decided in records]
        self._superseded = self._superseded_by([decided for _, decided in records])
        records = [(inputs, self._without_superseded(decided)) for inputs, decided in records]
        self._measured = {inputs.fleet.name: self._measure(inputs.fleet, clock_set) for inputs, _ in records}
        if ports.fence is not None:
            ports.fence()
        self._record(records)
        ports.refusals.recorded(inputs.fleet.name for inputs, _ in self._made)
        ports.stalls.recorded()
        if self._cooldowns_taken_up:
            ports.resized = None
        if ports.interruptions is not None and notices:
            ports.interruptions.acknowledge(notices)

        first = len(self._events)
        for inputs, decided in self._made:
            _log(decided.decision)
            self._permission.decided(inputs, decided)
            for intent in decided.decision.intents:
                what = f"{intent.intent_id} could not be carried out and stays open"
                with self._contained("execute_failed", intent.fleet, what):
                    self._execute(intent)
        if ports.mode is Mode.ACT:
            self._tend()
        self._facts |= set(range(first, len(self._events)))
        self._write()

    def recorded(self) -> TickReport:
        """Return the report of this turn's records.

        Events of calls that are not recorded are left to the next turn. Other events come again, since the state
        before them was not overwritten.
        """
        self._ports.unrecorded = [one for n, one in enumerate(self._events) if n in self._facts - self._written]
        return TickReport(
            self._now,
            tuple(inputs.snapshot for inputs, _ in self._made if inputs.snapshot is not None),
            tuple(decided.decision for _, decided in self._made),
            tuple(self._outcomes),
            tuple(one for n, one in enumerate(self._events) if n in self._written),
            partial=tuple(
                inputs.fleet.name
                for inputs, _ in self._made
                if inputs.snapshot is not None and inputs.snapshot.bin_end - BIN_S < self._ports.listening_since
            ),
        )

    def _write(
        self,
        made: Sequence[tuple[DecisionInputs, Decided]] = (),
        outcomes: Sequence[tuple[Intent, Outcome]] = (),
        fleet: str | None = None,
    ) -> None:
        """Write decisions and outcomes with the events and states that the ledger has not: all or nothing of it.

        fleet: only its events and its state, so that another's cannot refuse them.
        """
        states = self._states | {inputs.fleet.name: decided.state for inputs, decided in made}
        changed = {
            name: one
            for name, one in states.items()
            if one is not self._stored.get(name) and (fleet is None or name == fleet)
        }
        fresh = {
            n: one
            for n, one in enumerate(self._events)
            if n not in self._written and (fleet is None or one.fleet == fleet)
        }
        if not (made or outcomes or changed or fresh):
            return
        self._store.record(
            made, list(fresh.values()), changed, self._ports.epoch, measured=self._measured, outcomes=outcomes
        )
        self._written |= fresh.keys()
        self._stored |= changed
        self._states |= changed
        self._made += made
        for intent, outcome in outcomes:
            self._outcomes.append(outcome)
            self._ports.refusals.note(intent, outcome)

    @contextlib.contextmanager
    def _contained(self, logged: str, fleet: str, what: str, subject: str = "") -> Iterator[None]:
        """Let an unexpected error end this block and no more: it is logged as `logged`, with an event of the fleet."""
        try:
            yield
        except (LedgerError, Fenced):
            raise
        except Exception as error:
            log.exception(logged, fleet=fleet, detail=what)
            detail = f"{what}: {type(error).__name__}: {error}"
            self._events.append(Event(fleet, self._now, Reason.INTERNAL_ERROR, detail, subject))

    def _record(self, records: Sequence[tuple[DecisionInputs, Decided]]) -> None:
        """Write all decisions at once, or fleet by fleet when one of them cannot be stored.

        A fleet without a decision gets its state as it was before one: with the notices that are deleted after this.
        """
        try:
            self._write(records, self._superseded)
        except (LedgerUnavailable, Fenced):
            raise
        except TrimtabError:
            log.exception("record_failed")
        else:
            return
        for inputs, decided in records:
            name = inputs.fleet.name
            try:
                self._write([(inputs, decided)], [one for one in self._superseded if one[0].fleet == name], name)
            except (LedgerUnavailable, Fenced):
                raise
            except TrimtabError as error:
                detail = f"the decision could not be recorded, so it is not executed: {error}"
                self._events.append(Event(name, self._now, Reason.INTERNAL_ERROR, detail))
        self._write()

    def _carry_over_clock_step(self, times: BothTimes) -> bool:
        """Move every remembered time along when the clock was set, and record that before anything else is done."""
        ports, states = self._ports, self._states
        seen_s = ports.jumps.observe(times.now, times.monotonic, times.doubt_s)
        if seen_s:
            ports.listening_since += seen_s
            ports.stalls.clock_stepped(seen_s)
            ports.aggregator.clock_stepped(seen_s)
            ports.actuator.clock_stepped(seen_s)
        # What could not be recorded the last time is still to be carried over; where it was, its answer was lost.
        ports.clock_step_s = seen_s + (0.0 if states == ports.stepped else ports.clock_step_s)
        step_s = ports.clock_step_s
        open_intents = ports.ledger.open_intents()
        for name, state in states.items():
            ours = [intent for intent in open_intents if intent.fleet == name]
            states[name] = not_ahead(shifted(state, step_s, ours) if step_s else state, ours, self._now)
        if not step_s:
            return False
        direction = "forward" if step_s > 0 else "back"
        detail = f"the clock was set {direction} by {abs(step_s):.0f} s; stored times moved with it"
        self._events += [Event(name, self._now, Reason.CLOCK_JUMP, detail) for name in states]
        ports.stepped = dict(states)
        self._write()
        ports.clock_step_s, ports.stepped = 0.0, {}
        return True

    def _recognise_groups(self) -> None:
        """Forget what was known of a group in whose place there is another one, with an event.

        It was made anew under its name, or the settings name another one. It is accepted: tools replace groups by
        others of the same name, and one that launches another type is held.
        """
        for fleet in self._fleets:
            state = self._states[fleet.name]
            for group in fleet.groups:
                seen = self._observed.groups.get(group.name) or self._observed.held.get(group.name)
                known = state.identities.get(group.key)
                if seen is None or seen.identity is None or seen.identity == known:
                    continue
                if known is not None:
                    is_other = known.group not in ("", seen.identity.group)
                    why = "the settings name another group now" if is_other else "its group was recreated"
                    self._recreated[fleet.name, group.key] = why
                    state = without_group(state, group.key)
                    made = f"was recreated at {utc(seen.identity.created_at)}"
                    what = f"replaces {known.group} in the settings" if is_other else made
                    detail = f"{group.name} {what}: its size is accepted"
                    self._events.append(Event(fleet.name, self._now, Reason.GROUP_RECREATED, detail, group.key))
                state = replace(state, identities={**state.identities, group.key: seen.identity})
            self._states[fleet.name] = state

    def _take_up_cooldowns(self) -> None:
        """Let changes of size that AWS made before this process count towards the cool-downs, once."""
        ports, fleets = self._ports, self._managed.values()
        if ports.resized is None:
            return
        longest_s = max((max(one.limits.cooldown_out_s, one.limits.cooldown_in_s) for one in fleets), default=0.0)
        try:
            found = ports.resized(
                {group.name for fleet in self._fleets for group in fleet.groups}, self._now - longest_s
            )
        except CloudError as error:
            # What the ledger knows holds meanwhile; the next turn asks again.
            log.warning("activities_unread", detail=str(error))
            return
        self._cooldowns_taken_up = True
        for managed in fleets:
            name = managed.fleet.name
            state, events = with_past_resizes(self._states[name], managed.fleet, managed.limits, found, self._now)
            self._states[name] = state
            self._events += events

    def _settle(self) -> list[tuple[Intent, Outcome]]:
        """Follow every open intent and record what became of it; when that cannot be recorded, none is followed.

        An intent that cannot be followed for an unexpected error stays open, and an event says so of its fleet.
        """
        ports, states, observed, now = self._ports, self._states, self._observed, self._now
        settled: list[tuple[Intent, Outcome]] = []
        open_intents = ports.ledger.open_intents()
        ports.ages.keep(frozenset(intent.intent_id for intent in open_intents))
        if open_intents and ports.mode is Mode.ACT:
            ports.ledger.check_writable()
        for intent in open_intents:
            managed = self._managed.get(intent.fleet)
            if managed is not None:
                state = states[intent.fleet]
                intent = on_this_clock(intent, state)
                if ports.ledger.shared:
                    states[intent.fleet] = with_former_call(state, intent, managed.fleet, observed, ports.epoch, now)
            found: list[Outcome] = []
            if managed is None:
                found.append(_closed(intent, Reason.SUPERSEDED, "the fleet is no longer configured", now))
            elif (why := self._recreated.get((intent.fleet, intent.group))) is not None:
                found.append(_closed(intent, Reason.SUPERSEDED, why, now))
            elif ports.mode is Mode.OBSERVE:
                found.append(_closed(intent, Reason.OBSERVE_MODE, "this process only observes", now))
            else:
                what = f"{intent.intent_id} could not be followed and stays open"
                with self._contained("follow_failed", intent.fleet, what, intent.intent_id):
                    found.append(ports.actuator.follow(intent, observed, now, self._permission))
            if not found:
                continue
            before, what = dict(states), f"{intent.intent_id} could not be settled and stays open"
            recorded: list[Outcome] = []
            with self._contained("settle_failed", intent.fleet, what, intent.intent_id):
                recorded.append(self._settled(intent, found[0]))
            settled += [(intent, outcome) for outcome in recorded]
            if not recorded:
                states.update(before)
        return settled

    def _settled(self, intent: Intent, outcome: Outcome) -> Outcome:
        """Record an outcome with the state after it, and return it with its cause."""
        if outcome.reason is Reason.OVERDUE:
            outcome = with_cause(outcome, self._store.last_outcome(intent.intent_id))
            if intent.direction is Direction.REPLACE:
                groups = self._observed.groups.values()
                serving = {vm for group in groups for vm in (one.vm for one in group.serving)}
                late = [vm for vm in intent.victims if vm in serving]
                self._events.append(_not_drained(intent.fleet, intent.group, late, self._now))
        if intent.fleet in self._managed:
            self._after(intent, outcome)
        self._write(outcomes=[(intent, outcome)], fleet=intent.fleet)
        if is_booting(intent, outcome):
            self._booting[intent.fleet, intent.group] = intent, outcome
        return outcome

    def _superseded_by(self, made: Sequence[Decided]) -> list[tuple[Intent, Outcome]]:
        """Return the scale-outs that end with these decisions, whose intents take their places."""
        ended = []
        for intent in (one for decided in made for one in decided.decision.intents):
            if (intent.fleet, intent.group) in self._booting:
                before, outcome = self._booting[intent.fleet, intent.group]
                detail = f"{outcome.detail}; superseded by {intent.intent_id}"
                closed = replace(outcome, status=Status.PARTIAL, reason=Reason.SUPERSEDED, at=self._now, detail=detail)
                ended.append((before, closed))
        return ended

    def _without_superseded(self, decided: Decided) -> Decided:
        ended = {before.intent_id for before, _ in self._superseded if before.fleet == decided.decision.fleet}
        times = {name: one for name, one in decided.state.intent_times.items() if name not in ended}
        return replace(decided, state=replace(decided.state, intent_times=times)) if ended else decided

    def _read_interruptions(self) -> Sequence[Interruption]:
        """Put new notices into the states of the fleets whose VMs they name; each VM counts once.

        Returns those that may be forgotten once that is recorded. A notice of a VM that no group shows is forgotten
        too, it is not the agent's, but not while a group cannot be read: the VM may be in there, and the notice comes
        again.
        """
        source, observed, now = self._ports.interruptions, self._observed, self._now
        if source is None or self._ports.mode is not Mode.ACT:
            return ()
        notices: Sequence[Interruption] = ()
        # The queue is everybody's: its trouble must not cost any fleet its minute.
        with self._contained("notices_failed", AGENT, "spot notices could not be read this minute"):
            notices = source.receive(now)
        homes = {
            instance.vm: (fleet.name, instance)
            for fleet in self._fleets
            for group in fleet.groups
            if group.name in observed.groups
            for instance in observed.groups[group.name].instances
        }
        forgotten = []
        for notice in notices:
            home = homes.get(notice.vm)
            if home is None and observed.failures:
                continue
            forgotten.append(notice)
            if home is None:
                continue
            name, instance = home
            state = self._states[name]
            if notice.vm in state.interrupted or notice.vm in state.seen_interruptions:
                continue
            if notice.kind is InterruptionKind.REBALANCE:
                detail = f"AWS hints that {notice.vm} is at risk; it is not replaced before its notice comes"
                self._events.append(Event(name, now, Reason.REBALANCE_HINT, detail, notice.vm))
            elif notice.kind is InterruptionKind.SPOT:
                # No later than now, whatever the host's clock says, and no older than a notice whose VM is there.
                at = max(now - INTERRUPTION_S, min(now, notice.at))
                detail = f"AWS takes {notice.vm} back within two minutes: "
                if instance.lifecycle in (Lifecycle.DRAINING, Lifecycle.TERMINATING):
                    seen = {**state.seen_interruptions, notice.vm: at}
                    self._states[name] = replace(state, seen_interruptions=seen)
                    detail += "it leaves already"
                else:
                    self._states[name] = replace(state, interrupted={**state.interrupted, notice.vm: at})
                    detail += "to be drained and replaced"
                self._events.append(Event(name, now, Reason.SPOT_INTERRUPTION, detail, notice.vm))
        return forgotten

    def _note_undrained(self) -> None:
        """Report VMs whose notice is over and whose drain has not begun, once each, in one event per group."""
        for fleet in self._fleets:
            state = self._states[fleet.name]
            over = {vm: at for vm, at in state.interrupted.items() if self._now - at >= INTERRUPTION_S}
            fresh = over.keys() - state.seen_interruptions.keys()
            for group in fleet.groups:
                seen = self._observed.groups.get(group.name)
                late = [one.vm for one in seen.instances if one.vm in fresh] if seen is not None else []
                if late:
                    self._events.append(_not_drained(fleet.name, group.key, late, self._now))
            if fresh:
                self._states[fleet.name] = replace(state, seen_interruptions={**state.seen_interruptions, **over})

    def _decide(
        self, managed: ManagedFleet, controls: Controls, announced: Announcements, open_intents: Sequence[Intent]
    ) -> tuple[DecisionInputs, Decided]:
        """Decide a fleet's minute."""
        ports, observed, now = self._ports, self._observed, self._now
        managed, windows = managed.in_minute(now)
        fleet, before = managed.fleet, self._states[managed.fleet.name]
        failure = _unreadable(fleet, observed)
        ours = {intent.group: intent for intent in open_intents if intent.fleet == fleet.name}
        in_flight = tuple(group.key for group in fleet.groups if group.key in ours)
        snapshot, state = None, before
        if failure is None:
            state, late = recognise(fleet, before, observed, in_flight, ports.epoch, now)
            drifts, known = drift(fleet, state.known_desired, observed, in_flight, managed.drift, now)
            self._events.extend((*late, *drifts))
            state = replace(state, known_desired=known)
            coming = with_open_targets(fleet, observed, ours)
            snapshot, state = ports.aggregator.snapshot(fleet, coming, state, managed.aggregation, now)
            snapshot = replace(snapshot, announced=announcements.seen(announced, managed.schedule, now))
            # A group at its minimum keeps its VMs, whoever protects them.
            refused = [
                one
                for group, seen in zip(fleet.groups, snapshot.groups, strict=True)
                if seen.requested > max(group.minimum, seen.minimum)
                for one in seen.refused
                if one.reason is Reason.PROTECTED
            ]
            earlier, state = state, replace(state, refusals=with_refusals(state.refusals, refused, now))
            self._events += refusal_events(fleet.name, earlier, state, now)
        else:
            ports.aggregator.show(fleet, observed, managed.aggregation.bin_end(now))
        booting = tuple(key for key in in_flight if self._may_supersede(fleet.name, key, snapshot))
        inputs = DecisionInputs(
            decision_id=f"{fleet.name}-{state.decisions + 1}",
            now=now,
            fleet=fleet,
            snapshot=snapshot,
            state=replace(state, protected=(), identities={}),
            controls=with_pauses(controls, windows, now),
            limits=managed.limits,
            mode=ports.mode,
            leader=True,
            epoch=ports.epoch,
            policy=ports.proposer.resolve(managed.policy, fleet),
            in_flight=tuple(key for key in in_flight if key not in booting),
            booting=booting,
            interrupted=interrupted_vms(fleet, state, observed),
            cloud_failure=failure,
            windows=windows,
        )
        decided = decide_alone(inputs, ports.proposer)
        decided = replace(decided, state=replace(decided.state, identities=state.identities))
        if ports.protect_busy and ports.mode is Mode.ACT:
            # Written before the actuator changes any, so that a restart knows whose protection it is.
            gives_back = isinstance(ports.actuator, Protects)
            gives_back &= refused_by_pause(Act.UNPROTECT, inputs.controls, now) is None
            busy = ports.aggregator.busy_cores(fleet, now)
            mine = owned_from_now(fleet, observed, before.protected, busy, gives_back=gives_back)
            decided = replace(decided, state=replace(decided.state, protected=mine))
        failures = decided.decision.policy_failures
        self._events.extend(Event(fleet.name, now, Reason.POLICY_FAILED, why) for why in failures)
        return inputs, decided

    def _may_supersede(self, fleet: str, group: str, snapshot: Snapshot | None) -> bool:
        """Return whether a larger size may end the group's open intent: a scale-out that boots, and is no probe.

        Not where another party has set another size since: it is reported when the intent is over. Nor where a VM is
        overdue: then the intent ends by its deadline.
        """
        seen = next((one for one in snapshot.groups if one.key == group), None) if snapshot is not None else None
        if (fleet, group) not in self._booting or seen is None:
            return False
        intent, _ = self._booting[fleet, group]
        is_probe = any(breaker.group == group for breaker in self._states[fleet].breakers)
        return seen.requested == intent.target and not seen.overdue and not is_probe

    def _beside(
        self, managed: ManagedFleet, inputs: DecisionInputs, decided: Decided
    ) -> tuple[DecisionInputs, Decided]:
        """Return a decision with what its shadows propose; without any when they cannot be asked."""
        made = inputs, decided
        with self._contained("shadows_failed", inputs.fleet.name, "no shadow was asked this minute"):
            asked = replace(inputs, shadows=self._shadows(managed, inputs.policy))
            made = asked, with_shadows(asked, decided, self._ports.proposer)
        return made

    def _shadows(self, managed: ManagedFleet, live: str) -> tuple[str, ...]:
        """Return the names of a fleet's shadows, its probationer first; one that two settings lead to is there once."""
        ports, fleet = self._ports, managed.fleet
        found = [ports.proposer.resolve(text, fleet) for text in managed.shadows]
        probationer = ports.probationer(fleet.name)
        if probationer is not None:
            found.insert(0, probationer)
        return tuple(name for name in dict.fromkeys(found) if name != live)

    def _measure(self, fleet: Fleet, clock_set: bool) -> Measured:
        """Return what the minute's row for learning holds beside the inputs of its decision."""
        groups = self._observed.groups
        noted = [e.subject for e in self._events if e.fleet == fleet.name and e.reason is Reason.SPOT_INTERRUPTION]
        interrupted = Counter(
            position
            for position, group in enumerate(fleet.groups)
            if noted and group.name in groups
            for instance in groups[group.name].instances
            if instance.vm in noted
        )
        read = _unreadable(fleet, self._observed) is None
        measured = (self._ports.aggregator.measured(fleet.name) if read else None) or Measured()
        return replace(measured, interrupted=interrupted, refused=self._ports.refusals.of(fleet), clock_set=clock_set)

    def _execute(self, intent: Intent) -> None:
        """Act on one recorded intent and record its outcome."""
        outcome = self._ports.actuator.apply(intent, self._observed, self._now, self._permission)
        self._after(intent, outcome)
        self._write(outcomes=[(intent, outcome)], fleet=intent.fleet)
        log.info(
            "outcome",
            decision_id=intent.decision_id,
            fleet=intent.fleet,
            group=intent.group,
            status=outcome.status,
            reason=outcome.reason,
            detail=outcome.detail,
        )

    def _after(self, intent: Intent, outcome: Outcome) -> None:
        """Take an outcome into the fleet's state, with an event where a VM was refused again."""
        fleet, state = intent.fleet, self._states[intent.fleet]
        after = state_after_outcome(state, intent, outcome, self._managed[fleet].limits, self._now)
        self._events += refusal_events(fleet, state, after, self._now)
        self._states[fleet] = after

    def _tend(self) -> None:
        self._tend_by(self._permission)
        self._states |= self._with_protection_as_it_is()

    def _tend_by(self, permit: Permit) -> None:
        ports = self._ports
        for fleet in self._fleets:
            with self._contained("tend_failed", fleet.name, "its VMs were not cared for this minute"):
                busy = ports.aggregator.busy_cores(fleet, self._now)
                self._events.extend(ports.actuator.tend(fleet, self._observed, busy, self._now, permit))

    def keep_drains(self) -> None:
        """Send heartbeats of busy drains in a turn that the ledger ended: their hooks run out within minutes.

        Nothing else is sent, and no heartbeat where the fence cannot be read.
        """
        first = len(self._events)
        if self._ports.mode is Mode.ACT:
            with contextlib.suppress(LedgerError, Fenced):
                self._tend_by(_heartbeats_alone)
        self._facts |= set(range(first, len(self._events)))

    def _with_protection_as_it_is(self) -> dict[str, LoopState]:
        """Return the states of fleets of which less or more protection is the agent's than was recorded before."""
        if not self._ports.protect_busy or not isinstance(self._ports.actuator, Protects):
            return {}
        ours = self._ports.actuator.ours
        changed = {}
        for fleet in self._fleets:
            state = self._states[fleet.name]
            protected = still_owned(fleet, self._observed, state.protected, ours)
            if protected != state.protected:
                changed[fleet.name] = replace(state, protected=protected)
        return changed


def _heartbeats_alone(call: ChangingCall) -> Refusal | None:
    refusal = Refusal(Reason.LEDGER_UNAVAILABLE, "it cannot be recorded now", over=False)
    return None if call.act is Act.HEARTBEAT else refusal


def _not_drained(fleet: str, group: str, vms: Sequence[str], now: float) -> Event:
    detail = f"the drain of {', '.join(vms)} in {group} had not begun when AWS's notice ended: their work is lost; "
    detail += "see the decisions since the notice, MAX_REPLACEMENTS and MAX_REPLACEMENTS_PERCENT"
    return Event(fleet, now, Reason.NOT_DRAINED, detail, group)


def vm_names(fleets: Sequence[Fleet], observed: Observed) -> Iterator[tuple[tuple[str, str, str], Sequence[str]]]:
    """Yield every VM by its fleet's and group's keys and its id, with what the network calls it."""
    for fleet in fleets:
        for group in fleet.groups:
            seen = observed.groups.get(group.name)
            for instance in () if seen is None else seen.instances:
                yield (fleet.name, group.key, instance.vm), observed.names.get(instance.vm, ())


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


def state_events(
    fleet: str,
    before: LoopState,
    after: LoopState,
    snapshot: Snapshot | None,
    now: float,
    listening_since: float = -math.inf,
) -> tuple[Event, ...]:
    """Return an event for each input lost or back, each capacity mark set or over, and for leaving what training saw.

    A group that cannot be managed, and one that can again, is an event too. An input counts as lost from the first
    minute on that this process listened to as a whole.

    Marks that are over have left `after.capacity` (see `agent.autoscaling.intents.state_after_intents`).
    """
    events = []
    begins = math.inf if snapshot is None else snapshot.bin_end - BIN_S
    is_first = begins - BIN_S < listening_since <= begins and before.last_bin_end != after.last_bin_end
    if (
        snapshot is not None
        and after.stale_bins > 0
        and begins >= listening_since
        and (is_first or before.stale_bins == 0)
    ):
        what = ", ".join(snapshot.absent) or f"coverage {snapshot.coverage:.0%}"
        events.append(Event(fleet, now, Reason.METRICS_LOST, f"input lost: {what}; holding", what))
    # One minute without it, at the start, was no loss.
    if before.stale_bins > (1 if is_first else 0) and after.stale_bins == 0:
        events.append(Event(fleet, now, Reason.METRICS_RETURNED, f"input back after {before.stale_bins} min"))
    if after.unsupported and after.unsupported != before.unsupported:
        detail = f"the fleet is held, none of its groups is sized: {after.unsupported}"
        events.append(Event(fleet, now, Reason.GROUP_UNSUPPORTED, detail))
    if before.unsupported and not after.unsupported:
        events.append(Event(fleet, now, Reason.GROUP_SUPPORTED, "every group of the fleet can be managed again"))
    old = {(mark.vm_type, mark.zone): mark for mark in before.capacity}
    new = {(mark.vm_type, mark.zone): mark for mark in after.capacity}
    for (vm_type, zone), mark in new.items():
        if (vm_type, zone) not in old:
            place = f"{vm_type} in {zone or 'any zone'}"
            reason, detail = Reason.CAPACITY_LOST, f"AWS has no {place}"
            if mark.failing:
                reason = Reason.LAUNCHES_FAILING
                detail = f"VMs of {place} end before they are in service: see the group's scaling activities, then its "
                detail += "launch hooks, image and health checks"
            events.append(
                Event(fleet, now, reason, f"{detail}; not asked for again within {mark.length_s:.0f} s", place)
            )
    for vm_type, zone in old:
        if (vm_type, zone) not in new:
            place = f"{vm_type} in {zone or 'any zone'}"
            events.append(Event(fleet, now, Reason.CAPACITY_RETURNED, f"{place} may be asked for again", place))
    return (*events, *_about_training(fleet, before, after, snapshot, now))


def _about_training(
    fleet: str, before: LoopState, after: LoopState, snapshot: Snapshot | None, now: float
) -> tuple[Event, ...]:
    """Return an event when the learned policy begins or ceases to see what its training did not."""
    old, new = outside_training(before.memory), outside_training(after.memory)
    if new - old and snapshot is not None:
        # A scorer sees the fleet by other features than a network does, and more of them.
        scores = any(key.endswith(f".{SCORER_MEMORY}") for key in after.memory)
        names = STATE_FEATURES if scores else obs_v2_names(len(snapshot.groups))
        what = ", ".join(names[position] for position in sorted(new))
        return (
            Event(
                fleet,
                now,
                Reason.OUTSIDE_TRAINING,
                f"inputs of the learned policy lie outside the training range: {what}",
            ),
        )
    if old and not new:
        return (
            Event(fleet, now, Reason.WITHIN_TRAINING, "inputs of the learned policy are in the training range again"),
        )
    return ()


def measure(now: float, ports: Ports) -> TickReport:
    """Fold the minute of every fleet that can be read; nothing is decided, recorded or changed.

    Without the ledger it goes on measuring, as if nothing were remembered, and the report says so.
    """
    fleets = [managed.fleet for managed in ports.fleets]
    observed = ports.actuator.observe(fleets, now)
    failure, reason = None, Reason.LEDGER_UNAVAILABLE
    states: dict[str, LoopState] = {}
    try:
        ports.ledger.check_same()
        states = FleetStore(ports.ledger).loop_states([fleet.name for fleet in fleets])
    except LedgerError as error:
        failure = str(error)
        reason = Reason.LEDGER_REPLACED if isinstance(error, LedgerReplaced) else reason
    snapshots: list[Snapshot] = []
    unread = tuple(fleet.name for fleet in fleets if _unreadable(fleet, observed) is not None)
    for managed in ports.fleets:
        state = states.get(managed.fleet.name, LoopState())
        try:
            snapshot, _ = ports.aggregator.snapshot(managed.fleet, observed, state, managed.aggregation, now)
        except BadInput:
            # A group that could not be read: the next minute tries again.
            continue
        except Exception:
            log.exception("fleet_failed", fleet=managed.fleet.name)
            continue
        snapshots.append(snapshot)
    return TickReport(now, tuple(snapshots), failure=failure, failure_reason=reason, unread=unread)
