"""The gate: groups tagged into a cluster come in when its service admits them, and their sizes become its events.

Turned by the loop after its fleets, by the leader only. In one turn: read every tagged group, carry open requests on,
tell the clusters what changed, then ask for the groups that are pending. In observe mode nothing is carried on and
no deployment is admitted or refused: what would be is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

import structlog

from actuators.sizes import GroupSizes
from actuators.values import GroupTags
from agent.admission.cluster import AdmissionService, Clusters
from agent.admission.deployments import Stage
from agent.admission.gate.effects import GateEffects
from agent.admission.gate.records import (
    ADMITTED,
    REQUESTED,
    Effect,
    GroupRecord,
    Step,
    deployment_id,
    group_records,
    refused,
)
from agent.admission.gate.requests import GroupRequest, asked_by, held, is_pending, request_of, waits_for
from agent.admission.gate.turn import GateJournal, GateTurn
from agent.admission.gate.watch import GateWatch, end_event
from agent.admission.records import AdmissionDecision, AdmissionRequest, DeploymentEvent
from agent.admission.settings import SUBJECTS, ClusterSettings
from agent.admission.state import ADMISSION, AdmissionStore
from agent.kernel.guards import unmeasured_permit
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.settings import Settings
from collectors.aws import AwsSession
from collectors.inventory import Inventory
from collectors.tagged_groups import ClusterGroup, ClusterReader
from domain.clock import Clock, JumpDetector, read_both
from domain.decisions import Event, Intent, Mode, Outcome, Reason
from domain.errors import BadInput, CloudError, FailureClass, Fenced, LedgerError
from domain.observed import Observed, ReadFailure
from domain.subject import Subject

log = structlog.get_logger(__name__)

ADVISED_FOR_S: Final = 600.0
"""How long advice on a group holds, unless it asks for something else."""
MEASURED_FOR_S: Final = 300.0
"""How long a quota or reservation that was read is taken for unchanged."""
CAPACITY: Final = "capacity"
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
        terms: Mapping[str, ClusterSettings],
        mode: Mode,
        clock: Clock,
        limits: RailLimits | None = None,
    ) -> None:
        self._ledger, self._mode, self._clusters, self._terms = ledger, mode, clusters, terms
        self._records, self._store = group_records(ledger), AdmissionStore(ledger)
        self._clock, self._jumps, self._clock_step_s = clock, JumpDetector(), 0.0
        # By deployment, the monotonic time at which the group began to be raised.
        self._raised_at: dict[str, float] = {}
        self._limits = limits or RailLimits()
        self._reader = ClusterReader(session)
        self._inventory = Inventory(session)
        self._journal = GateJournal(ledger, self._limits)
        self._effects = GateEffects(GroupSizes(session, self._inventory), GroupTags(session), self._observe)
        # By cluster, when its quota or reservation was read, and the cores that it had then.
        self._measured: dict[str, tuple[float, int]] = {}
        self._watch = GateWatch(session, ledger, clusters, self._journal)
        # By group, when advice on it was given and what it asked for then; and the advice that was given.
        self._advised: dict[str, tuple[float, str]] = {}
        self._advice: dict[str, str] = {}

    def turn(
        self,
        now: float,
        leads: Leads,
        sized: Mapping[tuple[str, str], str] = MappingProxyType({}),
        results: Sequence[tuple[Intent, Outcome]] = (),
    ) -> tuple[Event, ...]:
        """Turn once and return what happened.

        leads: all of its clusters among them. sized: AWS names of the groups that a fleet sizes, by fleet and group
        key. results: of the fleets' turn. Raises LedgerError or Fenced when nothing more may be done: what is open is
        carried on by a later turn.
        """
        permit = unmeasured_permit(now, self._clock, partial(self._ledger.controls, ADMISSION), self._records.memory)
        records, damaged = self._records.read()
        turn = GateTurn(now, leads, {}, records, permit)
        self._carry_over_clock_step(turn)
        try:
            read = self._reader.groups()
        except CloudError as error:
            for name in self._clusters:
                detail = f"its groups could not be read, no group is admitted: {error}"
                self._journal.say(turn, name, CAPACITY, Reason.CLOUD_UNREADABLE, detail)
            return tuple(turn.events)
        # A group whose record is damaged may have been admitted already: it is not asked for anew.
        turn.groups = {group.name: group for group in read.groups if group.name not in damaged}
        turn.unreadable = {**read.unreadable, **damaged}
        self._tell_unreadable(turn)
        self._measure(turn)
        if self._mode is Mode.ACT:
            self._carry_on(turn)
        self._watch.look(turn, sized, results)
        by_fleets = frozenset(sized.values())
        for group in turn.groups.values():
            with self._journal.alone(turn, group.cluster, group.name):
                if is_pending(group):
                    self._pending(turn, group, sized_by_fleet=group.name in by_fleets)
        return tuple(turn.events)

    def _measure(self, turn: GateTurn) -> None:
        for name, terms in self._terms.items():
            read_at, before = self._measured.get(name, (float("-inf"), 0))
            if terms.fixed or 0.0 <= turn.now - read_at < MEASURED_FOR_S:
                continue
            with self._journal.alone(turn, name, CAPACITY):
                try:
                    if terms.quota_code:
                        cores = self._reader.quota_cores(terms.quota_code)
                    else:
                        cores = self._reader.reserved_cores(terms.reservation_id or "")
                except CloudError as error:
                    detail = f"the capacity could not be read: {error}"
                    self._journal.say(turn, name, CAPACITY, Reason.CLOUD_UNREADABLE, detail)
                    continue
                cores = max(0, cores - terms.set_aside_cores)
                self._journal.over(name, CAPACITY)
                self._measured[name] = (turn.now, cores)
                if cores >= 1 and cores != before:
                    self._clusters[name].resize(cores)

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
            before = self._records.memory(name)
            after = (before.shifted(step_s) if step_s else before).not_ahead(turn.now)
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
            detail = f"{record.group} was admitted, but its reservation has lapsed: request admission again"
            after = replace(record, step=Step.MARKING, answer=refused(Reason.ADMISSION_LAPSED))
            self._journal.write(turn, after, Effect(after, Reason.ADMISSION_LAPSED, detail))
            self._mark(turn, after)
            return
        effect = self._effects.follow(self._with_deadline(record, turn.now), group, observed, turn.now, turn.permit)
        self._took(turn, record, effect)

    def _ended(self, record: GroupRecord) -> bool:
        """Return whether the agent itself notified the cluster, before a crash, that an admission came to nothing."""
        event_id = end_event(record.deployment_id, record.at).event_id
        return bool(self._store.events(record.cluster, [event_id]))

    def _took(self, turn: GateTurn, record: GroupRecord, effect: Effect) -> None:
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
            detail = f"{group.name} requests admission to an unknown cluster; the settings have: {known}"
            self._journal.say(turn, group.cluster, group.name, Reason.REJECTED_INPUT, detail)
            return
        has_capacity = self._terms[group.cluster].fixed or self._measured.get(group.cluster, (0.0, 0))[1] >= 1
        stopped = waits_for(group, sized_by_fleet=sized_by_fleet, capacity_known=has_capacity)
        if stopped is not None:
            self._journal.say(turn, group.cluster, group.name, stopped.reason, f"{group.name} waits: {stopped.detail}")
            return
        wanted = f"{group.cluster} {group.tags.get(REQUESTED, '')}"
        at, before = self._advised.get(group.name, (float("-inf"), ""))
        due = self._mode is Mode.ACT or wanted != before or not 0.0 <= turn.now - at < ADVISED_FOR_S
        if turn.asked < ASKED_PER_TURN and due:
            self._judge(turn, group, record.number + 1 if record is not None else 1)
            if self._mode is not Mode.ACT:
                self._advised[group.name] = (turn.now, wanted)

    def _judge(self, turn: GateTurn, group: ClusterGroup, number: int) -> None:
        turn.asked += 1
        cluster = group.cluster
        try:
            asked = asked_by(group, self._reader)
            request = request_of(group, asked, number)
        except CloudError as error:
            self._journal.say(turn, cluster, group.name, Reason.CLOUD_UNREADABLE, f"{group.name} waits: {error}")
            return
        except BadInput as error:
            self._refuse(turn, group, number, str(error))
            return
        memory, controls = self._records.memory(cluster), self._ledger.controls(ADMISSION, cluster)
        stopped = held(group, asked, memory, controls, self._limits, turn.now)
        if stopped is not None:
            self._journal.say(
                turn, cluster, group.name, stopped.reason, f"{group.name} waits: {stopped.guard}: {stopped.detail}"
            )
            return
        if self._mode is not Mode.ACT:
            self._advise(turn, group, asked, request)
            return
        decision = self._decision(turn, group, asked, number)
        self._begin(turn, group, asked, decision)

    def _advise(self, turn: GateTurn, group: ClusterGroup, asked: GroupRequest, request: AdmissionRequest) -> None:
        """Have the group's cluster judge it as if it alone were to come in, and report its answer when that changes."""
        # Advice uses no request id.
        request = request.model_copy(update={"request_id": ""})
        (decision,) = self._clusters[group.cluster].answer([request], advice=True)
        if self._advice.get(group.name) == decision.decision_id:
            return
        self._advice[group.name] = decision.decision_id
        verb = "would be admitted" if decision.admit else f"would be refused ({decision.reason})"
        outcome = f"{group.name} {verb} with {asked.vms} x {asked.vm_type}: {decision.detail}"
        detail = f"{group.cluster}: {decision.decision_id}: {outcome}; the agent only observes, so it waits"
        turn.events.append(Event(Subject(ADMISSION, group.cluster), turn.now, Reason.OBSERVE_MODE, detail, group.name))

    def _refuse(self, turn: GateTurn, group: ClusterGroup, number: int, why: str) -> None:
        if self._mode is not Mode.ACT:
            self._journal.say(turn, group.cluster, group.name, Reason.REJECTED_INPUT, f"{group.name}: {why}")
            return
        answer = refused(Reason.REJECTED_INPUT)
        step = Step.MARKING
        record = GroupRecord(
            group.cluster, group.name, number, step, turn.now, epoch=turn.epoch_of(group.cluster), answer=answer
        )
        self._journal.write(turn, record, Effect(record, Reason.REJECTED_INPUT, f"{group.name} is refused: {why}"))
        self._mark(turn, record)

    def _decision(self, turn: GateTurn, group: ClusterGroup, asked: GroupRequest, number: int) -> AdmissionDecision:
        """Return the cluster's decision; one that was made before a crash is the decision, whatever came since.

        Where the group has come to ask for something else meanwhile, what was set aside is given back.
        """
        cluster = self._clusters[group.cluster]
        for each in range(number, number + NUMBERS_TRIED):
            name = deployment_id(group.name, each)
            request = request_of(group, asked, each)
            try:
                return cluster.answer([request], advice=False)[0]
            except BadInput as error:
                log.warning("asked_for_something_else_before", deployment=name, detail=str(error))
            deployment = cluster.deployment(name)
            if deployment is not None and deployment.stage is Stage.RESERVED:
                cluster.observe([end_event(name, max(turn.now, deployment.last_at))])
        raise BadInput("request_id", deployment_id(group.name, number), f"{NUMBERS_TRIED} after it were used as well")

    def _begin(self, turn: GateTurn, group: ClusterGroup, asked: GroupRequest, decision: AdmissionDecision) -> None:
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
            epoch=turn.epoch_of(group.cluster),
            deadline_at=turn.now + self._terms[group.cluster].boot_deadline_s,
            decision_id=decision.decision_id,
            answer=ADMITTED if decision.admit else refused(decision.reason),
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
        try:
            self._clusters[cluster].observe([event])
        except BadInput as error:
            log.warning("deployment_event_not_taken", cluster=cluster, event_id=event.event_id, detail=str(error))


def gate_of(settings: Settings, session: AwsSession, ledger: Ledger, clusters: Clusters, clock: Clock) -> Gate | None:
    """Return the gate before the clusters of tagged groups, None when there is no such cluster."""
    gated = {name: cluster for name, cluster in SUBJECTS.of(settings).items() if cluster.tagged_groups}
    if not gated:
        return None
    services = {name: clusters[name] for name in gated}
    return Gate(session, ledger, services, gated, settings.mode, clock)
