"""The ledger's database: opening it, transactions that are on disk when they end, and its errors in words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeGuard

from sqlalchemy import Connection, Engine, QueuePool, Select, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler

from agent.ledger import identity, migrations, postgresql, sqlite_file, state
from agent.ledger.identity import Identity, KnownLedger
from agent.ledger.schema import REVISIONS
from agent.ledger.witness import Witness
from domain.errors import Fenced, LedgerError, LedgerReplaced, LedgerUnavailable, install_command

_WRITES: Final = "trimtab_writes"
_LOOKS: Final = 3
_BETWEEN_LOOKS_S: Final = 0.02
_WAL_KEPT_BYTES: Final = 16 * 2**20
_PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    f"journal_size_limit={_WAL_KEPT_BYTES}",
)
# Without it, PostgreSQL shows each statement of a transaction what was committed until then.
_ONE_STATE: Final = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


WriteListener = Callable[[float, bool], None]
"""Takes how many seconds a transaction that writes took, and whether it came to its end."""


def _unheard(duration_s: float, is_written: bool) -> None:
    """Let a write pass."""


class Clash(LedgerError):
    """What was to be written contradicts what stands there; `names` is the database's word on which constraint."""

    def __init__(self, place: str, names: str) -> None:
        self.names = names
        super().__init__(
            f"ledger {place} refused a row that contradicts one it has ({names}); nothing of it was written"
        )


