"""Compresses the inputs of decisions with a dictionary: the inputs of an earlier decision of the same subject.

Inputs change little from minute to minute. A dictionary is stored whole, once for up to DECISIONS_EACH decisions, so
that any decision is read with at most one further row, and a damaged dictionary costs no other decisions.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, delete, exists, insert, select

from agent.ledger import codec
from agent.ledger.schema import decisions, dictionaries
from domain.errors import LedgerError

DECISIONS_EACH: Final = 30
"""How many decisions share a dictionary: more of them differ too much from it."""

OF_DECISION: Final[ColumnElement[bool]] = dictionaries.c.dictionary_id == decisions.c.dictionary
"""Joins a decision with its dictionary, which it need not have."""

DICTIONARY: Final = dictionaries.c.body.label("dictionary_body")
"""A column that `unpacked` reads of such a join, with `decision_id`, `inputs` and `dictionary`."""

_KEPT_TEXTS: Final = 64
_MOST_AGE_S: Final = 86_400.0


@dataclass(slots=True)
class _Dictionary:
    """A subject's dictionary of the moment. dictionary_id: None until it is written."""

    at: float
    text: bytes
    dictionary_id: int | None = None
    decisions: int = 0

    def serves(self, at: float) -> bool:
        return self.decisions < DECISIONS_EACH and 0.0 <= at - self.at < _MOST_AGE_S


class Dictionaries:
    """The dictionaries with which one process writes: it begins with new ones."""

    def __init__(self) -> None:
        self._of_subject: dict[str, _Dictionary] = {}
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Let one thread pack and write at a time; after an error every subject gets a new dictionary."""
        with self._turn:
            try:
                yield
            except BaseException:
                self._of_subject.clear()
                raise

    def pack(self, subject: str, at: float, text: bytes) -> tuple[bytes, _Dictionary | None]:
        """Return a decision's inputs as they are stored, and the dictionary to write with them."""
        if len(text) < codec.PACK_FROM_BYTES:
            return text, None
        if len(text) > codec.WINDOW_BYTES:
            return codec.pack(text), None
        used = self._of_subject.get(subject)
        if used is None or not used.serves(at):
            used = self._of_subject[subject] = _Dictionary(at, text)
        used.decisions += 1
        return codec.pack(text, used.text), used


def write(connection: Connection, used: Sequence[_Dictionary | None]) -> list[int | None]:
    """Return the ids of dictionaries, None for none, after writing the new ones."""
    new = list({id(one): one for one in used if one is not None and one.dictionary_id is None}.values())
    if new:
        inserted = insert(dictionaries).returning(dictionaries.c.dictionary_id, sort_by_parameter_order=True)
        rows = connection.execute(inserted, [{"at": one.at, "body": codec.pack(one.text)} for one in new])
        for one, dictionary_id in zip(new, rows.scalars().all(), strict=True):
            one.dictionary_id = dictionary_id
    return [None if one is None else one.dictionary_id for one in used]


def unpacked(row: Any) -> bytes:
    """Return the inputs of a decision as canonical JSON, empty for none; see OF_DECISION and DICTIONARY.

    LedgerError, with the decision and the remedy, when they or their dictionary are damaged.
    """
    if not row.inputs:
        return b""
    try:
        return codec.unpack(row.inputs, b"" if row.dictionary is None else _text(row.dictionary_body))
    except LedgerError as error:
        where = "" if row.dictionary is None else f", or row {row.dictionary} of the table dictionaries"
        spared = "all other rows" if row.dictionary is None else "decisions with another dictionary"
        raise LedgerError(
            f"the inputs of decision {row.decision_id} cannot be read: its row{where} is damaged ({error}). "
            f"Put a copy of the ledger in its place with `trimtab ledger restore FILE`; {spared} stay readable"
        ) from error


@lru_cache(_KEPT_TEXTS)
def _text(body: bytes | None) -> bytes:
    if body is None:
        raise LedgerError("it is missing")
    return codec.unpack(body)


def forget(connection: Connection, before: float, most: int) -> int:
    """Remove at most `most` dictionaries from before a time that no decision uses, and return their number."""
    is_used = exists().where(decisions.c.dictionary == dictionaries.c.dictionary_id)
    due = (
        select(dictionaries.c.dictionary_id)
        .where(dictionaries.c.at < before, ~is_used)
        .order_by(dictionaries.c.at)
        .limit(most)
    )
    return connection.execute(delete(dictionaries).where(dictionaries.c.dictionary_id.in_(due))).rowcount
