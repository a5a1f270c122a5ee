"""A database that refuses the agent: which remedy the error has, and how often the agent asks again at its start."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from agent.ledger.postgresql import LedgerRefused, unavailable
from agent.service.assembly import LEDGER_RETRY_S, REFUSED_RETRY_S, opened_ledger
from agent.settings import load_settings
from domain.errors import LedgerUnavailable
from tests.agent.ledger.postgres.server import Server, free_port

URLS = {
    "user and password": "postgresql://locked:wrong@127.0.0.1:{port}/postgres",
    "create the database": "postgresql://trimtab@127.0.0.1:{port}/no_such_database",
    "correct the options": "postgresql://trimtab@127.0.0.1:{port}/postgres?sslmode=foo",
    "check that the database runs": "postgresql://trimtab@127.0.0.1:{free_port}/postgres",
}


@pytest.fixture
def locked(server: Server) -> Server:
    """The server, with a role that needs a password."""
    rules = server.directory / "data/pg_hba.conf"
    rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    with server.connected() as admin:
        admin.execute("DROP ROLE IF EXISTS locked")
        admin.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        admin.execute("SELECT pg_reload_conf()")
    return server


@pytest.mark.needs_postgresql
@pytest.mark.parametrize("remedy", URLS)
def test_each_refusal_has_its_remedy_and_is_asked_again_seldom(locked: Server, remedy: str, tmp_path: Path) -> None:
    url = URLS[remedy].format(port=locked.port, free_port=free_port())
    settings = load_settings({"TRIMTAB_LEDGER__URL": url, "TRIMTAB_STATE_DIRECTORY": str(tmp_path)})
    refused = remedy != "check that the database runs"
    waits: list[float] = []

    def stop(seconds: float) -> bool:
        waits.append(seconds)
        return True

    with capture_logs() as logged, pytest.raises(LedgerUnavailable) as raised:
        opened_ledger(settings, stop)
    assert isinstance(raised.value, LedgerRefused) is refused
    assert str(raised.value).partition(" — ")[2].startswith(("correct " if "user" in remedy else "") + remedy)
    assert "TRIMTAB_LEDGER__URL" in str(raised.value)
    assert "wrong" not in str(raised.value)
    assert waits == [REFUSED_RETRY_S if refused else LEDGER_RETRY_S]
    assert [line["log_level"] for line in logged] == ["error" if refused else "warning"]


@pytest.mark.needs_postgresql
def test_a_password_that_is_mended_on_the_server_is_taken(locked: Server) -> None:
    url = URLS["user and password"].format(port=locked.port)

    def mend(seconds: float) -> None:
        with locked.connected() as admin:
            admin.execute("ALTER ROLE locked SUPERUSER PASSWORD 'wrong'")

    locked.new_database("mended")
    settings = load_settings({"TRIMTAB_LEDGER__URL": url.replace("/postgres", "/mended")})
    opened_ledger(settings, mend).close()


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ('role "trimtab" does not exist', True),
        ('no pg_hba.conf entry for host "10.0.0.1", user "a", database "b", no encryption', True),
        ("permission denied for schema public", True),
        ("server does not support SSL, but SSL was required", True),
        ('invalid connection option "foo"', True),
        ("connection to server on socket /run/x failed: Permission denied", False),
        ("the database did not answer within 3 s", False),
        ("canceling statement due to lock timeout", False),
        ("the database system is starting up", False),
    ],
)
def test_refusals_and_absent_servers_are_distinguished(words: str, refused: bool) -> None:
    assert isinstance(unavailable("postgresql://db/ledger", psycopg.OperationalError(words)), LedgerRefused) is refused
