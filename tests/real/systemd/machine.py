"""A machine with a real systemd as process 1, in namespaces and a control group of its own.

It has its own network, in which the simulated AWS runs too, and its own file system, which is in memory.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.system_programs import cgroup2_mount

BOOT = Path(__file__).with_name("boot.sh")
T = TypeVar("T")
NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
IN_ROOT = ("env", "--chdir=/")
"""The root of the machine, where nsenter itself would leave a command outside."""
CLONE_NEWNET = 0x40000000
LONGEST_BOOT_S, LONGEST_COMMAND_S = 60.0, 120.0
INSIDE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root", "TERM": "dumb"}


def wait_for(condition: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """Return the first true value of `condition`; AssertionError with its last value after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not after {timeout_s:g} s, but {found!r}"
        time.sleep(0.1)


class Machine:
    """A machine that was booted; `pid` is that of its systemd, as this host sees it."""

    def __init__(self, supervisor: subprocess.Popen[str]) -> None:
        self.supervisor = supervisor
        self.pid = 0
        self.await_boot()

    def await_boot(self) -> None:
        """Wait until systemd has started what it starts at boot. Also after a reboot; AssertionError when it ends."""
        assert self.supervisor.stdout is not None
        line = self.supervisor.stdout.readline()
        assert line, f"no machine was started: exit status {self.supervisor.wait(5.0)}"
        children = Path(f"/proc/{line.strip()}/task/{line.strip()}/children")

        def systemd() -> int:
            found = [int(pid) for pid in children.read_text().split()]
            return next((pid for pid in found if Path(f"/proc/{pid}/comm").read_text() == "systemd\n"), 0)

        self.pid = wait_for(systemd, "systemd runs", LONGEST_BOOT_S)
        states = ("running", "degraded")
        wait_for(lambda: self.state() in states, "systemd has booted", LONGEST_BOOT_S)

    def state(self) -> str:
        """`systemctl is-system-running`."""
        return self.run("systemctl", "is-system-running", check=False).stdout.strip()

    def reboot(self) -> None:
        """Restart the machine; what is on its disk stays."""
        self.run("systemctl", "reboot", check=False)
        self.await_boot()

    def run(
        self, *command: str, check: bool = True, timeout_s: float = LONGEST_COMMAND_S, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root; where `check`, AssertionError with its output unless it ends with 0."""
        words = " ".join(command)
        done = subprocess.run(
            ["nsenter", "--target", str(self.pid), *NAMESPACES, f"--root=/proc/{self.pid}/root", *IN_ROOT, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=INSIDE | environ,
            timeout=timeout_s,
        )
        assert done.returncode == 0 or not check, f"`{words}` ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def path(self, inside: str) -> Path:
        """Return where this host sees a path of the machine that has no absolute link in it."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Return properties of a unit."""
        done = self.run("systemctl", "show", unit, f"--property={','.join(properties)}")
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    def main_pid(self, unit: str) -> int:
        """Return the main process of a service, 0 where it has none."""
        return int(self.show(unit, "MainPID")["MainPID"])

    def await_state(self, unit: str, state: str = "active", timeout_s: float = 60.0) -> None:
        """Wait until a unit is in this state; AssertionError with its journal."""
        try:
            wait_for(lambda: self.show(unit, "ActiveState")["ActiveState"] == state, f"{unit} is {state}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.journal(unit)[-6000:]}") from None

    def journal(self, unit: str) -> str:
        """Return what a unit has written since the boot."""
        return self.run("journalctl", "--no-pager", "--output=cat", "--boot", f"--unit={unit}").stdout

    @contextmanager
    def network(self) -> Iterator[None]:
        """Have this thread use the machine's network; what it opens and starts stays there."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.pid}/ns/net") as theirs:
            _enter(theirs.fileno())
            try:
                yield
            finally:
                _enter(ours.fileno())


def _enter(network: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def booted(root: Path, scratch: Path, mounts: Mapping[Path, str]) -> Iterator[Machine]:
    """Boot a machine from a root file system, which stays as it is, and end it with the block, or with this process.

    scratch: an empty folder. mounts: folders of this host and where the machine sees them, for reading.
    """
    pairs = [f"{here}:{there}" for here, there in mounts.items()]
    cgroup = f"{cgroup2_mount()}/trimtab-test-{os.getpid()}"
    command: Sequence[str] = ("unshare", "--mount", "--net", "bash", str(BOOT), str(root), str(scratch), cgroup, *pairs)
    with (scratch.parent / f"{scratch.name}.console").open("wb") as console:
        supervisor = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=console, text=True, start_new_session=True
        )
    try:
        yield Machine(supervisor)
    finally:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        supervisor.stdin.close()
        supervisor.wait(30.0)
        supervisor.stdout.close()
