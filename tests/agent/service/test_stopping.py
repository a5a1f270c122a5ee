"""SIGTERM on the real process (row 10 of the fault plan): in time, with status 0, and no half intent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.ledger.journal import Kind
from domain.decisions import Reason
from tests.agent.service.site import FLEET, Daemon, Site, running_site
from tests.waiting import until

SPEED = 30.0


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site(SPEED) as made:
        made.make_group()
        made.start()
        yield made


@pytest.mark.exhaustive
def test_a_stop_during_a_call_that_hangs_leaves_a_whole_intent_that_the_next_start_follows(
    site: Site, make_daemon: Callable[..., Daemon]
) -> None:
    site.control.add_fault("timeout_after", operations=["SetDesiredCapacity"], hold_s=30.0, count=1)
    daemon = make_daemon(**FLEET, TRIMTAB_AWS__READ_TIMEOUT_S="60")
    ready = daemon.supervisor.until("READY")
    assert ready["STATUS"].startswith("act; 1 fleet; ")
    site.waiting = 20.0
    until(site.fault_met)

    daemon.terminate()
    began = time.monotonic()
    assert daemon.supervisor.until("STOPPING")["STOPPING"] == "1"
    assert daemon.wait() == 0
    assert time.monotonic() - began <= 25.0

    with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
        (intent,) = ledger.open_intents()
        assert intent.target == site.desired()
    site.waiting = 0.0
    again = make_daemon(**FLEET)
    again.await_ready()

    def settled() -> bool:
        with Ledger.open(again.ledger_url, read_only=True) as ledger:
            return not ledger.open_intents()

    until(settled)
    with Ledger.open(again.ledger_url, read_only=True) as ledger:
        outcome = FleetStore(ledger).last_outcome(intent.intent_id)
        assert outcome is not None
        assert (outcome.reason, outcome.achieved) == (Reason.DONE, intent.target - intent.before)
    # The call that met the fault may be logged by now, and there is no other.
    assert len(site.mutations("SetDesiredCapacity")) <= 1


@pytest.mark.exhaustive
def test_a_stop_between_turns_takes_a_moment_and_is_recorded(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(**FLEET)
    daemon.await_ready()
    assert daemon.supervisor.until("WATCHDOG") == {"WATCHDOG": "1"}
    until(lambda: "fleet web" not in daemon.supervisor.until("STATUS")["STATUS"])
    daemon.terminate()
    assert daemon.wait() == 0
    with Ledger.open(daemon.ledger_url, read_only=True) as ledger:
        entries = ledger.journal()
    own = [(entry.kind, entry.reason) for entry in entries if not entry.subject.name]
    assert own == [
        (Kind.SETTINGS, Reason.SETTINGS_RECORDED),
        (Kind.EVENT, Reason.STARTED),
        (Kind.EVENT, Reason.STOPPED),
    ]
    assert [json.loads(line)["event"] for line in daemon.log.read_text().splitlines()][-2:] == ["event", "stopped"]


@pytest.mark.exhaustive
def test_a_second_signal_ends_it_at_once(site: Site, make_daemon: Callable[..., Daemon]) -> None:
    site.control.add_fault(
        "timeout_before", operations=["DescribeAutoScalingGroups"], hold_s=30.0, access_keys=["agent"]
    )
    daemon = make_daemon(**FLEET, TRIMTAB_AWS__READ_TIMEOUT_S="60")
    daemon.await_ready()
    until(site.fault_met)
    daemon.terminate()
    daemon.supervisor.until("STOPPING")
    began = time.monotonic()
    daemon.terminate()
    assert daemon.wait() == 128 + 15
    assert time.monotonic() - began <= 20.0
