"""The parts that are installed: found by the entry points `trimtab.decisions`, ours and those of other packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from agent.kernel.decision import Capacity, ContainerRoom, Host, Part, Status, Summary, one_subject
from agent.kernel.store import DecisionStore, Record
from agent.ledger import Ledger
from agent.ledger.kept import StoredState
from agent.ledger.leases import differences
from agent.settings.plug_ins import DECISIONS, installed, load, refused
from domain.errors import BadInput, UnknownName
from domain.subject import AUTOSCALING, Subject


@cache
def kinds() -> tuple[type[Part], ...]:
    """Return the class of every installed part in the order in which they turn.

    ConfigurationError when two packages bring a part of one name, or when one cannot be loaded.
    """
    found: list[type[Part]] = [
        load(DECISIONS, name, partial(_is_part, name), f"a class that derives from Part and whose name is {name!r}")
        for name in installed(DECISIONS)
    ]
    _check_letters(found)
    return tuple(sorted(found, key=lambda kind: (kind.order, kind.name)))


def _check_letters(found: Sequence[type[Part]]) -> None:
    """Raise ConfigurationError for a part whose decisions could have the ids of another's; ours come first."""
    taken: dict[str, str] = {}
    for kind in sorted(found, key=lambda kind: (not kind.__module__.startswith("agent."), kind.name)):
        letters = kind.letters()
        if letters in taken or not re.fullmatch("[a-z]*", letters):
            whose = f"those of {taken[letters]}" if letters in taken else "no small letters"
            remedy = f"the letters of its decisions' ids, {letters!r}, are {whose}: give it another id_letters"
            raise refused(DECISIONS, installed(DECISIONS)[kind.name], remedy)
        taken[letters] = kind.name


def _is_part(name: str, kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Part) and getattr(kind, "name", None) == name


def kept() -> tuple[StoredState, ...]:
    """Return what every installed part keeps in the ledger."""
    own = (kind.kept or StoredState(kind.name) for kind in kinds())
    return (*own, *(beside for kind in kinds() for beside in kind.kept_beside))


class Parts(Sequence[Part]):
    """The parts of one agent or verb, in the order in which they turn."""

    def __init__(self, parts: Sequence[Part], ledger: Ledger) -> None:
        self._parts = tuple(parts)
        self.ledger = ledger
        self._store = DecisionStore(ledger.database)

    def __getitem__(self, index: int) -> Part:  # type: ignore[override]  # a slice of parts is never asked for
        return self._parts[index]

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def named(self, name: str) -> Part:
        """Return the part of a name; UnknownName lists those there are."""
        for part in self._parts:
            if part.name == name:
                return part
        raise UnknownName("DECISION", name, f"choose one of: {', '.join(part.name for part in self._parts)}")

    def called(self, wanted: str) -> list[tuple[Part, str]]:
        """Return the subjects, each with its part, that `name` or `decision/name` may mean."""
        there = [(part, name) for part in self._parts for name in part.subjects()]
        return [(part, name) for part, name in there if wanted in (name, f"{part.name}/{name}")]

    def meant(self, wanted: str | None, *, field: str) -> tuple[Part, str]:
        """Return the one subject that `name` or `decision/name` means, with its part; None means the only fleet.

        BadInput for the name of several decisions' subjects, UnknownName for none's; both list those there are.
        """
        if wanted is None:
            part = self.named(AUTOSCALING)
            return part, one_subject(part, None, field=field)
        found = self.called(wanted)
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(f"{part.name}/{name}" for part, name in found)
            raise BadInput(field, wanted, f"several decisions have a subject of this name, choose one of: {several}")
        there = ", ".join(f"{part.name}/{name}" for part in self._parts for name in part.subjects())
        raise UnknownName(field, wanted, f"choose one of: {there or '(none)'}")

    def find(self, decision_id: str) -> tuple[Part, Record]:
        """Return a decision and its part; UnknownName when there is none of that id, or its package is not there."""
        record = self._store.get(decision_id)
        return self.named(record.decision), record

    def summary(self, record: Record) -> Summary:
        """Return a decision in short; one whose package is not installed by its id alone."""
        part = next((part for part in self._parts if part.name == record.decision), None)
        return Summary(f"{record.decision} is not installed", "") if part is None else part.summary(record)

    def capacity(self, decision: str, subject: str) -> Capacity | None:
        """Return what a part knows of a subject's capacity, None where there is no such part or subject."""
        part = next((each for each in self._parts if each.name == decision), None)
        return None if part is None or subject not in part.subjects() else part.capacity(subject)

    def room(self, pool: str, application: str) -> ContainerRoom | None:
        """Return the room of a pool of hosts for an application, None for an unknown pool; UnknownName."""
        return next((found for part in self._parts if (found := part.room(pool, application)) is not None), None)

    def retained(self, subject: str) -> frozenset[str]:
        """Return the VMs of a fleet that some part needs where they are."""
        return frozenset[str]().union(*(part.retained(subject) for part in self._parts))

    def statuses(self, wanted: Iterable[tuple[Part, str]], now: float) -> Iterator[tuple[Part, Status]]:
        """Yield the status of each of these subjects, on a shared ledger with its leader, or the reason for none."""
        roster = self.ledger.roster() if self.ledger.shared else None
        differing = {} if roster is None else differences(roster)
        for part, name in wanted:
            status = part.status(name, now)
            if roster is not None:
                subject = Subject(part.name, name)
                lease = roster.leases.get(subject)
                led = f"led by {lease.agent} under epoch {lease.epoch}" if lease else "led by no agent"
                if lease is None and (why := differing.get(subject) or roster.absence(subject)):
                    led += f": {why}"
                of_lease = {"led_by": lease.agent, "epoch": lease.epoch} if lease else {"led_by": None, "epoch": None}
                data = {**status.data, **of_lease}
                status = replace(status, lines=(*status.lines, f"  {led}"), data=data)
            yield part, status

    def choose(self, decision: str | None, subject: str | None) -> list[tuple[Part, str]]:
        """Return the subjects meant, each with its part: all, those of one decision, or those of one name.

        BadInput or UnknownName lists what there is.
        """
        parts = [self.named(decision)] if decision is not None else list(self._parts)
        found = [(part, name) for part in parts for name in part.subjects() if subject in (None, name)]
        if subject is not None and not found:
            there = ", ".join(f"{part.name} {name}" for part in parts for name in part.subjects()) or "(none)"
            raise UnknownName("SUBJECT", subject, f"choose one of: {there}")
        return found


def parts_of(host: Host) -> Parts:
    """Return every installed part, made from this host; each can ask the others for their capacity."""
    parts: Parts | None = None

    def capacity(decision: str, subject: str) -> Capacity | None:
        return None if parts is None else parts.capacity(decision, subject)

    def groups() -> Mapping[tuple[str, str], str]:
        return {} if parts is None else {place: name for part in parts for place, name in part.groups().items()}

    def room(pool: str, application: str) -> ContainerRoom | None:
        return None if parts is None else parts.room(pool, application)

    def retained(subject: str) -> frozenset[str]:
        return frozenset() if parts is None else parts.retained(subject)

    shared = replace(host, capacity=capacity, room=room, groups=groups, retained=retained)
    parts = Parts([kind(shared) for kind in kinds()], host.ledger)
    return parts
