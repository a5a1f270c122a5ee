"""The pools of one agent: made from its settings, turned with the loop, their troubles kept from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from actuators.values import Parameters
from agent.kernel.part import Services
from agent.kernel.turn import TurnReport, pools_turned
from agent.ledger import Ledger
from agent.models.directory import ModelsDirectory
from agent.oversubscription.pool import Pool
from agent.oversubscription.publisher import Publisher
from agent.oversubscription.settings import SUBJECTS, pool_rules_of
from agent.oversubscription.state import OVERSUBSCRIPTION, OversubscriptionStore
from agent.oversubscription.usage import UsageBook
from agent.rails.base import RailLimits
from agent.settings import Settings
from collectors.aws import AwsSession
from domain.clock import Clock
from domain.decisions import Event


class Pools(Services[Pool]):
    """Pools by their name; any thread may ask them."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        ledger: Ledger | None = None,
        publishers: Mapping[str, Publisher] | None = None,
    ) -> None:
        super().__init__(pools)
        self._ledger = ledger
        self._publishers = dict(publishers or {})

    def turned(self, report: TurnReport, epoch: int) -> TurnReport:
        """Turn every pool after the loop's turn and return the report of all."""
        if report.failure is not None or self._ledger is None:
            return report
        # Where a turn is cut short no rate is renewed: answers fall back to 1.0 when the last hour is too old.
        return pools_turned(
            report, OVERSUBSCRIPTION, ((name, partial(self._turn, name, report.at, epoch)) for name in self)
        )

    def _turn(self, name: str, now: float, epoch: int) -> tuple[Event, ...]:
        assert self._ledger is not None, "only pools on a ledger turn"
        controls = self._ledger.controls(OVERSUBSCRIPTION, name)
        events = self[name].turn(now, epoch, paused=any(pause.active(now) for pause in controls.pauses))
        if name in self._publishers:
            events += self._publishers[name].turn(now, epoch, controls)
        return events


def pools_of(settings: Settings, ledger: Ledger, clock: Clock, session: AwsSession | None) -> Pools:
    """Return the pools that the settings describe, on this ledger."""
    pools: dict[str, Pool] = {}
    publishers: dict[str, Publisher] = {}
    for name, one in SUBJECTS.of(settings).items():
        book = UsageBook(unknown_per_peer=settings.listener.unknown_vms_per_peer)
        models = ModelsDirectory(settings.models_directory, settings.promotion_key)
        pool = pools[name] = Pool(
            pool_rules_of(name, one), OversubscriptionStore(ledger), clock, one.inventory_file, book, models
        )
        # Before readings come, so that those of the VMs that it lists need not wait.
        pool.read_inventory()
        if one.parameter is not None and session is not None:
            parameters, limits = Parameters(session), RailLimits()
            publishers[name] = Publisher(pool, one.parameter, parameters, ledger, settings.mode, limits, clock)
    return Pools(pools, ledger, publishers)