class Database:
    """One ledger database. Threads may share it; every transaction takes its own pooled connection.

    After any failure the pool is emptied, so that the next transaction starts on a fresh connection and works as soon
    as the cause is gone. One that writes remembers the ledger's identity and generation, in `witness_in` across a
    restart as well, and refuses another ledger or an older copy in its place with LedgerReplaced.
    """

    def __init__(self, url: str, *, read_only: bool, busy_timeout_s: float, witness_in: Path | None = None) -> None:
        self.on_write: WriteListener = _unheard
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._inode: tuple[int, int] | None = None
        self._memory = threading.Lock()
        self._remembered: KnownLedger | None = None
        self._mark = identity.Mark()
        self._overwritten = ""
        self._in_doubt = False
        self._owners: dict[int, str] = {}
        self._compiled: dict[Select[Any], SQLCompiler] = {}
        self._url = _parsed(url)
        self.path = _sqlite_path(self._url)
        # Without its parameters: a password may be given among them as well.
        self.place = str(self.path) if self.path else self._url.set(query={}).render_as_string(hide_password=True)
        self._witness = None if witness_in is None else Witness(witness_in, self.place)
        self._engine = self._new_engine()
        try:
            self._recall()
            self._prepare(create=not read_only)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close every pooled connection; the last one out folds SQLite's write-ahead log into the file."""
        self._engine.dispose()
        if self._witness is not None:
            self._witness.close()
            self._witness = None

    @property
    def sqlite(self) -> bool:
        """Whether the ledger is a SQLite file."""
        return self.path is not None

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that sees one unchanging state; LedgerUnavailable when it cannot be read."""
        with self._translated():
            self._follow_file()
            options = {} if self.sqlite else _ONE_STATE
            with self._engine.connect().execution_options(**options) as connection, connection.begin():
                if not self.sqlite:
                    postgresql.limit_waits(connection, self._busy_timeout_s)
                yield connection

    def fetch(self, query: Select[Any], **values: Any) -> Sequence[tuple[Any, ...]]:
        """Return the rows of one query; LedgerUnavailable when it cannot be read.

        For what is asked many times a turn: the query is compiled once, and one statement sees one state without a
        transaction around it. Keep the query as a constant, with its values as named parameters.
        """
        with self._translated():
            self._follow_file()
            compiled = self._compiled.get(query)
            if compiled is None:
                compiled = self._compiled[query] = query.compile(self._engine)
            given = compiled.construct_params(values)
            in_order = compiled.positional and [given[name] for name in compiled.positiontup or ()]
            connection = self._engine.raw_connection()
            try:
                cursor = connection.cursor()
                cursor.execute(compiled.string, in_order or given)
                return list(cursor.fetchall())
            finally:
                connection.close()

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that is on disk when the block has ended, or has not happened at all.

        LedgerUnavailable when it cannot be written now, Clash when a row contradicts a constraint.
        """
        if self._read_only:
            raise LedgerUnavailable(f"ledger {self.place} was opened for reading only: open it for writing")
        with self._watched(), self._translated():
            self._follow_file()
            with self._writing() as connection:
                there = self._advance(connection)
                yield connection
            self._remember(there)
            self._note_mark()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
            if not self.sqlite:
                postgresql.take_turn(connection, self._busy_timeout_s)
            yield connection

    def check_same(self) -> tuple[int, str]:
        """Return the newest epoch of all subjects, with its owner; LedgerReplaced for another ledger than before."""
        mark = self._check_mark()
        known = self._remembered
        there, newest, owner = identity.lead_of(self.fetch(identity.WITH_LEAD))
        self._refuse_unless_same(known, there)
        assert there is not None
        if mark is not None and mark.application == there.mark.application and mark.version > there.mark.version:
            self._refuse(f"its file is of generation {mark.version}, its log of {there.mark.version}", overwritten=True)
        self._remember(there)
        return newest, owner

    def check_lead(self, *epochs: int) -> None:
        """Raise Fenced when a newer leader exists, LedgerReplaced when this is not the ledger that was written last.

        epochs: each of one subject, or of all.
        """
        newest, owner = self.check_same()
        if newest > min(epochs):
            raise Fenced(state.deposed(min(epochs), newest, owner))
        led = self._led_here({newest: owner} if newest else {}, epochs)
        for epoch in epochs:
            taken_by = self._owners.get(epoch)
            if taken_by is not None and led.get(epoch) != taken_by:
                last = f"its newest leader is {owner} of epoch {newest}" if newest else "it never had a leader"
                there = f"epoch {epoch} is of {led[epoch]} there" if epoch in led else last
                self._refuse(f"{there}, not of this process")

    def _led_here(self, of_all: dict[int, str], epochs: Collection[int]) -> dict[int, str]:
        """Return the owner of each of these epochs that is there; Fenced when its subject has a newer one."""
        if self.sqlite:
            return of_all
        found = dict(of_all)
        for epoch, owner, subject, newest in self.fetch(identity.EPOCHS, epochs=list(epochs)):
            if newest > epoch and subject:
                raise Fenced(state.deposed(epoch, newest, "another process", subject))
            found[epoch] = owner
        return found

    def leads(self, owner: str, *epochs: int) -> None:
        """Remember that this process took epochs as this owner."""
        self._owners.update(dict.fromkeys(epochs, owner))
        with self._memory:
            known, epoch = self._remembered, max(epochs)
            if known is not None and epoch > known.epoch:
                self._remembered = KnownLedger(known.identity, epoch, owner)
                self._bear_witness()

    def remembered(self) -> KnownLedger:
        """Return what this process remembers of the ledger."""
        assert self._remembered is not None
        return self._remembered

    def damage(self) -> str:
        """Return what SQLite's quick check finds wrong with the file, "" for nothing or on PostgreSQL."""
        if self.path is None:
            return ""
        with self._translated():
            connection = self._engine.raw_connection()
            try:
                driver: Any = connection.driver_connection
                return sqlite_file.damage(driver)
            finally:
                connection.close()

    # What the ledger must be

    def _recall(self) -> None:
        """Take up what the agent remembered when it ended; LedgerReplaced when that ledger is not there any more."""
        record = None if self._witness is None else self._witness.read()
        if record is None:
            return
        self._remembered = record.remembered
        if record.overwritten:
            self._refuse(record.overwritten)
        self._in_doubt = record.is_in_doubt
        if self.path is not None and not (self.path.exists() and self.path.stat().st_size):
            self._refuse("there is none in its place any more")

    def _advance(self, connection: Connection) -> Identity:
        known = self._remembered
        there = identity.advance(connection)
        self._refuse_unless_same(known, Identity(there.ledger_id, there.generation - 1))
        if self.sqlite:
            identity.stamp(connection, there)
        return there

    def _remember(self, there: Identity) -> None:
        with self._memory:
            known = self._remembered
            if known is None or there.generation > known.identity.generation:
                self._remembered = KnownLedger(there, known.epoch if known else 0, known.owner if known else "")
                self._bear_witness()

    def _bear_witness(self) -> None:
        if self._witness is not None and self._remembered is not None:
            self._witness.write(self._remembered, self._overwritten)

    def _refuse_unless_same(self, known: KnownLedger | None, there: Identity | None, owner: str | None = None) -> None:
        if known is not None and (why := identity.difference(known, there, owner)):
            self._refuse(why)

    def _refuse(self, why: str, overwritten: bool = False) -> NoReturn:
        if overwritten:
            # Said from here on: the next fold of the log would hide it.
            self._overwritten = why
            self._bear_witness()
        raise LedgerReplaced(
            f"ledger {self.place} is not the one that this agent wrote last: {why}. Nothing is executed. Stop the "
            "agent, run `trimtab ledger restore FILE` with the newest copy (without FILE to accept "
            "the ledger in place), and start it again"
        )

    def _is_newer(self, found: identity.Mark | None) -> TypeGuard[identity.Mark]:
        ours = self.remembered().identity.mark.application
        if found is None or found.application != ours:
            return False
        return self._mark.application != ours or found.version >= self._mark.version

    def _note_mark(self) -> None:
        """Remember how far the log was folded into the file: an older file is then known for one."""
        if self.path is None or self._remembered is None:
            return
        # The transaction has been written: that the file cannot be read now is for the next one to say.
        with contextlib.suppress(sqlite3.Error):
            if self._is_newer(found := sqlite_file.mark(self.path)):
                self._mark = found

    def _check_mark(self) -> identity.Mark | None:
        """Return the mark in the file's header after refusing a file that was overwritten in its place."""
        if self.path is None or self._read_only:
            return None
        self._follow_file()
        for look in range(_LOOKS):
            if look:
                time.sleep(_BETWEEN_LOOKS_S)
            with self._translated():
                found = sqlite_file.mark(self.path)
            if found == self._mark or self._is_newer(found):
                self._mark = found
                return found
        shown = "is not a SQLite file" if found is None else f"is of generation {found.version}"
        if found is not None and found.application != self.remembered().identity.mark.application:
            shown = "is of another ledger"
        self._refuse(f"the file was overwritten in its place and {shown}", overwritten=True)

    def size_bytes(self) -> int:
        """Return the room that the ledger takes, SQLite's log included; LedgerUnavailable when it cannot be asked."""
        if self.path is None:
            with self.read() as connection:
                return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
        log = self.path.with_name(self.path.name + "-wal")
        return sum(file.stat().st_size for file in (self.path, log) if file.exists())

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        began, is_written = time.monotonic(), False
        try:
            yield
            is_written = True
        finally:
            self.on_write(time.monotonic() - began, is_written)

    def schema(self) -> str:
        """Return the revision of the schema that the ledger has."""
        with self.read() as connection:
            return schema_revision(connection) or ""

    def pragma(self, words: str) -> list[tuple[Any, ...]]:
        """Run one of SQLite's maintenance pragmas to its end, outside transactions; LedgerUnavailable as `write`."""
        with self._translated():
            self._follow_file()
            connection = self._engine.raw_connection()
            try:
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA {words}")
                # Some do their work row by row, so that one fetched not at all is left half done.
                return list(cursor.fetchall())
            finally:
                connection.close()
                self._note_mark()

    def _new_engine(self) -> Engine:
        if self.path is None:
            try:
                return postgresql.new_engine(self._url, self._busy_timeout_s)
            except (SQLAlchemyError, ImportError) as error:
                raise LedgerUnavailable(
                    f"ledger {self.place}: {error}; give sqlite:////path/to/file, "
                    f"or postgresql://host/name after {install_command('postgres')}"
                ) from error
        engine = create_engine("sqlite+pysqlite://", creator=self._connect_sqlite, poolclass=QueuePool)
        event.listen(engine, "begin", _begin)
        return engine

    def _connect_sqlite(self) -> sqlite3.Connection:
        assert self.path is not None
        uri = self.path.as_uri()
        if self._read_only:
            return connect_read_only(self.path, uri, self._busy_timeout_s)
        sqlite_file.check_index_room(self.path)
        # Only the first opening creates the file: one that vanishes later must be noticed, not silently begun anew.
        connection = _connected(f"{uri}?mode={'rw' if self._inode else 'rwc'}", self._busy_timeout_s)
        try:
            # Must come before the file's first page, and only then: on any other file it waits for the writers' lock.
            if connection.execute("PRAGMA page_count").fetchone() == (0,):
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
            sqlite_file.allocate_index(connection, self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, *, create: bool) -> None:
        if self.path and create:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LedgerUnavailable(
                    f"ledger {self.place}: its directory cannot be made ({error}): make it, or name another path"
                ) from error
        if self.path and not create and not self.path.exists():
            raise LedgerUnavailable(f"ledger {self.place} is not there: start the agent once, or name the path it uses")
        why = ""
        if self.path and self.path.exists():
            with self._translated():
                why = sqlite_file.foreign_log(self.path)
        if why:
            assert self.path is not None
            raise LedgerReplaced(
                f"ledger {self.place}: the write-ahead log {sqlite_file.log_of(self.path).name} beside it is not its "
                f"own ({why}), so a copy was put in the place of the ledger without its log. Run "
                "`trimtab ledger restore FILE` with the agent stopped; it keeps the present files under other names"
            )
        inode = None
        with self._translated():
            with self._engine.connect() as connection, connection.begin():
                current = schema_revision(connection)
                if not self._read_only and self._remembered is not None:
                    self._refuse_unless_known(connection, current)
            if self.path:
                inode = _inode(self.path)
        if current != REVISIONS[-1]:
            self._upgrade(current)
        if not self._read_only:
            with self._translated():
                with self._engine.connect() as connection, connection.begin():
                    there = identity.read(connection)
                self._mark = (sqlite_file.mark(self.path) if self.path else None) or identity.Mark()
            assert there is not None
            self._remember(there)
        self._inode = inode

    def _refuse_unless_known(self, connection: Connection, current: str | None) -> None:
        known = self.remembered()
        there = None if current is None else identity.read(connection)
        self._refuse_unless_same(known, there, identity.owner_of(connection, known.epoch) if current else None)
        if self._in_doubt:
            self._refuse_unless_whole(connection)

    def _refuse_unless_whole(self, connection: Connection) -> None:
        """Look anew at a ledger that a version before took for overwritten, which it did with half-folded ones too."""
        driver: Any = connection.connection.driver_connection
        if found := sqlite_file.damage(driver, check="integrity_check"):
            self._refuse(f"it was overwritten while the agent ran, and is damaged ({found})")
        self._in_doubt = False
        self._bear_witness()

    def _upgrade(self, current: str | None) -> None:
        if current is not None and current not in REVISIONS:
            if current < REVISIONS[0]:
                raise LedgerError(
                    f"ledger {self.place} has schema {current}, older than the {REVISIONS[0]} that this Trimtab takes "
                    "up: start the agent of a version that converts it once (docs/operate/operating.md, Restart)"
                )
            raise LedgerError(
                f"ledger {self.place} has schema {current}, newer than the {REVISIONS[-1]} that this Trimtab "
                "knows: install the version that wrote it, or a newer one"
            )
        if self._read_only:
            have = f"has schema {current}" if current else "holds no ledger yet"
            raise LedgerUnavailable(
                f"ledger {self.place} {have}: start the agent once, it brings it to schema {REVISIONS[-1]}"
            )
        with self._translated(), self._writing() as connection:
            if not self.sqlite:
                postgresql.allow_time(connection, postgresql.MIGRATION_TIMEOUT_S)
            # Somebody else may have upgraded it while we waited for the lock.
            if schema_revision(connection) != REVISIONS[-1]:
                migrations.upgrade(connection)
                identity.stamp(connection, identity.advance(connection))

    def _follow_file(self) -> None:
        """Notice that the file was removed or replaced.

        A connection would go on writing to a file that has no name any more.
        """
        if self._overwritten:
            self._refuse(self._overwritten)
        if self.path is None:
            return
        there = _inode(self.path)
        if there == self._inode:
            return
        self._engine.dispose()
        if there is None:
            raise LedgerReplaced(
                f"ledger {self.place} is gone, and nothing is executed without it. Move that very file back, or stop "
                "the agent and run `trimtab ledger restore FILE` with the newest copy"
            )
        # A file that goes on where this one ended, such as a whole copy of it, is taken up.
        self._prepare(create=False)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise Clash(self.place, str(error.orig)) from error
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            self._engine.dispose()
            cause = (error.orig if isinstance(error, DBAPIError) else None) or error
            if self.path is None:
                raise postgresql.unavailable(self.place, cause) from error
            words = sqlite_file.in_words(cause, self.path)
            raise LedgerUnavailable(f"ledger {self.place} cannot be used now: {words}") from error


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Neither shown nor chained: where no URL can be read, there is no telling which part of it is the password.
        raise LedgerUnavailable("invalid ledger URL: give sqlite:////path/to/file or postgresql://host/name") from None
    # A plain postgresql:// means the driver that the `postgres` extra installs.
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite ledger, None on PostgreSQL; LedgerUnavailable for what is no ledger's URL."""
    return _sqlite_path(_parsed(url))


