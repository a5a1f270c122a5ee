"""The Auto Scaling actuator: reads every fleet's groups, applies and follows intents, and tends VMs in between."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from actuators.base import KEEPING, ChangingCall, Permit, Refusal
from actuators.drain import Drains, DrainSettings
from actuators.outcomes import Report
from actuators.protection import Protection
from actuators.sizes import GroupSizes
from collectors.aws import AwsSession
from collectors.described_groups import ExpectedGroup
from collectors.inventory import Inventory
from domain.decisions import Event, Intent, Outcome, Reason
from domain.errors import FailureClass, LedgerUnavailable
from domain.fleet import Fleet, Group
from domain.observed import GroupObserved, Observed
from domain.subject import fleet_subject


class AutoScalingActuator:
    """Implements `actuators.base.Actuator` on Auto Scaling groups.

    A failed call never raises: it is an outcome or an entry in the observation's failures. A fence that closes between
    two calls (this process is no longer leader) leaves the intent open with reason NOT_LEADER for the new leader; a
    fence that cannot be read (LedgerUnavailable) comes through, and the intent stays open as well; `tend` ends there
    and returns the events before it. In observe mode `tend` does nothing and an intent that would need a call ends as
    SKIPPED, OBSERVE_MODE.

    fleets: what intents refer to; `observe` brings it up to date. protect_busy: keep scale-in protection on busy VMs.
    owned_protection: VMs this agent protected before a restart, as it recorded before it did, so that it may unprotect
    them; all other protection belongs to another party and is left alone. Those VMs were busy, as were the VMs of
    `known_busy`: their drains are kept.
    """

    def __init__(
        self,
        session: AwsSession,
        inventory: Inventory,
        fleets: Iterable[Fleet] = (),
        *,
        drain: Callable[[str], DrainSettings] = lambda fleet: DrainSettings(),
        protect_busy: bool = True,
        owned_protection: Iterable[str] = (),
        known_busy: Iterable[str] = (),
    ) -> None:
        self._session, self.inventory = session, inventory
        self._fleets = {fleet.name: fleet for fleet in fleets}
        self._protection = Protection(session, owned_protection) if protect_busy else None
        self._ours = self._protection.ours if self._protection else frozenset(owned_protection)
        self._sizes = GroupSizes(session, inventory, self._ours)
        self._drains = Drains(session, drain, {*self._ours, *known_busy})
        self._in_unknown: dict[str, frozenset[tuple[str, str]]] = {}

    @property
    def ours(self) -> Collection[str]:
        """The VMs whose scale-in protection is this agent's."""
        return self._ours

    def observe(self, fleets: Sequence[Fleet], now: float) -> Observed:
        """Read every group of the fleets, 100 names a call."""
        self._fleets = {fleet.name: fleet for fleet in fleets}
        expected = {
            group.name: ExpectedGroup(group.vm_type.name, f"TRIMTAB_FLEETS__{fleet.name}__GROUPS__{group.key}__VM_TYPE")
            for fleet in fleets
            for group in fleet.groups
        }
        return self.inventory.observe(list(expected), now, expected)

    def apply(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Check the group as it is right now, then carry out the intent, once."""
        group = self._group(intent)
        return self._sizes.apply(intent, group, now, permit) if group else self._unknown(intent, now)

    def follow(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Follow an open intent, known from the ledger alone; calls only for what is still undone."""
        group = self._group(intent)
        return self._sizes.follow(intent, group, observed, now, permit) if group else self._unknown(intent, now)

    def clock_stepped(self, step_s: float) -> None:
        """Carry the drains over a step of the wall clock."""
        self._drains.clock_stepped(step_s)

    def tend(
        self, fleet: Fleet, observed: Observed, busy_cores: Mapping[str, float | None], now: float, permit: Permit
    ) -> tuple[Event, ...]:
        """Heartbeat or complete drains, then protect busy VMs and unprotect idle ones; nothing in observe mode.

        In a group that is not managed only busy VMs are kept: heartbeats and protection alone are sent.
        """
        if self._session.read_only:
            return ()
        events: list[Event] = []
        for group in fleet.groups:
            seen, may = observed.groups.get(group.name), permit
            if seen is None:
                seen, may = observed.held.get(group.name), _keeping(permit)
            if seen is None:
                continue
            events += self._unknown_states(fleet.name, seen, now)
            try:
                self._drains.tend(fleet.name, seen, busy_cores, now, may, events)
                if self._protection is not None:
                    self._protection.tend(fleet.name, seen, busy_cores, now, may, events)
            except LedgerUnavailable:
                break  # no call of another group could be sent; events of earlier ones are reported
        return tuple(events)

    def _unknown_states(self, fleet: str, group: GroupObserved, now: float) -> list[Event]:
        """Return an event for each VM that has come to be in a state that AWS does not document."""
        before, self._in_unknown[group.name] = (
            self._in_unknown.get(group.name, frozenset()),
            frozenset(group.unknown_states),
        )
        return [
            Event(
                fleet_subject(fleet),
                now,
                Reason.LIFECYCLE_UNKNOWN,
                f"{vm} of {group.name} is {state}, a state that this version does not know: it counts as capacity "
                "and is left alone; a newer version may know it",
                vm,
            )
            for vm, state in group.unknown_states
            if (vm, state) not in before
        ]

    def _group(self, intent: Intent) -> Group | None:
        fleet = self._fleets.get(intent.fleet)
        return next((group for group in fleet.groups if group.key == intent.group), None) if fleet else None

    def _unknown(self, intent: Intent, now: float) -> Outcome:
        detail = f"the settings know no group {intent.group} in fleet {intent.fleet} any more; nothing is done to it"
        return Report(intent, now).ended(Reason.PERMANENT_FAILURE, 0, detail, FailureClass.PERMANENT)


def _keeping(permit: Permit) -> Permit:
    """Return a permit that lets through only what keeps a VM that works."""

    def may(call: ChangingCall) -> Refusal | None:
        if call.act in KEEPING:
            return permit(call)
        return Refusal(Reason.GROUP_UNSUPPORTED, f"the group {call.group} is not managed", over=False)

    return may
