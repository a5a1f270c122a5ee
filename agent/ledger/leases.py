"""Leases on the subjects of a ledger that several agents share, in the database's own time.

An agent has one heartbeat, and a lease of a subject lasts as long as the heartbeat of its process: one row is renewed
however many subjects there are. `beat` runs in a write transaction, of which there is one at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select, update

from agent.ledger import codec, state
from agent.ledger.postgresql import database_now
from agent.ledger.schema import agent as agents_table
from agent.ledger.schema import leader
from agent.ledger.schema import lease as leases_table
from domain.errors import LedgerError
from domain.subject import Subject
from domain.units import DAY_S

OBSERVES: Final = "observe "
"""Before the digests of an agent that changes nothing."""
OBSERVERS_WAIT_S: Final = 600.0
"""An agent that observes leads a subject so long after the end of the last agent that acted on it: restarts end."""
_DECODED: Final = 64


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent as it announces itself. settings: a digest of the settings of each subject that it can decide for.

    process: host, number and a random part. revision: of the schema that it works with. ready: whether it takes
    subjects. relay: host and port for lines that other agents forward, "" where it takes none.
    """

    name: str
    process: str
    revision: str
    ready: bool = True
    settings: Mapping[Subject, str] = field(default_factory=dict)
    relay: str = ""

    @property
    def observes(self) -> bool:
        """Whether its mode is to change nothing."""
        return next(iter(self.settings.values()), "").startswith(OBSERVES)


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a subject: the name and the process of its agent, and its epoch."""

    agent: str
    process: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Roster:
    """The live agents by name, and the leases that are in force.

    older: the process of a version before 0014 that leads everything, "" for none. ends_in_s: by agent, until its
    heartbeat is over. ended: the subjects of agents that acted and ended within OBSERVERS_WAIT_S, with their names.
    """

    agents: Mapping[str, AgentRecord] = field(default_factory=dict)
    leases: Mapping[Subject, Lease] = field(default_factory=dict)
    older: str = ""
    ends_in_s: Mapping[str, float] = field(default_factory=dict)
    ended: Mapping[Subject, str] = field(default_factory=dict)

    def absence(self, subject: Subject) -> str:
        """Return why no live agent may lead a subject, "" where one may."""
        agents = [one for one in self.agents.values() if subject in one.settings]
        if any(not one.observes for one in agents):
            return ""
        if subject in self.ended:
            return f"agent {self.ended[subject]} has ended: start it"
        return "" if agents else "no live agent has it in its settings"


@dataclass(frozen=True, slots=True)
class Moves:
    """The subjects whose leases a process takes and gives up now. pending: whether more is about to move."""

    take: frozenset[Subject] = frozenset()
    give: frozenset[Subject] = frozenset()
    pending: bool = False


def acting_or_all(agents: Sequence[AgentRecord]) -> Sequence[AgentRecord]:
    """Return the agents that act, or all where none does."""
    return [one for one in agents if not one.observes] or agents


def with_lead(roster: Roster) -> list[AgentRecord]:
    """Return the live agents with the oldest schema among the acting ones, if any act."""
    agents = [one for _, one in sorted(roster.agents.items())]
    oldest = min((one.revision for one in acting_or_all(agents)), default="")
    return [one for one in agents if one.revision == oldest]


def differences(roster: Roster) -> dict[Subject, str]:
    """Return the subjects whose settings differ between agents, each with a sentence that names both sides.

    An agent that observes is compared for the subjects that no agent acts on.
    """
    agents = with_lead(roster)
    acting = [one for one in agents if not one.observes]
    acted_on = set[Subject]().union(*(one.settings for one in acting))
    by_digest: dict[Subject, dict[str, str]] = defaultdict(dict)
    for agent in agents:
        settings = agent.settings.items()
        for subject, digest in settings if not agent.observes else (it for it in settings if it[0] not in acted_on):
            by_digest[subject].setdefault(digest, f"{agent.name} (process {agent.process})")
    return {
        subject: f"nothing is executed for {subject}: its settings, or settings of every subject such as "
        f"TRIMTAB_GRACE_S, differ between the agents {' and '.join(sides.values())}: give all agents the same"
        for subject, sides in by_digest.items()
        if len(sides) > 1
    }


class NameTaken(LedgerError):
    """Another live process has the agent's name."""


