"""State that an older schema has no place for: named before a downgrade, exported first, and imported again.

An export is JSON lines: a heading, then a row of a table a line, with the stored body as the JSON that it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, LargeBinary, Select, Table, func, insert, select

from agent.ledger import codec
from agent.ledger.kept import Kept
from agent.ledger.schema import decisions
from domain.errors import BadInput, LedgerUnavailable

VERSION: Final = 1
HEADING: Final = "trimtab ledger export"
ONE_TABLE_SINCE: Final = "0006"
"""The schema since which the decisions of every kind are in one table."""

_BATCH: Final = 500
_EARLIER: Final[Mapping[str, Mapping[str, str]]] = {
    "admission_decisions": {"cluster": "subject", "deployment_id": "about"},
    "oversubscription_decisions": {"pool": "subject"},
}
"""Tables of decisions in exports of earlier versions, `<decision>_decisions`, and what their columns are called now."""


def export_lost(
    connection: Connection, current: str, target: str, kept: Sequence[Kept], lose: Collection[str], path: Path | None
) -> Path | None:
    """Write to `path` what schema `target` has no place for; return it, None when nothing is lost.

    kept: what each decision keeps. BadInput when one that holds something, and must be named, is not among those to
    `lose`, or when no path is given; LedgerUnavailable when the file cannot be written. The caller drops the tables in
    the same transaction, and only after this.
    """
    kept = _with_unknown(connection, kept)
    names = [each.name for each in kept if each.since > "0001" and each.must_be_named]
    unknown = sorted(set(lose) - set(names))
    if unknown:
        raise BadInput("--lose", unknown[0], f"give one of {', '.join(names)}")
    held = {each: _counts(connection, each) for each in kept if target < each.since <= current}
    held = {each: counts for each, counts in held.items() if any(counts.values())}
    staying = [each for each in held if each.must_be_named and each.name not in lose]
    if staying:
        found = "; ".join(f"{each.name}: {_words(held[each])}" for each in staying)
        options = " ".join(f"--lose {each.name}" for each in staying)
        remedy = (
            f"it cannot store a part of the ledger ({found}); add {options} to export and remove that "
            "part, or keep the schema"
        )
        raise BadInput("schema", target, f"{remedy} with schema {current}")
    if not held:
        return None
    if path is None:
        raise BadInput("--export", "", "name a file for the removed rows")
    _write(connection, current, list(held), path)
    return path


def import_rows(connection: Connection, path: Path, kept: Sequence[Kept]) -> int:
    """Put the rows of an export back and return how many there were.

    BadInput when the file is none, is damaged, or when the ledger already holds rows of the same decision.
    """
    tables = {table.name: table for each in kept for table in each.tables} | {decisions.name: decisions}
    owners = {table.name: each.name for each in kept for table in each.tables}
    found = {owners.get(name) or row["decision"] for name, row in _rows(path, tables)}
    for each in kept:
        counts = _counts(connection, each)
        if each.name in found and any(counts.values()):
            remedy = f"the ledger holds {each.name} already ({_words(counts)}): import into one that holds none"
            raise BadInput("export", str(path), remedy)
    done, table, batch = 0, "", list[dict[str, Any]]()
    for name, row in _rows(path, tables):
        if batch and (name != table or len(batch) == _BATCH):
            connection.execute(insert(tables[table]), batch)
            batch = []
        table = name
        batch.append(row)
        done += 1
    if batch:
        connection.execute(insert(tables[table]), batch)
    return done


def _with_unknown(connection: Connection, kept: Sequence[Kept]) -> list[Kept]:
    """Return what is kept, with the decisions in the ledger whose package is not installed now."""
    known = {each.name for each in kept}
    # A decision whose body is in the journal stays there.
    query = select(decisions.c.decision).where(decisions.c.body.is_not(None)).distinct()
    there = connection.execute(query.order_by(decisions.c.decision)).scalars()
    return [*kept, *(Kept(name, ONE_TABLE_SINCE) for name in there if name not in known)]


def _queries(each: Kept) -> Iterator[tuple[str, Table, Select[Any]]]:
    """Yield what a decision keeps: a word for it, the table, and the query for its rows."""
    for table in each.tables:
        yield table.name.partition("_")[2] or table.name, table, select(table)
    yield "decisions", decisions, select(decisions).where(decisions.c.decision == each.name)


def _counts(connection: Connection, each: Kept) -> dict[str, int]:
    return {
        word: connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()
        for word, _, query in _queries(each)
    }


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _write(connection: Connection, current: str, kept: Sequence[Kept], path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps({HEADING: VERSION, "schema": current}) + "\n")
                for each in kept:
                    for _, table, query in _queries(each):
                        for row in connection.execute(query).mappings():
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
    return (json.loads(codec.unpack(value)) if value else "") if isinstance(value, bytes) else value


def _rows(path: Path, tables: Mapping[str, Table]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each row of an export with the name of its table."""
    try:
        with path.open(encoding="utf-8") as file:
            heading = json.loads(file.readline() or "null")
            if not isinstance(heading, dict) or heading.get(HEADING) != VERSION:
                raise BadInput("export", str(path), f"give a file that `trimtab ledger downgrade` wrote ({HEADING})")
            for number, line in enumerate(file, start=2):
                found = json.loads(line)
                try:
                    name, row = _renamed(found["table"], found["row"])
                    yield name, _stored(tables[name], row)
                except (KeyError, TypeError, AttributeError) as error:
                    raise BadInput("export", str(path), f"line {number} is damaged ({error!r})") from None
    except (OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput("export", str(path), f"it cannot be read: {error}") from None


def _renamed(name: str, row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the table and the row as they are called now."""
    if name not in _EARLIER:
        return name, row
    blank = {"kind": "", "about": "", "inputs": None, "changed": int(row["body"].get("admit", False))}
    renamed = {_EARLIER[name].get(column, column): value for column, value in row.items()}
    return decisions.name, {**blank, **renamed, "decision": name.removesuffix("_decisions")}


def _stored(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    if row.keys() != {column.name for column in table.columns}:
        raise KeyError(f"columns {', '.join(row)}")
    binary = {column.name: column for column in table.columns if isinstance(column.type, LargeBinary)}
    stored = {}
    for name, value in row.items():
        if name in binary and value:
            value = codec.pack(codec.encode_mapping(value))
        elif name in binary and not binary[name].nullable:
            value = b""
        stored[name] = value
    return stored
