"""A test that hangs on purpose: its processes, sockets and folder end with it, and the tests after it run."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest

HANGS = """
import os, socket, subprocess, sys, tempfile, time
from pathlib import Path
import pytest

from tests.system_programs import cgroup2_mount

NOTES = Path(os.environ["NOTES"])
DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
CLEANS = "import sys, time; print(1, flush=True); sys.stdin.read(); time.sleep(.3); open(sys.argv[1], 'w').close()"

@pytest.mark.timeout(5)
def test_a_hangs(tmp_path):
    port = socket.create_server(("127.0.0.1", int(NOTES.joinpath("port").read_text())))
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True)
    NOTES.joinpath("pids").write_text(f"{child.pid} {daemon.stdout.readline()}")
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    cleans = subprocess.Popen([sys.executable, "-c", CLEANS, str(NOTES / "cleaned")], **piped)
    cleans.stdout.readline()
    folders = [str(tmp_path), tempfile.mkdtemp()]
    if cgroup2_mount():
        folders.append(f"{cgroup2_mount()}/trimtab-test-{os.getpid()}")
        os.makedirs(f"{folders[-1]}/inner")
    NOTES.joinpath("folders").write_text("\\n".join(folders))
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

def test_b_starts_clean():
    socket.create_server(("127.0.0.1", int(NOTES.joinpath("port").read_text()))).close()

def test_c_runs_too():
    pass
"""

LEAVES = """
import os, subprocess, sys
import pytest

@pytest.fixture(scope="session")
def server():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(601)"]) as process:
        yield process
        process.kill()

def test_leaves_a_process(server):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(602)", os.environ["NOTES"]])
"""

ENDS = """
import atexit, os, subprocess, sys, tempfile
from pathlib import Path

def test_leaves_a_folder_and_a_process_when_its_worker_ends():
    Path(os.environ["NOTES"], "folder").write_text(tempfile.mkdtemp())
    atexit.register(subprocess.Popen, [sys.executable, "-c", "import time; time.sleep(603)"])
"""

AFTER = """
import os
from pathlib import Path
from test_leaves import server

def test_the_server_of_the_session_still_runs_and_the_other_process_does_not(server):
    assert server.poll() is None
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    notes = os.environ["NOTES"].encode()
    assert not any(b"time.sleep(602)" in command and notes in command for command in commands)
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    pytester.makeini("[pytest]\ntimeout_method = thread")
    plugins = ("-p", "tests.isolation", "-p", "no:schemathesis", "-p", "no:cacheprovider")
    return pytester.runpytest_subprocess(*plugins, *arguments, timeout=120)


def test_a_test_that_hangs_costs_itself_only(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    with socket.create_server(("127.0.0.1", 0)) as free:
        (tmp_path / "port").write_text(str(free.getsockname()[1]))
    pytester.makepyfile(test_hangs=HANGS)
    result = run(pytester, "-n1", "--max-worker-restart=2", "--dist=worksteal")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*crashed while running*test_a_hangs*"])
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids), "the child and the daemon that left the process group"
    assert (tmp_path / "cleaned").exists(), "what ends with its parent has the time to clean up"
    folders = (tmp_path / "folders").read_text().splitlines()
    assert [folder for folder in folders if Path(folder).exists()] == []


def test_what_a_worker_leaves_at_its_end_is_killed_listed_and_removed(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    pytester.makepyfile(test_ends=ENDS)
    result = run(pytester, "-n1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*processes that outlived their module*", "at the end: *time.sleep(603)*"])
    assert not Path((tmp_path / "folder").read_text()).exists()


def test_a_process_that_outlives_its_module_is_killed_and_listed(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    pytester.makepyfile(test_leaves=LEAVES, test_then=AFTER)
    result = run(pytester, "-n0", "-W", "ignore")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*processes that outlived their module*", "test_leaves.py: *time.sleep(602)*"])
    assert "sleep(601)" not in result.stdout.str()