def _sqlite_path(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite":
        return None
    if not url.database or url.database == ":memory:":
        raise LedgerUnavailable("a ledger in memory would not survive: give sqlite:////path/to/file")
    return Path(url.database).absolute()


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LedgerUnavailable(f"ledger {path} cannot be looked at now: {error.strerror}") from error
    return status.st_dev, status.st_ino


def _connected(uri: str, busy_timeout_s: float) -> sqlite3.Connection:
    # isolation_level None: the driver begins no transaction by itself, `_begin` does.
    return sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)


def connect_read_only(path: Path, uri: str, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a SQLite file, and what its log adds, for reading; also where nothing may be created beside it."""
    sqlite_file.check_index_room(path)
    connection = _connected(f"{uri}?mode=ro", busy_timeout_s)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except sqlite3.OperationalError:
        connection.close()
        log = path.with_name(path.name + "-wal")
        if log.exists() and log.stat().st_size:
            raise
        # Where nothing may be created SQLite cannot share memory with a writer; without a log there is no writer.
        return _connected(f"{uri}?immutable=1", busy_timeout_s)
    return connection


def _begin(connection: Connection) -> None:
    # A writer takes the lock at once: upgrading a reader's transaction later can fail without waiting.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def schema_revision(connection: Connection) -> str | None:
    """Return the revision of the schema that a ledger has, None for none yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: Any = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)
