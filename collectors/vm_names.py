"""The VM names that may hold readings: those in an inventory, and a bounded number of others that wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from collectors.base import address_of
from domain.errors import RejectReason

N = TypeVar("N", bound=Hashable)

Place = tuple[str, str]
"""Fleet and group key; of a pool its name and ""."""

COLLECTIONS: Final = 2
"""Collections in a row without a name after which it is dropped."""
SPARE: Final = 16
"""Names that may wait in addition to the VMs that the place can have."""


@dataclass(frozen=True, slots=True)
class UnknownVms:
    """The names of a place that no collection has shown.

    waiting: how many hold readings now. refused: how often a name was turned away since the start, after two
    collections or for want of room. name, peer: the last one, and its sender.
    """

    waiting: int
    refused: int
    name: str
    peer: str


@dataclass(slots=True)
class _Place(Generic[N]):
    """One place. shown: by the last collection. missing: collections since, of names shown before.

    waiting: sender and collections since, of names never shown. refused: names turned away, the oldest first.
    elsewhere: another agent collects it, so that names count as shown here.
    """

    quota: int
    shown: set[N] = field(default_factory=set)
    missing: dict[N, int] = field(default_factory=dict)
    waiting: dict[N, tuple[str, int]] = field(default_factory=dict)
    refused: dict[N, None] = field(default_factory=dict)
    collected_at: float | None = None
    refusals: int = 0
    last: tuple[str, str] = ("", "")
    elsewhere: bool = False


class VmNames(Generic[N]):
    """The VM names of several places; the owner of their readings calls it under its lock.

    drop: forgets the readings of a name. most_waiting: names that may wait in all, `per_peer` of one sender.
    """

    def __init__(self, drop: Callable[[Place, N], None], most_waiting: int, per_peer: int) -> None:
        self._drop = drop
        self._most, self._per_peer = most_waiting, per_peer
        self._places: dict[Place, _Place[N]] = {}
        self._of_peer: Counter[str] = Counter()
        self.waiting = 0

    def watch(self, places: Mapping[Place, int], most_waiting: int | None = None) -> None:
        """Take names of these places from now on, each with its most VMs; most_waiting as in the constructor."""
        self._most = self._most if most_waiting is None else most_waiting
        for place in self._places.keys() - places.keys():
            gone = self._places.pop(place)
            for name in list(gone.waiting):
                self._release(gone, name)
                self._drop(place, name)
        for place, most in places.items():
            self._places.setdefault(place, _Place(most + SPARE)).quota = most + SPARE

    def leave(self, places: Set[Place]) -> None:
        """Take the places that other agents collect now, all of them; the other places are collected here."""
        for place, here in self._places.items():
            before, here.elsewhere = here.elsewhere, place in places
            if here.elsewhere and not before:
                # Names without readings would hold their places until this agent collects again.
                here.shown, here.missing, here.refused = set(), {}, {}

    def admit(self, place: Place, name: N, peer: str) -> RejectReason | None:
        """Return None when readings of this name may be held, else why not; peer "" is the agent itself."""
        here, peer = self._places[place], address_of(peer)
        if name in here.shown or name in here.waiting or name in here.missing:
            return None
        if here.elsewhere:
            if len(here.shown) >= here.quota:
                return RejectReason.TOO_MANY_UNKNOWN
            here.shown.add(name)
            return None
        if name in here.refused:
            here.refusals, here.last = here.refusals + 1, (str(name), peer)
            return RejectReason.UNKNOWN_VM
        crowded = (peer and self._of_peer[peer] >= self._per_peer) or self.waiting >= self._most
        if crowded or len(here.waiting) >= here.quota:
            here.refusals, here.last = here.refusals + 1, (str(name), peer)
            return RejectReason.TOO_MANY_UNKNOWN
        here.waiting[name] = peer, 0
        self._of_peer[peer] += 1
        self.waiting += 1
        return None

    def show(self, place: Place, names: Iterable[N], most: int, at: float) -> None:
        """Take in a collection of names, of at most `most` VMs; one of the same time counts once."""
        here = self._places.get(place)
        if here is None:
            return
        shown, counts = set(names), here.collected_at != at
        here.quota, here.collected_at = most + SPARE, at
        for name in shown & here.waiting.keys():
            self._release(here, name)
        for name in shown & here.refused.keys():
            del here.refused[name]
        here.missing = {name: missed for name, missed in here.missing.items() if name not in shown}
        here.missing.update((name, 0) for name in here.shown - shown)
        here.shown = shown
        if counts:
            self._count(place, here)

    def forget(self, place: Place, name: N) -> None:
        """Note that nothing is held of a name any more."""
        here = self._places.get(place)
        if here is not None:
            here.missing.pop(name, None)
            if here.elsewhere:
                here.shown.discard(name)
            if name in here.waiting:
                self._release(here, name)

    def unknown(self) -> Mapping[Place, UnknownVms]:
        """Return by place the names that no collection has shown."""
        return {
            place: UnknownVms(len(here.waiting), here.refusals, *here.last)
            for place, here in self._places.items()
            if not here.elsewhere
        }

    def _count(self, place: Place, here: _Place[N]) -> None:
        for name, missed in list(here.missing.items()):
            here.missing[name] = missed + 1
            if missed + 1 >= COLLECTIONS:
                del here.missing[name]
                self._drop(place, name)
        for name, (peer, missed) in list(here.waiting.items()):
            here.waiting[name] = peer, missed + 1
            if missed + 1 >= COLLECTIONS:
                self._release(here, name)
                self._drop(place, name)
                here.refusals, here.last = here.refusals + 1, (str(name), peer)
                here.refused[name] = None
                if len(here.refused) > here.quota:
                    del here.refused[next(iter(here.refused))]

    def _release(self, here: _Place[N], name: N) -> None:
        peer, _ = here.waiting.pop(name)
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]
        self.waiting -= 1
