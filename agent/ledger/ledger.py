"""The ledger as the rest of the agent uses it: one object over one database, safe to share between threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from agent.autoscaling.decide import Decided, DecisionInputs
from agent.autoscaling.state import Controls, LoopState, Pause, PauseScope, Pin
from agent.ledger import export, identity, journal, lease, operators, read, retention, state
from agent.ledger.admission import AdmissionStore
from agent.ledger.database import Clash, Database
from agent.ledger.gate import GateStore
from agent.ledger.identity import Identity, LedgerOwner
from agent.ledger.lease import Held, Taken
from agent.ledger.lock import lock_directory, lock_ledger
from agent.ledger.oversubscription import OversubscriptionStore
from agent.ledger.records import Compacted, DecisionRecord, DecisionRow, JournalEntry, Kind
from domain.decisions import Decision, Event, Intent, Outcome, Reason
from domain.errors import IntentConflict, LedgerForeign, LedgerUnavailable

BUSY_TIMEOUT_S: Final = 5.0
"""How long a transaction waits for another process's before it gives up."""

_EPOCH_TRIES: Final = 10
_NO_STATES: Final[Mapping[str, LoopState]] = {}


class Ledger:
    """The durable record of one agent.

    Every method raises LedgerUnavailable, with the place and what to do, when the database cannot be used now; it works
    again by itself once the cause is gone. What a method writes is on disk when it returns, none of it when it raises.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.admission = AdmissionStore(database)
        self.gate = GateStore(database)
        self.oversubscription = OversubscriptionStore(database)

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
        self._database.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # The loop

    def loop_state(self, fleet: str) -> LoopState:
        """Return the loop's memory of a fleet, an empty one when there is none."""
        with self._database.read() as connection:
            return state.loop_state(connection, fleet)

    def loop_states(self, fleets: Sequence[str]) -> dict[str, LoopState]:
        """Return the loop's memory of each of these fleets, an empty one where there is none, all at one moment."""
        with self._database.read() as connection:
            return state.loop_states(connection, fleets)

    def controls(self, fleet: str) -> Controls:
        """Return what operators have switched for a fleet, expired switches included."""
        return self.all_controls([fleet])[fleet]

    def all_controls(self, fleets: Sequence[str]) -> dict[str, Controls]:
        """Return what operators have switched for each of these fleets, expired switches included, at one moment."""
        with self._database.read() as connection:
            return state.controls(connection, fleets)

    def record(
        self,
        decisions: Sequence[tuple[DecisionInputs, Decided]],
        events: Sequence[Event] = (),
        states: Mapping[str, LoopState] = _NO_STATES,
        epoch: int | None = None,
    ) -> None:
        """Write decisions with their inputs, open intents and the loop states that follow, and events: all or nothing.

        A state in `states` takes the place of the one that its fleet's decision gave. IntentConflict when a group has
        an open intent, Fenced when the epoch of a decision, or `epoch`, is over, LedgerError when a decision has the id
        of another.
        """
        batch = journal.Batch(decisions, events)
        with self._intent_conflicts(batch.opened), self._database.write() as connection:
            if epoch is not None:
                state.check_epoch(connection, epoch)
            batch.write(connection)
            state.put_loop_states(connection, journal.states_after(decisions, states))

    @contextlib.contextmanager
    def _intent_conflicts(self, opened: Sequence[Intent]) -> Iterator[None]:
        try:
            yield
        except Clash as clash:
            # Where writers run side by side the index speaks, after the look that found the group free.
            if "one_open_intent_per_group" in clash.names or "intents.group_key" in clash.names:
                groups = ", ".join(f"{intent.fleet}/{intent.group}" for intent in opened)
                raise IntentConflict(
                    f"one of the groups {groups} already has an open intent: follow it to its end first"
                ) from clash
            raise

    def record_outcomes(
        self,
        outcomes: Sequence[tuple[Intent, Outcome]],
        states: Mapping[str, LoopState] = _NO_STATES,
        events: Sequence[Event] = (),
        epoch: int | None = None,
    ) -> None:
        """Write what came of intents, loop states and events: all or nothing.

        A final status closes its intent. An outcome that says the same as the last one adds no journal row. Fenced when
        `epoch` is over: a deposed leader must not write its memory over the new one's.
        """
        rows = [journal.event_row(event) for event in events]
        with self._database.write() as connection:
            if epoch is not None:
                state.check_epoch(connection, epoch)
            journal.add_outcomes(connection, outcomes)
            journal.add(connection, rows)
            state.put_loop_states(connection, states)

    def open_intents(self, fleet: str | None = None) -> tuple[Intent, ...]:
        """Return the open intents, of one fleet or of all, oldest first."""
        with self._database.read() as connection:
            return journal.open_intents(connection, fleet)

    def last_outcome(self, intent_id: str) -> Outcome | None:
        """Return the newest outcome of an intent, None while there is none."""
        with self._database.read() as connection:
            return journal.last_outcome(connection, intent_id)

    def record_settings(self, at: float, body: Mapping[str, Any]) -> None:
        """Write the settings in force, unless they are the last ones written; the first ones change nothing."""
        with self._database.write() as connection:
            first = state.get(connection, state.AGENT, state.SETTINGS) is None
            written = state.settings_body(connection, body)
            if written is not None:
                reason = Reason.SETTINGS_RECORDED if first else Reason.SETTINGS_CHANGED
                journal.add_settings(connection, at, written, reason)

    # Operators, from any process

    def pause(self, fleet: str, pause: Pause) -> None:
        """Hold a fleet's changes in the pause's direction, in place of an earlier pause of the same scope."""
        with self._database.write() as connection:
            operators.pause(connection, fleet, pause)

    def resume(self, fleet: str, scope: PauseScope, *, at: float, owner: str) -> bool:
        """Lift the pause of this scope (ALL: every pause) and say whether there was one."""
        with self._database.write() as connection:
            return operators.resume(connection, fleet, scope, at=at, owner=owner)

    def pin(self, fleet: str, pin: Pin) -> None:
        """Fix a fleet's size, in place of an earlier pin."""
        with self._database.write() as connection:
            operators.pin(connection, fleet, pin)

    def unpin(self, fleet: str, *, at: float, owner: str) -> bool:
        """Lift the pin and say whether there was one."""
        with self._database.write() as connection:
            return operators.unpin(connection, fleet, at=at, owner=owner)

    # Leadership

    def take_epoch(self, owner: str, at: float) -> int:
        """Become the leader and return the epoch, one above the last; every older epoch is fenced from here on."""
        for attempt in range(_EPOCH_TRIES):
            try:
                with self._database.write() as connection:
                    epoch = state.add_epoch(connection, owner, at)
                self._database.leads(epoch, owner)
                return epoch
            except Clash:
                # On PostgreSQL two can read the same last epoch; the second to write tries again above it.
                if attempt == _EPOCH_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    @property
    def shared(self) -> bool:
        """Whether several agents may work on it, so that a lease must settle who leads."""
        return not self._database.sqlite

    def take_lease(self, owner: str, lease_s: float, at: float) -> Taken | Held:
        """Take the lead of a shared ledger for `lease_s`, under a new epoch, unless another agent has it."""
        with self._database.write() as connection:
            taken = lease.take(connection, owner, lease_s, at)
        if isinstance(taken, Taken):
            self._database.leads(taken.epoch, owner)
        return taken

    def renew_lease(self, epoch: int, lease_s: float) -> bool:
        """Keep the lead for `lease_s` from now on; False when it is no longer ours."""
        with self._database.write() as connection:
            return lease.renew(connection, epoch, lease_s)

    def give_up_lease(self, epoch: int) -> None:
        """Let another agent take the lead at once."""
        with self._database.write() as connection:
            lease.give_up(connection, epoch)

    def epoch(self) -> int:
        """Return the newest leader's epoch, 0 before the first."""
        with self._database.read() as connection:
            return state.newest_epoch(connection)

    def check_epoch(self, epoch: int) -> None:
        """Raise Fenced when a newer leader exists, LedgerReplaced when this is not the ledger that was written last.

        Asked right before every call that changes something, so it is one short query.
        """
        self._database.check_lead(epoch)

    def check_same(self) -> None:
        """Raise LedgerReplaced when this is not the ledger that was written last, whoever leads."""
        self._database.check_same()

    def identity(self) -> Identity:
        """Return which ledger this is, and how many transactions wrote to it."""
        with self._database.read() as connection:
            there = identity.read(connection)
        assert there is not None
        return there

    def owned_by(self) -> LedgerOwner:
        """Return whom the ledger is bound to, with None for what it was never bound to."""
        with self._database.read() as connection:
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
                f"ledger {self.place} belongs to {'; '.join(different)}: give this agent a ledger of its own "
                "(TRIMTAB_LEDGER__URL), or correct its credentials, TRIMTAB_AWS__REGION or TRIMTAB_DEPLOYMENT. "
                "`trimtab ledger restore --another` frees a ledger that shall change hands"
            )
        return there

    def bind(self, owner: LedgerOwner) -> None:
        """Bind the ledger to `owner` where it is not bound yet; LedgerForeign when it belongs to others."""
        there = self.refuse_unless_owned(owner)
        bound = LedgerOwner(
            there.account or owner.account, there.region or owner.region, there.deployment or owner.deployment
        )
        if bound != there:
            with self._database.write() as connection:
                # Another agent may have bound it meanwhile.
                if identity.owned_by(connection) == there:
                    identity.bind(connection, bound)
            self.refuse_unless_owned(owner)

    def damage(self) -> str:
        """Return what a quick check finds wrong with a SQLite file, "" for nothing; PostgreSQL looks after itself."""
        return self._database.damage()

    # Reading

    def decision(self, decision_id: str) -> DecisionRecord:
        """Return everything about one decision; UnknownName lists the ids around one that is not there."""
        with self._database.read() as connection:
            return read.decision(connection, decision_id)

    def decisions(
        self,
        fleet: str | None = None,
        *,
        since: float | None = None,
        until: float | None = None,
        limit: int = 50,
        newest_first: bool = True,
        changed_only: bool = False,
    ) -> list[DecisionRow]:
        """Return decisions with since <= at < until by time, without inputs; changed_only: those with intents."""
        with self._database.read() as connection:
            return read.listing(
                connection,
                fleet,
                since=since,
                until=until,
                limit=limit,
                newest_first=newest_first,
                changed_only=changed_only,
            )

    def decisions_before(
        self, before_seq: int | None = None, *, fleet: str | None = None, limit: int = 50, changed_only: bool = False
    ) -> list[DecisionRow]:
        """Return decisions numbered below `before_seq` (None: all), the newest first, without inputs: for paging."""
        with self._database.read() as connection:
            return read.listing_before(connection, before_seq, fleet, limit=limit, changed_only=changed_only)

    def inputs(
        self, fleet: str, since: float | None = None, until: float | None = None
    ) -> Iterator[tuple[DecisionInputs, Decision]]:
        """Yield inputs and decisions with since <= at < until in the order in which they were made, for replay."""
        return read.inputs(self._database, fleet, since, until)

    def journal(self, since_seq: int = 0, *, fleet: str | None = None, limit: int = 1000) -> list[JournalEntry]:
        """Return journal rows after `since_seq` in order, of one fleet or of all."""
        with self._database.read() as connection:
            return read.entries(connection, since_seq, fleet=fleet, limit=limit)

    def newest_seq(self) -> int:
        """Return the number of the journal's newest row, 0 when it has none."""
        with self._database.read() as connection:
            return read.newest_seq(connection)

    def latest(
        self,
        kinds: Sequence[Kind],
        *,
        up_to_seq: int,
        fleets: Sequence[str] | None = None,
        limit: int = 20,
        span: int = 5000,
    ) -> list[JournalEntry]:
        """Return the newest rows of these kinds among the last `span` numbers up to `up_to_seq`, the newest first."""
        with self._database.read() as connection:
            return read.latest(connection, kinds, up_to_seq, fleets=fleets, limit=limit, span=span)

    def fleets(self) -> tuple[str, ...]:
        """Return the fleets for which anything was ever decided, by name."""
        with self._database.read() as connection:
            return state.fleets(connection)

    # Upkeep

    def watch_writes(self, listener: Callable[[float, bool], None]) -> None:
        """Have `listener` told of each transaction that writes: its seconds, and whether it came to its end."""
        self._database.on_write = listener

    def size_bytes(self) -> int:
        """Return the room that the ledger takes on its disk, in its database server where it is on one."""
        return self._database.size_bytes()

    def check_writable(self) -> None:
        """Raise LedgerUnavailable unless there is room for decisions: write something as large, and remove it."""
        with self._database.write() as connection:
            state.put_probe(connection)
        with self._database.write() as connection:
            state.remove(connection, state.AGENT, state.PROBE)

    def writable(self) -> bool:
        """Return whether `check_writable` finds nothing wrong."""
        try:
            self.check_writable()
        except LedgerUnavailable:
            return False
        return True

    @property
    def place(self) -> str:
        """Where the ledger is, without a password."""
        return self._database.place

    def schema(self) -> str:
        """Return the revision of the ledger's schema."""
        return self._database.schema()

    def downgrade(self, revision: str, *, lose: Collection[str] = (), export_to: Path | None = None) -> Path | None:
        """Bring the schema back to that of an older version and close the ledger.

        Journal, decisions, open intents and controls stay. What the older schema has no place for is written to
        `export_to` before it is dropped, and only where `lose` names it ("admission", "oversubscription"); returns the
        file, None when nothing was lost. No agent may be running: LedgerUnavailable when one uses the file's directory
        or holds the lease. BadInput when there is no such revision, or state would be lost that is not named.
        """
        with self._without_agent():
            exported = self._database.downgrade(revision, lose, export_to)
            self.close()
            return exported

    def take_in(self, path: Path) -> int:
        """Put back the rows that a downgrade exported and return how many; no agent may be running, as there.

        BadInput when the file is no export, or the ledger holds state of the same kind already.
        """
        with self._without_agent(), self._database.write() as connection:
            return export.import_rows(connection, path)

    @contextlib.contextmanager
    def _without_agent(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._database.path is not None:
                stack.enter_context(lock_directory(self._database.path.parent))
                stack.enter_context(lock_ledger(self._database.path))
            elif (holder := self._lease_holder()) is not None:
                raise LedgerUnavailable(f"ledger {self.place} is led by {holder.owner}: stop the agents first")
            yield

    def _lease_holder(self) -> Held | None:
        with self._database.write() as connection:
            return lease.holder(connection)

    def compact(
        self, now: float, keep_s: float, *, batch: int = retention.BATCH, batches: int | None = None
    ) -> Compacted:
        """Remove journal rows older than `keep_s`, and give their space back to the disk.

        Open intents and their decisions are kept at any age. Works in short transactions of `batch` rows, at most
        `batches` of them (None: until nothing is due), so that decisions are recorded in between.
        """
        return retention.compact(self._database, now, keep_s, batch=batch, batches=batches)
