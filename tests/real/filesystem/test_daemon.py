"""`trimtab run` whose ledger's disk is full: it says so, executes nothing, and decides by itself once there is room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.autoscaling.state import FleetStore
from agent.commands.main import app
from agent.ledger import Ledger
from tests.agent.service.site import FLEET, Daemon, Site, running_site
from tests.contract.running import over_socket
from tests.real.filesystem.conftest import EXT4, TMPFS
from tests.real.filesystem.disks import Disk
from tests.real.filesystem.test_world import LITTLE
from tests.waiting import until

MINUTE_S = 60.0


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site(30.0) as made:
        made.make_group()
        made.start()
        yield made


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("disk", "is_killed"),
    [pytest.param(*TMPFS.values, False, marks=TMPFS.marks), pytest.param(*EXT4.values, True, marks=EXT4.marks)],
    indirect=["disk"],
)
def test_the_agent_decides_again_within_a_minute_of_there_being_room(
    site: Site, disk: Disk, tmp_path: Path, is_killed: bool
) -> None:
    socket, url = tmp_path / "http.sock", f"sqlite:///{disk.path}/ledger.db"
    with closing(
        Daemon(site, tmp_path / "agent", **FLEET, TRIMTAB_HTTP__SOCKET=str(socket), TRIMTAB_LEDGER__URL=url)
    ) as daemon:
        daemon.start()
        daemon.await_ready()
        until(lambda: len(decided(url)) > 1)
        disk.fill(LITTLE)
        site.waiting = 40.0
        until(lambda: '"ledger_unavailable"' in daemon.log.read_text("utf-8"))
        before, full_at = site.mutations(), site.clock.now()
        until(lambda: site.clock.now() > full_at + 3 * MINUTE_S)
        with over_socket(socket) as client:
            assert client.get("/readyz").status_code == 503
        assert site.mutations() == before
        if is_killed:
            assert daemon.popen is not None
            daemon.popen.kill()
            daemon.wait()
            daemon.start()
            until(lambda: site.clock.now() > full_at + 6 * MINUTE_S)
        checked = CliRunner().invoke(app, ["ledger", "check", "--ledger", url])
        assert checked.exit_code == 0 or "is full" in checked.output, checked.output
        disk.free()
        room_at = site.clock.now()
        if daemon.popen is None or daemon.popen.poll() is not None:
            # As systemd does.
            daemon.start()
        until(lambda: site.desired() > 1)
        assert site.clock.now() - room_at < (6 if is_killed else 3) * MINUTE_S
        lines = [json.loads(line) for line in daemon.log.read_text("utf-8").splitlines() if line.startswith("{")]
        assert not [line for line in lines if "ledger_replaced" in json.dumps(line)]
        numbers = decided(url)
        assert numbers == list(range(1, len(numbers) + 1))
        daemon.terminate()
        assert daemon.wait() == 0
    with Ledger.open(url, read_only=True) as ledger:
        assert ledger.damage() == ""


def decided(url: str) -> list[int]:
    """The numbers of the decisions that the ledger holds, in order."""
    with Ledger.open(url, read_only=True) as ledger:
        rows = FleetStore(ledger).decisions("web", newest_first=False, limit=1000)
        return [int(row.decision.decision_id.removeprefix("web-")) for row in rows]
