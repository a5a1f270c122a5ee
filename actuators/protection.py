"""Scale-in protection: busy VMs are kept from AWS's own scale-in and zone rebalancing, idle ones are given back."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from actuators.base import Act, ChangingCall, Held, Permit, change
from collectors.aws import AwsSession
from domain.decisions import Event, Reason
from domain.errors import CloudError, FailureClass, Fenced
from domain.fleet import Fleet
from domain.observed import GroupObserved, Instance, Lifecycle, Observed
from domain.subject import fleet_subject

IDS_PER_CALL = 50
CALLS_PER_TICK = 2


def owned_from_now(
    fleet: Fleet,
    observed: Observed,
    owned: Collection[str],
    busy_cores: Mapping[str, float | None],
    *,
    gives_back: bool,
) -> tuple[str, ...]:
    """Return the VMs that are this agent's to unprotect once `tend` ends: record them before it begins.

    VMs that it will protect; VMs owned before that still are protected, or whose group was not read; and VMs that their
    group protected at the launch, where the agent may take that off. With `gives_back`, VMs that it will unprotect are
    left out: a protection that is found on them later is another party's.
    """
    managed = [i for g in fleet.groups if g.name in observed.groups for i in observed.groups[g.name].instances]
    held = [i for g in fleet.groups if g.name in observed.held for i in observed.held[g.name].instances]
    read = {i.vm: i for i in (*held, *managed)}
    kept = {vm for vm in owned if (read[vm].protected if vm in read else vm in busy_cores)}
    born = {i.vm for i in managed if i.born_protected}
    new = {vm for vm, i in read.items() if _wanted(i, busy_cores) is True}
    given_back = {i.vm for i in managed if gives_back and _wanted(i, busy_cores) is False}
    return tuple(sorted((kept | born | new) - given_back))


def still_owned(fleet: Fleet, observed: Observed, recorded: Collection[str], ours: Collection[str]) -> tuple[str, ...]:
    """Return the VMs of the fleet that are this agent's to unprotect after `tend`, given the record before it.

    VMs whose protection was to be taken off, and was not, are among them again.
    """
    seen = [known.get(group.name) for group in fleet.groups for known in (observed.groups, observed.held)]
    read = {i.vm for group in seen if group is not None for i in group.instances}
    return tuple(sorted(vm for vm in read.union(recorded) if vm in ours))


def _wanted(instance: Instance, busy_cores: Mapping[str, float | None]) -> bool | None:
    """Return whether a VM is to be protected or unprotected; None without a fresh report or a difference."""
    busy = busy_cores.get(instance.vm)
    if instance.lifecycle is not Lifecycle.IN_SERVICE or busy is None or (busy > 0.0) is instance.protected:
        return None
    return busy > 0.0


class Protection:
    """Sets protection where it differs from what is needed: at most two calls of 50 VMs per group and tick.

    `ours` holds the VMs this agent protects. A protected VM that is not among them was protected by another party and
    stays protected, busy or not.
    """

    def __init__(self, session: AwsSession, ours: Iterable[str] = ()) -> None:
        self._session = session
        self.ours: set[str] = set(ours)
        self._members: dict[str, set[str]] = {}

    def tend(
        self,
        fleet: str,
        group: GroupObserved,
        busy_cores: Mapping[str, float | None],
        now: float,
        permit: Permit,
        events: list[Event],
    ) -> None:
        """Protect the group's busy VMs and unprotect our idle ones; a VM without a fresh report stays as it is.

        Adds to `events` at once.
        """
        self._forget_gone(group)
        protect, unprotect = [], []
        for instance in group.instances:
            if instance.born_protected:
                self.ours.add(instance.vm)
            elif not instance.protected:
                self.ours.discard(instance.vm)
            wanted = _wanted(instance, busy_cores)
            if wanted:
                protect.append(instance.vm)
            elif wanted is False and instance.vm in self.ours:
                unprotect.append(instance.vm)
        calls = deque([(True, chunk) for chunk in _chunks(protect)] + [(False, chunk) for chunk in _chunks(unprotect)])
        for _ in range(CALLS_PER_TICK):
            if not calls:
                break
            wanted, vms = calls.popleft()
            try:
                self._set(fleet, group.name, vms, wanted, permit)
            except Fenced:
                break
            except Held:
                continue  # a pause holds calls that make VMs removable; protecting continues
            except CloudError as error:
                if error.failure is FailureClass.CREDENTIALS:
                    detail = f"scale-in protection in {group.name} cannot be set: {error}"
                    events.append(Event(fleet_subject(fleet), now, Reason.CREDENTIALS, detail, group.name))
                others = [vm for vm in vms if vm not in str(error)]
                if error.failure is FailureClass.PERMANENT and 0 < len(others) < len(vms):
                    calls.appendleft((wanted, others))  # AWS refuses a call for one VM that it names
                    continue
                break  # differences are found anew at the next tick
            verb = "protected from scale-in" if wanted else "idle again, protection taken off"
            events.append(
                Event(fleet_subject(fleet), now, Reason.PROTECTED, f"{group.name}: {', '.join(vms)} {verb}", group.name)
            )

    def _forget_gone(self, group: GroupObserved) -> None:
        present = {instance.vm for instance in group.instances}
        gone = self._members.get(group.name, set()) - present
        self.ours -= gone
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
