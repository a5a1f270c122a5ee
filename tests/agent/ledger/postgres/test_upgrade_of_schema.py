"""A ledger on PostgreSQL that the schema before wrote is taken over with all that it holds."""

from agent.ledger import Ledger
from tests.agent.ledger.old_rows import write_old
from tests.agent.ledger.postgres.server import Server
from tests.agent.ledger.test_upgrade import check_taken_over


def test_a_postgresql_ledger_of_the_schema_before(server: Server) -> None:
    url = server.new_database("ledger_of_schema_0010")
    write_old(url)
    with Ledger.open(url) as ledger:
        check_taken_over(ledger)
