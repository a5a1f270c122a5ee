"""The gate: groups tagged into a cluster come in when its service admits them, and their sizes become its events.

Turned by the loop after its fleets, by the leader only. In one turn: read every tagged group, carry open requests on,
tell the clusters what changed, then ask for the groups that are pending. In observe mode nothing is carried on and
nobody is let in or refused: it is told, and recorded, what would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from actuators.sizes import GroupSizes
from actuators.tags import GroupTags
from agent.admission.deployments import Stage
from agent.admission.gate.advice import GateAdvice
from agent.admission.gate.capacity import CAPACITY, Capacities
from agent.admission.gate.effects import Effect, GateEffects
from agent.admission.gate.rails import Asked, held
from agent.admission.gate.records import REQUESTED_BY, GroupRecord, Step, admitted, deployment_id, refused
from agent.admission.gate.requests import asked_by, is_pending, waits_for
from agent.admission.gate.sizes import end_event
from agent.admission.gate.terms import GateTerms
from agent.admission.gate.turn import GateJournal, GateTurn
from agent.admission.gate.watch import GateWatch
from agent.admission.records import AdmissionDecision, AdmissionRequest, DeploymentEvent
from agent.admission.service import AdmissionService
from agent.autoscaling.clock_step import not_ahead, shifted
from agent.autoscaling.permission import unmeasured_permit
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from collectors.aws import AwsSession
from collectors.clusters import ClusterGroup, ClusterReader
from collectors.inventory import Inventory
from domain.clock import Clock, JumpDetector, read_both
from domain.decisions import Event, Mode, Outcome, Reason
from domain.errors import BadInput, CloudError, FailureClass, Fenced, LedgerError
from domain.fleet import Fleet
from domain.observed import Observed, ReadFailure

log = structlog.get_logger(__name__)

ASKED_PER_TURN: Final = 20
"""Pending groups beyond so many wait for the next turn, so that a crowd does not outlast one."""
NUMBERS_TRIED: Final = 10
"""A number is used up by each crash between a decision and its record after which the group asks for another size."""


class Gate:
    """Admits pending groups into their clusters, or refuses them. limits: of the rails that it asks.

    clock: its monotonic time measures how long groups take to come to their size, so that a wall clock that is set
    makes nothing overdue.
    """

    def __init__(
        self,
        session: AwsSession,
        ledger: Ledger,
        clusters: Mapping[str, AdmissionService],
        terms: Mapping[str, GateTerms],
        mode: Mode,
        clock: Clock,
        limits: RailLimits | None = None,
    ) -> None:
        self._ledger, self._mode, self._clusters, self._terms = ledger, mode, clusters, terms
        self._clock, self._jumps, self._clock_step_s = clock, JumpDetector(), 0.0
        # By deployment, the monotonic time at which the group began to be raised.
        self._raised_at: dict[str, float] = {}
        self._limits = limits or RailLimits()
        self._reader = ClusterReader(session)
        self._inventory = Inventory(session)
        self._journal = GateJournal(ledger, self._limits)
        self._effects = GateEffects(GroupSizes(session, self._inventory), GroupTags(session), self._observe)
        self._capacities = Capacities(self._reader, clusters, terms, self._journal)
        self._watch = GateWatch(session, ledger, clusters, self._journal)
        self._advice = GateAdvice(clusters)

    def turn(
        self, now: float, epoch: int, fleets: Sequence[Fleet] = (), outcomes: Sequence[Outcome] = ()
    ) -> tuple[Event, ...]:
        """Turn once and return what happened; `fleets` and the outcomes of their turn are the loop's.

        Raises LedgerError or Fenced when nothing more may be done: what is open is carried on by a later turn.
        """
        permit = unmeasured_permit(now, self._clock, self._ledger.controls, self._ledger.gate.memory)
        records, damaged = self._ledger.gate.read()
        turn = GateTurn(now, epoch, {}, records, permit)
        self._carry_over_clock_step(turn)
        try:
            read = self._reader.groups()
        except CloudError as error:
            for name in self._clusters:
                detail = f"its groups could not be read, nobody comes in: {error}"
                self._journal.say(turn, name, CAPACITY, Reason.CLOUD_UNREADABLE, detail)
            return tuple(turn.events)
        # A group whose record is damaged may have been admitted already: it is not asked for anew.
        turn.groups = {group.name: group for group in read.groups if group.name not in damaged}
        turn.unreadable = {**read.unreadable, **damaged}
        self._tell_unreadable(turn)
        self._capacities.measure(turn)
        if self._mode is Mode.ACT:
            self._carry_on(turn)
        self._watch.look(turn, fleets, outcomes)
        sized = {group.name for fleet in fleets for group in fleet.groups}
        for group in turn.groups.values():
            with self._journal.alone(turn, group.cluster, group.name):
                if is_pending(group):
                    self._pending(turn, group, sized_by_fleet=group.name in sized)
        return tuple(turn.events)

    def _tell_unreadable(self, turn: GateTurn) -> None:
        for name, why in turn.unreadable.items():
            record = turn.records.get(name)
            detail = f"{name or 'a group without a name'} is left as it is: {why}"
            self._journal.say(turn, record.cluster if record is not None else "", name, Reason.CLOUD_UNREADABLE, detail)

    def _carry_over_clock_step(self, turn: GateTurn) -> None:
        """Move what the rails remember of the clusters along when the clock was set; see `autoscaling.clock_step`."""
        # What could not be recorded the last time is still to be carried over.
        times = read_both(self._clock)
        self._clock_step_s += self._jumps.observe(times.now, times.monotonic, times.doubt_s)
        step_s = self._clock_step_s
        memories = {}
        for name in self._clusters:
            before = self._ledger.gate.memory(name)
            after = not_ahead(shifted(before, step_s) if step_s else before, (), turn.now)
            if after != before:
                memories[name] = after
        if memories:
            self._journal.remember(turn, memories, step_s)
        self._clock_step_s = 0.0

    def _with_deadline(self, record: GroupRecord, now: float) -> GroupRecord:
        """Return a record that is being raised with its deadline on the clock as it reads now."""
        at = self._clock.monotonic()
        began = self._raised_at.setdefault(record.deployment_id, at - max(now - record.at, 0.0))
        return replace(record, deadline_at=now + (record.deadline_at - record.at) - (at - began))

    def _carry_on(self, turn: GateTurn) -> None:
        known = [record for record in turn.records.values() if record.open and record.cluster in self._clusters]
        waiting = [record for record in known if not turn.is_unknown(record)]
        raising = [record.group for record in waiting if record.step is Step.RAISING]
        open_ones = {record.deployment_id for record in known}
        self._raised_at = {name: at for name, at in self._raised_at.items() if name in open_ones}
        observed = self._observed(turn, raising)
        for record in waiting:
            with self._journal.alone(turn, record.cluster, record.group):
                if record.step is Step.RAISING:
                    self._raise(turn, record, observed)
                else:
                    self._mark(turn, record)

    def _observed(self, turn: GateTurn, names: Sequence[str]) -> Observed:
        """Read groups; one whose description makes no sense stands among the failures, as one that is not read."""
        if not names:
            return Observed(turn.now)
        try:
            return self._inventory.observe(names, turn.now)
        except (LedgerError, Fenced):
            raise
        except Exception as error:
            if len(names) == 1:
                detail = f"AWS's description of it makes no sense ({type(error).__name__}: {error})"
                return Observed(turn.now, failures={names[0]: ReadFailure(FailureClass.UNAVAILABLE, detail)})
        each = [self._observed(turn, [name]) for name in names]
        return Observed(
            turn.now,
            {name: group for one in each for name, group in one.groups.items()},
            {name: failure for one in each for name, failure in one.failures.items()},
        )

    def _raise(self, turn: GateTurn, record: GroupRecord, observed: Observed) -> None:
        group = turn.groups.get(record.group)
        deployment = self._clusters[record.cluster].deployment(record.deployment_id)
        over = deployment is None or deployment.stage is Stage.GONE
        if over and (group is None or group.desired <= record.before) and not self._ended(record):
            detail = f"{record.group} was admitted, but what was set aside for it has lapsed: ask again"
            after = replace(record, step=Step.MARKING, answer=refused(Reason.ADMISSION_LAPSED))
            self._journal.write(turn, after, Effect(after, Reason.ADMISSION_LAPSED, detail))
            self._mark(turn, after)
            return
        effect = self._effects.follow(self._with_deadline(record, turn.now), group, observed, turn.now, turn.permit)
        self._took(turn, record, effect)

    def _ended(self, record: GroupRecord) -> bool:
        """Return whether we told the cluster ourselves that an admission came to nothing, before a crash."""
        told = end_event(record.deployment_id, record.at).event_id
        return bool(self._ledger.admission.events(record.cluster, [told]))

    def _took(self, turn: GateTurn, record: GroupRecord, effect: Effect) -> None:
        """Record what came of bringing a group to its size; when that is over, go on to its tags."""
        outcome = effect.outcome
        if outcome is None or not outcome.status.final:
            self._journal.write(turn, record, effect)
            return
        deployment = self._clusters[record.cluster].deployment(record.deployment_id)
        after = self._effects.conclude(record, outcome, deployment, turn.now)
        self._journal.write(turn, after, effect)
        self._mark(turn, after)

    def _mark(self, turn: GateTurn, record: GroupRecord) -> None:
        """Write the answer into the group's tags; settle the record once they were read to hold it.

        The groups were read before anything was written in this turn, so that no write passes for its own read-back.
        """
        group = turn.groups.get(record.group)
        if group is None or all(group.tags.get(key) == value for key, value in record.tags.items()):
            self._journal.write(turn, replace(record, step=Step.SETTLED))
            return
        effect = self._effects.mark(record, group, turn.permit)
        if effect.reason is not None:
            self._journal.write(turn, record, effect)

    def _pending(self, turn: GateTurn, group: ClusterGroup, *, sized_by_fleet: bool) -> None:
        record = turn.records.get(group.name)
        if record is not None and record.open:
            return
        if group.cluster not in self._clusters:
            known = ", ".join(sorted(self._clusters))
            detail = f"{group.name} asks to come in, but no setting describes this cluster; there are: {known}"
            self._journal.say(turn, group.cluster, group.name, Reason.REJECTED_INPUT, detail)
            return
        stopped = waits_for(group, sized_by_fleet=sized_by_fleet, capacity_known=self._capacities.known(group.cluster))
        if stopped is not None:
            self._journal.say(turn, group.cluster, group.name, stopped.reason, f"{group.name} waits: {stopped.detail}")
        elif turn.asked < ASKED_PER_TURN and (self._mode is Mode.ACT or self._advice.due(group, turn.now)):
            self._judge(turn, group, record.number + 1 if record is not None else 1)
            if self._mode is not Mode.ACT:
                self._advice.looked(group, turn.now)

    def _judge(self, turn: GateTurn, group: ClusterGroup, number: int) -> None:
        """Ask the cluster for a pending group, unless a rail holds it or what it asks for makes no sense."""
        turn.asked += 1
        cluster = group.cluster
        try:
            asked = asked_by(group, self._reader)
        except CloudError as error:
            self._journal.say(turn, cluster, group.name, Reason.CLOUD_UNREADABLE, f"{group.name} waits: {error}")
            return
        except BadInput as error:
            self._refuse(turn, group, number, str(error))
            return
        memory, controls = self._ledger.gate.memory(cluster), self._ledger.controls(cluster)
        # The rail that holds everything while the agent only observes would hide what the others say.
        stopped = held(cluster, group, asked, memory, controls, self._limits, Mode.ACT, turn.now)
        if stopped is not None:
            self._journal.say(turn, cluster, group.name, stopped.reason, f"{group.name} waits: {stopped.detail}")
            return
        if self._mode is not Mode.ACT:
            self._advice.give(turn, group, asked, number)
            return
        decision = self._decision(turn, group, asked, number)
        self._begin(turn, group, asked, decision)

    def _refuse(self, turn: GateTurn, group: ClusterGroup, number: int, why: str) -> None:
        """Refuse what the cluster need not be asked for."""
        if self._mode is not Mode.ACT:
            self._journal.say(turn, group.cluster, group.name, Reason.REJECTED_INPUT, f"{group.name}: {why}")
            return
        answer = refused(Reason.REJECTED_INPUT)
        step = Step.MARKING
        record = GroupRecord(group.cluster, group.name, number, step, turn.now, epoch=turn.epoch, answer=answer)
        self._journal.write(turn, record, Effect(record, Reason.REJECTED_INPUT, f"{group.name} is refused: {why}"))
        self._mark(turn, record)

    def _decision(self, turn: GateTurn, group: ClusterGroup, asked: Asked, number: int) -> AdmissionDecision:
        """Return the cluster's decision; one that was made before a crash is the decision, whatever came since.

        Where the group has come to ask for something else meanwhile, what was set aside is given back.
        """
        cluster = self._clusters[group.cluster]
        for each in range(number, number + NUMBERS_TRIED):
            name = deployment_id(group.name, each)
            request = AdmissionRequest(group.cluster, name, asked.cores, requested_by=REQUESTED_BY, request_id=name)
            try:
                return cluster.admit(request)
            except BadInput as error:
                log.warning("asked_for_something_else_before", deployment=name, detail=str(error))
            deployment = cluster.deployment(name)
            if deployment is not None and deployment.stage is Stage.RESERVED:
                cluster.observe(end_event(name, max(turn.now, deployment.last_at)))
        raise BadInput("request_id", deployment_id(group.name, number), f"{NUMBERS_TRIED} after it were used as well")

    def _begin(self, turn: GateTurn, group: ClusterGroup, asked: Asked, decision: AdmissionDecision) -> None:
        """Write what will be done, then do it."""
        record = GroupRecord(
            cluster=group.cluster,
            group=group.name,
            number=int(decision.deployment_id.rpartition(".")[2]),
            step=Step.RAISING if decision.admit else Step.MARKING,
            at=turn.now,
            vms=asked.vms,
            vm_type=asked.vm_type,
            vm_cores=asked.vm_cores,
            before=group.desired,
            epoch=turn.epoch,
            deadline_at=turn.now + self._terms[group.cluster].boot_deadline_s,
            decision_id=decision.decision_id,
            answer=admitted() if decision.admit else refused(decision.reason),
        )
        verb = "comes in" if decision.admit else "is refused"
        detail = f"{group.name} {verb} with {asked.vms} x {asked.vm_type}: {decision.detail}"
        self._journal.begin(turn, record, decision.reason, detail)
        if decision.admit:
            self._raised_at[record.deployment_id] = self._clock.monotonic()
            self._took(turn, record, self._effects.begin(record, turn.now, turn.permit))
        else:
            self._mark(turn, record)

    def _observe(self, cluster: str, event: DeploymentEvent) -> None:
        """Tell a cluster what came of an admission; one that lapsed meanwhile has nothing to hear of it."""
        try:
            self._clusters[cluster].observe(event)
        except BadInput as error:
            log.warning("deployment_event_not_taken", cluster=cluster, event_id=event.event_id, detail=str(error))
