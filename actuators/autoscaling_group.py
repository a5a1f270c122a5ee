"""The Auto Scaling actuator: reads every fleet's groups, applies and follows intents, and tends VMs in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from actuators.base import Permit
from actuators.drain import Drains, DrainSettings
from actuators.outcomes import Report
from actuators.protection import Protection
from actuators.sizes import GroupSizes
from collectors.aws import AwsSession
from collectors.inventory import Inventory
from domain.decisions import Event, Intent, Outcome, Reason
from domain.errors import FailureClass
from domain.fleet import Fleet, Group
from domain.observed import Observed


class AutoScalingActuator:
    """Implements `actuators.base.Actuator` on Auto Scaling groups.

    A failed call never raises: it is an outcome or an entry in the observation's failures. A fence that closes between
    two calls (this process is no longer leader) leaves the intent open with reason NOT_LEADER for the new leader; a
    fence that cannot be read (LedgerUnavailable) comes through, and the intent stays open as well. In observe mode
    `tend` does nothing and an intent that would need a call ends as SKIPPED, OBSERVE_MODE.

    fleets: what intents refer to; `observe` brings it up to date. protect_busy: keep scale-in protection on busy VMs.
    owned_protection: VMs this agent protected before a restart (from its PROTECTED events), so that it may unprotect
    them; protection that is neither listed there nor on a busy VM belongs to another party and is left alone.
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
    ) -> None:
        self._session, self._inventory = session, inventory
        self._fleets = {fleet.name: fleet for fleet in fleets}
        self._protection = Protection(session, owned_protection) if protect_busy else None
        self._ours = self._protection.ours if self._protection else frozenset(owned_protection)
        self._sizes = GroupSizes(session, inventory, self._ours)
        self._drains = Drains(session, drain)

    def observe(self, fleets: Sequence[Fleet], now: float) -> Observed:
        """Read every group of the fleets, 100 names a call."""
        self._fleets = {fleet.name: fleet for fleet in fleets}
        return self._inventory.observe([group.name for fleet in fleets for group in fleet.groups], now)

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
        """Heartbeat or complete drains, then protect busy VMs and unprotect idle ones; nothing in observe mode."""
        if self._session.read_only:
            return ()
        events: list[Event] = []
        for group in fleet.groups:
            seen = observed.groups.get(group.name)
            if seen is not None:
                events += self._drains.tend(fleet.name, seen, busy_cores, now, permit)
                if self._protection is not None:
                    events += self._protection.tend(fleet.name, seen, busy_cores, now, permit)
        return tuple(events)

    def _group(self, intent: Intent) -> Group | None:
        fleet = self._fleets.get(intent.fleet)
        return next((group for group in fleet.groups if group.key == intent.group), None) if fleet else None

    def _unknown(self, intent: Intent, now: float) -> Outcome:
        detail = f"the settings know no group {intent.group} in fleet {intent.fleet} any more; nothing is done to it"
        return Report(intent, now).ended(Reason.PERMANENT_FAILURE, 0, detail, FailureClass.PERMANENT)
