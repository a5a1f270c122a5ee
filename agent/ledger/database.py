"""The ledger's database: opening it, transactions that are on disk when they end, and its errors in words."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from agent.ledger import export, migrations, postgresql
from agent.ledger.schema import REVISIONS
from domain.errors import BadInput, LedgerError, LedgerUnavailable

_WRITES: Final = "trimtab_writes"
_WAL_KEPT_BYTES: Final = 16 * 2**20
_PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    f"journal_size_limit={_WAL_KEPT_BYTES}",
)
# Without it, PostgreSQL shows each statement of a transaction what was committed until then.
_ONE_STATE: Final = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

# By the beginning of SQLite's own error name.
_REMEDIES: Final = {
    "SQLITE_FULL": "the disk (or the file's size limit) is full: free some space, or keep less history",
    "SQLITE_READONLY": "it may not be written: check its owner and mode, its directory's, and the disk's",
    "SQLITE_CANTOPEN": "it cannot be opened: check that its directory exists and that this user may write there",
    "SQLITE_PERM": "it cannot be opened: check that its directory exists and that this user may write there",
    "SQLITE_BUSY": "another process holds it for too long: see who has the file open (fuser) and end what should not",
    "SQLITE_LOCKED": "another process holds it for too long: see who has the file open (fuser) and end what should not",
    "SQLITE_CORRUPT": "the file is damaged: move it aside and start again, or put back a copy",
    "SQLITE_NOTADB": "the file is not a ledger: move it aside and start again, or name another path",
    "SQLITE_IOERR": "the disk does not answer reads or writes: look at the system log",
}


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
    as the cause is gone.
    """

    def __init__(self, url: str, *, read_only: bool, busy_timeout_s: float) -> None:
        self.on_write: WriteListener = _unheard
        self._read_only = read_only
        self._busy_timeout_s = busy_timeout_s
        self._identity: tuple[int, int] | None = None
        self._url = _parsed(url)
        self.path = _sqlite_path(self._url)
        # Without its parameters: a password may be given among them as well.
        self.place = str(self.path) if self.path else self._url.set(query={}).render_as_string(hide_password=True)
        self._engine = self._new_engine()
        try:
            self._prepare(create=not read_only)
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        """Close every pooled connection; the last one out folds SQLite's write-ahead log into the file."""
        self._engine.dispose()

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
                yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that is on disk when the block has ended, or has not happened at all.

        LedgerUnavailable when it cannot be written now, Clash when a row contradicts a constraint.
        """
        if self._read_only:
            raise LedgerUnavailable(f"ledger {self.place} was opened for reading only: open it for writing")
        with self._watched(), self._translated():
            self._follow_file()
            with self._engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
                if not self.sqlite:
                    postgresql.take_turn(connection)
                yield connection

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
            return _revision(connection) or ""

    def downgrade(self, revision: str, lose: Collection[str], export_to: Path | None) -> Path | None:
        """Bring the schema back to an older revision; this object must not be used afterwards.

        Returns the file that holds what that revision has no place for, None when nothing is lost. BadInput when there
        is no such revision, or state is lost that `lose` does not name.
        """
        if revision not in REVISIONS:
            raise BadInput("schema", revision, f"give one of {', '.join(REVISIONS)}")
        with self.write() as connection:
            if not self.sqlite:
                postgresql.allow_time(connection, postgresql.MIGRATION_TIMEOUT_S)
            exported = export.export_lost(connection, _revision(connection) or "", revision, lose, export_to)
            migrations.downgrade(connection, revision)
        return exported

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

    def _new_engine(self) -> Engine:
        if self.path is None:
            try:
                return postgresql.new_engine(self._url, self._busy_timeout_s)
            except (SQLAlchemyError, ImportError) as error:
                raise LedgerUnavailable(
                    f"ledger {self.place}: {error}; give sqlite:////path/to/file, "
                    "or postgresql://host/name with trimtab[postgres] installed"
                ) from error
        engine = create_engine("sqlite+pysqlite://", creator=self._connect_sqlite, poolclass=QueuePool)
        event.listen(engine, "begin", _begin)
        return engine

    def _connect_sqlite(self) -> sqlite3.Connection:
        assert self.path is not None
        uri = self.path.as_uri()
        if self._read_only:
            return _connect_read_only(self.path, uri, self._busy_timeout_s)
        # Only the first opening creates the file: one that vanishes later must be noticed, not silently begun anew.
        connection = _connected(f"{uri}?mode={'rw' if self._identity else 'rwc'}", self._busy_timeout_s)
        try:
            # Must come before the file's first page, and only then: on any other file it waits for the writers' lock.
            if connection.execute("PRAGMA page_count").fetchone() == (0,):
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            for pragma in _PRAGMAS:
                connection.execute(f"PRAGMA {pragma}").fetchall()
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
        with self._translated():
            with self._engine.connect() as connection, connection.begin():
                current = _revision(connection)
            if self.path:
                self._identity = _identity(self.path)
        if current == REVISIONS[-1]:
            return
        if current is not None and current not in REVISIONS:
            raise LedgerError(
                f"ledger {self.place} has schema {current}, newer than the {REVISIONS[-1]} that this Trimtab "
                "knows: install the version that wrote it, or a newer one"
            )
        if self._read_only:
            have = f"has schema {current}" if current else "holds no ledger yet"
            raise LedgerUnavailable(
                f"ledger {self.place} {have}: start the agent once, it brings it to schema {REVISIONS[-1]}"
            )
        with self.write() as connection:
            if not self.sqlite:
                postgresql.allow_time(connection, postgresql.MIGRATION_TIMEOUT_S)
            # Somebody else may have upgraded it while we waited for the lock.
            if _revision(connection) != REVISIONS[-1]:
                migrations.upgrade(connection)

    def _follow_file(self) -> None:
        """Notice that the file was removed or replaced.

        A connection would go on writing to the file that nobody sees any more.
        """
        if self.path is None:
            return
        there = _identity(self.path)
        if there == self._identity:
            return
        self._engine.dispose()
        if there is None:
            raise LedgerUnavailable(
                f"ledger {self.place} is gone: put it back, or restart the agent to begin a new one"
            )
        self._prepare(create=False)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise Clash(self.place, str(error.orig)) from error
        except (SQLAlchemyError, sqlite3.Error) as error:
            self._engine.dispose()
            raise LedgerUnavailable(f"ledger {self.place} cannot be used now: {_in_words(error)}") from error


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # Neither shown nor chained: where no URL can be read, there is no telling which part of it is the password.
        raise LedgerUnavailable(
            "the ledger's URL is none: give sqlite:////path/to/file or postgresql://host/name"
        ) from None
    # A plain postgresql:// means the driver that the `postgres` extra installs.
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _sqlite_path(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite":
        return None
    if not url.database or url.database == ":memory:":
        raise LedgerUnavailable("a ledger in memory would not survive: give sqlite:////path/to/file")
    return Path(url.database).absolute()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _connected(uri: str, busy_timeout_s: float) -> sqlite3.Connection:
    # isolation_level None: the driver begins no transaction by itself, `_begin` does.
    return sqlite3.connect(uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)


def _connect_read_only(path: Path, uri: str, busy_timeout_s: float) -> sqlite3.Connection:
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


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: Any = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _in_words(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    name = getattr(cause, "sqlite_errorname", "") or ""
    remedy = next((words for start, words in _REMEDIES.items() if name.startswith(start)), None)
    said = str(cause).strip() or type(cause).__name__
    return f"{said} — {remedy}" if remedy else f"{said} — check that the database runs and can be reached"
