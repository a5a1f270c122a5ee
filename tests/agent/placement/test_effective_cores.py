"""A pool whose hosts have the cores that an oversubscription pool lets containers request of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.kernel.decision import Capacity, Host
from agent.ledger import Ledger
from agent.placement.demand import FleetDemand
from agent.placement.fleet import FleetVms
from agent.placement.turn import PoolTurns, turns_of
from agent.placement.view import pool_lines, request_lines
from agent.settings import Settings, load_settings
from domain.clock import VirtualClock
from domain.errors import ConfigurationError
from domain.rules.placement.coupling import effective_cores
from tests.agent.placement.hosts import app, ask, host, inventory, kind, made
from tests.agent.placement.test_coupling import VMS, Listing
from tests.agent.placement.test_turn import NO_MODELS

NAME = "hosts"


@pytest.mark.parametrize(
    ("cores", "rate", "found"), [(16, 0.5, 32), (16, 0.3, 53), (16, 1.0, 16), (10, 0.1, 100), (3, 0.6, 5)]
)
def test_effective_cores_are_whole_and_reserve_no_more_than_the_host_has(cores: int, rate: float, found: int) -> None:
    assert effective_cores(cores, rate) == found
    assert found * rate <= cores + 1e-6


def turned(turns: PoolTurns, clock: VirtualClock) -> None:
    turns.turn(clock.now(), clock.monotonic(), epoch=1)
    assert turns.pool.problem == ""


def test_hosts_of_the_inventory_follow_the_rate(ledger: Ledger, clock: VirtualClock, tmp_path: Path) -> None:
    file = tmp_path / "pool.json"
    file.write_text(json.dumps(inventory(app("shop"), hosts=[kind(count=1)])), "utf-8")
    pool = made(ledger, clock, inventory_file=file, shadow=None, oversubscription_pool="main")
    rates = [0.5]
    turns = PoolTurns(pool, NO_MODELS, None, dict, lambda: None, lambda: rates[0])
    turned(turns, clock)
    pool.join(host("other"))
    assert {one.name: one.capacity for one in pool.hosts()} == {"large": (32, 64, 1600), "other": (16, 64, 1600)}
    placed = pool.request(ask("r1", count=8))
    assert placed.rate == 0.5
    assert [line for line in request_lines(placed) if "/ 0.5" in line]
    assert [line for line in pool_lines(pool.view(), [], {}) if "/ 0.5" in line]
    assert made(ledger, clock, inventory_file=file).view().head.rate == 0.5
    rates[0] = 1.0
    turned(turns, clock)
    (large,) = (one for one in pool.hosts() if one.name == "large")
    assert (large.capacity[0], large.used[0]) == (16, 32)
    after = pool.request(ask("r2"))
    assert ([one.host for one in after.containers], after.rate) == (["other"], 1.0)
    assert not [line for line in request_lines(after) if "oversubscription" in line]
    # The size that an operator gave holds until the file has another one.
    pool.resize("large", (8, 64, 1600))
    rates[0] = 0.5
    turned(turns, clock)
    assert {one.name: one.capacity[0] for one in pool.hosts()} == {"large": 8, "other": 16}
    file.write_text(json.dumps(inventory(app("shop"), hosts=[kind(count=1, cores=12)])), "utf-8")
    turned(turns, clock)
    assert {one.name: one.capacity[0] for one in pool.hosts()} == {"large": 24, "other": 16}


def test_vms_of_a_fleet_follow_the_rate_and_the_fleet_is_sized_by_reserved_cores(
    ledger: Ledger, clock: VirtualClock
) -> None:
    document = inventory(app("shop", memory_gib=1, disk_gb=1), hosts=[kind(count=0)])
    pool = made(ledger, clock, document, fleet="web", shadow=None)
    listing: Any = Listing(FleetVms({"i-1": VMS["i-1"]}, {"i-1"}))
    rates = [0.5]
    turns = PoolTurns(pool, NO_MODELS, listing, lambda: {"l": "web-l"}, lambda: None, lambda: rates[0])
    turned(turns, clock)
    assert [one.capacity for one in pool.hosts()] == [(30, 60, 100)]
    pool.request(ask("r1", count=7))
    pool.request(ask("r2", count=2))
    readings = [sample.value for sample in FleetDemand(pool, "web", signal=True).collect(clock.now())]
    assert readings == [14.0, 18.0]
    rates[0] = 0.4
    turned(turns, clock)
    assert [one.capacity[0] for one in pool.hosts()] == [37]
    pool.resize("i-1", (20, 60, 100))
    turned(turns, clock)
    # The size that an operator gave holds, at another rate too.
    assert [one.capacity[0] for one in pool.hosts()] == [20]
    rates[0] = 0.8
    turned(turns, clock)
    assert [one.capacity[0] for one in pool.hosts()] == [20]


@pytest.mark.parametrize(
    ("subscriber", "rates", "found"),
    [
        (None, {"batch": 0.25, "shop": 0.5}, 0.5),
        ("batch", {"batch": 0.25, "shop": 0.5}, 0.25),
        ("batch", {"shop": 0.5}, 1.0),
        (None, {}, 1.0),
        (None, None, 1.0),
        ("batch", {"batch": 0.0}, 1.0),
        ("batch", {"batch": float("nan")}, 1.0),
    ],
)
def test_the_rate_is_that_of_the_subscriber_or_the_largest_and_1_without_any_in_force(
    ledger: Ledger, clock: VirtualClock, subscriber: str | None, rates: Mapping[str, float] | None, found: float
) -> None:
    given = {"oversubscription_pool": "main", "oversubscription_subscriber": subscriber, "shadow": None}
    pools = {"machines": 1, "machine_cores": 16, "machine_memory_gb": 64, "subscribers": {"batch": {}, "shop": {}}}
    settings = Settings.model_validate({"mode": "act", "placements": {NAME: given}, "pools": {"main": pools}})
    asked: list[tuple[str, str]] = []

    def capacity(decision: str, subject: str) -> Capacity | None:
        asked.append((decision, subject))
        return None if rates is None else Capacity(rates=rates)

    turns = turns_of(Host(ledger, settings, clock, capacity=capacity))[NAME]
    turned(turns, clock)
    assert turns.pool.head.rate == found
    assert asked == [("oversubscription", "main")]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"OVERSUBSCRIPTION_SUBSCRIBER": "batch"}, "OVERSUBSCRIPTION_POOL"),
        ({"OVERSUBSCRIPTION_POOL": "east"}, "OVERSUBSCRIPTION_POOL"),
        ({"OVERSUBSCRIPTION_POOL": "main", "OVERSUBSCRIPTION_SUBSCRIBER": "web"}, "OVERSUBSCRIPTION_SUBSCRIBER"),
    ],
)
def test_a_pool_or_subscriber_that_is_not_described_is_refused(given: dict[str, str], field: str) -> None:
    environ = {f"TRIMTAB_PLACEMENTS__{NAME}__{name}": value for name, value in given.items()}
    pool = {"MACHINES": "1", "MACHINE_CORES": "16", "MACHINE_MEMORY_GB": "64", "SUBSCRIBERS__batch__INTERNAL": "true"}
    environ |= {f"TRIMTAB_POOLS__main__{name}": value for name, value in pool.items()}
    with pytest.raises(ConfigurationError) as refused:
        load_settings(environ)
    assert [mistake.name.rpartition("__")[2].upper() for mistake in refused.value.mistakes] == [field]
