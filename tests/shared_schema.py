"""A pytest plugin: a new SQLite ledger gets its schema by the statements that alembic sent for the first one.

Tests make thousands of ledgers, and alembic loads and compiles every revision for each of them. A ledger that has a
schema already goes through alembic as ever.
"""

from __future__ import annotations

import sys
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection


def pytest_collection_finish() -> None:
    # A run of tests that know no ledger shall not load one.
    if "agent.ledger.migrations" not in sys.modules:
        return
    from sqlalchemy import event, inspect

    from agent.ledger import migrations

    plain = migrations.upgrade
    sent: list[tuple[str, Any]] = []

    def upgrade(connection: Connection) -> None:
        if connection.dialect.name != "sqlite" or inspect(connection).get_table_names():
            plain(connection)
        elif sent:
            for statement, parameters in sent:
                if "INSERT INTO ledger_identity" in statement:
                    # Every ledger is another one.
                    parameters = (uuid.uuid4().hex, *parameters[1:])
                connection.exec_driver_sql(statement, parameters)
        else:
            noted: list[tuple[str, Any]] = []

            def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
                noted.append((statement, parameters))

            event.listen(connection, "before_cursor_execute", note)
            try:
                plain(connection)
            finally:
                event.remove(connection, "before_cursor_execute", note)
            sent[:] = noted

    migrations.upgrade = upgrade
