"""Brings a ledger's schema to the revision that this code works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection

if TYPE_CHECKING:
    from alembic.config import Config


def upgrade(connection: Connection) -> None:
    """Apply every missing revision inside the caller's transaction."""
    # Loading alembic takes a good part of a second; a ledger that is up to date never needs it.
    from alembic import command

    command.upgrade(_config(connection), "head")


def _config(connection: Connection) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
