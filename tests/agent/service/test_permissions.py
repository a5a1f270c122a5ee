"""What the agent writes is for its own user, however it was started; and it says so when it runs as root."""

from __future__ import annotations

import json
import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.agent.service.site import FLEET, Daemon, running_site


@pytest.mark.exhaustive
def test_whatever_the_umask_the_ledger_is_its_users_alone_and_root_is_warned(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with running_site(30.0) as site, closing(Daemon(site, tmp_path / "agent", **FLEET)) as daemon:
            site.make_group(tags={"trimtab:fleet": "web", "trimtab:group": "workers"})
            site.start()
            daemon.start()
            daemon.await_ready()
            modes = {
                path.name: stat.S_IMODE(path.stat().st_mode)
                for path in daemon.directory.iterdir()
                if path.name.startswith("ledger.db")
            }
            daemon.terminate()
            assert daemon.wait() == 0
            lines = [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]
    finally:
        os.umask(before)
    assert modes["ledger.db"] == 0o600
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}
    assert any(line.get("event") == "running_as_root" for line in lines) is (os.geteuid() == 0)
