"""A ledger with an older schema, as the version of that schema wrote it: SQLite or PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from alembic import command
from sqlalchemy import create_engine, text

from agent.ledger import migrations

ROWS = Path(__file__).with_name("ledger_0010.jsonl")
"""Rows that the commit 322abd81 wrote: decisions, events and pauses of a fleet and a deferral pool of one name."""


def write_old(url: str) -> None:
    """Write the rows into an empty database with schema 0010."""
    engine = create_engine(url)
    with engine.begin() as connection:
        command.upgrade(migrations._config(connection), "0010")
        for line in ROWS.read_text("utf-8").splitlines():
            row: dict[str, Any] = json.loads(line)
            table = row.pop("table")
            values = {name: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for name, v in row.items()}
            names = ", ".join(f'"{name}"' for name in values)
            marks = ", ".join(f":{name}" for name in values)
            connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT setval(pg_get_serial_sequence('journal', 'seq'), max(seq)) FROM journal"))
    engine.dispose()
