"""A pytest plugin: a test that hangs or is killed costs itself only; its processes, sockets and folders end with it.

Below `make`, a test that takes too long ends its worker (pytest-timeout's method "thread"), and with it every thread
and socket of the process; pytest-xdist starts another worker. What the worker had started becomes a child of the run's
controller, which kills it and removes the worker's folder. In a worker that goes on, a process that is left at the end
of a module, by a test or a fixture of the module, is killed and listed. A worker's TMPDIR ends with the worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.system_programs import cgroup2_mount

_PR_SET_CHILD_SUBREAPER = 36
_KILL_WITHIN_S = 5.0
_END_WITHIN_S = 5.0
SHARED_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that the standard library starts once per interpreter, whoever asks first."""


def adopt_orphans() -> None:
    """Become the parent of each descendant whose parent dies (Linux; elsewhere nothing changes)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return the process numbers of the direct children, zombies included."""
    found: set[int] = set()
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, Path(path).read_text().split()))
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    return ""


def _is_over(pid: int) -> bool:
    """Return whether a process has ended with all its threads: until then its children have not become ours."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE and len(os.listdir(f"/proc/{pid}/task")) <= 1
    return True


def kill_children(spared: Iterable[int]) -> list[str]:
    """Kill all children but the spared ones, with their descendants; return the commands of those that were running."""
    spared = set(spared)
    killed: list[str] = []
    deadline = time.monotonic() + _KILL_WITHIN_S
    while time.monotonic() < deadline:
        # A grandchild becomes a child when its parent dies, so one look is not enough.
        commands = {pid: _command(pid) for pid in children() - spared}
        spared.update(pid for pid, command in commands.items() if any(part in command for part in SHARED_BY_PYTHON))
        running = {pid: command for pid, command in commands.items() if pid not in spared}
        if not running:
            break
        for pid, command in running.items():
            killed.extend([command] if command else [])
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
    return killed


def remove_folder(folder: Path) -> None:
    """Unmount what is mounted below the folder, and remove it."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if Path(mount).is_relative_to(folder)]):
        subprocess.run(["umount", "--lazy", mount], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def remove_control_groups(worker: int) -> None:
    """Remove the control groups that a worker's machine left (tests/real/systemd), which has no process any more."""
    for top in Path(cgroup2_mount() or "/nowhere").glob(f"trimtab-test-{worker}"):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


class WorkerIsolation:
    """In the process that runs tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.shared: set[int] = set(children())
        self.left: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Note the processes that a fixture of the session or a package starts: they outlive a module."""
        if fixturedef.scope not in ("session", "package"):
            return (yield)
        before = children()
        try:
            return (yield)
        finally:
            self.shared |= children() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Kill what a module leaves behind, after the last of its tests."""
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                where = item.path.relative_to(self.config.rootpath)
                self.left += [f"{where}: {command[:120]}" for command in kill_children(self.shared)]

    def pytest_sessionfinish(self) -> None:
        """Hand the list to the controller."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["left_behind"] = self.left


class ControllerIsolation:
    """In the process that starts workers, or that runs tests without them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.before = set(children())
        self.workers: dict[str, int] = {}
        self.folders: dict[str, Path] = {}
        self.left: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give the worker a folder for what it makes outside `tmp_path`; its path is short enough for a socket."""
        folder = Path(tempfile.mkdtemp(prefix="tt-"))
        # Some tests run programs as another user.
        folder.chmod(0o755)
        self.folders[node.gateway.id] = folder
        node.workerinput["temporary_folder"] = str(folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """Remember the worker's process."""
        self.workers[gateway.id] = gateway._io.popen.pid

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Kill what a worker that died has left, and remove its folder."""
        worker = self.workers.pop(node.gateway.id, None)
        self.left += (getattr(node, "workeroutput", None) or {}).get("left_behind", [])
        if error is None:
            return
        # Its connection ends before its children become ours.
        deadline = time.monotonic() + _KILL_WITHIN_S
        while worker is not None and not _is_over(worker) and time.monotonic() < deadline:
            time.sleep(0.01)
        spared = self.before | set(self.workers.values())
        # Some end with their parent by themselves, and remove what they made: a control group, say.
        deadline = time.monotonic() + _END_WITHIN_S
        while any(_command(pid) for pid in children() - spared) and time.monotonic() < deadline:
            time.sleep(0.05)
        kill_children(spared)
        if worker is not None:
            remove_control_groups(worker)
        remove_folder(self.config._tmp_path_factory.getbasetemp() / f"popen-{node.gateway.id}")  # type: ignore[attr-defined]
        remove_folder(self.folders.pop(node.gateway.id))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Kill what workers left when they had ended, and remove their folders."""
        if self.folders:
            self.left += [f"at the end: {command[:120]}" for command in kill_children(self.before)]
        for folder in self.folders.values():
            remove_folder(folder)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List the processes that outlived the module which started them."""
        worker = self.config.pluginmanager.get_plugin("worker-isolation")
        left = self.left + (worker.left if worker is not None else [])
        if left:
            terminalreporter.section("processes that outlived their module (killed)")
            for line in sorted(set(left)):
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    adopt_orphans()
    if folder := getattr(config, "workerinput", {}).get("temporary_folder"):
        os.environ["TMPDIR"] = tempfile.tempdir = folder
    distributed = config.getoption("numprocesses", None)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ControllerIsolation(config))
    if hasattr(config, "workerinput") or not distributed:
        config.pluginmanager.register(WorkerIsolation(config), "worker-isolation")
