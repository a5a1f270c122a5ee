"""The placement pools of one agent, made from its settings, and what preflight looks at of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from agent.kernel.part import Host, Services
from agent.models.directory import ModelsDirectory
from agent.models.regular_files import read_file
from agent.placement.book import Book
from agent.placement.choosing import Chooser, named_policy
from agent.placement.fleet import FleetHosts
from agent.placement.records import PoolHead
from agent.placement.reserve import PlacementPool
from agent.placement.settings import SUBJECTS, PlacementSettings
from agent.placement.state import PoolState
from agent.placement.turn import LARGEST_INVENTORY_BYTES, PoolTurns
from agent.settings import Settings
from domain.errors import TrimtabError
from domain.rules.placement.instance import parse_instance


class Pools(Services[PlacementPool]):
    """Pools by name, and the turns of each; any thread may use them."""

    def __init__(self, pools: Mapping[str, PlacementPool], turns: Mapping[str, PoolTurns]) -> None:
        super().__init__(pools)
        self.turns = turns


def pools_of(host: Host) -> Pools:
    """Return the pools that the settings describe, on the host's ledger; none where there are no settings."""
    if host.settings is None:
        return Pools({}, {})
    models = ModelsDirectory(host.settings.models_directory, host.settings.promotion_key)
    pools, turns = {}, {}
    for name, settings in SUBJECTS.of(host.settings).items():
        chooser = Chooser(name, settings, models)
        pools[name] = PlacementPool(
            name, settings, host.ledger, host.clock, chooser, host.settings.mode, _pending(host, settings)
        )
        fleet = FleetHosts(host.session, settings) if settings.fleet and host.session is not None else None
        turns[name] = PoolTurns(pools[name], models, fleet, _groups(host, settings))
    return Pools(pools, turns)


def _pending(host: Host, settings: PlacementSettings) -> Callable[[], float]:
    """Return what asks how many cores a pool's fleet waits for."""

    def pending() -> float:
        found = host.capacity("autoscaling", settings.fleet) if settings.fleet is not None else None
        return 0.0 if found is None else found.pending

    return pending


def _groups(host: Host, settings: PlacementSettings) -> Callable[[], Mapping[str, str]]:
    """Return what asks for the AWS names of the groups of a pool's fleet, by the fleet's key for each."""
    return lambda: {key: name for (fleet, key), name in host.groups().items() if fleet == settings.fleet}


def check_inventory(path: Path, *, hosts_elsewhere: bool = False) -> str:
    """Return what an inventory file holds, in a sentence; OSError, BadInput or ConfigurationError.

    hosts_elsewhere: a fleet's VMs are hosts too, so that it may list none.
    """
    try:
        document = json.loads(read_file(path, LARGEST_INVENTORY_BYTES, follow_links=True))
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path} is not valid JSON: {error}") from None
    instance, warnings = parse_instance(document, path.name, hosts_elsewhere=hosts_elsewhere)
    Book(PoolState(PoolHead(), None, document, {}, {}))
    found = f"{path}: {len(instance.hosts)} types of hosts, {len(instance.applications)} applications"
    return "; ".join([found, *warnings])


def check_policies(name: str, pool: PlacementSettings, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each policy that a pool names, and why it cannot be used, "" when it can."""
    models = ModelsDirectory(settings.models_directory, settings.promotion_key)
    for text in dict.fromkeys(filter(None, (pool.policy, pool.canary, pool.shadow))):
        try:
            named_policy(text, name, models)
            yield text, ""
        except TrimtabError as error:
            yield text, str(error)
