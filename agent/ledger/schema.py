"""The ledger's tables, as the newest migration leaves them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    text,
)

REVISIONS: Final = ("0010", "0011", "0012", "0013", "0014")
"""Every schema revision that this code takes up, oldest first; the last is the one it works with."""

metadata = MetaData()

Seq = BigInteger().with_variant(Integer, "sqlite")

# Append-only. `seq` is the global order for readers to resume by, never used twice. `ref`: a decision's or intent's id,
# or an event's `about`. `decision`: "" in rows of the agent itself, and in those before 0012.
journal = Table(
    "journal",
    metadata,
    Column("seq", Seq, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("subject", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("ref", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("decision", String, nullable=False, server_default=""),
    Index("journal_by_ref", "ref"),
    Index("journal_by_fleet", "subject", "seq"),
    Index("journal_by_time", "at"),
    sqlite_autoincrement=True,
)

# Dictionaries that compress the inputs of decisions: inputs of an earlier decision. `at`: of that decision.
dictionaries = Table(
    "dictionaries",
    metadata,
    Column("dictionary_id", Seq, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("dictionaries_by_time", "at"),
    sqlite_autoincrement=True,
)

# One row per decision, of every kind. `decision`: whose it is (autoscaling, admission, ...). `kind`: such as hour or
# request, where it makes several. `number`: counts the subject's decisions, where they are numbered. `request_id`: the
# request that it answers, NULL where that may come again. `about`: what within the subject it concerns. `body`: the
# decision; NULL where the journal's row of the decision holds it. `inputs`: what it was made on, empty for nothing.
# `dictionary`: of the inputs, NULL for none.
decisions = Table(
    "decisions",
    metadata,
    Column("decision_id", String, primary_key=True),
    Column("subject", String, nullable=False),
    Column("at", Double, nullable=False),
    Column("changed", SmallInteger, nullable=False),
    Column("inputs", LargeBinary, nullable=False),
    Column("decision", String, nullable=False, server_default="autoscaling"),
    Column("kind", String, nullable=False, server_default=""),
    Column("number", Seq),
    Column("request_id", String),
    Column("about", String, nullable=False, server_default=""),
    Column("body", LargeBinary),
    Column("dictionary", Seq, ForeignKey("dictionaries.dictionary_id")),
    Index("decisions_by_subject", "decision", "subject", "at"),
    Index("decisions_by_time", "at"),
    Index("decisions_that_changed", "at", sqlite_where=text("changed = 1"), postgresql_where=text("changed = 1")),
    Index(
        "decisions_by_dictionary",
        "dictionary",
        sqlite_where=text("dictionary IS NOT NULL"),
        postgresql_where=text("dictionary IS NOT NULL"),
    ),
    Index("decisions_by_number", "decision", "subject", "number", unique=True),
    Index("one_decision_per_request", "decision", "subject", "request_id", unique=True),
)

# The present state of each intent; what it went through stands in the journal.
intents = Table(
    "intents",
    metadata,
    Column("intent_id", String, primary_key=True),
    Column("decision_id", String, ForeignKey("decisions.decision_id"), nullable=False),
    Column("fleet", String, nullable=False),
    Column("group_key", String, nullable=False),
    Column("state", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("closed_at", Double),
    Column("intent", LargeBinary, nullable=False),
    Column("outcome", LargeBinary),
    Index("intents_of_decision", "decision_id"),
    Index(
        "one_open_intent_per_group",
        "fleet",
        "group_key",
        unique=True,
        sqlite_where=text("state = 'open'"),
        postgresql_where=text("state = 'open'"),
    ),
)

# What is overwritten. `owner`: the name of a subject, "" for the agent. The daemon writes the key "loop", operators
# "pause.<decision>.<scope>" and "pin.<decision>": neither can undo the other.
state = Table(
    "state",
    metadata,
    Column("owner", String, primary_key=True),
    Column("key", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

# One row per epoch there ever was. `subject`: its path, "" for all subjects; its highest epoch leads. `owner`: the
# process.
leader = Table(
    "leader",
    metadata,
    Column("epoch", Seq, primary_key=True, autoincrement=False),
    Column("owner", String, nullable=False),
    Column("since", Double, nullable=False),
    Column("subject", String, nullable=False, server_default=""),
    Index("leader_by_subject", "subject", "epoch"),
)

# One row: which ledger this is, how many transactions wrote to it, and which agents it belongs to once one has led.
identity = Table(
    "ledger_identity",
    metadata,
    Column("ledger_id", String, primary_key=True),
    Column("generation", Seq, nullable=False),
    Column("account", String),
    Column("region", String),
    Column("deployment", String),
)

# One row per minute and fleet, kept far longer than its decision: what learning needs of it. `minute`: its end in whole
# seconds. `context`: the settings of then. `body`: see `agent.autoscaling.minutes`. It is read in the order of `seq`:
# there a clock that was set back shows.
learning_minutes = Table(
    "learning_minutes",
    metadata,
    Column("seq", Seq, primary_key=True, autoincrement=True),
    Column("fleet", String, nullable=False),
    Column("minute", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("context", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("learning_minutes_by_fleet", "fleet", "seq"),
)

# Fleet, policy and settings under which minutes were decided, once for all of them; `context` is made of the content.
learning_contexts = Table(
    "learning_contexts",
    metadata,
    Column("context", BigInteger, primary_key=True, autoincrement=False),
    Column("fleet", String, nullable=False),
    Column("at", Double, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# One row per hour and pool, kept as long. `whole`: whether it says all, else only what changed since the row before.
# `body`: see `agent.oversubscription.recorded_hours`. It is read in the order of `seq`.
learning_hours = Table(
    "learning_hours",
    metadata,
    Column("seq", Seq, primary_key=True, autoincrement=True),
    Column("pool", String, nullable=False),
    Column("hour", BigInteger, nullable=False),
    Column("whole", SmallInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("learning_hours_by_pool", "pool", "seq"),
)

# The leader of each subject of a ledger that several agents share, as long as its process `owner` lives: see `agent`.
# Subject "": an agent of a version before 0014 leads everything until `expires_at`, by the database's own clock.
lease = Table(
    "lease",
    metadata,
    Column("epoch", Seq, primary_key=True, autoincrement=False),
    Column("owner", String, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("subject", String, nullable=False, server_default=""),
    Index("lease_by_subject", "subject", unique=True),
)

# The agents that share a ledger. `process`: of that name. `revision`: the schema that it works with. `ready`:
# whether it takes subjects. `expires_at`: when its leases are over, by the database's own clock. `settings`: packed
# JSON, the digest of the settings of each subject by its path. `relay`: host and port for forwarded lines, or "".
agent = Table(
    "agent",
    metadata,
    Column("name", String, primary_key=True),
    Column("process", String, nullable=False),
    Column("revision", String, nullable=False),
    Column("ready", SmallInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("settings", LargeBinary, nullable=False),
    Column("relay", String, nullable=False),
)
