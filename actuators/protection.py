"""Scale-in protection: busy VMs are kept from AWS's own scale-in and zone rebalancing, idle ones are given back."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from actuators.base import Act, ChangingCall, Held, Permit, change
from collectors.aws import AwsSession
from domain.decisions import Event, Reason
from domain.errors import CloudError, FailureClass, Fenced
from domain.fleet import Fleet
from domain.observed import GroupObserved, Lifecycle, Observed

IDS_PER_CALL = 50
CALLS_PER_TICK = 2


def owned_from_now(
    fleet: Fleet, observed: Observed, owned: Collection[str], busy_cores: Mapping[str, float | None]
) -> tuple[str, ...]:
    """Return the VMs that this agent protects, or will after this tick: record them before they are protected.

    Those are the busy ones, those owned before that still are protected, or whose group was not read, and those that
    their group protected at the launch, where the agent may take that off.
    """
    instances = [i for g in fleet.groups if g.name in observed.groups for i in observed.groups[g.name].instances]
    read = {i.vm: i.protected for i in instances}
    kept = {vm for vm in owned if read.get(vm, vm in busy_cores)}
    born = {i.vm for i in instances if i.born_protected}
    return tuple(sorted(kept | born | {vm for vm, cores in busy_cores.items() if cores}))


class Protection:
    """Sets protection where it differs from what is needed: at most two calls of 50 VMs per group and tick.

    `ours` holds the VMs this agent protects. A protected VM found busy counts as ours, because we would protect it; one
    found idle that is not ours was protected by another party and stays protected, busy or not.
    """

    def __init__(self, session: AwsSession, ours: Iterable[str] = ()) -> None:
        self._session = session
        self.ours: set[str] = set(ours)
        self._foreign: set[str] = set()
        self._members: dict[str, set[str]] = {}

    def tend(
        self, fleet: str, group: GroupObserved, busy_cores: Mapping[str, float | None], now: float, permit: Permit
    ) -> list[Event]:
        """Protect the group's busy VMs and unprotect our idle ones; a VM without a fresh report stays as it is."""
        self._forget_gone(group)
        protect, unprotect = [], []
        for instance in group.instances:
            busy = busy_cores.get(instance.vm)
            if not instance.protected or instance.born_protected:
                self._foreign.discard(instance.vm)
            if instance.born_protected:
                self.ours.add(instance.vm)
            if instance.lifecycle is not Lifecycle.IN_SERVICE or busy is None or instance.vm in self._foreign:
                continue
            if busy > 0.0 and instance.protected:
                self.ours.add(instance.vm)
            elif busy > 0.0:
                protect.append(instance.vm)
            elif not instance.protected:
                self.ours.discard(instance.vm)
            elif instance.vm in self.ours:
                unprotect.append(instance.vm)
            else:
                self._foreign.add(instance.vm)
        calls = deque([(True, chunk) for chunk in _chunks(protect)] + [(False, chunk) for chunk in _chunks(unprotect)])
        events: list[Event] = []
        for _ in range(CALLS_PER_TICK):
            if not calls:
                break
            wanted, vms = calls.popleft()
            try:
                self._set(fleet, group.name, vms, wanted, permit)
            except Fenced:
                break
            except Held:
                continue  # a pause holds what makes VMs removable; protecting goes on
            except CloudError as error:
                if error.failure is FailureClass.CREDENTIALS:
                    detail = f"scale-in protection in {group.name} cannot be set: {error}"
                    events.append(Event(fleet, now, Reason.CREDENTIALS, detail, group.name))
                others = [vm for vm in vms if vm not in str(error)]
                if error.failure is FailureClass.PERMANENT and 0 < len(others) < len(vms):
                    calls.appendleft((wanted, others))  # AWS refuses a call for one VM that it names
                    continue
                break  # differences are found anew at the next tick
            verb = "protected from scale-in" if wanted else "idle again, protection taken off"
            events.append(Event(fleet, now, Reason.PROTECTED, f"{group.name}: {', '.join(vms)} {verb}", group.name))
        return events

    def _forget_gone(self, group: GroupObserved) -> None:
        present = {instance.vm for instance in group.instances}
        gone = self._members.get(group.name, set()) - present
        self.ours -= gone
        self._foreign -= gone
        self._members[group.name] = present

    def _set(self, fleet: str, group_name: str, vms: list[str], protected: bool, permit: Permit) -> None:
        if protected:
            # Noted before the call: if the response is lost, the VMs are still this agent's to unprotect.
            self.ours.update(vms)
        change(
            self._session,
            permit,
            ChangingCall(Act.PROTECT if protected else Act.UNPROTECT, fleet, group_name),
            "autoscaling",
            "SetInstanceProtection",
            AutoScalingGroupName=group_name,
            InstanceIds=vms,
            ProtectedFromScaleIn=protected,
        )
        if not protected:
            self.ours.difference_update(vms)


def _chunks(vms: list[str]) -> list[list[str]]:
    return [vms[start : start + IDS_PER_CALL] for start in range(0, len(vms), IDS_PER_CALL)]
