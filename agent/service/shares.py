"""The share of each of several agents: which subjects it takes, and which it gives up.

Subjects that read one another in process, such as a pool and its fleet, are one unit with one leader. Rendezvous
hashing assigns each unit to a live agent that has its settings: a new agent takes only units that become its own, and
the units of an agent that has gone move alone.

    free --taken under a new epoch--> led --given up between two turns, one unit at a time--> free
                                       |
                                       +-- the heartbeat of its agent is older than a lease --> free

A subject whose settings differ between two live agents has no leader. Live agents with the oldest schema lead; the
others wait until these have ended.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from agent.ledger.leases import AgentRecord, Moves, Roster
from domain.errors import LedgerError
from domain.subject import Subject

if TYPE_CHECKING:
    from agent.kernel.decision import Part
    from agent.settings import Settings

log = structlog.get_logger(__name__)

Unit = frozenset[Subject]


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


def in_charge(roster: Roster) -> Mapping[str, AgentRecord]:
    """Return the live agents that share the subjects: of the oldest schema, and ready, or all where none is ready."""
    oldest = min((one.revision for one in roster.agents.values()), default="")
    of_oldest = {name: one for name, one in roster.agents.items() if one.revision == oldest}
    return {name: one for name, one in of_oldest.items() if one.ready} or of_oldest


def differences(roster: Roster) -> dict[Subject, str]:
    """Return the subjects whose settings differ between agents, each with a sentence that names both sides."""
    by_digest: dict[Subject, dict[str, str]] = defaultdict(dict)
    oldest = min((one.revision for one in roster.agents.values()), default="")
    for name, agent in sorted(roster.agents.items()):
        for subject, digest in agent.settings.items() if agent.revision == oldest else ():
            by_digest[subject].setdefault(digest, f"{name} (process {agent.process})")
    return {
        subject: f"nothing is executed for {subject}: its settings, or the mode, differ between the agents "
        f"{' and '.join(sides.values())}: give all agents the same"
        for subject, sides in by_digest.items()
        if len(sides) > 1
    }


def waits(me: str, roster: Roster) -> str:
    """Return why an agent leads nothing until others have ended, "" where it need not wait."""
    if roster.older:
        return f"process {roster.older} of an older version leads everything: {me} leads once it has ended"
    mine = roster.agents[me]
    older = min(roster.agents.values(), key=lambda one: one.revision)
    if mine.revision == older.revision:
        return ""
    return (
        f"agent {older.name} (process {older.process}) works with schema {older.revision}, agent {me} (process "
        f"{mine.process}) with {mine.revision}: {me} leads once {older.name} has ended"
    )


def plan(me: str, wanted: Collection[Unit], roster: Roster, *, may_give: bool, may_move: bool = True) -> Moves:
    """Return the leases that an agent takes and gives up now.

    may_give: whether no turn is under way; then subjects that this agent must not lead go at once. may_move: whether
    one has just ended; then one unit goes to the agent whose share it is.
    """
    charge, differing = in_charge(roster), differences(roster)
    process = roster.agents[me].process
    held = {subject for subject, lease in roster.leases.items() if lease.process == process}
    take: set[Subject] = set()
    give = held.difference(*wanted)
    moved = pending = False
    for unit in wanted:
        able = [name for name, agent in charge.items() if unit <= agent.settings.keys()]
        whose = None if unit & differing.keys() else owner(unit, able)
        if whose == me:
            free = unit - roster.leases.keys()
            # The rest of it is another agent's until that one gives it up.
            take |= free if free | held >= unit else frozenset()
            pending |= not free | held >= unit
        elif ours := unit & held:
            must = whose is None or me not in able
            if must or (may_move and not moved):
                give |= ours
                moved |= not must
            pending = True
    pending |= bool(give)
    return Moves(frozenset(take), frozenset(give) if may_give else frozenset(), pending=pending)


def managed_by(parts: Iterable[Part], settings: Settings) -> Managed:
    """Return the subjects that an agent can decide for by its settings.

    A digest covers the settings of a subject that differ from their defaults, those of its unit, and the mode. A part
    that fails has no subjects until it works again. LedgerError.
    """
    written: dict[Subject, str] = {}
    couples: list[tuple[Subject, Subject]] = []
    for part in parts:
        try:
            of_part = {Subject(part.name, name): f"{settings.mode} {part.written(name)}" for name in part.managed()}
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
        text = "\n".join(f"{subject.path} {written[subject]}" for subject in sorted(unit))
        digests |= dict.fromkeys(unit, hashlib.sha256(text.encode()).hexdigest()[:16])
    return Managed(digests, of_agent)
