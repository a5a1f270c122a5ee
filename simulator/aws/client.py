"""The cloud as a process, and a client of its control endpoint; imports no moto. The agent uses neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class ControlError(Exception):
    """The control endpoint refused; the message has the reason and the remedy."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CloudControl:
    """Calls `/_trimtab/` of one endpoint (such as "http://127.0.0.1:5000")."""

    def __init__(self, endpoint: str, timeout_s: float = 10.0) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.timeout_s = timeout_s

    def now(self) -> float:
        """Return the cloud's time in epoch seconds."""
        return float(self._call("GET", "clock")["now"])

    def advance(self, seconds: float) -> float:
        """Let time pass on a virtual clock; return the new time."""
        return float(self._call("POST", "clock", {"advance": seconds})["now"])

    def ready_now(self, group: str | None = None) -> list[str]:
        """Put machines on their way in (of one group or all) into service at once; return their ids."""
        return list(self._call("POST", "ready", {"group": group})["instance_ids"])

    def add_fault(self, kind: str, **about: Any) -> dict[str, Any]:
        """Make a fault rule of `simulator.aws.faults.KINDS`; kind "capacity" takes instance_type, zone, duration_s."""
        return dict(self._call("POST", "faults", {"kind": kind, **about}))

    def faults(self) -> dict[str, Any]:
        """Return the fault rules and shortages in force."""
        return dict(self._call("GET", "faults"))

    def clear_faults(self, fault_id: int | None = None) -> None:
        """Drop one fault rule, or all of them and all shortages."""
        self._call("DELETE", "faults" + ("" if fault_id is None else f"?id={fault_id}"))

    def spot_notice(self, instance_ids: list[str] | None = None, **about: Any) -> dict[str, Any]:
        """Interrupt spot machines; fields as in `simulator.aws.control.notify_spot`."""
        return dict(self._call("POST", "spot-notice", {"instance_ids": instance_ids, **about}))

    def set_quota(self, code: str, value: float, service: str = "ec2") -> None:
        """Set a service quota, such as ec2's L-1216C47A: vCPUs of running on-demand standard instances."""
        self._call("POST", "quotas", {"service": service, "code": code, "value": value})

    def set_account(self, account: str) -> None:
        """Let answers name this account, as those to other credentials do; its groups have the same names."""
        self._call("POST", "account", {"account": account})

    def calls(self, since: int = 0, **wanted: str | bool) -> list[dict[str, Any]]:
        """Return logged calls numbered above `since` whose fields (service, operation, plane, ...) equal `wanted`."""
        query = urllib.parse.urlencode({"since": since, **wanted})
        return list(self._call("GET", f"calls?{query}")["calls"])

    def mutations(self, since: int = 0, **wanted: str | bool) -> list[dict[str, Any]]:
        """Return the control-plane calls that could change something."""
        return self.calls(since, mutating=True, plane="control", **wanted)

    def imds(self, instance_id: str, path: str) -> str | None:
        """Return an item of the instance's metadata (a path under latest/meta-data/), None where it has none."""
        try:
            return self._fetch("GET", f"imds/{instance_id}/latest/meta-data/{path}").decode()
        except ControlError as problem:
            if problem.status == 404:
                return None
            raise

    def price_per_hour(self, instance_type: str, region: str = "us-east-1") -> float:
        """Return the on-demand price in US dollars per hour from the bundled table."""
        query = urllib.parse.urlencode({"instance_type": instance_type, "region": region})
        return float(self._call("GET", f"prices?{query}")["price_per_hour"])

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self._fetch(method, path, body))

    def _fetch(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.endpoint}/_trimtab/{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as problem:
            with problem:
                raise ControlError(problem.code, _reason(problem.read())) from None


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError):
        return body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class CloudProcess:
    """A cloud served by a separate process."""

    endpoint: str
    popen: subprocess.Popen[str]


@contextmanager
def start_process(arguments: Sequence[str] = (), *, ready_timeout_s: float = 30.0) -> Iterator[CloudProcess]:
    """Run `python -m simulator.aws` with `arguments` until the block ends; it also ends when this process does.

    Raises: RuntimeError when it is not ready within `ready_timeout_s`.
    """
    command = [sys.executable, "-m", "simulator.aws", "--port", "0", "--parent", str(os.getpid()), *arguments]
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    watchdog = threading.Timer(ready_timeout_s, popen.kill)
    watchdog.start()
    try:
        line = popen.stdout.readline() if popen.stdout is not None else ""
        watchdog.cancel()
        if not line:
            raise RuntimeError(
                f"the simulated cloud did not start (exit {popen.wait()}): run {' '.join(command)} to see why"
            )
        yield CloudProcess(json.loads(line)["endpoint"], popen)
    finally:
        watchdog.cancel()
        popen.terminate()
        try:
            popen.wait(5.0)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        if popen.stdout is not None:
            popen.stdout.close()
