"""The applications of a pool that come over HTTP, beside those of its inventory file.

Both stand in one inventory in the ledger, under the same rules. An application has one source: the file cannot be
changed over HTTP, and a file that lists what came over HTTP is not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.placement.book import Book
from agent.placement.records import Changed, Origin
from agent.placement.shared import SharedBook
from agent.placement.state import Change, PoolState
from domain.decisions import Event, Reason
from domain.errors import BadInput, StateConflict, UnknownName
from domain.rules.placement.instance import VERSION, Application, application_document, parse_instance

MOST_APPLICATIONS: Final = 5000
"""That come over HTTP to one pool: every host counts the instances of each."""


_Outcome = tuple[Changed, Book | None]
"""The answer, and the pool from then on where it changes."""


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """An application of a pool: what a container needs, where it may be, its source, and how many containers it has.

    excludes: those that must not share a host with it, whichever side names the other. rack_limit: None without bound.
    containers: that run or are reserved.
    """

    application: str
    cores: int
    memory_gib: int
    disk_gb: int
    limit: int
    excludes: tuple[str, ...]
    rack_limit: int | None
    label: str
    origin: Origin
    containers: int


class PoolApplications:
    """One pool's applications; every method may be called from any thread and raises LedgerUnavailable."""

    def __init__(self, shared: SharedBook) -> None:
        self.shared = shared

    def all(self) -> list[ApplicationView]:
        """Return every application, by name."""
        with self.shared.lock:
            book = self.shared.current()
            return [_view(book, one) for one in sorted(book.cluster.applications, key=lambda one: one.name)]

    def one(self, name: str) -> ApplicationView:
        """Return an application; UnknownName."""
        with self.shared.lock:
            book = self.shared.current()
            return _view(book, book.cluster.applications[book.app(name)])

    def put(self, app: Application) -> Changed:
        """Bring in an application, or change what came over HTTP; the same again changes nothing.

        BadInput for what the inventory file could not say either, or what fits no host of the pool; UnknownName for an
        exclusion of none of its applications. StateConflict for an application of the file, or another size while
        containers of it run. Where containers run against a changed limit or exclusion, they keep running.
        """

        def work(book: Book, now: float) -> tuple[_Outcome, Change | None]:
            entries = _entries(book)
            _check_source(book, app.name)
            _check_fits(book, app)
            for other in sorted(app.excludes):
                if other == app.name:
                    raise BadInput("excludes", other, "an application cannot exclude itself: set its limit to 1")
                if other not in entries:
                    raise UnknownName("excludes", other, "the pool has no application of this name: put it first")
            entry = application_document(app)
            if entries.get(app.name) == entry:
                return (Changed(f"{app.name} is so already", True), None), None
            if app.name not in entries and len(book.over_http) >= MOST_APPLICATIONS:
                raise StateConflict("application", app.name, f"{MOST_APPLICATIONS} came over HTTP: delete some")
            done = f"{app.name} {'changes' if app.name in entries else 'comes'} over HTTP: {app.demand} for a container"
            entries[app.name] = entry
            after, change = self._change(book, now, entries, app.name, done, book.over_http | {app.name})
            return (Changed(done), after), change

        return self._done(work)

    def delete(self, name: str) -> Changed:
        """Forget an application that came over HTTP; UnknownName.

        StateConflict for one of the file, while containers of it run or are reserved, and while others name it.
        """

        def work(book: Book, now: float) -> tuple[_Outcome, Change | None]:
            entries = _entries(book)
            if name not in entries:
                raise UnknownName("application", name, "the pool has no application of this name")
            _check_source(book, name)
            naming = sorted(one for one, entry in entries.items() if name in entry.get("excludes", ()))
            if naming:
                raise StateConflict("application", name, f"{', '.join(naming)} exclude it: change them first")
            held = _containers(book, name)
            if held:
                raise StateConflict("application", name, f"{held} containers of it run or are reserved")
            del entries[name]
            done = f"{name} is deleted over HTTP"
            after, change = self._change(book, now, entries, name, done, book.over_http - {name})
            return (Changed(done), after), change

        return self._done(work)

    def _change(
        self, book: Book, now: float, entries: Mapping[str, Any], name: str, detail: str, over_http: frozenset[str]
    ) -> tuple[Book, Change]:
        """Return the pool with these applications, and its write; StateConflict where what runs forbids it."""
        before = book.document or {"version": VERSION, "name": self.shared.name, "host_types": []}
        document = {**before, "applications": list(entries.values())}
        instance, _ = parse_instance(document, "inventory", hosts_elsewhere=True)
        conflicts = book.document_conflicts(instance)
        if conflicts:
            raise StateConflict("application", name, "; ".join(conflicts))
        note = Event(self.shared.name, now, Reason.INVENTORY_CHANGED, detail, name)
        head = self.shared.next(self.shared.head)
        after = Book(PoolState(head, None, document, book.records, book.reservations, over_http))
        return after, Change(head, inventory=document, over_http=over_http, notes=[note])

    def _done(self, work: Callable[[Book, float], tuple[_Outcome, Change | None]]) -> Changed:
        with self.shared.lock:
            answer, book = self.shared.transact(work)
            if book is not None:
                self.shared.become(book)
            return answer


def merged(book: Book, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an inventory file's document with the applications that came over HTTP; BadInput where it lists one."""
    if not book.over_http:
        return document
    listed = document.get("applications", [])
    both = sorted(book.over_http & {entry["id"] for entry in listed})
    if both:
        remedy = "delete them over HTTP (DELETE .../applications/NAME), or leave them out of the file"
        raise BadInput("inventory_file", ", ".join(both), f"these applications came over HTTP: {remedy}")
    put = [entry for name, entry in _entries(book).items() if name in book.over_http]
    return {**document, "applications": [*listed, *put]}


def _entries(book: Book) -> dict[str, Any]:
    """Return the applications of the inventory in force as its document has them, by name."""
    return {entry["id"]: entry for entry in (book.document or {}).get("applications", [])}


def _check_source(book: Book, name: str) -> None:
    if name in _entries(book) and name not in book.over_http:
        raise StateConflict("application", name, "the pool's inventory file lists it: change it there")


def _check_fits(book: Book, app: Application) -> None:
    """Raise BadInput for a container that is larger than every host there is, or for a label that none has."""
    hosts = [(kind.capacity, kind.label) for kind in book.instance.hosts]
    hosts += [(record.rated or record.capacity, record.label) for record in book.records.values()]
    if not hosts:
        return
    if not any(all(map(int.__le__, app.demand, size)) for size, _ in hosts):
        raise BadInput("cores", app.demand, "a container is larger than every host: make it smaller, or add a host")
    if app.label and app.label not in {label for _, label in hosts}:
        raise BadInput("label", app.label, "no host of the pool has this label")


def _containers(book: Book, name: str) -> int:
    return sum(len(one.hosts) for one in book.reservations.values() if one.application == name)


def _view(book: Book, app: Application) -> ApplicationView:
    return ApplicationView(
        app.name,
        *app.demand,
        app.limit,
        tuple(sorted(app.excludes)),
        app.rack_limit,
        app.label,
        Origin.API if app.name in book.over_http else Origin.INVENTORY,
        _containers(book, app.name),
    )
