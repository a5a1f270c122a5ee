"""Recorded requests decided again: the pool as it was comes out of the ledger, and another policy has its price."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, select, update
from typer.testing import CliRunner

from agent.commands.main import app as program
from agent.kernel.parts import kept
from agent.ledger import Ledger, codec
from agent.ledger.schema import decisions, placement_changes
from agent.placement.pool import PlacementPool
from agent.placement.records import HostState, PlacementDecision
from agent.placement.replay import PoliciesThen, courses, replayed, steps_of
from agent.placement.store import PlacementStore, PoolState
from domain.clock import VirtualClock
from domain.errors import BadInput, StateConflict
from domain.rules.placement.policies import WF, Policy, policy_document
from domain.units import DAY_S
from tests.agent.ledger.postgres.conftest import open_ledger, server, url  # noqa: F401
from tests.agent.placement.hosts import START, app, ask, host, inventory, kind, made
from tests.golden import figures
from tests.stages import exhaustive
from trainer.promotion.directory import ModelsWriter

APPS = (app("shop", limit=2, excludes=["batch"]), app("mail", 2), app("batch", 8), app("lone", limit=1))
TIERS = (0.6, 0.2, -0.7, -1.0, *(0.0,) * 12, 1.0)


WIDE = inventory(app("lone", limit=1), app("batch", 8), app("mail"), app("large", 12), hosts=[kind(count=4)])


def crowded(pool: PlacementPool, clock: VirtualClock) -> None:
    """A request an hour, all confirmed; the last finds no host."""
    for n, (name, count) in enumerate(
        [("lone", 2), ("batch", 1), ("mail", 1), ("large", 1), ("mail", 1), ("batch", 5)]
    ):
        if pool.request(ask(f"r{n}", name, count=count)).containers:
            pool.confirm(f"r{n}")
        clock.advance(3600.0)


def nowhere() -> PoliciesThen:
    return PoliciesThen(ModelsWriter(Path("/nonexistent")))


def lived(pool: PlacementPool, clock: VirtualClock, document: dict[str, Any], seed: int = 1, many: int = 60) -> None:
    """Requests of every kind, in a drawn order, among hosts that join, drain, change, fail and come back."""
    draws = np.random.default_rng(seed)
    names = [one["id"] for one in document["applications"]]
    running: list[str] = []
    for n in range(many):
        clock.advance(60.0)
        what = int(draws.integers(12))
        hosts = pool.hosts.all()
        at = hosts[int(draws.integers(len(hosts)))]
        if what < 6:
            count = int(draws.integers(1, 5))
            answer = pool.request(ask(f"r{n}", str(draws.choice(names)), count=count, partial=bool(what % 2)))
            if answer.containers and what != 5:
                pool.confirm(f"r{n}")
                running.append(f"r{n}")
        elif what == 6 and running:
            try:
                pool.release(running.pop(int(draws.integers(len(running)))))
            except StateConflict:
                continue  # it lost its last host
        elif what == 7 and at.state is not HostState.FAILED:
            (pool.hosts.resume if at.state is HostState.DRAINING else pool.hosts.drain)(at.name)
        elif what == 8 and at.state is not HostState.FAILED:
            pool.hosts.fail(at.name)
        elif what == 9:
            pool.hosts.join(host(f"extra-{n}", cores=int(draws.choice([8, 16]))))
        elif what == 10 and at.state is not HostState.FAILED:
            pool.hosts.resize(at.name, (12, 48, 1200))
        elif what == 11:
            pool.lapse(1)


def same(ledger: Ledger, since: float | None = None, until: float | None = None) -> list[str]:
    """What differs, by decision."""
    history, found = steps_of(PlacementStore(ledger), "main", since, until)
    assert found
    return [f"{one.decision_id}: {one.difference}" for one in replayed(history, found, nowhere()) if not one.same]


def state(pool: PlacementPool) -> PoolState:
    return replace(pool.store.read("main"), stored=None)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs_postgresql)])
def book(request: pytest.FixtureRequest) -> Ledger:
    if request.param == "sqlite":
        found: Ledger = request.getfixturevalue("ledger")
        return found
    make: Callable[[], Ledger] = request.getfixturevalue("open_ledger")
    return make()


def test_the_pool_as_of_any_write_comes_out_of_the_ledger(book: Ledger, clock: VirtualClock) -> None:
    document = inventory(*APPS, hosts=[kind(count=3)])
    pool = made(book, clock, document)
    seen = [state(pool)]
    for change in (
        lambda: pool.request(ask("r1", count=2)),
        lambda: pool.confirm("r1"),
        lambda: pool.hosts.join(host("extra-1")),
        lambda: pool.release("r1", [0]),
        lambda: pool.hosts.fail("large-1"),
        lambda: pool.hosts.adopt(inventory(*APPS, hosts=[kind(count=5)]), "later", epoch=1),
        lambda: pool.request(ask("r2", "batch")),
        lambda: pool.cancel("r2"),
    ):
        clock.advance(10.0)
        change()
        seen.append(state(pool))
    for k, before in enumerate(seen[:-1]):
        assert pool.store.history("main", START + 10.0 * k + 5.0).begin == before
    assert pool.store.history("main").begin.head.revision == 0


@pytest.mark.parametrize("policy", ["reserve:2,8,3", *exhaustive("bf", "wf", "learned")])
def test_recorded_requests_come_out_the_same(ledger: Ledger, clock: VirtualClock, policy: str) -> None:
    document = inventory(*APPS, hosts=[kind(count=6), kind("small", 8, count=4)])
    lived(made(ledger, clock, document, policy=policy, confirm_within_s=90.0), clock, document)
    assert same(ledger) == []
    assert same(ledger, START + 1200.0, START + 2400.0) == []


def test_a_type_without_bound_comes_out_the_same(ledger: Ledger, clock: VirtualClock) -> None:
    document = inventory(*APPS, hosts=[kind(count=None), kind("small", 8, count=2)])
    lived(made(ledger, clock, document, policy="wf"), clock, document, seed=3)
    assert same(ledger) == []
    assert same(ledger, START + 1800.0) == []


def test_a_new_start_of_the_agent_changes_nothing(ledger: Ledger, clock: VirtualClock) -> None:
    document = inventory(*APPS, hosts=[kind(count=6)])
    for seed in (1, 2):
        pool = made(ledger, clock, document)
        for n in range(6):
            clock.advance(60.0)
            pool.hosts.join(host(f"x{9 - n}-{seed}"))
            pool.request(ask(f"s{seed}-{n}", "mail", count=1 + n))
    assert same(ledger) == []


def test_another_host_than_the_policys_is_found(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, inventory(*APPS, hosts=[kind(count=3)]))
    pool.request(ask("r1", "mail", count=2))
    forged = pool.request(ask("r2", "mail", count=1))
    other = replace(forged, containers=(replace(forged.containers[0], host="large-3"),))
    with ledger.database.write() as connection:
        here = decisions.c.decision_id == forged.decision_id
        connection.execute(update(decisions).where(here).values(body=codec.pack(codec.encode(other))))
    (found,) = same(ledger)
    assert found.startswith("main-p2: container 0: large-3 -> large-1 (score ")


def test_the_policy_of_then_is_found_by_its_digest(ledger: Ledger, clock: VirtualClock, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(policy_document(Policy("mine", "tiers17a", TIERS))))
    pool = made(ledger, clock, inventory(*APPS), policy=f"file:{file}")
    pool.request(ask("r1", "mail"))
    history, found = steps_of(PlacementStore(ledger), "main", None, None)
    with pytest.raises(BadInput, match=r"main-p1 was decided by mine, .*/nonexistent"):
        list(replayed(history, found, nowhere()))
    (tmp_path / "report-1.json").write_text("[]")
    there = PoliciesThen(ModelsWriter(tmp_path))
    assert [one.same for one in replayed(history, found, there)] == [True]


def test_what_an_earlier_version_decided_is_refused_with_the_remedy(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, inventory(*APPS))
    pool.request(ask("r1", "mail"))
    with ledger.database.write() as connection:
        connection.execute(delete(placement_changes))
    clock.advance(60.0)
    pool.request(ask("r2", "mail"))
    with pytest.raises(BadInput, match=r"main-p1 .* earlier version.*give --from 2026-09-21T14:13:21"):
        steps_of(pool.store, "main", None, None)
    assert same(ledger, START + 1.0) == []


def test_changes_are_forgotten_with_the_decisions(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, inventory(*APPS))
    for day in range(4):
        pool.request(ask(f"r{day}", "mail"))
        clock.advance(DAY_S)
    ledger.compact(clock.now(), 2.5 * DAY_S, kept())
    with ledger.database.read() as connection:
        times = connection.execute(select(placement_changes.c.at)).scalars().all()
    assert sorted(times) == [START + 2 * DAY_S, START + 3 * DAY_S]
    assert same(ledger) == []


def test_the_hosts_of_another_policy_are_counted(ledger: Ledger, clock: VirtualClock) -> None:
    crowded(made(ledger, clock, WIDE), clock)
    history, found = steps_of(PlacementStore(ledger), "main", None, None)
    recorded, other = courses(history, found, WF)
    # Best fit fills the first host, so that the second has room for the large one; worst fit opens a third for it.
    assert (recorded.host_hours, recorded.open_hosts, recorded.peak, recorded.at_end) == (11.0, 2.2, 3, 3)
    assert (other.host_hours, other.open_hosts, other.peak, other.at_end) == (12.0, 2.4, 3, 3)
    assert (recorded.refused, other.refused) == (5, 5)


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_the_same_policy_costs_the_same_hosts(ledger: Ledger, clock: VirtualClock, seed: int) -> None:
    document = inventory(*APPS, hosts=[kind(count=8)])
    # Without failures: what is placed anew comes in another order there.
    pool = made(ledger, clock, document)
    draws = np.random.default_rng(seed)
    for n in range(25):
        clock.advance(60.0)
        answer = pool.request(ask(f"r{n}", str(draws.choice(["mail", "shop", "lone"])), count=1 + n % 4))
        if answer.containers:
            pool.confirm(f"r{n}")
        if n % 3 == 2 and (running := pool.reservations()):
            pool.release(running[int(draws.integers(len(running)))].request_id)
    history, found = steps_of(pool.store, "main", None, None)
    recorded, other = courses(history, found, PoliciesThen(ModelsWriter(Path("/none"))).of(last(pool)))
    assert recorded == other


def last(pool: PlacementPool) -> PlacementDecision:
    (newest,) = pool.store.newest("main", 1)
    assert isinstance(newest, PlacementDecision)
    return newest


class TestCommand:
    @pytest.fixture
    def trimtab(self, ledger: Ledger, clock: VirtualClock, path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
        crowded(made(ledger, clock, WIDE), clock)
        monkeypatch.setenv("TRIMTAB_PLACEMENTS__main__POLICY", "bf")
        monkeypatch.setenv("TRIMTAB_LEDGER__URL", f"sqlite:///{path}")
        return CliRunner()

    def test_the_same_policy(self, trimtab: CliRunner) -> None:
        done = trimtab.invoke(program, ["replay", "placement"])
        assert (done.exit_code, done.stdout) == (0, "main: 6 decisions, all the same\n")

    def test_another_policy(self, trimtab: CliRunner) -> None:
        done = trimtab.invoke(program, ["replay", "placement", "main", "--policy", "wf"])
        assert done.exit_code == 0, done.output
        lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
        assert figures(lines[0]) == [6, 5, 1]
        assert "main-p3 2026-09-21 16:13:20 UTC large-1 large-2" in lines
        assert lines[-2:] == ["recorded 2.20 3 3 11.00 5", "would be 2.40 3 3 12.00 5"]
        data = json.loads(trimtab.invoke(program, ["replay", "placement", "--policy", "wf", "--json"]).stdout)
        assert (data["agree"], data["other"]["host_hours"], data["differing"][0]["other"]) == (5, 12.0, ["large-2"])

    def test_a_policy_that_does_not_exist_is_refused(self, trimtab: CliRunner) -> None:
        done = trimtab.invoke(program, ["replay", "placement", "--policy", "best"])
        assert (done.exit_code, "give one of ff, bf" in done.output) == (2, True)
