"""The durable record: journal of decisions, intents, outcomes and events, and the loop's state, in one database."""

from agent.ledger.database import sqlite_path
from agent.ledger.identity import LedgerOwner
from agent.ledger.ledger import Ledger
from agent.ledger.lock import lock_directory, lock_ledger
from agent.ledger.records import Compacted, DecisionRecord, DecisionRow, IntentRecord, JournalEntry, Kind

__all__ = [
    "Compacted",
    "DecisionRecord",
    "DecisionRow",
    "IntentRecord",
    "JournalEntry",
    "Kind",
    "Ledger",
    "LedgerOwner",
    "lock_directory",
    "lock_ledger",
    "sqlite_path",
]
