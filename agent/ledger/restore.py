"""Puts a copy in the place of a ledger, so that no agent takes it for what it wrote last by mistake.

Generation, epoch and the numbers of decisions leap beyond whatever was written since the copy was made: agents take the
restored ledger for newer than what they remember, a leader of before is fenced, and no decision's id is used again.
Intents that are open in it belong to an older epoch; the next start reads them back.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, NullPool, create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from agent.ledger import identity, journal, leases, postgresql, sqlite_file, state
from agent.ledger.database import Database, connect_read_only, sqlite_path
from agent.ledger.identity import INCARNATION, NUMBERS, Identity, LedgerOwner
from agent.ledger.kept import StoredState
from agent.ledger.lock import LOCK_NAME, lock_directory, lock_ledger
from agent.ledger.schema import decisions
from agent.ledger.witness import NAME as WITNESS
from agent.ledger.witness import Witness
from domain.controls import Controls
from domain.decisions import Event, Reason
from domain.errors import BadInput, LedgerUnavailable
from domain.subject import AGENT

OWNER: Final = "ledger restore"
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What matters of a ledger when another takes its place."""

    identity: Identity | None = None
    epoch: int = 0
    decisions: int = 0
    controls: Mapping[tuple[str, str], Controls] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What a restore did.

    kept: where what was in place is kept, None when there was nothing. epoch: the restore's own. open_intents: those
    that the next start reads back. lost: pauses and pins that the ledger before had and the copy has not, by
    decision and subject; None when the one before could not be read.
    """

    place: str
    kept: Path | None
    epoch: int
    numbers_from: int
    open_intents: tuple[str, ...]
    lost: Mapping[tuple[str, str], Controls] | None


def restore(
    url: str,
    file: Path | None,
    state_directories: Sequence[Path],
    at: float,
    parts: Sequence[StoredState],
    *,
    is_another: bool = False,
) -> RestoreResult | None:
    """Put a copy of `file` in the place of the SQLite ledger at `url`; without `file`, go on with what is in place.

    On PostgreSQL, whose own tools restore it, only the latter. What was in place is kept beside it under another name.
    None when there is nothing in place and no file: the next start begins a new ledger. state_directories: where agents
    of this ledger may remember it. parts: what each decision keeps. is_another: take a file although it is a copy of
    another ledger. LedgerUnavailable when an agent uses the ledger or the file is damaged, BadInput when it is none.
    """
    path = sqlite_path(url)
    with contextlib.ExitStack() as stack:
        for directory in _once(state_directories, path):
            stack.enter_context(lock_directory(directory))
        if path is None:
            if file is not None:
                raise BadInput("FILE", str(file), "restore PostgreSQL with its own tools, then run this without FILE")
            return _restore_postgresql(url, state_directories, at, parts, is_another=is_another)
        stack.enter_context(lock_ledger(path))
        real = Path(os.path.realpath(path))
        memory = _witnessed(state_directories, str(path), real)
        if file is None and not (real.exists() and real.stat().st_size):
            _forget(state_directories, str(path), real)
            return None
        source = real if file is None else _existing(file, real)
        return _restore_sqlite(path, real, source, memory, at, state_directories, parts, is_another=is_another)


def _once(directories: Sequence[Path], path: Path | None) -> Iterator[Path]:
    wanted = [*directories, *([path.parent] if path is not None else [])]
    seen: set[str] = set()
    for directory in wanted:
        real = os.path.realpath(directory)
        if real not in seen and (directory / LOCK_NAME).exists():
            seen.add(real)
            yield directory


def _existing(file: Path, real: Path) -> Path:
    if not file.is_file():
        raise BadInput("FILE", str(file), 'name a copy of a ledger, made with `sqlite3 ledger.db ".backup copy.db"`')
    if file.resolve() != real and (why := _foreign_log(file)):
        raise BadInput("FILE", str(file), f"its write-ahead log belongs to another file ({why}): move that log away")
    return file


def _foreign_log(path: Path) -> str:
    try:
        return sqlite_file.foreign_log(path)
    except sqlite3.Error as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: sqlite3.Error) -> LedgerUnavailable:
    return LedgerUnavailable(f"{path} cannot be used now: {sqlite_file.in_words(error, path)}; nothing was changed")


def _restore_sqlite(
    path: Path,
    real: Path,
    source: Path,
    memory: Sequence[Identity],
    at: float,
    state_directories: Sequence[Path],
    parts: Sequence[StoredState],
    *,
    is_another: bool,
) -> RestoreResult:
    before = _facts(real, parts) if real.exists() else Facts()
    made = real.with_name(f"{real.name}.restoring")
    _remove(made)
    try:
        _copy(source, made, alone=source.resolve() == real and bool(_foreign_log(real)))
        copy = _facts(made, parts)
        if copy is None:
            raise BadInput("FILE", str(source), "it is not a readable ledger: name another copy")
        known = [found for found in (*memory, before.identity if before else None) if found is not None]
        there = copy.identity
        if there is not None and not is_another and any(found.ledger_id != there.ledger_id for found in known):
            other = next(found for found in known if found.ledger_id != there.ledger_id)
            raise BadInput(
                "FILE",
                str(source),
                f"it is a copy of another ledger ({there.ledger_id[:8]}, not {other.ledger_id[:8]}); give --another "
                "to accept it",
            )
        with contextlib.closing(Database(f"sqlite:///{made}", read_only=False, busy_timeout_s=_TIMEOUT_S)) as database:
            if is_another:
                with database.write() as connection:
                    identity.bind(connection, LedgerOwner(None, None, None))
            epoch, first, opened = _leap(database, known, before or Facts(), at, source, parts)
            database.pragma("wal_checkpoint(TRUNCATE)")
        _own_as(made, real)
        _flush(made)
        kept = _set_aside(real, at)
        os.replace(made, real)
        _flush(real.parent)
    finally:
        _remove(made)
    _forget(state_directories, str(path), real)
    lost = None if before is None else _lost(before.controls, copy.controls)
    return RestoreResult(str(path), kept, epoch, first, opened, lost)


def _restore_postgresql(
    url: str, state_directories: Sequence[Path], at: float, parts: Sequence[StoredState], *, is_another: bool
) -> RestoreResult:
    with contextlib.closing(Database(url, read_only=False, busy_timeout_s=_TIMEOUT_S)) as database:
        with database.write() as connection:
            there = leases.roster(connection, postgresql.database_now(connection))
            live = [one.process for one in there.agents.values()] + [there.older] * bool(there.older)
            if live:
                raise LedgerUnavailable(
                    f"ledger {database.place} is in use by {', '.join(live)}: stop the agents first"
                )
            leases.give_up_all(connection)
        known = _witnessed(state_directories, database.place, None)
        if is_another:
            with database.write() as connection:
                identity.bind(connection, LedgerOwner(None, None, None))
        epoch, first, opened = _leap(database, known, Facts(), at, None, parts)
        return RestoreResult(database.place, None, epoch, first, opened, None)


def _leap(
    database: Database,
    known: Sequence[Identity],
    before: Facts,
    at: float,
    source: Path | None,
    parts: Sequence[StoredState],
) -> tuple[int, int, tuple[str, ...]]:
    """Bring generation, epoch and numbers beyond all that is known; return epoch, number and the open intents."""
    with database.write() as connection:
        there = identity.read(connection)
        assert there is not None
        # Beyond every number as well, for these follow from it.
        decided = max(before.decisions, _newest_number(connection, parts))
        incarnation = max(*(found.incarnation for found in (there, *known)), decided // NUMBERS) + 1
        identity.put(connection, moved := Identity(there.ledger_id, incarnation * INCARNATION))
        identity.stamp(connection, moved)
        first = moved.first_number
        for each in parts:
            each.number_from(connection, first)
        epoch = state.add_epoch(connection, OWNER, at, before.epoch + 1)
        opened = tuple(intent.intent_id for intent in journal.open_intents(connection, None))
        what = "the ledger in place was accepted" if source is None else f"restored from {source}"
        detail = f"{what}; epoch {epoch}, decisions continue from {first + 1}, {len(opened)} open intents are read back"
        journal.add(connection, [journal.event_row(Event(AGENT, at, Reason.LEDGER_RESTORED, detail))])
    return epoch, first, opened


def _newest_number(connection: Connection, parts: Sequence[StoredState]) -> int:
    """Return the largest number that a decision of any kind has, by the table and by the counters of each kind."""
    numbers = [each.newest_number(connection) for each in parts]
    return max(connection.execute(select(func.max(decisions.c.number))).scalar() or 0, *numbers, 0)


def _facts(path: Path, parts: Sequence[StoredState]) -> Facts | None:
    """Return what matters of the ledger in a file; None when it cannot be read as one."""
    engine = create_engine(
        "sqlite+pysqlite://", creator=lambda: connect_read_only(path, path.as_uri(), _TIMEOUT_S), poolclass=NullPool
    )
    try:
        with engine.connect() as connection:
            return Facts(
                identity.read(connection),
                state.newest_epoch(connection),
                _newest_number(connection, parts),
                state.every_control(connection),
            )
    except (SQLAlchemyError, sqlite3.Error, ValueError, LedgerUnavailable):
        return None
    finally:
        engine.dispose()


def _copy(source: Path, made: Path, *, alone: bool) -> None:
    """Make a whole copy, without the log beside the file where `alone`.

    LedgerUnavailable when the file is damaged, or a file cannot be read or written now.
    """
    uri = source.absolute().as_uri()
    try:
        opened = (
            sqlite3.connect(f"{uri}?immutable=1", uri=True) if alone else connect_read_only(source, uri, _TIMEOUT_S)
        )
        with contextlib.closing(opened) as whole, contextlib.closing(sqlite3.connect(made)) as copy:
            whole.backup(copy)
            damage = sqlite_file.damage(copy)
    except sqlite3.Error as error:
        if not sqlite_file.is_damage(error):
            raise _unusable(made, error) from error
        damage = str(error)
    if damage:
        raise LedgerUnavailable(f"{source} is damaged ({damage}): name another copy; nothing was changed")


def _lost(
    before: Mapping[tuple[str, str], Controls], after: Mapping[tuple[str, str], Controls]
) -> dict[tuple[str, str], Controls]:
    lost = {}
    for (decision, subject), had in before.items():
        has = after.get((decision, subject), Controls())
        pauses = tuple(pause for pause in had.pauses if pause not in has.pauses)
        pin = had.pin if had.pin != has.pin else None
        if pauses or pin is not None:
            lost[decision, subject] = Controls(pauses, pin)
    return lost


def _set_aside(real: Path, at: float) -> Path | None:
    """Move what is in place, with its log, to another name; drop the log's index, which SQLite makes anew."""
    if not real.exists():
        _remove(real)
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    kept = next(
        name
        for number in range(1, 1000)
        if not (name := real.with_name(f"{real.name}.replaced-{stamp}{'' if number == 1 else f'-{number}'}")).exists()
    )
    log = sqlite_file.log_of(real)
    if log.exists() and log.stat().st_size:
        os.replace(log, sqlite_file.log_of(kept))
    log.unlink(missing_ok=True)
    os.replace(real, kept)
    sqlite_file.index_of(real).unlink(missing_ok=True)
    return kept


