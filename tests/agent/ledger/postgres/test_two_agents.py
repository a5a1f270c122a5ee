"""Two real agents on a real PostgreSQL (row 14 of the fault plan): one leads, and the one cut off changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from domain.decisions import Reason
from domain.subject import fleet_subject
from tests.agent.ledger.postgres.server import Proxy, Server
from tests.agent.service.site import FLEET, GROUP, Daemon, Site, free_port, running_site
from tests.waiting import until

pytestmark = [pytest.mark.needs_postgresql]

SPEED = 30.0
LEASE_S, RENEW_S = 4.0, 1.0
TURN_S = 60.0 / SPEED
NAMES = {"first": "agent-2", "second": "agent-5"}
"""The fleet `web` is the share of the first."""


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site(SPEED) as made:
        made.make_group()
        made.start()
        yield made


@pytest.fixture
def make_agent(site: Site, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    made: list[Daemon] = []

    def make(name: str, url: str, ahead_s: float = 0.0, **settings: str) -> Daemon:
        agent = Daemon(
            site,
            tmp_path / name,
            AWS_ACCESS_KEY_ID=name,
            TRIMTAB_LEDGER__URL=url,
            TRIMTAB_LEADER__NAME=NAMES[name],
            TRIMTAB_LEADER__LEASE_S=str(LEASE_S),
            TRIMTAB_LEADER__RENEW_S=str(RENEW_S),
            TRIMTAB_FLEETS__web__RAILS__COOLDOWN_OUT_S="0",
            **FLEET,
            **settings,
        )
        made.append(agent)
        agent.ahead_s = ahead_s
        agent.start()
        agent.await_ready()
        return agent

    yield make
    for agent in made:
        agent.close()


def through(url: str, server: Server, proxy: Proxy) -> str:
    return url.replace(str(server.port), str(proxy.port))


def status_of(agent: Daemon, word: str) -> None:
    """Wait until the agent's status holds this word."""
    until(lambda: word in agent.supervisor.until("STATUS")["STATUS"])


@pytest.mark.exhaustive
def test_the_one_that_is_cut_off_from_the_database_makes_no_call_after_its_lease_and_the_other_goes_on(
    site: Site, url: str, server: Server, make_proxy: Callable[[], Proxy], make_agent: Callable[..., Daemon]
) -> None:
    proxy = make_proxy()
    make_agent("first", through(url, server, proxy))
    second = make_agent("second", url)
    site.waiting = 20.0
    until(lambda: site.mutations("SetDesiredCapacity", "first"))
    status_of(second, "not leading")
    grown = site.desired()
    assert site.mutations(access_key="second") == []

    # The site goes on asking for more, so that whoever may act does.
    proxy.cut()
    cut_at = site.clock.now()
    site.waiting = 200.0
    until(lambda: site.mutations("SetDesiredCapacity", "second"), 60.0)
    taken_over_s = (site.mutations("SetDesiredCapacity", "second")[0]["at"] - cut_at) / SPEED
    # The lease, a turn until the next minute, and one more because a scale-out may have to wait for the last one.
    assert taken_over_s <= LEASE_S + 3 * TURN_S + 2.0
    time.sleep(2 * TURN_S)
    late = [call for call in site.mutations(access_key="first") if call["at"] > cut_at + LEASE_S * SPEED]
    assert late == []
    assert site.desired() > grown

    # Its share again, under a newer epoch.
    proxy.mend()
    with Ledger.open(url, read_only=True) as ledger:
        taken_back = "this agent leads under epoch 3"
        until(lambda: taken_back in [entry.body.get("detail") for entry in ledger.journal(limit=10_000)], 60.0)
        time.sleep(2 * TURN_S)
        decided = FleetStore(ledger).decisions("web", limit=1000, newest_first=False)
        epochs = [FleetStore(ledger).decision(row.decision.decision_id).inputs.epoch for row in decided]
        assert (epochs, {*epochs}) == (sorted(epochs), {1, 2, 3})
        taken = [entry for entry in ledger.journal(limit=10_000) if entry.reason == Reason.LEAD_TAKEN]
        assert [entry.body["detail"] for entry in taken][-2:] == [f"this agent leads under epoch {n}" for n in (2, 3)]
        assert {entry.subject for entry in taken} == {fleet_subject("web")}


@pytest.mark.exhaustive
def test_a_leader_that_is_stopped_hands_over(site: Site, url: str, make_agent: Callable[..., Daemon]) -> None:
    first, second = make_agent("first", url), make_agent("second", url)
    status_of(first, "web:")
    first.terminate()
    assert first.wait() == 0
    site.waiting = 20.0
    until(lambda: site.mutations("SetDesiredCapacity", "second"))
    assert site.desired(GROUP) > 1
    status_of(second, "web:")


@pytest.mark.exhaustive
def test_a_second_agent_in_one_state_directory_is_refused_with_the_name_of_the_first(
    site: Site, tmp_path: Path, make_agent: Callable[..., Daemon], url: str
) -> None:
    make_agent("first", url)
    intruder = Daemon(site, tmp_path / "first", TRIMTAB_LEDGER__URL=url, **FLEET)
    intruder.start()
    assert intruder.wait() == 1
    assert "is in use by process" in intruder.log.read_text()
    intruder.close()


def test_a_leader_whose_clock_is_ahead_gives_the_lead_to_the_one_whose_clock_is_right(
    site: Site, url: str, make_agent: Callable[..., Daemon]
) -> None:
    first = make_agent("first", url, ahead_s=90.0)
    status_of(first, "web: ")
    make_agent("second", url)
    site.waiting = 20.0
    until(lambda: site.mutations("SetDesiredCapacity", "second"))
    assert site.mutations("SetDesiredCapacity", "first") == []
    ledger = Ledger.open(url, read_only=True)
    reasons = [row.reason for row in ledger.journal(limit=1000) if row.kind == "event"]
    ledger.close()
    assert Reason.CLOCK_WRONG in reasons


@pytest.mark.exhaustive
def test_lines_that_reach_the_other_agent_are_forwarded_to_the_leader_whichever_it_is(
    site: Site, url: str, make_agent: Callable[..., Daemon]
) -> None:
    relays = {name: str(free_port()) for name in NAMES}

    def make(name: str) -> Daemon:
        relay = {"TRIMTAB_LISTENER__RELAY_HOST": "127.0.0.1", "TRIMTAB_LISTENER__RELAY_PORT": relays[name]}
        return make_agent(name, url, **relay)

    first = make("first")
    make("second")
    site.listeners.discard(first.port)
    site.waiting = 20.0
    until(lambda: site.mutations("SetDesiredCapacity", "first"), 60.0)
    first.terminate()
    assert first.wait() == 0
    site.waiting = 200.0
    until(lambda: site.mutations("SetDesiredCapacity", "second"), 60.0)
