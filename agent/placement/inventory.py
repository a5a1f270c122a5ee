"""Inventories of a pool: the document of its file, with the applications that come over HTTP.

Both stand in one document in the ledger, under the same rules. An application has one source: the file cannot be
changed over HTTP, and a file that lists what came over HTTP is not followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from agent.placement.book import Book, listed_in
from agent.placement.records import HostRecord, HostState, Origin
from domain.errors import BadInput, StateConflict
from domain.rules.placement.instance import Application, Instance

WORKED_BY: Final = ("version", "host_types", "applications", "snapshot")
"""What of an inventory the ledger keeps: all of it was checked."""


def merged(book: Book, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an inventory file's document with the applications that came over HTTP; BadInput where it lists one."""
    document = {key: document[key] for key in WORKED_BY if key in document}
    if not book.over_http:
        return document
    listed = document.get("applications", [])
    both = sorted(book.over_http & {entry["id"] for entry in listed})
    if both:
        remedy = "delete them over HTTP (DELETE .../applications/NAME), or leave them out of the file"
        raise BadInput("inventory_file", ", ".join(both), f"these applications came over HTTP: {remedy}")
    put = [entry for name, entry in entries_of(book).items() if name in book.over_http]
    return {**document, "applications": [*listed, *put]}


def entries_of(book: Book) -> dict[str, Any]:
    """Return the applications of the inventory in force as its document has them, by name."""
    return {entry["id"]: entry for entry in (book.document or {}).get("applications", [])}


def check_source(book: Book, name: str) -> None:
    """Raise StateConflict for an application of the inventory file."""
    if name in entries_of(book) and name not in book.over_http:
        raise StateConflict("application", name, "the pool's inventory file lists it: change it there")


def check_fits(book: Book, app: Application) -> None:
    """Raise BadInput for a container that is larger than every host there is, or for a label that none has."""
    hosts = [(kind.capacity, kind.label) for kind in book.instance.hosts]
    hosts += [(record.rated or record.capacity, record.label) for record in book.records.values()]
    if not hosts:
        return
    if not any(all(map(int.__le__, app.demand, size)) for size, _ in hosts):
        raise BadInput("cores", app.demand, "a container is larger than every host: make it smaller, or add a host")
    if app.label and app.label not in {label for _, label in hosts}:
        raise BadInput("label", app.label, "no host of the pool has this label")


def changed_hosts(book: Book, instance: Instance, *, same_file: bool) -> dict[str, HostRecord]:
    """Return the hosts with a record, or with containers, that a new inventory changes.

    One that it does not list drains. One that it lists for the first time, again, or otherwise than before has the size
    and label that it says; whether operators drained it or it failed stays. same_file: only the rate by which cores are
    divided is another one, so that a size that an operator ordered holds.
    """
    kinds = {kind.name: kind for kind in instance.hosts}
    held = {name for one in book.reservations.values() for name in one.hosts.values()}
    changed: dict[str, HostRecord] = {}
    for name in sorted(held | set(book.records)):
        record, was, now = book.record_of(name), book.listed(name), listed_in(kinds, name)
        if record.origin is Origin.FLEET or (was is None and now is None):
            continue
        if now is None:
            if record.origin is Origin.INVENTORY and record.state is HostState.UP:
                changed[name] = replace(record, state=HostState.DRAINING)
        elif was is None or (was.capacity, was.label) != (now.capacity, now.label):
            back = record.state is HostState.DRAINING and not record.ordered
            resized = same_file and record.rated not in (None, record.capacity)
            changed[name] = replace(
                record,
                capacity=record.capacity if resized else now.capacity,
                rated=now.capacity,
                label=now.label,
                origin=Origin.INVENTORY,
                state=HostState.UP if back else record.state,
            )
    return changed
