"""Which VM a waiting job goes to (autoscaler specification §2.3)."""

from __future__ import annotations

from collections.abc import Sequence

from domain.workload import WHOLE_VM
from simulator.autoscaling.reference.configuration import Dispatch
from simulator.autoscaling.reference.machine import Machine


def choose_machine(ready: Sequence[Machine], width: int, order: Dispatch, scan_from: int, next_place: int) -> int:
    """Return the position in `ready` of the VM for a job of `width` cores (WHOLE_VM: an empty VM), -1 for none.

    ready: VMs in request order. scan_from: first fit looks from this position on, the caller knowing that no earlier
    VM has room. next_place: number of the VM where next fit resumes.
    """
    if order is Dispatch.FIRST_FIT:
        for position in range(scan_from, len(ready)):
            if _has_room(ready[position], width):
                return position
        return -1
    fits = [position for position, machine in enumerate(ready) if _has_room(machine, width)]
    if not fits:
        return -1
    if order is Dispatch.BEST_FIT:
        return min(fits, key=lambda position: (0 if width == WHOLE_VM else ready[position].free, position))
    return next((position for position in fits if ready[position].number >= next_place), fits[0])


def _has_room(machine: Machine, width: int) -> bool:
    return machine.free >= (machine.cores if width == WHOLE_VM else width)
