"""A machine with Trimtab installed by the scripts of deploy/, and a simulated AWS in its network."""

from __future__ import annotations

import functools
import http.client
import importlib.util
import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from agent.settings import read_settings
from agent.settings.names import as_toml, path_of, values
from simulator.admission import Cluster
from simulator.aws.client import CloudControl, start_process
from tests.deploy.test_scripts import a_checkout
from tests.real.systemd import debian
from tests.real.systemd.machine import Machine, booted, wait_for
from tests.trainer.learning.recorded_clusters import SMALL, record

CHECKOUT, WHEELS, OURS = "/root/trimtab", "/opt/wheels", "/opt/tests"
AGENT, COLLECT, LEARN, TIMER = "trimtab-agent", "trimtab-collect", "trimtab-learn", "trimtab-learn.timer"
WATCH, WATCH_TIMER = "trimtab-watch", "trimtab-watch.timer"
GROUP, QUEUE, REGION, API_PORT = "web-workers", "web-jobs", "eu-west-1", 8080
AGENT_KEY, OWNER_KEY, SECRET = "agent", "owner", "simulated-secret-key"
TICK_S = 10
TOKEN = secrets.token_hex(32)
WATCHDOG_DROP_IN = f"/run/systemd/system/{AGENT}.service.d/watchdog.conf"


