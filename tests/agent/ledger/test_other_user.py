"""A SQLite ledger in use is read by another user of its group, who may write neither the file nor beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")

AGENT, LEARNER, GROUP = 54_001, 54_002, 54_000
MIGRATED = "l = Ledger.open(url)\nl.close()\nfor name in os.listdir(place): os.chown(f'{place}/{name}', agent, group)\n"
# Whatever is loaded lies where these users may not look: it is loaded before the process becomes one of them.
WRITER = f"""
import os, sys
from agent.ledger import Ledger
from tests.agent.commands.recorded import START, Recorder, fleet, snapshot
url, place, agent, group = sys.argv[1], sys.argv[2], {AGENT}, {GROUP}
os.umask(0o027)
{MIGRATED}
os.setgroups([]); os.setgid(group); os.setuid(agent)
book = Ledger.open(url)
recorder = Recorder(book, fleet(), epoch=book.take_epoch("test", START))
for number in range(3):
    recorder.minute(START + 60 * number, snapshot(recorder.fleet, (1, 0), 0, START + 60 * number))
print("recorded", flush=True)
if sys.stdin.readline().strip() == "crash":
    os._exit(1)
book.close()
"""
READER = f"""
import os, sys
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
with Ledger.open(sys.argv[2], read_only=True) as book:
    list(FleetStore(book).inputs("web"))
os.setgroups([]); os.setgid({GROUP}); os.setuid({LEARNER})
with Ledger.open(sys.argv[1], read_only=True) as book:
    print(len(list(FleetStore(book).inputs("web"))))
try:
    open(sys.argv[1].removeprefix("sqlite:///"), "r+b")
except PermissionError:
    print("refused")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A state directory that its group may enter and not write; folders of pytest are closed to other users."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        state = Path(name) / "state"
        state.mkdir(mode=0o750)
        os.chown(state, AGENT, GROUP)
        yield state


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", ["close", "crash"])
def test_it_is_read_while_the_agent_runs_after_its_end_and_after_a_crash(place: Path, tmp_path: Path, end: str) -> None:
    from agent.ledger import Ledger

    url, own = f"sqlite:///{place / 'ledger.db'}", f"sqlite:///{tmp_path / 'own.db'}"
    Ledger.open(own).close()

    def read() -> list[str]:
        command = [sys.executable, "-c", READER, url, own]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    command = [sys.executable, "-c", WRITER, url, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "recorded\n"
        assert (place / "ledger.db-shm").stat().st_mode & 0o777 == 0o640
        assert read() == ["3", "refused"]
        writer.stdin.write(f"{end}\n")
        writer.stdin.close()
        writer.wait()
    assert read() == ["3", "refused"]
