"""A ledger on PostgreSQL: connections on which nothing waits for ever, one writer at a time, and its own time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL

from domain.errors import LedgerUnavailable

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 3
MIGRATION_TIMEOUT_S: Final = 600.0
LOCAL: Final = re.compile(r"|localhost|127(?:\.\d+){3}|\[?::1\]?(?::\d+)?|(?:localhost|127(?:\.\d+){3}):\d+")
"""Hosts whose connections do not leave this one; none is the driver's unix socket."""
_WRITERS: Final = 7_214_511
"""The number of the advisory lock that writers share."""
_IDLE_TIMEOUT_S: Final = 10.0
_LIMITS: Final = (
    "SELECT set_config('lock_timeout', :lock_ms, true), "
    "set_config('idle_in_transaction_session_timeout', :idle_ms, true)"
)
_LIMIT_WAITS: Final = text(_LIMITS)
_TAKE_TURN: Final = text(f"{_LIMITS}, pg_advisory_xact_lock(:key)")


def new_engine(url: URL, timeout_s: float) -> Engine:
    """Return an engine on whose connections every wait for an answer ends after `timeout_s`.

    A server that is stopped, or a network that swallows packets, says nothing: without an end of its own the loop would
    wait for ever. Raises ImportError without the driver.
    """
    connection_class = _deadline_connection(timeout_s)
    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_timeout=timeout_s,
        connect_args=_defaults(url),
    )

    def connect(dialect: Any, record: Any, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        return connection_class.connect(*arguments, **parameters)

    event.listen(engine, "do_connect", connect)
    return engine


def lacks_sslmode(url: URL) -> bool:
    """Return whether a URL leads to another host and neither it nor PGSSLMODE says how the connection is protected."""
    if url.get_backend_name() != "postgresql" or "sslmode" in url.query or os.environ.get("PGSSLMODE"):
        return False
    named = url.query.get("host", ())
    hosts = [url.host or "", *(named.split(",") if isinstance(named, str) else named)]
    return not all(host.startswith("/") or LOCAL.fullmatch(host) for host in hosts)


def _defaults(url: URL) -> dict[str, Any]:
    """Return what the driver is given where the URL does not say it."""
    # A pooler that gives each transaction another connection mixes up the prepared statements of its clients.
    given: dict[str, Any] = {"prepare_threshold": None}
    if "connect_timeout" not in url.query:
        given["connect_timeout"] = CONNECT_TIMEOUT_S
    # The driver's own default goes on in clear text when whoever answers says that it cannot encrypt.
    return given | ({"sslmode": "require"} if lacks_sslmode(url) else {})


def take_turn(connection: Connection, timeout_s: float) -> None:
    """Wait until no other transaction writes, and keep the others waiting until this one ends.

    Its waits are limited as by `limit_waits`.

    Numbers of journal rows are given out when a row is inserted and seen when its transaction commits: with writers
    side by side, a reader that resumes after the last number it saw would miss the rows of the slower one.
    """
    connection.execute(_TAKE_TURN, {**_limits(timeout_s), "key": _WRITERS})


def limit_waits(connection: Connection, timeout_s: float) -> None:
    """Let the server end a wait for a lock a little before `timeout_s`, so that it can name what it waited for.

    It also ends a transaction whose agent was cut off. Both limits hold for this transaction alone: behind a pooler,
    the session is shared.
    """
    connection.execute(_LIMIT_WAITS, _limits(timeout_s))


def _limits(timeout_s: float) -> dict[str, str | int]:
    return {"lock_ms": f"{round(800 * timeout_s)}", "idle_ms": f"{round(_IDLE_TIMEOUT_S * 1000)}"}


def allow_time(connection: Connection, seconds: float) -> None:
    """Let the rest of this transaction's statements take so long: an upgrade may rewrite large tables."""
    driver = connection.connection.driver_connection
    if driver is not None:
        driver.answer_within_s = seconds


def database_now(connection: Connection) -> float:
    """Return the database's own time in epoch seconds: the one clock that all agents share."""
    return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())::float8")).scalar_one())


def _deadline_connection(timeout_s: float) -> Any:
    import psycopg

    class DeadlineConnection(psycopg.Connection[Any]):
        """Gives up on an answer, and on the connection with it, that does not come in time."""

        answer_within_s = timeout_s

        def wait(self, gen: Any, *arguments: Any, **parameters: Any) -> Any:
            return super().wait(self._within(gen), *arguments, **parameters)

        def commit(self) -> None:
            super().commit()
            self.answer_within_s = timeout_s

        def rollback(self) -> None:
            super().rollback()
            self.answer_within_s = timeout_s

        def _within(self, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
            until = time.monotonic() + self.answer_within_s
            try:
                wanted = next(steps)
                while True:
                    # The driver comes back a few times a second, whether there is something to read or not.
                    there = yield wanted
                    if time.monotonic() > until:
                        self.close()
                        raise psycopg.OperationalError(f"the database did not answer within {self.answer_within_s:g} s")
                    wanted = steps.send(there)
            except StopIteration as ended:
                answer: T = ended.value
                return answer

    return DeadlineConnection


class LedgerRefused(LedgerUnavailable):
    """The database runs and refuses the agent, or the URL is wrong: an operator has to change something."""


_REFUSALS: Final = (
    (r"authentication failed|no password supplied|role .* does not exist", "correct user and password in {url}"),
    (r"database .* does not exist", "create the database (`createdb`), or correct its name in {url}"),
    (r"no pg_hba\.conf entry", "permit user, database and host in the server's pg_hba.conf, or correct {url}"),
    (r"permission denied", "make the user of {url} the owner of the database"),
    (r"invalid (\w+ value: |.*connection option|URI)|not support SSL|certificate", "correct the options of {url}"),
)
"""By words of the message: the driver gives no SQLSTATE of a connection that was not made."""


def unavailable(place: str, error: BaseException) -> LedgerUnavailable:
    """Return the error for one that the database or its driver met, with the remedy."""
    words = str(error).strip() or type(error).__name__
    remedies = (remedy for pattern, remedy in _REFUSALS if re.search(pattern, words))
    refusal = next(remedies, None)
    # A server of another language is not understood, hence the second half.
    remedy = refusal or "check that the database runs and can be reached, and the user, password and database of {url}"
    kind = LedgerUnavailable if refusal is None else LedgerRefused
    return kind(f"ledger {place} cannot be used now: {words} — {remedy.format(url='TRIMTAB_LEDGER__URL')}")
