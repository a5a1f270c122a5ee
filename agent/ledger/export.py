"""State that an older schema has no place for: named before a downgrade, exported first, and imported again.

An export is JSON lines: a heading, then a row of a table a line, with the stored body as the JSON that it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, LargeBinary, Table, func, insert, select

from agent.ledger import codec, schema
from domain.errors import BadInput, LedgerUnavailable

VERSION: Final = 1
HEADING: Final = "trimtab ledger export"
_BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Part:
    """State that came with the schema `since`, by the name under which an operator lets it go."""

    name: str
    since: str
    tables: tuple[Table, ...]


PARTS: Final = (
    Part(
        "admission",
        "0003",
        (
            schema.admission_clusters,
            schema.admission_deployments,
            schema.admission_events,
            schema.admission_decisions,
        ),
    ),
    Part("oversubscription", "0004", (schema.oversubscription_decisions,)),
)
_TABLES: Final = {table.name: table for part in PARTS for table in part.tables}


def export_lost(
    connection: Connection, current: str, target: str, lose: Collection[str], path: Path | None
) -> Path | None:
    """Write to `path` what schema `target` has no place for; return it, None when nothing is lost.

    BadInput when a part that holds something is not among those to `lose`, or no path is given; LedgerUnavailable when
    the file cannot be written. The caller drops the tables in the same transaction, and only after this.
    """
    unknown = sorted(set(lose) - {part.name for part in PARTS})
    if unknown:
        raise BadInput("--lose", unknown[0], f"give one of {', '.join(part.name for part in PARTS)}")
    held = {part: _counts(connection, part) for part in PARTS if target < part.since <= current}
    held = {part: counts for part, counts in held.items() if any(counts.values())}
    kept = [part for part in held if part.name not in lose]
    if kept:
        told = "; ".join(f"{part.name}: {_words(held[part])}" for part in kept)
        options = " ".join(f"--lose {part.name}" for part in kept)
        remedy = (
            f"it has no place for what the ledger holds ({told}); add {options} to export that and drop it, or stay"
        )
        raise BadInput("schema", target, f"{remedy} with schema {current}")
    if not held:
        return None
    if path is None:
        raise BadInput("--export", "", "name the file to write what is lost to")
    _write(connection, current, [table for part in held for table in part.tables], path)
    return path


def import_rows(connection: Connection, path: Path) -> int:
    """Put the rows of an export back and return how many there were.

    BadInput when the file is none, is damaged, or when the ledger already holds rows of the same part.
    """
    names = {name for name, _ in _rows(path)}
    for part in PARTS:
        counts = _counts(connection, part)
        if names & {table.name for table in part.tables} and any(counts.values()):
            remedy = f"the ledger holds {part.name} already ({_words(counts)}): import into one that holds none"
            raise BadInput("export", str(path), remedy)
    done, table, batch = 0, "", list[dict[str, Any]]()
    for name, row in _rows(path):
        if batch and (name != table or len(batch) == _BATCH):
            connection.execute(insert(_TABLES[table]), batch)
            batch = []
        table = name
        batch.append(row)
        done += 1
    if batch:
        connection.execute(insert(_TABLES[table]), batch)
    return done


def _counts(connection: Connection, part: Part) -> dict[str, int]:
    found = {}
    for table in part.tables:
        found[table.name.partition("_")[2]] = connection.execute(select(func.count()).select_from(table)).scalar_one()
    return found


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _write(connection: Connection, current: str, tables: Sequence[Table], path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps({HEADING: VERSION, "schema": current}) + "\n")
                for table in tables:
                    for row in connection.execute(select(table)).mappings():
                        plain = {name: _plain(value) for name, value in row.items()}
                        file.write(json.dumps({"table": table.name, "row": plain}, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LedgerUnavailable(
            f"{path} cannot be written ({error.strerror or error}), nothing was dropped: name another file by --export"
        ) from error


def _plain(value: Any) -> Any:
    return json.loads(codec.unpack(value)) if isinstance(value, bytes) else value


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each row of an export with the name of its table."""
    try:
        with path.open(encoding="utf-8") as file:
            heading = json.loads(file.readline() or "null")
            if not isinstance(heading, dict) or heading.get(HEADING) != VERSION:
                raise BadInput("export", str(path), f"give a file that `trimtab ledger downgrade` wrote ({HEADING})")
            for number, line in enumerate(file, start=2):
                found = json.loads(line)
                try:
                    yield found["table"], _stored(_TABLES[found["table"]], found["row"])
                except (KeyError, TypeError, AttributeError) as error:
                    raise BadInput("export", str(path), f"line {number} is damaged ({error!r})") from None
    except (OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput("export", str(path), f"it cannot be read: {error}") from None


def _stored(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    if row.keys() != {column.name for column in table.columns}:
        raise KeyError(f"columns {', '.join(row)}")
    binary = {column.name for column in table.columns if isinstance(column.type, LargeBinary)}
    return {
        name: codec.pack(codec.encode_mapping(value)) if name in binary and value is not None else value
        for name, value in row.items()
    }