class Host:
    """The agent's host. What it promises is looked at from outside: through systemd, the agent's API and AWS."""

    def __init__(self, machine: Machine, endpoint: str, wheel: str) -> None:
        self.machine, self.endpoint, self.wheel = machine, endpoint, wheel
        self.vm: str = self.group()["Instances"][0]["InstanceId"]

    def script(self, name: str, *options: str) -> str:
        """Run a script of deploy/ with the umask of a careful administrator, and return its output."""
        command = f'umask 077; exec "{CHECKOUT}/deploy/{name}" "$@"'
        return self.machine.run("bash", "-c", command, name, *options).stdout

    def install(self) -> None:
        """Install the agent and the collector from a wheel, write settings and the token of the API, start both."""
        self.script("install.sh", "--role", "both", "--source", self.wheel)
        self.configure()
        token = self.machine.path("/etc/trimtab/credentials/http__token")
        token.write_text(f"{TOKEN}\n")
        token.chmod(0o600)
        self.machine.run("systemctl", "enable", "--now", AGENT, COLLECT)

    def settings(self) -> dict[str, str]:
        """Return the agent's settings: a fleet of one group, and a cluster whose past is in the ledger."""
        group = "TRIMTAB_FLEETS__web__GROUPS__workers__"
        return {
            "TRIMTAB_MODE": "act",
            "TRIMTAB_TICK_INTERVAL_S": str(TICK_S),
            "TRIMTAB_GRACE_S": "1",
            "TRIMTAB_AWS__REGION": REGION,
            "TRIMTAB_AWS__ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": AGENT_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "TRIMTAB_LISTENER__PORT": "2003",
            "TRIMTAB_HTTP__HOST": "127.0.0.1",
            "TRIMTAB_HTTP__PORT": str(API_PORT),
            "TRIMTAB_FLEETS__web__POLICY": "queue-rule",
            "TRIMTAB_FLEETS__web__QUEUE_URL": f"{self.endpoint}/123456789012/{QUEUE}",
            f"{group}NAME": GROUP,
            f"{group}VM_TYPE": "m5a.large",
            f"{group}CORES": "2",
            f"{group}MEMORY_GB": "8",
            f"{group}PRICE_PER_HOUR": "0.086",
            f"{group}MIN": "1",
            f"{group}MAX": "10",
            "TRIMTAB_CLUSTERS__main__CAPACITY_CORES": "130",
            "TRIMTAB_CLUSTERS__main__POLICY": "zeroth",
            "TRIMTAB_CLUSTERS__main__THRESHOLD_CORES": "130",
            "TRIMTAB_LEARNING__CPU_MINUTES": "0.02",
        }

    def collectors_settings(self) -> dict[str, str]:
        """Return the collector's settings, for which this host is a VM of the group."""
        group = {"HOST": "127.0.0.1", "PORT": "2003", "FLEET": "web", "GROUP": "workers", "VM": self.vm}
        return {f"TRIMTAB_COLLECT__{name}": value for name, value in group.items()} | {
            "TRIMTAB_COLLECT__RUN_DIRECTORY": "/run/trimtab",
            "TRIMTAB_SAMPLE_INTERVAL_S": "2",
        }

    def configure(self, **more: str) -> None:
        """Write the settings of both in place of the examples'; more: variables of the agent, which go before its file.

        The file of settings is as open as install.sh makes it: a service's user reads it.
        """
        given = self.settings()
        loaded = read_settings({**given, "TRIMTAB_HTTP__TOKEN": TOKEN})
        file = self.machine.path("/etc/trimtab/agent.toml")
        is_given = {path_of(name) for name in given}
        file.write_text(as_toml((path, value) for path, value in values(loaded.settings) if path in is_given))
        keys = {name: text for name, text in given.items() if name.startswith("AWS_")}
        of_agent = {"TRIMTAB_CONFIG": "/etc/trimtab/agent.toml", **keys, **more}
        for role, variables in (("agent", of_agent), ("collect", self.collectors_settings())):
            file = self.machine.path(f"/etc/trimtab/{role}.env")
            file.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))

    def restore(self) -> None:
        """Install and start the agent where a test before left it otherwise."""
        machine = self.machine
        if machine.path("/etc/systemd/system/trimtab-learn.timer").exists():
            self.script("uninstall.sh")
        if not machine.path("/opt/trimtab/bin/trimtab").exists():
            self.install()
        if machine.path(WATCHDOG_DROP_IN).exists():
            machine.path(WATCHDOG_DROP_IN).unlink()
            machine.run("systemctl", "daemon-reload")
        self.configure()
        if not self.is_ready():
            machine.run("systemctl", "restart", AGENT)

    def is_ready(self) -> bool:
        """Tell whether the agent runs and is no longer starting."""
        return self.machine.show(AGENT, "ActiveState")["ActiveState"] == "active"

    def trimtab(self, *arguments: str) -> str:
        """Run the operators' command and return its output."""
        return self.machine.run("/opt/trimtab/bin/trimtab", *arguments).stdout

    def api(self, path: str, token: str = TOKEN) -> tuple[int, Any]:
        """Ask the agent's API over TCP; return the status and the document."""
        with self.machine.network():
            connection = http.client.HTTPConnection("127.0.0.1", API_PORT, timeout=10.0)
            try:
                connection.request("GET", f"/api/v1/{path}", headers={"Authorization": f"Bearer {token}"})
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())
            finally:
                connection.close()

    def decisions(self) -> list[int]:
        """Return the numbers of the fleet's last decisions by the agent's API, newest first; none before it answers."""
        try:
            _, page = self.api("autoscaling/web/decisions")
        except OSError:
            return []
        return [int(row["id"].removeprefix("web-")) for row in page["decisions"]]

    def newest_decision(self) -> int:
        """Return the number of the fleet's newest decision; waits for the first one."""
        return max(wait_for(self.decisions, "a decision", 60.0))

    def await_decision(self, after: int) -> int:
        """Wait for a decision with a larger number; return the first such number."""
        return min(wait_for(lambda: [n for n in self.decisions() if n > after], f"a decision after web-{after}", 60.0))

    def group(self) -> dict[str, Any]:
        """Return the fleet's group, as AWS describes it."""
        with self.machine.network():
            return described(self.endpoint)

    def submit(self, jobs: int) -> None:
        """Put jobs into the fleet's queue."""
        with self.machine.network():
            queues = client(self.endpoint, "sqs")
            for _ in range(jobs):
                queues.send_message(QueueUrl=self.settings()["TRIMTAB_FLEETS__web__QUEUE_URL"], MessageBody="job")

    def probe(self, unit: str, script: Path, *arguments: str, wants: str = "") -> dict[str, Any]:
        """Run a script in the sandbox of a unit of ours, and return the document that it prints.

        The unit is the installed one under another name, but for what is started; wants: more of its section Service.
        """
        folder, name = self.machine.path("/etc/systemd/system"), f"probe-{script.stem.removeprefix('probe_')}.service"
        place = self.machine.path("/opt/probe")
        place.mkdir(exist_ok=True)
        shutil.copy(script, place)
        python = "/opt/trimtab/venv/bin/python -I -B"
        more = f"[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecStartPre=\nExecStart=\n{wants}"
        more += f"ExecStart={python} /opt/probe/{script.name} {' '.join(arguments)}\n"
        (folder / f"{name}.d").mkdir(exist_ok=True)
        (folder / f"{name}.d" / "probe.conf").write_text(more)
        shutil.copy(folder / f"{unit}.service", folder / name)
        try:
            self.machine.run("systemctl", "daemon-reload")
            done = self.machine.run("systemctl", "start", name, check=False)
            journal = self.machine.journal(name)
            assert done.returncode == 0, f"{done.stderr}\n{journal}"
        finally:
            (folder / name).unlink()
            shutil.rmtree(folder / f"{name}.d")
        (line,) = [line for line in journal.splitlines() if line.startswith("{")]
        return dict(json.loads(line))

    def of_process(self, unit: str, file: str) -> bytes:
        """Return a file of /proc about a unit's main process."""
        pid = self.machine.main_pid(unit)
        assert pid, f"{unit} does not run"
        return self.machine.path(f"/proc/{pid}/{file}").read_bytes()


