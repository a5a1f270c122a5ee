"""An hour of a healthy agent: no problem, no alarm, and no event but those of its decisions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.ledger import Ledger
from domain.decisions import Reason
from tests.agent.service.site import FLEET, Daemon, Site, running_site
from tests.contract.running import over_socket
from tests.waiting import until

SPEED = 180.0
HOUR_S = 3600.0
OF_DECISIONS = {Reason.STARTED, Reason.PROTECTED}


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site(SPEED) as made:
        made.make_group()
        made.vm_readings = lambda at: {
            "cpu_percent": 60.0,
            "ram_percent": 20.0,
            "busy_cores": 2.0,
            "work_core_seconds": 2.0 * (at % 600.0),
        }
        made.start()
        yield made


@pytest.mark.exhaustive
@pytest.mark.timeout(180)
def test_a_healthy_hour_has_no_problem_no_alarm_and_no_event_but_those_of_decisions(site: Site, tmp_path: Path) -> None:
    socket = tmp_path / "http.sock"
    with closing(Daemon(site, tmp_path / "agent", **FLEET, TRIMTAB_HTTP__SOCKET=str(socket))) as daemon:
        begun = site.clock.now()
        daemon.start()
        daemon.await_ready()
        until(lambda: site.clock.now() > begun + 0.3 * HOUR_S)
        site.waiting = 6.0
        until(lambda: site.desired() > 1)
        site.waiting = 0.0
        until(lambda: site.clock.now() > begun + HOUR_S)
        with over_socket(socket) as client:
            assert client.get("/api/v1/status").json()["problems"] == {}
            assert client.get("/readyz").status_code == 200
        ledger = Ledger.open(daemon.ledger_url, read_only=True)
        events = [(row.reason, row.body["detail"]) for row in ledger.journal(limit=1000) if row.kind == "event"]
        ledger.close()
        assert [event for event in events if event[0] not in OF_DECISIONS] == []
        log = [json.loads(line) for line in daemon.log.read_text("utf-8").splitlines() if line.startswith("{")]
        assert [line for line in log if line["event"] == "alarm"] == []
        assert len([line for line in log if line["event"] == "decision"]) > 30
