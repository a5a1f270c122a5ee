"""The ledger as the rest of the agent uses it: one object over one database, safe to share between threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final

from sqlalchemy import Connection

from agent.ledger import codec, identity, journal, leases, postgresql, retention, state
from agent.ledger.database import Clash, Database
from agent.ledger.identity import Identity, LedgerOwner
from agent.ledger.journal import JournalEntry, Kind
from agent.ledger.kept import StoredState
from agent.ledger.leases import AgentRecord, Moves, Roster
from agent.ledger.retention import Compaction
from domain.controls import HELD, Controls, Pause, PauseScope, Pin
from domain.decisions import Event, Intent, Reason
from domain.errors import LedgerForeign
from domain.subject import AGENT, Subject

BUSY_TIMEOUT_S: Final = 5.0
"""How long a transaction waits for another process's before it gives up."""

_EPOCH_TRIES: Final = 10


class Ledger:
    """The durable record of one agent.

    Every method raises LedgerUnavailable, with the place and what to do, when the database cannot be used now; it works
    again by itself once the cause is gone. What a method writes is on disk when it returns, none of it when it raises.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @staticmethod
    def open(
        url: str,
        *,
        read_only: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        witness_in: Path | None = None,
    ) -> Ledger:
        """Open `sqlite:////path` or `postgresql://host/name`, creating or upgrading it unless read_only.

        witness_in: the directory in which the agent remembers, across its restarts, which ledger it wrote last.
        LedgerUnavailable when it cannot be opened; LedgerReplaced when it is not that ledger, or when the write-ahead
        log beside it is not its own; LedgerError when a newer version of Trimtab wrote it.
        """
        return Ledger(Database(url, read_only=read_only, busy_timeout_s=busy_timeout_s, witness_in=witness_in))

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What operators switch, and what is recorded

    def controls(self, decision: str, subject: str) -> Controls:
        """Return what operators have switched for a decision's subject, expired switches included."""
        return state.controls_of(self.database.fetch(state.CONTROLS, owner=subject, **state.switches(decision)))

    def all_controls(self, decision: str, subjects: Sequence[str]) -> dict[str, Controls]:
        """Return the same for each of these subjects of a decision, at one moment."""
        return state.all_controls_of(self.database.fetch(state.ALL_CONTROLS, **state.switches(decision)), subjects)

    def record_events(self, events: Sequence[Event], epoch: int | None = None) -> None:
        """Write events; Fenced when an `epoch` is given and over."""
        rows = [journal.event_row(event) for event in events]
        with self.database.write() as connection:
            if epoch is not None:
                state.check_epoch(connection, epoch)
            journal.add(connection, rows)

    @contextlib.contextmanager
    def fenced(self, epoch: int) -> Iterator[Connection]:
        """Open a transaction of the leader of an epoch, on disk when the block has ended; Fenced when it is over."""
        with self.database.write() as connection:
            state.check_epoch(connection, epoch)
            yield connection

    def open_intents(self, fleet: str | None = None) -> tuple[Intent, ...]:
        """Return the open intents, of one fleet or of all, oldest first."""
        if fleet is None:
            return journal.intents_of(self.database.fetch(journal.OPEN_INTENTS))
        with self.database.read() as connection:
            return journal.open_intents(connection, fleet)

    def record_settings(self, at: float, body: Mapping[str, Any]) -> None:
        """Write the settings in force, unless they are the last ones written; the first ones change nothing."""
        with self.database.write() as connection:
            first = state.get(connection, AGENT.name, state.SETTINGS) is None
            written = state.settings_body(connection, body)
            if written is not None:
                reason = Reason.SETTINGS_RECORDED if first else Reason.SETTINGS_CHANGED
                journal.add_settings(connection, at, written, reason)

    # Operators, from any process

    def pause(self, decision: str, subject: str, pause: Pause) -> None:
        """Hold a subject's changes in the pause's direction, in place of an earlier pause of the same scope."""
        with self.database.write() as connection:
            key = state.pause_key(decision, pause.scope)
            state.put(connection, [(subject, key, codec.encode(pause))])
            detail = f"{pause.owner} paused {HELD[pause.scope]} of {decision} {pause.end(_utc)}: {pause.reason}"
            _note(connection, Subject(decision, subject), pause.since, key, detail)

    def resume(self, decision: str, subject: str, scope: PauseScope, *, at: float, owner: str) -> bool:
        """Lift a subject's pause of this scope (ALL: every pause) and say whether there was one."""
        with self.database.write() as connection:
            scopes = tuple(PauseScope) if scope is PauseScope.ALL else (scope,)
            lifted = [each for each in scopes if state.remove(connection, subject, state.pause_key(decision, each))]
            for each in lifted:
                detail = f"{owner} resumed {HELD[each]} of {decision}"
                _note(connection, Subject(decision, subject), at, state.pause_key(decision, each), detail)
        return bool(lifted)

    def pin(self, decision: str, subject: str, pin: Pin) -> None:
        """Fix a subject's size, in place of an earlier pin."""
        with self.database.write() as connection:
            key = state.pin_key(decision)
            state.put(connection, [(subject, key, codec.encode(pin))])
            size = ", ".join(f"{group} at {count}" for group, count in sorted(pin.desired.items()))
            detail = f"{pin.owner} pinned {size} until {_utc(pin.until)}: {pin.reason}"
            _note(connection, Subject(decision, subject), pin.since, key, detail)

    def unpin(self, decision: str, subject: str, *, at: float, owner: str) -> bool:
        """Lift a subject's pin and say whether there was one."""
        with self.database.write() as connection:
            key = state.pin_key(decision)
            lifted = state.remove(connection, subject, key)
            if lifted:
                _note(connection, Subject(decision, subject), at, key, f"{owner} lifted the pin")
        return lifted

    # Leadership

    def take_epoch(self, owner: str, at: float) -> int:
        """Become the leader of all subjects and return the epoch, one above the last, which ends every older one."""
        for attempt in range(_EPOCH_TRIES):
            try:
                with self.database.write() as connection:
                    epoch = state.add_epoch(connection, owner, at)
                self.database.leads(owner, epoch)
                return epoch
            except Clash:
                # On PostgreSQL two can read the same last epoch; the second to write tries again above it.
                if attempt == _EPOCH_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    @property
    def shared(self) -> bool:
        """Whether several agents may work on it, so that leases settle which of them leads a subject."""
        return not self.database.sqlite

    def beat(
        self,
        me: AgentRecord,
        known: Collection[int],
        lease_s: float,
        at: float,
        plan: Callable[[Roster], Moves],
    ) -> Roster:
        """Announce an agent on a shared ledger and move leases of subjects: see `leases.beat`. NameTaken."""
        with self.database.write() as connection:
            there = leases.beat(connection, me, known, lease_s, at, plan)
        taken = [one.epoch for one in there.leases.values() if one.process == me.process and one.epoch not in known]
        if taken:
            self.database.leads(me.process, *taken)
        return there

    def give_up(self, process: str) -> None:
        """Let other agents lead the subjects of a process at once."""
        with self.database.write() as connection:
            leases.give_up(connection, process)

    def roster(self) -> Roster:
        """Return the live agents and the leases in force; none on a SQLite ledger."""
        if not self.shared:
            return Roster()
        with self.database.read() as connection:
            return leases.roster(connection, postgresql.database_now(connection))

    def epoch(self) -> int:
        """Return the newest leader's epoch, 0 before the first."""
        with self.database.read() as connection:
            return state.newest_epoch(connection)

    def check_epoch(self, *epochs: int) -> None:
        """Raise Fenced when a newer leader exists, LedgerReplaced when this is not the ledger that was written last.

        epochs: each of one subject, or of all. Asked right before every call that changes something, so it is short.
        """
        self.database.check_lead(*epochs)

    def check_same(self) -> None:
        """Raise LedgerReplaced when this is not the ledger that was written last, whoever leads."""
        self.database.check_same()

    def identity(self) -> Identity:
        """Return which ledger this is, and how many transactions wrote to it."""
        with self.database.read() as connection:
            there = identity.read(connection)
        assert there is not None
        return there

    def owned_by(self) -> LedgerOwner:
        """Return whom the ledger is bound to, with None for what it was never bound to."""
        with self.database.read() as connection:
            return identity.owned_by(connection)

    def refuse_unless_owned(self, owner: LedgerOwner) -> LedgerOwner:
        """Return whom the ledger is bound to; LedgerForeign unless that is `owner`, where both are known."""
        there = self.owned_by()
        different = [
            f"{name} {theirs}, not {ours}"
            for name, theirs, ours in (
                ("AWS account", there.account, owner.account),
                ("region", there.region, owner.region),
                ("deployment", there.deployment, owner.deployment),
            )
            if theirs is not None and ours is not None and theirs != ours
        ]
        if different:
            raise LedgerForeign(
                f"ledger {self.place} belongs to {'; '.join(different)}: give this agent "
                "a separate ledger (TRIMTAB_LEDGER__URL), or correct its credentials, TRIMTAB_AWS__REGION or "
                "TRIMTAB_DEPLOYMENT. "
                "`trimtab ledger restore --another` removes the binding"
            )
        return there

    def bind(self, owner: LedgerOwner) -> None:
        """Bind the ledger to `owner` where it is not bound yet; LedgerForeign when it belongs to others."""
        there = self.refuse_unless_owned(owner)
        bound = LedgerOwner(
            there.account or owner.account, there.region or owner.region, there.deployment or owner.deployment
        )
        if bound != there:
            with self.database.write() as connection:
                # Another agent may have bound it meanwhile.
                if identity.owned_by(connection) == there:
                    identity.bind(connection, bound)
            self.refuse_unless_owned(owner)

    def damage(self) -> str:
        """Return what a quick check finds wrong with a SQLite file, "" for nothing; PostgreSQL looks after itself."""
        return self.database.damage()

    # Reading

    def journal(
        self, since_seq: int = 0, *, decision: str | None = None, subject: str | None = None, limit: int = 1000
    ) -> list[JournalEntry]:
        """Return journal rows after `since_seq` in order, of one decision, of subjects of one name, or of all."""
        with self.database.read() as connection:
            return journal.entries(connection, since_seq, decision=decision, subject=subject, limit=limit)

    def newest_seq(self) -> int:
        """Return the number of the journal's newest row, 0 when it has none."""
        with self.database.read() as connection:
            return journal.newest_seq(connection)

    def latest(
        self,
        kinds: Sequence[Kind],
        *,
        up_to_seq: int,
        subject: Subject | None = None,
        limit: int = 20,
        span: int = 5000,
    ) -> list[JournalEntry]:
        """Return the newest rows of these kinds among the last `span` numbers up to `up_to_seq`, the newest first.

        subject: only its own rows and those of the agent.
        """
        with self.database.read() as connection:
            return journal.latest(connection, kinds, up_to_seq, subject=subject, limit=limit, span=span)

    # Upkeep

    def watch_writes(self, listener: Callable[[float, bool], None]) -> None:
        """Call `listener` for each transaction that writes: its seconds, and whether it came to its end."""
        self.database.on_write = listener

    def size_bytes(self) -> int:
        """Return the room that the ledger takes on its disk, in its database server where it is on one."""
        return self.database.size_bytes()

    def check_writable(self) -> None:
        """Raise LedgerUnavailable unless there is room for decisions: write something as large, and remove it."""
        with self.database.write() as connection:
            state.put_probe(connection)
        with self.database.write() as connection:
            state.remove(connection, AGENT.name, state.PROBE)

    @property
    def place(self) -> str:
        """Where the ledger is, without a password."""
        return self.database.place

    def schema(self) -> str:
        """Return the revision of the ledger's schema."""
        return self.database.schema()

    def compact(
        self,
        now: float,
        keep_s: float,
        kept: Sequence[StoredState] = (),
        *,
        longer_s: Mapping[str, float] = MappingProxyType({}),
        batch: int = retention.BATCH,
        batches: int | None = None,
    ) -> Compaction:
        """Remove journal rows older than `keep_s`, and give their space back to the disk.

        kept: what each decision keeps, which forgets its own rows as well. longer_s: by the name of one of these, for
        how long it is kept instead of `keep_s`. Open intents and their decisions are kept at
        any age. Works in short transactions of `batch` rows, at most `batches` of them (None: until nothing is due), so
        that decisions are recorded in between.
        """
        return retention.compact(self.database, now, keep_s, kept, longer_s=longer_s, batch=batch, batches=batches)


def _note(connection: Connection, subject: Subject, at: float, about: str, detail: str) -> None:
    journal.add(connection, [journal.event_row(Event(subject, at, Reason.OPERATOR, detail, about))])


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
