"""A site for a daemon in a process of its own: the fake AWS as another process, its VMs and its queue reporting."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from domain.clock import ScaledClock
from simulator.aws.client import CloudControl, start_process
from tests.agent.service.supervisor import Supervisor

ROOT = Path(__file__).parents[3]
AGENT_KEY, OWNER_KEY, SECRET = "agent", "owner", "simulated-secret-key"
ORIGIN = 1_772_366_400.0
GROUP = "web-s"
REGION = "us-east-1"


class Site:
    """Group `web-s` of a fleet `web` in a fake AWS, and what its VMs and its queue report."""

    def __init__(self, endpoint: str, clock: ScaledClock) -> None:
        self.clock, self.endpoint = clock, endpoint
        self.control = CloudControl(endpoint)
        self.groups = self._client("autoscaling")
        self.waiting = 0.0
        self.vm_readings: Callable[[float], Mapping[str, float]] = lambda at: VM_READINGS
        self.listeners: set[int] = set()
        self._stopping = threading.Event()
        self._reporter = threading.Thread(target=self._report, daemon=True)

    def make_group(self, name: str = GROUP, size: int = 1, tags: Mapping[str, str] | None = None, **about: Any) -> None:
        """Make a group of m5a.large from 0 to 10 with `size` VMs in service."""
        machines = self._client("ec2")
        machines.create_launch_template(
            LaunchTemplateName=name, LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "m5a.large"}
        )
        self.groups.create_auto_scaling_group(
            **{
                "AutoScalingGroupName": name,
                "LaunchTemplate": {"LaunchTemplateName": name, "Version": "$Latest"},
                "MinSize": 0,
                "MaxSize": 10,
                "DesiredCapacity": size,
                "AvailabilityZones": ["us-east-1a"],
                "Tags": [{"Key": key, "Value": value} for key, value in (tags or {}).items()],
                **about,
            }
        )
        self.control.ready_now()

    def start(self) -> None:
        """Begin to report."""
        self._reporter.start()

    def stop(self) -> None:
        """End reporting."""
        self._stopping.set()
        if self._reporter.is_alive():
            self._reporter.join(60.0)

    def desired(self, name: str = GROUP) -> int:
        """A group's desired capacity, as AWS holds it."""
        found = self.groups.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return int(found[0]["DesiredCapacity"])

    def mutations(self, operation: str = "", access_key: str = AGENT_KEY) -> list[dict[str, Any]]:
        """An agent's calls that could change something."""
        calls = self.control.mutations(access_key=access_key)
        return [call for call in calls if operation in ("", call["operation"])]

    def fault_met(self) -> bool:
        """Whether a request has met one of the faults; a call that hangs in one is not logged before it ends."""
        return any(rule["met"] for rule in self.control.faults()["faults"])

    def _report(self) -> None:
        names = {GROUP: "workers"}
        while not self._stopping.wait(10.0 / self.clock.speed):
            at = self.clock.now()
            described = self.groups.describe_auto_scaling_groups(AutoScalingGroupNames=list(names))
            lines = [f"trimtab.web.queue.{metric} {value} {at}" for metric, value in self._queue().items()]
            for group in described["AutoScalingGroups"]:
                for vm in group["Instances"]:
                    if vm["LifecycleState"] == "InService":
                        series = f"trimtab.web.{names[group['AutoScalingGroupName']]}.{vm['InstanceId']}"
                        lines += [f"{series}.{metric} {value} {at}" for metric, value in self.vm_readings(at).items()]
            text = "".join(f"{line}\n" for line in lines).encode()
            for port in tuple(self.listeners):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as connection:
                    connection.sendall(text)

    def _queue(self) -> dict[str, float]:
        return {"waiting": self.waiting, "running": 0.0, "submitted_total": self.waiting}

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=OWNER_KEY,
            aws_secret_access_key=SECRET,
            config=Config(retries={"total_max_attempts": 1}),
        )


VM_READINGS = {"cpu_percent": 90.0, "ram_percent": 20.0, "busy_cores": 2.0, "work_core_seconds": 120.0}


