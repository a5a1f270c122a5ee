"""The share of each of several agents: which subjects it takes, and which it gives up.

Subjects that read one another in process, such as a pool and its fleet, are one unit with one leader. Rendezvous
hashing assigns each unit to a live agent that has its settings: a new agent takes only units that become its own, and
the units of an agent that has gone move alone.

    free --taken under a new epoch--> led --given up between two turns, a batch of units at a time--> free
                                       |
                                       +-- the heartbeat of its agent is older than a lease --> free

A subject whose settings differ between two live agents has no leader. An agent that observes leads, and is compared,
only where no agent acts or has lately acted. Of the agents that act, or of all where none does, those with the oldest
schema lead; the others wait until these have ended.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from agent.ledger.leases import (
    OBSERVERS_WAIT_S,
    OBSERVES,
    AgentRecord,
    Moves,
    Roster,
    acting_or_all,
    differences,
    with_lead,
)
from domain.decisions import Mode
from domain.errors import LedgerError
from domain.subject import Subject

if TYPE_CHECKING:
    from agent.kernel.decision import Part
    from agent.settings import Settings

log = structlog.get_logger(__name__)

BATCHES: Final = 60
"""The most batches in which all units move."""

Unit = frozenset[Subject]

OF_ALL: Final = {
    "tick_interval_s",
    "grace_s",
    "sample_interval_s",
    "drift",
    "protect_busy",
    "unprotect_new",
    "actuator",
}
"""Settings of every subject that a digest covers."""


@dataclass(frozen=True, slots=True)
class Managed:
    """The subjects that an agent can decide for, by units, with a digest of the settings of each."""

    settings: Mapping[Subject, str] = field(default_factory=dict)
    units: tuple[Unit, ...] = ()


def units(subjects: Collection[Subject], couples: Iterable[tuple[Subject, Subject]]) -> tuple[Unit, ...]:
    """Return the subjects by connected component of `couples`, ordered by the first of each.

    A couple with a subject that is not among them is ignored.
    """
    of: dict[Subject, set[Subject]] = {subject: {subject} for subject in subjects}
    for one, other in couples:
        if one in of and other in of and of[one] is not of[other]:
            of[one] |= of[other]
            for member in of[other]:
                of[member] = of[one]
    return tuple(sorted({frozenset(members) for members in of.values()}, key=min))


def owner(unit: Unit, agents: Collection[str]) -> str | None:
    """Return the agent whose share a unit is, the a with the largest H(a, first subject); None without agents."""
    key = min(unit).path
    return max(agents, key=lambda agent: (_weight(agent, key), agent), default=None)


def _weight(agent: str, key: str) -> bytes:
    return hashlib.blake2b(f"{agent}\0{key}".encode(), digest_size=8).digest()


def has_successor(agent: AgentRecord, agents: Iterable[AgentRecord]) -> bool:
    """Return whether another agent takes subjects; one that observes does not succeed one that acts."""
    return any(one.ready and one.name != agent.name and one.observes <= agent.observes for one in agents)


def _charge(agents: Collection[AgentRecord], ended: Mapping[Subject, str], unit: Unit) -> list[str]:
    """Return the agents that share a unit: ready, or without a successor, and with its settings.

    An agent that observes has no share in a unit with a subject on which another one acts, or acted until lately.
    """
    concerned = [one for one in agents if not one.settings.keys().isdisjoint(unit)]
    lately = not ended.keys().isdisjoint(unit)
    able = [one for one in acting_or_all(concerned) if unit <= one.settings.keys() and not (one.observes and lately)]
    return [one.name for one in able if one.ready or not has_successor(one, agents)]


def waits(me: str, roster: Roster) -> str:
    """Return why an agent leads nothing until others have ended, "" where it need not wait."""
    if roster.older:
        return f"process {roster.older} of an older version leads everything: {me} leads once it has ended"
    mine = roster.agents[me]
    if mine.observes and mine.settings and mine.settings.keys() <= roster.ended.keys():
        acted = ", ".join(sorted({roster.ended[subject] for subject in mine.settings}))
        return f"{acted} acted within the last {OBSERVERS_WAIT_S:.0f} s: {me} observes, and leads after that time only"
    leading = with_lead(roster)
    if mine in leading:
        return ""
    other = leading[0]
    until = f"{other.name} has ended" if other.revision < mine.revision else "it has the same version"
    return (
        f"agent {other.name} (process {other.process}) works with schema {other.revision}, agent {me} (process "
        f"{mine.process}) with {mine.revision}: {me} leads once {until}"
    )


def shares(wanted: Collection[Unit], roster: Roster) -> dict[Unit, str | None]:
    """Return the agent whose share each unit is; None for a unit whose settings differ, or that no agent has."""
    agents, differing, ended = with_lead(roster), differences(roster).keys(), roster.ended
    return {unit: owner(unit, _charge(agents, ended, unit)) if differing.isdisjoint(unit) else None for unit in wanted}


class Shares:
    """The shares by the last roster, computed again after a change of the agents or the units only.

    differences: see `differences`; new ones are logged.
    """

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._shares: Mapping[Unit, str | None] = {}
        self.differences: Mapping[Subject, str] = {}

    def __call__(self, wanted: Collection[Unit], roster: Roster) -> Mapping[Unit, str | None]:
        """Return the agent whose share each unit is, see `shares`."""
        of = wanted, roster.agents, roster.ended
        if self._of != of:
            before, self.differences = self.differences, differences(roster)
            self._of, self._shares = of, shares(wanted, roster)
            if new := sorted(self.differences.keys() - before.keys()):
                log.warning("settings_differ", subjects=len(new), detail=self.differences[new[0]])
        return self._shares


def plan(me: str, shares: Mapping[Unit, str | None], roster: Roster, *, may_give: bool, may_move: bool = True) -> Moves:
    """Return the leases that an agent takes and gives up now.

    may_give: whether no turn is under way; then subjects that this agent must not lead go at once. may_move: whether
    one has just ended; then a batch of units, ceil(units / BATCHES), goes to the agents whose shares they are, once
    these have taken the batches before.
    """
    process, agents = roster.agents[me].process, with_lead(roster)
    mine = {subject for subject, lease in roster.leases.items() if lease.process == process}
    take: set[Subject] = set()
    give = mine.difference(*shares)
    pending = False
    leased = roster.leases.keys()
    free_of_others = [unit for unit, whose in shares.items() if whose not in (None, me) and leased.isdisjoint(unit)]
    # An agent that observes may have another unit of a subject that no acting agent can take: it waits for its own.
    moving = any(me in _charge(agents, roster.ended, unit) for unit in free_of_others)
    batch = math.ceil(len(shares) / BATCHES) if may_move and not moving else 0
    for unit, whose in shares.items():
        if whose == me:
            free = unit.difference(roster.leases)
            # The rest of it is another agent's until that one gives it up.
            is_whole = free | mine >= unit
            take |= free if is_whole else frozenset()
            pending |= not is_whole
        elif ours := unit & mine:
            must = whose is None or me not in _charge(agents, roster.ended, unit)
            if must or batch:
                give |= ours
                batch -= not must
            pending = True
    pending |= bool(give)
    return Moves(frozenset(take), frozenset(give) if may_give else frozenset(), pending=pending)


def managed_by(parts: Iterable[Part], settings: Settings) -> Managed:
    """Return the subjects that an agent can decide for by its settings.

    A digest covers the settings of a subject that differ from their defaults, those of its unit, and OF_ALL. A part
    that fails has no subjects until it works again. LedgerError.
    """
    of_all = settings.model_dump_json(include=OF_ALL, exclude_defaults=True)
    mark = OBSERVES if settings.mode is Mode.OBSERVE else ""
    written: dict[Subject, str] = {}
    couples: list[tuple[Subject, Subject]] = []
    for part in parts:
        try:
            of_part = {Subject(part.name, name): part.written(name) for name in part.managed()}
            couples += part.couples()
        except LedgerError:
            raise
        except Exception:
            log.exception("part_failed", part=part.name)
        else:
            written |= of_part
    of_agent = units(written, couples)
    digests: dict[Subject, str] = {}
    for unit in of_agent:
        text = "\n".join([of_all, *(f"{subject.path} {written[subject]}" for subject in sorted(unit))])
        digests |= dict.fromkeys(unit, mark + hashlib.sha256(text.encode()).hexdigest()[:16])
    return Managed(digests, of_agent)
