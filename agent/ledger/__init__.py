"""The durable record: journal of decisions, intents, outcomes and events, and the loop's state, in one database."""

from agent.ledger.database import sqlite_path
from agent.ledger.identity import LedgerOwner
from agent.ledger.journal import JournalEntry, Kind
from agent.ledger.ledger import Ledger
from agent.ledger.lock import lock_directory, lock_ledger
from agent.ledger.retention import Compaction

__all__ = [
    "Compaction",
    "JournalEntry",
    "Kind",
    "Ledger",
    "LedgerOwner",
    "lock_directory",
    "lock_ledger",
    "sqlite_path",
]