@functools.cache
def client(endpoint: str, service: str) -> Any:
    """Return a client of the account's owner, for use in the network of the machine."""
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=OWNER_KEY,
        aws_secret_access_key=SECRET,
        config=Config(retries={"total_max_attempts": 1}),
    )


def described(endpoint: str) -> dict[str, Any]:
    """Return the fleet's group, as AWS describes it."""
    found = client(endpoint, "autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])
    return dict(found["AutoScalingGroups"][0])


def fill(endpoint: str) -> None:
    """Make the fleet's queue and its group with one VM in service."""
    client(endpoint, "sqs").create_queue(QueueName=QUEUE)
    client(endpoint, "ec2").create_launch_template(
        LaunchTemplateName=GROUP, LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "m5a.large"}
    )
    client(endpoint, "autoscaling").create_auto_scaling_group(
        AutoScalingGroupName=GROUP,
        LaunchTemplate={"LaunchTemplateName": GROUP, "Version": "$Latest"},
        MinSize=1,
        MaxSize=10,
        DesiredCapacity=1,
        AvailabilityZones=[f"{REGION}a"],
        Tags=[{"Key": "trimtab:fleet", "Value": "web"}],
    )
    CloudControl(endpoint).ready_now()


def packages_of_tests() -> list[Path]:
    """Return the folders from which this Python imports torch and numba, none where it is not the root's Python."""
    if sys.version_info[:2] != debian.PYTHON:
        return []
    specs = [importlib.util.find_spec(name) for name in ("torch", "numba")]
    return list(dict.fromkeys(Path(spec.origin).parents[1] for spec in specs if spec is not None and spec.origin))


def wheel_of(checkout: Path, folder: Path) -> Path:
    """Build Trimtab's own wheel."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(checkout)], check=True, capture_output=True)
    (wheel,) = folder.glob("trimtab-*.whl")
    return wheel


@contextmanager
def running_host(folder: Path) -> Iterator[Host]:
    """Boot a machine, start an AWS in its network and install the agent there; all of it ends with the block.

    The ledger is there before the agent: it has some days of a cluster, to learn from. Raises NotAvailable.
    """
    root, wheels = debian.debian_root(), debian.wheels()
    checkout, scratch = a_checkout(folder / "checkout"), folder / "machine"
    scratch.mkdir()
    folder.chmod(0o755)
    ledger = folder / "ledger.db"
    record(ledger, Cluster("main", SMALL, 100_000, 4.0, 1e-3), 100.0, at=time.time() - 101 * 3600.0)
    wheel = wheel_of(checkout, folder / "wheel")
    mounts = {wheels: WHEELS} | {here: f"{OURS}/{number}" for number, here in enumerate(packages_of_tests())}
    with ExitStack() as stack:
        machine = stack.enter_context(booted(root, scratch, mounts))
        shutil.copytree(checkout, machine.path(CHECKOUT))
        shutil.copy(wheel, machine.path("/root"))
        machine.path("/etc/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {WHEELS}\n")
        machine.path("/var/lib/trimtab").mkdir()
        shutil.copy(ledger, machine.path("/var/lib/trimtab/ledger.db"))
        with machine.network():
            cloud = stack.enter_context(start_process(["--launch-delay", "1:2", "--seed", "7"]))
            fill(cloud.endpoint)
        host = Host(machine, cloud.endpoint, f"/root/{wheel.name}")
        host.install()
        yield host
