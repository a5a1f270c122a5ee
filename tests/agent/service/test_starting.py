"""Starting the real process: what it cannot do without is said at once, what it can do without it waits for."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.ledger.journal import Kind
from domain.decisions import Reason
from tests.agent.service.site import FLEET, Daemon, Site, running_site
from tests.waiting import until

SPEED = 30.0


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site(SPEED) as made:
        made.make_group(tags={"trimtab:fleet": "web", "trimtab:group": "workers"})
        made.start()
        yield made


def stop(daemon: Daemon) -> None:
    daemon.terminate()
    assert daemon.wait() == 0


@pytest.mark.exhaustive
def test_all_mistakes_in_the_settings_are_said_at_once_and_nothing_is_started(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(TRIMTAB_MODE="bold", TRIMTAB_GRACE="5", TRIMTAB_LEADER__RENEW_S="20")
    assert daemon.wait() == 2
    said = daemon.log.read_text()
    assert "3 setting(s) are wrong" in said
    assert "TRIMTAB_MODE=bold: " in said
    assert not (daemon.directory / "ledger.db").exists()


@pytest.mark.exhaustive
def test_a_port_that_is_taken_is_named_with_what_to_do(make_daemon: Callable[..., Daemon]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        daemon = make_daemon(TRIMTAB_MODE="observe", TRIMTAB_LISTENER__PORT=str(port), **FLEET)
        assert daemon.wait() == 2
    assert f"TRIMTAB_LISTENER__PORT is {port}: " in daemon.log.read_text()


@pytest.mark.exhaustive
def test_a_ledger_that_cannot_be_opened_is_named_with_what_to_do(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(
        TRIMTAB_MODE="observe", TRIMTAB_LEDGER__URL="sqlite:////proc/no-such-directory/ledger.db", **FLEET
    )
    assert daemon.wait() == 1
    assert "directory cannot be made" in daemon.log.read_text()


@pytest.mark.exhaustive
def test_a_database_that_is_down_is_waited_for_and_a_stop_ends_the_waiting(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(
        TRIMTAB_MODE="observe", TRIMTAB_LEDGER__URL="postgresql+psycopg://trimtab@127.0.0.1:1/trimtab", **FLEET
    )
    until(lambda: "ledger_not_there_yet" in daemon.log.read_text())
    daemon.terminate()
    assert daemon.wait(60.0) == 1
    assert "postgresql+psycopg://trimtab@127.0.0.1:1/trimtab" in daemon.log.read_text()


@pytest.mark.exhaustive
def test_while_aws_cannot_be_reached_it_is_up_decides_nothing_and_says_why(make_daemon: Callable[..., Daemon]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        daemon = make_daemon(
            TRIMTAB_AWS__ENDPOINT_URL=endpoint,
            TRIMTAB_AWS__READ_TIMEOUT_S="0.2",
            TRIMTAB_AWS__ACCOUNT="123456789012",
            **FLEET,
        )
        daemon.await_ready()
        until(lambda: "web" in daemon.supervisor.until("STATUS")["STATUS"])
        stop(daemon)
    with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
        reasons = {row.decision.reason for row in FleetStore(ledger).decisions("web")}
    assert reasons == {Reason.CLOUD_UNREADABLE}


@pytest.mark.exhaustive
def test_tagged_fleets_are_found_managed_and_reported(site: Site, make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(TRIMTAB_DISCOVERY__ENABLED="true")
    daemon.await_ready()
    site.waiting = 20.0
    until(lambda: site.desired() > 1)
    site.waiting = 0.0
    stop(daemon)
    with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
        found = [entry for entry in ledger.journal() if entry.reason == Reason.FLEET_FOUND]
        settings = [entry.body for entry in ledger.journal() if entry.kind is Kind.SETTINGS]
    assert [(entry.subject.name, "web-s (m5a.large)" in entry.body["detail"]) for entry in found] == [("web", True)]
    assert settings[-1]["TRIMTAB_FLEETS__web__GROUPS__workers__PRICE_PER_HOUR"] == "0.086"


@pytest.mark.exhaustive
def test_a_restart_that_cannot_find_the_fleets_yet_leaves_what_is_open_alone(
    site: Site, make_daemon: Callable[..., Daemon]
) -> None:
    site.control.add_fault("timeout_after", operations=["SetDesiredCapacity"], hold_s=30.0, count=1)
    first = make_daemon(TRIMTAB_DISCOVERY__ENABLED="true", TRIMTAB_AWS__READ_TIMEOUT_S="60")
    first.await_ready()
    before = site.desired()
    site.waiting = 200.0
    until(site.fault_met)
    first.terminate()
    assert first.wait() == 0
    site.waiting = 0.0
    site.control.clear_faults()
    with Ledger.open(first.ledger_url, read_only=True) as ledger:
        (intent,) = ledger.open_intents()
    site.control.add_fault("access_denied", operations=["DescribeAutoScalingGroups"], access_keys=["agent"])
    again = make_daemon(TRIMTAB_DISCOVERY__ENABLED="true")
    again.await_ready()
    until(lambda: "not known yet" in again.supervisor.until("STATUS")["STATUS"])
    site.control.clear_faults()
    with Ledger.open(first.ledger_url, read_only=True) as ledger:
        assert ledger.open_intents() == (intent,)
    assert site.desired() > before
    stop(again)


@pytest.mark.exhaustive
def test_no_secret_of_the_environment_is_in_the_log(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(TRIMTAB_MODE="observe", TRIMTAB_LOG_LEVEL="debug", **FLEET)
    daemon.await_ready()
    daemon.supervisor.until("STATUS")
    stop(daemon)
    text = daemon.log.read_text()
    assert "simulated-secret-key" not in text
    assert [json.loads(line)["event"] for line in text.splitlines()][-1] == "stopped"