def _remove(path: Path) -> None:
    for file in (path, sqlite_file.log_of(path), sqlite_file.index_of(path), path.with_name(f"{path.name}-journal")):
        file.unlink(missing_ok=True)


def _own_as(made: Path, real: Path) -> None:
    """Give the file the owner and mode of the one it replaces: the agent's user writes it, whoever restores it."""
    model = real if real.exists() else real.parent
    status = os.stat(model)
    if real.exists():
        made.chmod(status.st_mode & 0o777)
    if os.geteuid() == 0:
        os.chown(made, status.st_uid, status.st_gid)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _witnesses(state_directories: Sequence[Path], place: str, real: Path | None) -> Iterator[Witness]:
    directories = [*state_directories, *([real.parent] if real is not None else [])]
    for directory in dict.fromkeys(directories):
        if (directory / WITNESS).exists():
            with contextlib.closing(Witness(directory, place)) as found:
                yield found


def _witnessed(state_directories: Sequence[Path], place: str, real: Path | None) -> list[Identity]:
    records = [found.read() for found in _witnesses(state_directories, place, real)]
    return [record.remembered.identity for record in records if record is not None]


def _forget(state_directories: Sequence[Path], place: str, real: Path) -> None:
    for found in _witnesses(state_directories, place, real):
        if found.read() is not None:
            found.forget()
