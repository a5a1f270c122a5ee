"""The site's process as seen from the dry run: started early, told what to do later, never left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from agent.rehearsal.site import SiteSpec
from domain.errors import TrimtabError

END_WITHIN_S = 10.0


class SiteFailed(TrimtabError):
    """The site's process ended when it should not have."""


class SiteProcess:
    """A site that has been started: takes its specification, then orders, and gives its books at the end."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._popen.poll() is None

    def begin(self, spec: SiteSpec) -> None:
        """Start job source and workers; raises SiteFailed when that fails."""
        self._write(asdict(spec))
        self._read()

    def order(self, order: dict[str, Any]) -> None:
        """Send one order."""
        self._write(order)

    def finish(self) -> Mapping[str, Any]:
        """End it and return its books."""
        self._write({"stop": True})
        return self._read()

    def abort(self) -> None:
        """End it at once, without books; does nothing when it has ended."""
        self._popen.kill()
        self._popen.wait()

    def _write(self, line: dict[str, Any]) -> None:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(line) + "\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def _read(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            raise self._failed()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self) -> SiteFailed:
        try:
            status = str(self._popen.wait(timeout=2.0))
        except subprocess.TimeoutExpired:
            status = "still running"
        return SiteFailed(f"the process of job source and workers ended (exit {status}): what it wrote is above")


@contextmanager
def site_process(workload: str, seed: int) -> Iterator[SiteProcess]:
    """Run the site in a process of its own; it ends when its input does, so it cannot outlive this one."""
    command = [sys.executable, "-m", "agent.rehearsal.site", workload, str(seed)]
    # In a session of its own, so that Ctrl-C reaches this process alone, which then ends the other in good order.
    popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield SiteProcess(popen)
    finally:
        _close(popen.stdin)
        try:
            popen.wait(timeout=END_WITHIN_S)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        _close(popen.stdout)


def _close(stream: Any) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        return