def beat(
    connection: Connection,
    me: AgentRecord,
    known: Collection[int],
    lease_s: float,
    at: float,
    plan: Callable[[Roster], Moves],
) -> Roster:
    """Announce a process for `lease_s`, make the moves that it plans on the roster, and return the roster after them.

    known: the epochs under which it leads by its own count; a lease under another epoch is not resumed. at: its own
    time, for people to read. Subjects that another live process leads are not taken. NameTaken.
    """
    now = database_now(connection)
    _announce(connection, me, now, lease_s)
    connection.execute(
        delete(leases_table).where(leases_table.c.owner == me.process, leases_table.c.epoch.not_in(list(known)))
    )
    before = roster(connection, now)
    moves = plan(before)
    if moves.give:
        paths = [subject.path for subject in moves.give]
        connection.execute(
            delete(leases_table).where(leases_table.c.owner == me.process, leases_table.c.subject.in_(paths))
        )
    take = [] if before.older else sorted(moves.take - before.leases.keys())
    if take:
        # A row of a process that is gone, or of epochs before a restore.
        connection.execute(delete(leases_table).where(leases_table.c.subject.in_([one.path for one in take])))
        first = state.newest_epoch(connection) + 1
        rows = [{"epoch": first + n, "owner": me.process, "subject": subject.path} for n, subject in enumerate(take)]
        connection.execute(insert(leader), [{**row, "since": at} for row in rows])
        connection.execute(insert(leases_table), [{**row, "expires_at": inf} for row in rows])
    if not (take or moves.give):
        return before
    leases = {subject: one for subject, one in before.leases.items() if subject not in moves.give}
    taken = {subject: Lease(me.name, me.process, first + n) for n, subject in enumerate(take)} if take else {}
    return replace(before, leases={**leases, **taken})


def _announce(connection: Connection, me: AgentRecord, now: float, lease_s: float) -> None:
    there = connection.execute(select(agents_table).where(agents_table.c.name == me.name)).first()
    settings = codec.pack(codec.encode_mapping({one.path: digest for one, digest in me.settings.items()}))
    row = {
        "process": me.process,
        "revision": me.revision,
        "ready": int(me.ready),
        "expires_at": now + lease_s,
        "settings": settings,
        "relay": me.relay,
    }
    if there is None:
        connection.execute(delete(agents_table).where(agents_table.c.expires_at < now - DAY_S))
        connection.execute(insert(agents_table), [{"name": me.name, **row}])
        return
    is_live = there.expires_at > now
    if there.process != me.process and is_live:
        raise NameTaken(
            f"two agents are called {me.name}: process {there.process} leads under this name, process {me.process} "
            "does nothing: give each agent another TRIMTAB_LEADER__NAME"
        )
    if there.process != me.process or not is_live:
        # A subject that was led before the heartbeat ended is led again under a newer epoch only.
        connection.execute(delete(leases_table).where(leases_table.c.owner.in_([there.process, me.process])))
    if there.settings == settings:
        # An unchanged body is not written again with each heartbeat.
        del row["settings"]
    connection.execute(update(agents_table).where(agents_table.c.name == me.name).values(row))


def roster(connection: Connection, now: float) -> Roster:
    """Return the live agents and the leases that are in force at `now`, a time of the database."""
    recent = connection.execute(select(agents_table).where(agents_table.c.expires_at > now - OBSERVERS_WAIT_S)).all()
    known = {
        row.name: AgentRecord(row.name, row.process, row.revision, bool(row.ready), _settings(row.settings), row.relay)
        for row in recent
    }
    ends_in_s = {row.name: row.expires_at - now for row in recent if row.expires_at > now}
    agents = {name: known[name] for name in ends_in_s}
    ended = {
        subject: name
        for name, one in sorted(known.items())
        if name not in agents and not one.observes
        for subject in one.settings
    }
    names = {one.process: one.name for one in agents.values()}
    # A restore takes everything under a newer epoch.
    every = connection.execute(select(func.max(leader.c.epoch)).where(leader.c.subject == "")).scalar() or 0
    leases: dict[Subject, Lease] = {}
    older = ""
    for row in connection.execute(select(leases_table)):
        if not row.subject:
            older = row.owner if row.expires_at > now else ""
        elif row.owner in names and row.epoch > every:
            leases[_subject(row.subject)] = Lease(names[row.owner], row.owner, row.epoch)
    return Roster(agents, leases, older, ends_in_s, ended)


def give_up(connection: Connection, process: str) -> None:
    """End the leases and the heartbeat of a process, so that others lead its subjects at once."""
    connection.execute(delete(leases_table).where(leases_table.c.owner == process))
    mine = agents_table.c.process == process
    connection.execute(update(agents_table).where(mine).values(expires_at=database_now(connection)))


def give_up_all(connection: Connection) -> None:
    """End every lease and heartbeat, as after a restore."""
    connection.execute(delete(leases_table))
    connection.execute(delete(agents_table))


@lru_cache(_DECODED)
def _settings(body: bytes) -> Mapping[Subject, str]:
    return {_subject(path): digest for path, digest in codec.decode_mapping(codec.unpack(body)).items()}


def _subject(path: str) -> Subject:
    decision, _, name = path.partition("/")
    return Subject(decision, name)
