"""The real process and a ledger that was replaced: nothing is sent, `/readyz` says why, and a restore puts it right."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.api.unix_socket import read
from domain.errors import CollectionFailed
from tests.agent.service.site import FLEET, ROOT, Daemon, Site, running_site
from tests.waiting import until

SPEED = 30.0


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site(SPEED) as made:
        made.make_group()
        made.start()
        yield made


def ready(daemon: Daemon) -> dict[str, Any]:
    """Return what `/readyz` answers, {} while nothing answers."""
    try:
        answer: dict[str, Any] = json.loads(read(daemon.directory / "trimtab.sock", "/readyz"))
    except CollectionFailed:
        return {}
    return answer


def check(daemon: Daemon, name: str) -> dict[str, Any]:
    return next((one for one in ready(daemon).get("checks", []) if one["name"] == name), {})


def trimtab(daemon: Daemon, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from agent.commands.main import app; app()", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=daemon.environ(), capture_output=True, text=True, check=False)


def copied(path: Path, target: Path) -> Path:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    return target


@pytest.mark.exhaustive
def test_an_older_copy_over_a_running_ledger_stops_every_call_until_it_is_restored(
    site: Site, make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = make_daemon(**FLEET)
    ledger = daemon.directory / "ledger.db"
    until(lambda: ready(daemon).get("ready"))
    older = copied(ledger, tmp_path / "older.db")
    # As a SQLite that folds its log after a thousand pages: the file itself goes beyond the copy.
    with closing(sqlite3.connect(ledger)) as direct:
        until(lambda: direct.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone() and _number(ledger) > 3)
        direct.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    ledger.write_bytes(older.read_bytes())
    site.waiting = 200.0
    until(lambda: "not the one that this agent wrote last" in daemon.log.read_text())
    until(lambda: check(daemon, "ledger").get("ok") is False)
    assert "replaced" in check(daemon, "ledger")["detail"]
    assert site.mutations("SetDesiredCapacity") == []
    assert daemon.popen is not None
    daemon.popen.kill()
    daemon.popen.wait()

    again = make_daemon(**FLEET)
    assert again.wait() == 1
    assert "trimtab ledger restore FILE" in again.log.read_text()
    done = trimtab(again, "ledger", "restore", older)
    assert done.returncode == 0, done.stderr
    assert "number 1000001" in done.stdout
    third = make_daemon(**FLEET)
    until(lambda: len(site.mutations("SetDesiredCapacity")) > 0)
    third.terminate()
    assert third.wait() == 0
    site.waiting = 0.0
    assert trimtab(third, "ledger", "check").returncode == 0


def _number(ledger: Path) -> int:
    with closing(sqlite3.connect(f"file:{ledger}?immutable=1", uri=True)) as direct:
        found: int = direct.execute("SELECT count(*) FROM decisions").fetchone()[0]
        return found


@pytest.mark.exhaustive
def test_two_agents_with_two_state_directories_do_not_share_one_file(
    site: Site, make_daemon: Callable[..., Daemon], tmp_path: Path
) -> None:
    """They would depose one another, and after the second stops nobody would act."""
    first = make_daemon("first", **FLEET)
    until(lambda: ready(first).get("ready"))
    link = tmp_path / "link.db"
    link.symlink_to(first.directory / "ledger.db")
    for place in (first.directory / "ledger.db", link):
        second = make_daemon("second", **FLEET, TRIMTAB_LEDGER__URL=f"sqlite:///{place}")
        assert second.wait() == 1
        assert f"is in use by process {first.popen and first.popen.pid}: stop that agent" in second.log.read_text()
    assert first.popen is not None
    first.popen.kill()
    first.popen.wait()
    third = make_daemon("second", **FLEET, TRIMTAB_LEDGER__URL=f"sqlite:///{first.directory / 'ledger.db'}")
    until(lambda: ready(third).get("ready"))
    third.terminate()
    assert third.wait() == 0
    assert os.path.exists(first.directory / "ledger.db")