@contextlib.contextmanager
def running_site(speed: float) -> Iterator[Site]:
    """A fake AWS whose time passes `speed` times as fast, without groups yet."""
    clock = ScaledClock(ORIGIN, time.time(), speed)
    numbers = ["--origin", repr(ORIGIN), "--wall-origin", repr(clock.wall_origin), "--speed", repr(speed)]
    with start_process(numbers) as process:
        site = Site(process.endpoint, clock)
        try:
            yield site
        finally:
            site.stop()


class Daemon:
    """`trimtab run` in a process of its own, on the site's clock, with a supervisor; python: what runs it."""

    def __init__(self, site: Site, directory: Path, *, python: str = sys.executable, **settings: str) -> None:
        self.site, self.directory, self.python = site, directory, python
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._settings = settings
        self.supervisor = Supervisor(f"@trimtab-test-{os.getpid()}-{self.port}")
        self.log = directory / "log.jsonl"
        self.popen: subprocess.Popen[bytes] | None = None
        self.ahead_s = 0.0
        """By how much its clock is ahead of the site's."""

    def await_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until it says READY; AssertionError with the end of its log when it does not."""
        try:
            self.supervisor.until("READY", timeout_s)
        except TimeoutError:
            status = None if self.popen is None else self.popen.poll()
            log = self.log.read_text("utf-8")[-4000:]
            raise AssertionError(f"not ready after {timeout_s:g} s, exit status {status}:\n{log}") from None

    @property
    def ledger_url(self) -> str:
        """Where its ledger is."""
        return self._settings.get("TRIMTAB_LEDGER__URL", f"sqlite:///{self.directory / 'ledger.db'}")

    def environ(self) -> dict[str, str]:
        """Everything that its process sees: nothing of ours but the way to Python."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TRIMTAB_"))}
        return {
            **clean,
            **self.supervisor.environ,
            "PYTHONPATH": str(ROOT),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ACCESS_KEY_ID": AGENT_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "WATCHDOG_USEC": "3000000",
            "TRIMTAB_MODE": "act",
            "TRIMTAB_STATE_DIRECTORY": str(self.directory),
            "TRIMTAB_LISTENER__PORT": str(self.port),
            "TRIMTAB_AWS__REGION": REGION,
            "TRIMTAB_AWS__ENDPOINT_URL": self.site.endpoint,
            **self._settings,
        }

    def start(self) -> None:
        """Start it."""
        clock = self.site.clock
        numbers = [repr(clock.origin + self.ahead_s), repr(clock.wall_origin), repr(clock.speed)]
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [self.python, "-m", "tests.agent.service.scaled_daemon", *numbers],
                cwd=ROOT,
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.site.listeners.add(self.port)

    def terminate(self) -> None:
        """Send SIGTERM."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 120.0) -> int:
        """Its exit status once it has ended."""
        assert self.popen is not None
        return self.popen.wait(timeout_s)

    def close(self) -> None:
        """End it however it stands."""
        if self.popen is not None and self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self.supervisor.__exit__(None, None, None)


FLEET = {
    "TRIMTAB_FLEETS__web__GROUPS__workers__NAME": GROUP,
    "TRIMTAB_FLEETS__web__GROUPS__workers__VM_TYPE": "m5a.large",
    "TRIMTAB_FLEETS__web__GROUPS__workers__CORES": "2",
    "TRIMTAB_FLEETS__web__GROUPS__workers__MEMORY_GB": "8",
    "TRIMTAB_FLEETS__web__GROUPS__workers__PRICE_PER_HOUR": "0.086",
    "TRIMTAB_FLEETS__web__GROUPS__workers__MIN": "0",
    "TRIMTAB_FLEETS__web__GROUPS__workers__MAX": "10",
}
"""The site's fleet, as settings describe it."""


LOWEST_PORT, FIRST_OF_ANY = 20_000, 32_768
"""Linux gives ports from the second one on to those who ask for any."""


def free_port() -> int:
    """A TCP port that was free a moment ago, and that the system gives to nobody who asks for any port.

    A daemon takes a second or two until it listens: meanwhile one of the many connections of tests beside this one
    could get the port.
    """
    for _ in range(100):
        port = LOWEST_PORT + secrets.randbelow(FIRST_OF_ANY - LOWEST_PORT)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
