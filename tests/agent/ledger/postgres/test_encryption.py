"""A ledger on another host is never reached in clear text unless its URL says so."""

from __future__ import annotations

import socket
import threading

import pytest
from sqlalchemy.engine import make_url

from agent.ledger import Ledger
from agent.ledger.postgresql import lacks_sslmode
from agent.preflight.check import check_encryption
from agent.settings import load_settings
from domain.errors import LedgerError

WISH_FOR_TLS = bytes.fromhex("0000000804d2162f")


class Refusing:
    """A server that says that it cannot encrypt, and keeps what it is sent after that."""

    def __init__(self) -> None:
        self.first = self.rest = b""
        self._listening = socket.create_server(("", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        opened, _ = self._listening.accept()
        with opened:
            opened.settimeout(5.0)
            self.first = opened.recv(8)
            opened.sendall(b"N")
            self.rest = opened.recv(4096)

    def close(self) -> None:
        self._thread.join(60.0)
        self._listening.close()


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    return Refusing()


def test_another_host_that_cannot_encrypt_gets_no_word_in_clear_text(refusing: Refusing) -> None:
    # 0.0.0.0 leads here, and is no address of this host's own.
    url = f"postgresql+psycopg://trimtab:secret@0.0.0.0:{refusing.port}/ledger"
    with pytest.raises(LedgerError, match="SSL"):
        Ledger.open(url)
    refusing.close()
    assert (refusing.first, refusing.rest) == (WISH_FOR_TLS, b"")


@pytest.mark.parametrize(
    ("rest", "lacks"),
    [
        ("db.example.com/ledger", True),
        ("10.0.0.7:5432/ledger", True),
        ("127.example.com/ledger", True),
        ("localhost.example.com/ledger", True),
        ("/ledger?host=db-a:5432,db-b:5432", True),
        ("/ledger?host=localhost,db-b", True),
        ("db.example.com/ledger?sslmode=verify-full", False),
        ("db.example.com/ledger?sslmode=disable", False),
        ("localhost/ledger", False),
        ("127.0.0.1:5433/ledger", False),
        ("[::1]/ledger", False),
        ("/ledger", False),
        ("/ledger?host=/run/postgresql", False),
    ],
)
def test_what_leads_to_another_host_without_a_word_on_its_protection(
    monkeypatch: pytest.MonkeyPatch, rest: str, lacks: bool
) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert lacks_sslmode(make_url(f"postgresql+psycopg://trimtab:secret@{rest}")) is lacks


def test_sqlite_needs_no_protection_and_an_operators_own_setting_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not lacks_sslmode(make_url("sqlite:////var/lib/trimtab/ledger.db"))
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert not lacks_sslmode(make_url("postgresql+psycopg://db.example.com/ledger"))


def test_preflight_says_that_nobody_checks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    url = "postgresql+psycopg://trimtab:secret@db.example.com/ledger"
    (found,) = check_encryption(load_settings({"TRIMTAB_LEDGER__URL": url}))
    assert found.subject == "ledger's server"
    assert "has no sslmode" in found.detail
    assert "sslmode=verify-full" in found.remedy
    assert "secret" not in f"{found}"
    assert not list(check_encryption(load_settings({"TRIMTAB_LEDGER__URL": f"{url}?sslmode=verify-full"})))
