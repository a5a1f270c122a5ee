"""The machine of these tests: nothing is left of it, however its test ends, and the cached root stays as it is."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.product import ROOT
from tests.real.cache import NotAvailable
from tests.real.systemd import debian
from tests.real.systemd.machine import wait_for
from tests.system_programs import cgroup2_mount

pytestmark = [
    pytest.mark.needs_debootstrap,
    pytest.mark.needs_mount,
    pytest.mark.needs_cgroup,
    pytest.mark.xdist_group("systemd"),
    pytest.mark.timeout(900),
]
BOOTS = """
import sys, time
from pathlib import Path
from tests.real.systemd.machine import booted

with booted(Path(sys.argv[1]), Path(sys.argv[2]), {}) as machine:
    machine.path("/etc/written-by-a-test").write_text("x")
    print(machine.pid, flush=True)
    time.sleep(600.0)
"""


def alive(process: Path) -> bool:
    """Whether a process of /proc runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return "State:\tZ" not in (process / "status").read_text()
    return False


def test_a_machine_ends_with_the_process_that_booted_it_and_leaves_nothing(tmp_path: Path) -> None:
    try:
        root = debian.debian_root()
    except NotAvailable as reason:
        pytest.skip(str(reason))
    scratch = tmp_path / "machine"
    scratch.mkdir()
    command = [sys.executable, "-c", BOOTS, str(root), str(scratch)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout is not None
        systemd = Path(f"/proc/{int(test.stdout.readline())}")
        group = Path(f"{cgroup2_mount()}/trimtab-test-{test.pid}")
        assert (systemd.exists(), group.is_dir()) == (True, True)
        test.kill()
    # Its parent now is this process, which does not wait for it: it may stay as a zombie.
    wait_for(lambda: not alive(systemd) and not group.exists(), "process and control group are gone", 15.0)
    assert str(scratch) not in Path("/proc/mounts").read_text()
    assert list(scratch.iterdir()) == []
    assert not (root / "etc" / "written-by-a-test").exists()
