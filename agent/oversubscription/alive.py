"""The VMs of an inventory, column by column: made once when it is read, and used by every hour until the next."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np

from agent.oversubscription.arrays import Floats
from agent.oversubscription.memory import Ints, vm_key
from agent.oversubscription.records import Vm
from agent.oversubscription.usage import VmKey

_DIGITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Alive:
    """VMs alive by their name, and the same in columns, (V,) each, in that order.

    keys: as readings have them; names: as the memory has them. subscriber: its place in `subscribers`, which are in
    alphabetical order; machine: in `machines`, which are in the natural order of their names.
    """

    vms: Mapping[str, Vm]
    keys: tuple[VmKey, ...]
    names: tuple[str, ...]
    subscribers: tuple[str, ...]
    subscriber: Ints
    machines: tuple[str, ...]
    machine: Ints
    cores: Floats
    memory_gb: Floats
    network_gbit: Floats
    rate: Floats


def alive_of(vms: Mapping[str, Vm]) -> Alive:
    """Return the columns of an inventory's VMs."""
    rows = tuple(vms.values())
    subscriber, machine = [vm.subscriber for vm in rows], [vm.machine for vm in rows]
    subscribers, machines = sorted(set(subscriber)), sorted(sorted(set(machine)), key=_natural)

    def numbers(field: str) -> Floats:
        return np.fromiter(map(attrgetter(field), rows), np.float64, len(rows))

    return Alive(
        vms=vms,
        keys=tuple(zip(subscriber, [vm.vm for vm in rows], strict=True)),
        names=tuple(map(vm_key, rows)),
        subscribers=tuple(subscribers),
        subscriber=_places(subscriber, subscribers),
        machines=tuple(machines),
        machine=_places(machine, machines),
        cores=numbers("cores"),
        memory_gb=numbers("memory_gb"),
        network_gbit=numbers("network_gbit"),
        rate=numbers("rate"),
    )


def _places(values: list[str], order: Iterable[str]) -> Ints:
    place = {name: k for k, name in enumerate(order)}
    return np.fromiter(map(place.__getitem__, values), np.int64, len(values))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(name)]
