"""What the ledger keeps of the gate: the latest deployment of each group, and how AWS answered of late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import select

from agent.admission.gate.records import GroupRecord
from agent.autoscaling.state import LoopState
from agent.ledger import codec, journal, state
from agent.ledger.database import Database
from agent.ledger.schema import state as table
from domain.decisions import Event
from domain.errors import LedgerError, LedgerUnavailable

GROUP: Final = "gate.group."
MEMORY: Final = "gate.memory"
_NO_STATES: Final[Mapping[str, LoopState]] = {}


class GateStore:
    """Reads and writes the gate's records; each method raises LedgerUnavailable when the ledger cannot be used now.

    A group has one row, so that it never has two open requests.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def records(self) -> dict[str, GroupRecord]:
        """Return the latest record of every group that ever was in a cluster, by the group's name."""
        return self.read()[0]

    def read(self) -> tuple[dict[str, GroupRecord], dict[str, str]]:
        """Return the records, and by its group's name why a record that is damaged cannot be read."""
        rows = table.c
        query = select(rows.key, rows.body).where(
            rows.fleet == state.AGENT, rows.key.startswith(GROUP, autoescape=True)
        )
        found: list[GroupRecord] = []
        damaged: dict[str, str] = {}
        with self._database.read() as connection:
            for key, body in connection.execute(query):
                try:
                    found.append(codec.decode(GroupRecord, codec.unpack(body)))
                except LedgerUnavailable:
                    raise
                except LedgerError as error:
                    damaged[key.removeprefix(GROUP)] = str(error)
        return {record.group: record for record in sorted(found, key=lambda record: record.at)}, damaged

    def memory(self, cluster: str) -> LoopState:
        """Return what the rails remember of a cluster: shortages of VM types and groups whose changes keep failing."""
        with self._database.read() as connection:
            body = state.get(connection, cluster, MEMORY)
        return LoopState() if body is None else codec.decode(LoopState, body)

    def write(
        self,
        records: Sequence[GroupRecord],
        events: Sequence[Event] = (),
        memories: Mapping[str, LoopState] = _NO_STATES,
        *,
        epoch: int,
    ) -> None:
        """Write records in the place of their groups' older ones, events and memories: all or nothing.

        Fenced when `epoch` is over.
        """
        rows = [(state.AGENT, f"{GROUP}{one.group}", codec.encode(one)) for one in records]
        rows += [(cluster, MEMORY, codec.encode(memory)) for cluster, memory in memories.items()]
        told = [journal.event_row(event) for event in events]
        with self._database.write() as connection:
            state.check_epoch(connection, epoch)
            state.put(connection, rows)
            journal.add(connection, told)
