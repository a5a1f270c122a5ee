"""What a package brings to collect for fleets or to act on them; ours are made in the same way.

An entry point of the group `trimtab.collectors` refers to a `CollectorKind`, one of `trimtab.actuators` to an
`ActuatorKind`. What a collector must do stands in `collectors.base.Collector`, what an actuator must promise in
docs/operate/plug-ins.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from agent.settings.plug_ins import ACTUATORS, load, own_settings

if TYPE_CHECKING:
    from pydantic import BaseModel

    from actuators.base import Actuator
    from agent.settings import Settings
    from collectors.aws import AwsSession
    from collectors.base import Collector
    from collectors.mapping import Hosts, InputMap
    from domain.clock import Clock
    from domain.fleet import Fleet


@dataclass(frozen=True, slots=True)
class CollectorHost:
    """What the collectors of one fleet are made from.

    settings: the agent's. own: the kind's, None without a settings_model. session: the one road to AWS, which refuses
    calls that change something in observe mode. inputs: the map of other senders' names and the names of VMs, None
    without a map.
    """

    fleet: Fleet
    settings: Settings
    own: BaseModel | None
    session: AwsSession
    clock: Clock
    inputs: Inputs | None = None


class Inputs(NamedTuple):
    """The map of other senders' names, and the names that VMs are known by, which the loop brings up to date."""

    map: InputMap
    hosts: Hosts


@dataclass(frozen=True, slots=True)
class CollectorKind:
    """A kind of collector. make: returns those that a fleet needs, none where the settings ask for none.

    settings_model: of its own settings, TRIMTAB_<NAME>__..., None for none. order: kinds are asked in this order.
    """

    make: Callable[[CollectorHost], Iterable[Collector]]
    settings_model: type[BaseModel] | None = None
    order: int = 100


@dataclass(frozen=True, slots=True)
class ActuatorHost:
    """What an actuator is made from.

    fleets: those managed now; for others a new actuator is made. protected: ids of VMs whose scale-in protection is the
    agent's, known_busy: further VMs that were busy, as the ledger has them. before, taken: the actuator that this one
    replaces because these fleets were taken from another leader; None at a start. The rest is as for a CollectorHost.
    """

    fleets: tuple[Fleet, ...]
    settings: Settings
    own: BaseModel | None
    session: AwsSession
    clock: Clock
    protected: frozenset[str]
    known_busy: frozenset[str] = frozenset()
    before: Actuator | None = None
    taken: tuple[Fleet, ...] = ()


@dataclass(frozen=True, slots=True)
class ActuatorKind:
    """A kind of actuator. make: returns one for the managed fleets, also when fleets or leader change.

    settings_model: of its own settings, TRIMTAB_<NAME>__..., None for none.
    """

    make: Callable[[ActuatorHost], Actuator]
    settings_model: type[BaseModel] | None = None


def actuator_of(settings: Settings, environ: Mapping[str, str]) -> tuple[ActuatorKind, BaseModel | None]:
    """Return the kind of actuator that the settings name, and its own settings; ConfigurationError for a wrong one."""
    name = settings.actuator
    kind: ActuatorKind = load(ACTUATORS, name, lambda kind: isinstance(kind, ActuatorKind), "an ActuatorKind")
    return kind, None if kind.settings_model is None else own_settings(name, kind.settings_model, environ)
