"""The pools of one agent: made from its settings, turned with the loop, their troubles kept from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import structlog

from actuators.parameters import Parameters
from agent.autoscaling.ports import TickReport
from agent.ledger import Ledger
from agent.oversubscription.pool import AGENT, Pool
from agent.oversubscription.publisher import Publisher
from agent.oversubscription.turn import PoolTurns
from agent.oversubscription.usage_book import UsageBook
from agent.rails.base import RailLimits
from agent.settings import Settings
from agent.settings.oversubscription import pool_rules_of
from collectors.aws import AwsSession
from domain.clock import Clock
from domain.decisions import Event, Reason
from domain.errors import BadInput, Fenced, LedgerError, UnknownName

log = structlog.get_logger(__name__)


class Pools(Mapping[str, Pool]):
    """Pools by their name; any thread may ask them."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        ledger: Ledger | None = None,
        publishers: Mapping[str, Publisher] | None = None,
    ) -> None:
        self._pools = dict(pools)
        self._ledger = ledger
        self._publishers = dict(publishers or {})
        self._turns = {name: PoolTurns(pool) for name, pool in self._pools.items()}

    def __getitem__(self, name: str) -> Pool:
        return self._pools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)

    def one(self, name: str | None) -> Pool:
        """Return the pool of that name, the only one when none is given; UnknownName lists those there are."""
        there = ", ".join(sorted(self._pools)) or "(none is set)"
        if name is None:
            if len(self._pools) != 1:
                raise BadInput("pool", name, f"name one of: {there}")
            return next(iter(self._pools.values()))
        found = self._pools.get(name)
        if found is None:
            raise UnknownName("pool", name, f"choose one of: {there}")
        return found

    def turned(self, report: TickReport, epoch: int) -> TickReport:
        """Turn every pool after the loop's turn and return the report of all."""
        if report.failure is not None or self._ledger is None:
            return report
        events: list[Event] = []
        for name in self._pools:
            try:
                controls = self._ledger.controls(name)
                paused = any(pause.active(report.at) for pause in controls.pauses)
                events += self._turns[name].turn(report.at, epoch, paused=paused)
                if name in self._publishers:
                    events += self._publishers[name].turn(report.at, epoch, controls)
            except (LedgerError, Fenced) as error:
                log.error("pool_stopped", pool=name, detail=str(error))
                return replace(report, events=(*report.events, *events), failure=str(error))
            except Exception as error:
                # No rate is renewed: answers fall back to 1.0 when the last hour is too old.
                log.exception("pool_failed", pool=name)
                detail = f"{name}: its turn was cut short: {type(error).__name__}: {error}"
                events.append(Event(AGENT, report.at, Reason.INTERNAL_ERROR, detail, name))
        return replace(report, events=(*report.events, *events))


def pools_of(settings: Settings, ledger: Ledger, clock: Clock, session: AwsSession | None) -> Pools:
    """Return the pools that the settings describe, on this ledger."""
    pools: dict[str, Pool] = {}
    publishers: dict[str, Publisher] = {}
    for name, one in settings.pools.items():
        book = UsageBook(unknown_per_peer=settings.listener.unknown_vms_per_peer)
        pool = pools[name] = Pool(pool_rules_of(name, one), ledger.oversubscription, clock, one.inventory_file, book)
        # Before readings come, so that those of the VMs that it lists need not wait.
        pool.read_inventory()
        if one.parameter is not None and session is not None:
            parameters, limits = Parameters(session), RailLimits()
            publishers[name] = Publisher(pool, one.parameter, parameters, ledger, settings.mode, limits, clock)
    return Pools(pools, ledger, publishers)
