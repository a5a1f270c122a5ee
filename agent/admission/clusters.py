"""The clusters of one agent, each with its service of admission."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.admission.service import AdmissionService
from agent.ledger import Ledger
from agent.settings import Settings
from agent.settings.admission import rules_of
from domain.clock import Clock
from domain.decisions import Event
from domain.errors import BadInput, UnknownName


class Clusters(Mapping[str, AdmissionService]):
    """Services by the name of their cluster; any thread may use them."""

    def __init__(self, services: Mapping[str, AdmissionService]) -> None:
        self._services = dict(services)

    def __getitem__(self, name: str) -> AdmissionService:
        return self._services[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._services)

    def __len__(self) -> int:
        return len(self._services)

    def one(self, name: str | None) -> AdmissionService:
        """Return the cluster of that name, the only one when none is given; UnknownName lists those there are."""
        there = ", ".join(sorted(self._services)) or "(none is set)"
        if name is None:
            if len(self._services) != 1:
                raise BadInput("cluster", name, f"name one of: {there}")
            return next(iter(self._services.values()))
        found = self._services.get(name)
        if found is None:
            raise UnknownName("cluster", name, f"choose one of: {there}")
        return found

    def alarms(self) -> tuple[Event, ...]:
        """Return what a person should look into since the last call."""
        return tuple(event for service in self._services.values() for event in service.alarms())

    def forget(self, before: float) -> None:
        """Remember those no longer that ended before this time."""
        for service in self._services.values():
            service.forget(before)

    def refresh(self) -> int:
        """Compute the futures that are out of date in every cluster; return how many there were."""
        return sum(service.refresh() for service in self._services.values())


def clusters_of(settings: Settings, ledger: Ledger, clock: Clock) -> Clusters:
    """Return the clusters that the settings describe, on this ledger."""
    return Clusters(
        {
            name: AdmissionService(rules_of(name, cluster), ledger.admission, clock, settings.mode)
            for name, cluster in settings.clusters.items()
        }
    )
