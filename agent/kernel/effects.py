"""Intent before effect, for one thing at a time: written before the first call, followed until it is over, settled.

A part that changes something outside keeps one record for each thing that it changes (a group, a parameter). The record
is on disk before the first call is sent. What a later turn finds, after a crash or a failure, is a record that is open:
it looks at what is there, sends what is missing, and writes the record again with what came of it. Every write is
fenced: a process that no longer leads writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from sqlalchemy import select

from agent.kernel.transaction import Write, commit
from agent.ledger import Ledger, codec, state
from agent.ledger.schema import state as table
from agent.rails.state import GuardState
from domain.decisions import Event
from domain.errors import LedgerError, LedgerUnavailable
from domain.subject import AGENT

_NO_MEMORY: Final[Mapping[str, GuardState]] = {}


class EffectRecord(Protocol):
    """How far a change outside has come; `open` until nothing is left to do. at: when it was begun."""

    @property
    def at(self) -> float:
        """When it was begun."""
        ...

    @property
    def open(self) -> bool:
        """Whether something is left to do."""
        ...


R = TypeVar("R", bound=EffectRecord)


class EffectStore(Generic[R]):
    """The records of one kind of effect, and what the guards remember of its subjects.

    kind: the type of the records. prefix: under which their keys are stored, each followed by the name of the thing.
    memory_key: returns (owner, key) of what the guards remember of a subject. Every method raises LedgerUnavailable
    when the ledger cannot be used now.
    """

    def __init__(self, ledger: Ledger, kind: type[R], prefix: str, memory_key: tuple[str, str]) -> None:
        self._database = ledger.database
        self._kind, self._prefix = kind, prefix
        self._owner, self._key = memory_key

    def latest(self, thing: str) -> R | None:
        """Return the latest record of a thing, None when there is none."""
        with self._database.read() as connection:
            body = state.get(connection, AGENT.name, f"{self._prefix}{thing}")
        return None if body is None else codec.decode(self._kind, body)

    def read(self) -> tuple[dict[str, R], dict[str, str]]:
        """Return the latest record of every thing by its name, oldest first, and by name why one cannot be read."""
        key = table.c.key
        query = select(key, table.c.body).where(
            table.c.owner == AGENT.name, key.startswith(self._prefix, autoescape=True)
        )
        found: dict[str, R] = {}
        damaged: dict[str, str] = {}
        with self._database.read() as connection:
            for name, body in connection.execute(query.order_by(key)):
                thing = name.removeprefix(self._prefix)
                try:
                    found[thing] = codec.decode(self._kind, codec.unpack(body))
                except LedgerUnavailable:
                    raise
                except LedgerError as error:
                    damaged[thing] = str(error)
        return dict(sorted(found.items(), key=lambda item: item[1].at)), damaged

    def memory(self, subject: str) -> GuardState:
        """Return what the guards remember of a subject: shortages, and things whose changes keep failing."""
        with self._database.read() as connection:
            body = state.get(connection, *self._memory_of(subject))
        return GuardState() if body is None else codec.decode(GuardState, body)

    def write(
        self,
        records: Mapping[str, R],
        events: Sequence[Event] = (),
        memories: Mapping[str, GuardState] = _NO_MEMORY,
        *,
        epoch: int,
    ) -> None:
        """Write records, by the name of their thing, in the place of older ones, with events and memories by subject.

        All or nothing; Fenced when `epoch` is over.
        """
        bodies = [(AGENT.name, f"{self._prefix}{thing}", codec.encode(record)) for thing, record in records.items()]
        bodies += [(*self._memory_of(subject), codec.encode(memory)) for subject, memory in memories.items()]
        commit(self._database, Write(bodies, notes=events), epoch=epoch)

    def _memory_of(self, subject: str) -> tuple[str, str]:
        return self._owner.format(subject), self._key.format(subject)
