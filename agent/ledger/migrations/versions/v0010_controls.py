"""Pauses and pins of one decision's subject: a name alone held the subject of that name of every decision.

What is held by a name alone stays held for every decision. Its rows stay too: an agent of the version before, which may
lead until it is stopped, goes on reading them; the way back writes them again.
"""

import json
import zlib
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_DECISIONS = ("admission", "autoscaling", "deferral", "oversubscription", "placement")
_SCOPES = ("all", "in", "out")
_PUT = sa.text("INSERT INTO state (fleet, key, body) VALUES (:fleet, :key, :body)")


def upgrade() -> None:
    connection = op.get_bind()
    plugged_in = connection.execute(sa.text("SELECT DISTINCT decision FROM decisions")).scalars()
    decisions = sorted({*_DECISIONS, *plugged_in})
    for fleet, key, body in _switched(connection):
        scope = key.removeprefix("pause.")
        if key == "pin":
            keys = ["pin.autoscaling"]
        else:
            keys = [f"pause.{decision}.{scope}" for decision in decisions] if scope in _SCOPES else []
        for new in keys:
            connection.execute(_PUT, {"fleet": fleet, "key": new, "body": body})


def downgrade() -> None:
    connection = op.get_bind()
    found: dict[tuple[str, str], bytes] = {}
    for fleet, key, body in _switched(connection):
        kind, _, rest = key.partition(".")
        scope = rest.rpartition(".")[2]
        if kind == "pause" and rest != scope:
            # Of several that one which lasts longest holds, for the name alone.
            before = found.get((fleet, f"pause.{scope}"))
            found[fleet, f"pause.{scope}"] = body if before is None else max(before, body, key=_until)
        elif key == "pin.autoscaling":
            found[fleet, "pin"] = body
    connection.execute(sa.text("DELETE FROM state WHERE key = 'pin' OR key LIKE 'pause.%' OR key LIKE 'pin.%'"))
    for (fleet, key), body in found.items():
        connection.execute(_PUT, {"fleet": fleet, "key": key, "body": body})


def _switched(connection: sa.Connection) -> list[tuple[str, str, bytes]]:
    query = "SELECT fleet, key, body FROM state WHERE key = 'pin' OR key LIKE 'pause.%' OR key LIKE 'pin.%'"
    return [(row.fleet, row.key, bytes(row.body)) for row in connection.execute(sa.text(query))]


def _until(stored: bytes) -> float:
    try:
        body: Any = json.loads(stored if stored.startswith(b"{") else zlib.decompress(stored))
    except (ValueError, zlib.error):
        # A body that is damaged is reported when it is read; it must not keep the ledger from its schema.
        return 0.0
    until = body.get("until")
    return float("inf") if until is None else float(until)
